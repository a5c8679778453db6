#include "weights/checkpoint.h"

#include <gmock/gmock.h>

#include "weights/checkpoint_writer.h"
#include "weights/test_files.h"

namespace tercet {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::tensor_of;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kFirst = "model-00001-of-00003.safetensors";
constexpr const char* kSecond = "model-00002-of-00003.safetensors";
constexpr const char* kThird = "model-00003-of-00003.safetensors";

Checkpoint three_tensors() {
  std::vector<GeneratedTensor> tensors;
  tensors.push_back(tensor_of<uint32_t>("a", DType::u32, {2}, {1, 2}));
  tensors.push_back(tensor_of<uint16_t>("b", DType::bf16, {3}, {3, 4, 5}));
  tensors.push_back(tensor_of<float>("c", DType::f32, {1, 2}, {6, 7}));
  return {"{}\n", make_generated_source(std::move(tensors), "test")};
}

void write(const std::filesystem::path& path, int shards) {
  const auto status = write_checkpoint(path, three_tensors(), shards);
  ASSERT_TRUE(status) << status.error().message;
}

void expect_three_tensors(const std::filesystem::path& path) {
  const auto checkpoint = open_checkpoint(path);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->config_json, "{}\n");
  const TensorSource& read = *checkpoint->tensors;
  const Checkpoint written = three_tensors();
  ASSERT_EQ(read.tensors().size(), 3);
  for (const TensorInfo& tensor : written.tensors->tensors()) {
    ASSERT_NE(read.find(tensor.name), nullptr);
    EXPECT_EQ(read.find(tensor.name)->shape, tensor.shape);
    EXPECT_EQ(read.find(tensor.name)->dtype, tensor.dtype);
    EXPECT_EQ(testing::bytes_of(read, tensor.name), testing::bytes_of(*written.tensors, tensor.name));
  }
}

TEST(Checkpoint, SingleFile) {
  const TempDir dir;
  write(dir.path(), 1);
  expect_three_tensors(dir.path());
  expect_three_tensors(dir / "model.safetensors");
}

TEST(Checkpoint, Shards) {
  const TempDir dir;
  write(dir.path(), 3);
  for (const char* file : {kFirst, kSecond, kThird}) EXPECT_TRUE(std::filesystem::exists(dir / file)) << file;
  EXPECT_FALSE(std::filesystem::exists(dir / "model.safetensors"));
  expect_three_tensors(dir.path());

  const auto checkpoint = open_checkpoint(dir.path());
  EXPECT_EQ(checkpoint->tensors->origin(*checkpoint->tensors->find("c")), (dir / kThird).string());
}

TEST(Checkpoint, ASingleFileMayHaveAnIndex) {  // as mlx-lm writes it
  const TempDir dir;
  write(dir.path(), 1);
  dir.write(
      kIndex,
      R"({"weight_map": {"a": "model.safetensors", "b": "model.safetensors", "c": "model.safetensors"}})");
  expect_three_tensors(dir.path());
}

TEST(Checkpoint, TheSameBytesEachTime) {
  const TempDir a, b;
  write(a.path(), 2);
  write(b.path(), 2);
  for (const auto& entry : std::filesystem::directory_iterator(a.path())) {
    EXPECT_EQ(testing::read_file(entry.path()), testing::read_file(b / entry.path().filename().string()));
  }
}

TEST(Checkpoint, AllFaultyFilesAreListedAtOnce) {
  const TempDir dir;
  write(dir.path(), 3);
  std::filesystem::remove(dir / kFirst);
  std::filesystem::resize_file(dir / kSecond, std::filesystem::file_size(dir / kSecond) - 1);
  dir.write("model-00004-of-00004.safetensors", "");
  const std::string error = error_of(open_checkpoint(dir.path()));
  EXPECT_THAT(
      error, HasSubstr((dir / kIndex).string() + ": 3 of the checkpoint's files are not as the index says:"));
  EXPECT_THAT(error, HasSubstr(fmt::format("\n  {}: missing", kFirst)));
  EXPECT_THAT(error, HasSubstr(fmt::format("\n  {}: tensor \"b\": data_offsets [0, 6] lie outside the file",
                                           (dir / kSecond).string())));
  EXPECT_THAT(error,
              HasSubstr("\n  model-00004-of-00004.safetensors: superfluous: the index does not name it"));
}

TEST(Checkpoint, EachFaultAloneIsAnError) {
  const TempDir dir;
  write(dir.path(), 3);
  const std::string third = testing::read_file(dir / kThird);
  std::filesystem::remove(dir / kThird);
  EXPECT_EQ(error_of(open_checkpoint(dir.path())),
            fmt::format("{}: 1 of the checkpoint's files is not as the index says:\n  {}: missing",
                        (dir / kIndex).string(), kThird));
  dir.write(kThird, third + "x");
  EXPECT_THAT(error_of(open_checkpoint(dir.path())), HasSubstr("expected 8 bytes after the header, found 9"));
  dir.write(kThird, third);
  dir.write("model.safetensors", third);
  EXPECT_THAT(error_of(open_checkpoint(dir.path())), HasSubstr("model.safetensors: superfluous"));
  std::filesystem::remove(dir / "model.safetensors");
  dir.write("adapter.safetensors", "no shard of the model");
  expect_three_tensors(dir.path());
}

TEST(Checkpoint, AStaleIndexIsNamed) {
  const TempDir dir;
  write(dir.path(), 3);
  const auto index = [&](const std::string& map) {
    dir.write(kIndex, "{\"weight_map\":" + map + "}");
    return error_of(open_checkpoint(dir.path()));
  };
  const std::string head = (dir / kIndex).string() + ": the index does not belong to the files:\n  ";
  const std::string files = fmt::format(R"("b":"{}","c":"{}")", kSecond, kThird);
  EXPECT_EQ(index(fmt::format(R"({{"a":"{}","d":"{}",{}}})", kFirst, kFirst, files)),
            head + fmt::format("\"d\": expected in {}, which lacks it", kFirst));
  EXPECT_EQ(index(fmt::format(R"({{"b":"{}","c":"{}","d":"{}"}})", kSecond, kThird, kFirst)),
            head + fmt::format("\"a\": in {}, absent in the index\n  \"d\": expected in {}, which lacks it",
                               kFirst, kFirst));
  EXPECT_EQ(
      index(fmt::format(R"({{"a":"{0}","b":"{1}","c":"{1}","d":"{2}"}})", kFirst, kSecond, kThird)),
      head + fmt::format("\"c\": expected in {1}, which lacks it\n  \"c\": in {2}, expected in {1}\n  \"d\": "
                         "expected in {2}, which lacks it",
                         kFirst, kSecond, kThird));

  std::string many = "{" + files;
  for (int i = 0; i < 12; ++i) many += fmt::format(R"(,"x{:02}":"{}")", i, kFirst);
  EXPECT_THAT(index(many + "}"),
              HasSubstr("x08\": expected in " + std::string(kFirst) + ", which lacks it\n  and 3 more"));
}

TEST(Checkpoint, AMalformedIndexIsNamed) {
  const TempDir dir;
  write(dir.path(), 3);
  const std::string path = (dir / kIndex).string();
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})"}) {
    dir.write(kIndex, text);
    EXPECT_EQ(error_of(open_checkpoint(dir.path())),
              path + ": expected a JSON object with a \"weight_map\" of tensors");
  }
  dir.write(kIndex, R"({"weight_map":{"a":1}})");
  EXPECT_EQ(error_of(open_checkpoint(dir.path())),
            path + ": tensor \"a\": expected the name of a file, found 1");
  for (const std::string name : {"", "../x.safetensors", "/etc/passwd", "sub/x.safetensors", "model.bin"}) {
    dir.write(kIndex, R"({"weight_map":{"a":")" + name + "\"}}");
    EXPECT_EQ(error_of(open_checkpoint(dir.path())),
              fmt::format("{}: tensor \"a\": expected a safetensors file beside the index, found \"{}\"",
                          path, name));
  }
}

TEST(Checkpoint, PathsThatHoldNone) {
  const TempDir dir;
  EXPECT_EQ(error_of(open_checkpoint(dir / "none")), (dir / "none").string() + ": no such file or directory");
  EXPECT_EQ(
      error_of(open_checkpoint(dir.path())),
      (dir / "config.json").string() + ": no such file: a checkpoint has its config.json beside its weights");
  EXPECT_EQ(error_of(open_checkpoint(dir.write("notes.txt", "x"))),
            (dir / "notes.txt").string() + ": expected a checkpoint's directory or a .safetensors file");
  dir.write("config.json", "{}");
  EXPECT_EQ(error_of(open_checkpoint(dir.path())),
            dir.path().string() +
                ": expected model.safetensors or model.safetensors.index.json, found no safetensors file");
  dir.write(kFirst, "");
  EXPECT_EQ(error_of(open_checkpoint(dir.path())),
            fmt::format("{}: expected model.safetensors or model.safetensors.index.json, found {}",
                        dir.path().string(), kFirst));
}

TEST(Checkpoint, RefusesWhatIsNotReadYet) {
  const TempDir dir;
  const std::string gguf =
      ": GGUF files are not read yet; expected a Hugging Face or MLX checkpoint in safetensors files";
  EXPECT_EQ(error_of(open_checkpoint(dir.write("model.gguf", "GGUF\3\0\0\0"))),
            (dir / "model.gguf").string() + gguf);
  EXPECT_EQ(error_of(open_checkpoint(dir.write("renamed.bin", "GGUF\3"))),
            (dir / "renamed.bin").string() + gguf);
  EXPECT_EQ(error_of(open_checkpoint(dir.path())), (dir / "model.gguf").string() + gguf);
  dir.write("config.json", "{}");
  EXPECT_EQ(error_of(open_checkpoint(dir.path())), (dir / "model.gguf").string() + gguf);
  std::filesystem::remove(dir / "model.gguf");

  const std::string config =
      dir.write("config.json", R"({"quantization_config":{"quant_method":"fp8"}})").string();
  EXPECT_EQ(error_of(open_checkpoint(dir.path())),
            config + ": quantization_config.quant_method is \"fp8\": such weights are not read yet");
  dir.write("config.json", R"({"quantization":{"bits":4,"group_size":32,"mode":"mxfp4"}})");
  EXPECT_EQ(
      error_of(open_checkpoint(dir.path())),
      config + ": quantization.mode is \"mxfp4\": mxfp4 weights are not read yet (expected \"affine\")");
  dir.write("config.json", "{");
  EXPECT_EQ(error_of(open_checkpoint(dir.path())), config + ": expected a JSON object");
}

TEST(Checkpoint, RefusesFp8TensorsWhateverTheConfigSays) {
  const TempDir dir;
  std::vector<GeneratedTensor> tensors;
  tensors.push_back(tensor_of<uint8_t>("w", DType::f8_e4m3, {2}, {1, 2}));
  ASSERT_TRUE(write_checkpoint(dir.path(), {"{}", make_generated_source(std::move(tensors), "test")}, 1));
  EXPECT_EQ(
      error_of(open_checkpoint(dir.path())),
      (dir / "model.safetensors").string() + ": tensor \"w\" is F8_E4M3: FP8 checkpoints are not read yet");
}

TEST(CheckpointWriter, ADirectoryThatCannotBeMade) {
  const TempDir dir;
  dir.write("file", "");
  EXPECT_EQ(error_of(write_checkpoint(dir / "file" / "x", three_tensors(), 1)),
            (dir / "file" / "x").string() + ": cannot be created: Not a directory");
}

}  // namespace
}  // namespace tercet
