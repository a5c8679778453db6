#include "apps/verified_devices.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

namespace tercet {
namespace {

namespace fs = std::filesystem;

CudaDevice device(std::string name, int major, int minor) {
  CudaDevice out;
  out.name = std::move(name);
  out.major = major;
  out.minor = minor;
  return out;
}

class VerifiedDevices : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path file() const { return folder_ / "tercet" / "verified-devices"; }

  const fs::path folder_ = fs::path(testing::TempDir()) / "verified_devices_test";
  const CudaDevice a100_ = device("NVIDIA A100-SXM4-80GB", 8, 0);
  const CudaDevice ada_ = device("NVIDIA GeForce RTX 4090", 8, 9);
};

TEST_F(VerifiedDevices, KeepsTheLastVerdictOfEachDevice) {
  EXPECT_EQ(read_verdict(file(), ada_), std::nullopt);
  ASSERT_TRUE(write_verdict(file(), ada_, true));
  ASSERT_TRUE(write_verdict(file(), a100_, false));
  EXPECT_EQ(read_verdict(file(), ada_), true);
  EXPECT_EQ(read_verdict(file(), a100_), false);
  ASSERT_TRUE(write_verdict(file(), a100_, true));
  EXPECT_EQ(read_verdict(file(), a100_), true);
  EXPECT_EQ(read_verdict(file(), ada_), true);
  EXPECT_EQ(read_verdict(file(), device("NVIDIA GeForce RTX 409", 8, 9)), std::nullopt);
  EXPECT_EQ(read_verdict(file(), device("NVIDIA GeForce RTX 4090", 12, 0)), std::nullopt);
  EXPECT_EQ(std::distance(fs::directory_iterator(file().parent_path()), {}), 1);
}

TEST_F(VerifiedDevices, IsOfOneVersionOfTheProgram) {
  ASSERT_TRUE(write_verdict(file(), ada_, true));
  std::ifstream in(file());
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  const size_t version = line.find(TERCET_VERSION);
  ASSERT_NE(version, std::string::npos);
  line.replace(version, std::string_view(TERCET_VERSION).size(), "0.0.1");
  std::ofstream(file()) << line << "\npassed\n\nnonsense\n";
  EXPECT_EQ(read_verdict(file(), ada_), std::nullopt);
  ASSERT_TRUE(write_verdict(file(), ada_, true));  // others' lines stay
  std::ifstream again(file());
  ASSERT_TRUE(std::getline(again, line));
  EXPECT_THAT(line, testing::HasSubstr("tercet 0.0.1 "));
}

TEST_F(VerifiedDevices, SaysWhichFileCannotBeWritten) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "tercet") << "a file in the folder's place";
  const auto written = write_verdict(file(), ada_, true);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().message, file().string() + ": cannot be written");
}

TEST_F(VerifiedDevices, LieInTheUsersCache) {
  const auto with = [](const char* cache, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    };
    set("XDG_CACHE_HOME", cache);
    set("HOME", home);
    return verified_devices_file();
  };
  EXPECT_EQ(with("/cache", "/home/me"), "/cache/tercet/verified-devices");
  EXPECT_EQ(with(nullptr, "/home/me"), "/home/me/.cache/tercet/verified-devices");
  EXPECT_EQ(with("relative", "/home/me"), "/home/me/.cache/tercet/verified-devices");
  EXPECT_EQ(with("", nullptr), std::nullopt);
}

TEST(Verdict, NeedsAMinuteToBeGood) {
  EXPECT_EQ(verdict_of(0, 60), true);
  EXPECT_EQ(verdict_of(0, 59), std::nullopt);
  EXPECT_EQ(verdict_of(1, 5), false);
}

}  // namespace
}  // namespace tercet
