#include "text/read_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "text/test_model.h"

namespace tercet {
namespace {

TEST(ReadFile, GivesAllOfIt) {
  const TempDir dir;
  std::string text(100'000, 'x');
  text[70'000] = '\0';
  std::ofstream(dir.path() / "f", std::ios::binary) << text;
  EXPECT_EQ(read_file(dir.path() / "f").value(), text);
}

/// As a shell's <(…) is.
TEST(ReadFile, ReadsPipesToTheirEnd) {
  const TempDir dir;
  const auto pipe = dir.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << "two\nlines\n"; });
  EXPECT_EQ(read_file(pipe).value(), "two\nlines\n");
  writer.join();
}

TEST(ReadFile, SaysWhatCannotBeRead) {
  const TempDir dir;
  const std::string none = (dir.path() / "none").string();
  EXPECT_EQ(read_file(none).error().message, none + ": cannot be read: No such file or directory");
  EXPECT_EQ(read_file(dir.path()).error().message, dir.path().string() + ": cannot be read: Is a directory");
  EXPECT_EQ(read_file("/dev/zero").error().message, "/dev/zero: more than 268435456 bytes, expected a text");
}

}  // namespace
}  // namespace tercet
