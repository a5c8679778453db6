#include "weights/checkpoint.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/log.h"
#include "weights/quantization.h"
#include "weights/safetensors.h"
#include "weights/sharded_source.h"

namespace tercet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

Result<std::string> read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail("{}: cannot be read", path.string());
  return std::string(std::istreambuf_iterator<char>(file), {});
}

bool is_gguf(const fs::path& file) {
  char magic[4] = {};
  std::ifstream(file, std::ios::binary).read(magic, sizeof magic);
  return file.extension() == ".gguf" || std::string_view(magic, sizeof magic) == "GGUF";
}

bool present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// The names in a directory that have this extension, sorted; none where it cannot be read.
std::set<std::string> files_with(const fs::path& directory, std::string_view extension) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == extension) names.insert(entry->path().filename().string());
  }
  return names;
}

tl::unexpected<Error> refuse_gguf(const fs::path& file) {
  return fail(
      "{}: GGUF files are not read yet; expected a Hugging Face or MLX checkpoint in safetensors files",
      file.string());
}

Result<std::map<std::string, std::string>> read_index(const fs::path& path) {
  TERCET_TRY(const std::string text, read_text(path));
  const nlohmann::json index = nlohmann::json::parse(text, nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object() ||
      index["weight_map"].empty()) {
    return fail("{}: expected a JSON object with a \"weight_map\" of tensors", path.string());
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) {
      return fail("{}: tensor \"{}\": expected the name of a file, found {}", path.string(), tensor,
                  file.dump());
    }
    const auto name = file.get<std::string>();
    if (!name.ends_with(".safetensors") || name.find('/') != std::string::npos) {
      return fail("{}: tensor \"{}\": expected a safetensors file beside the index, found \"{}\"",
                  path.string(), tensor, name);
    }
    shards.emplace(tensor, name);
  }
  return shards;
}

Result<std::shared_ptr<const TensorSource>> open_shards(const fs::path& directory) {
  const fs::path index_path = directory / kIndex;
  TERCET_TRY(const auto index, read_index(index_path));
  std::set<std::string> superfluous = files_with(directory, ".safetensors");
  std::set<std::string> named;
  for (const auto& [tensor, file] : index) named.insert(file);

  std::vector<Shard> shards;
  std::vector<std::string> faults;
  for (const std::string& file : named) {
    superfluous.erase(file);
    if (!present(directory / file)) {
      faults.push_back(fmt::format("{}: missing", file));
    } else if (auto source = open_safetensors(directory / file); source) {
      shards.push_back({file, std::move(*source)});
    } else {
      faults.push_back(source.error().message);
    }
  }
  for (const std::string& file : superfluous) {
    if (file.starts_with("model")) {
      faults.push_back(fmt::format("{}: superfluous: the index does not name it", file));
    } else {
      log_warn("{}: not read: {} does not name it", (directory / file).string(), kIndex);
    }
  }
  if (!faults.empty()) {
    return fail("{}: {} of the checkpoint's files {} not as the index says:\n  {}", index_path.string(),
                faults.size(), faults.size() == 1 ? "is" : "are", fmt::join(faults, "\n  "));
  }
  return make_sharded_source(shards, index, index_path.string());
}

Result<std::shared_ptr<const TensorSource>> open_weights(const fs::path& directory) {
  if (present(directory / kIndex)) return open_shards(directory);
  if (present(directory / kSingle)) return open_safetensors(directory / kSingle);
  const std::set<std::string> others = files_with(directory, ".safetensors");
  return fail("{}: expected {} or {}, found {}", directory.string(), kSingle, kIndex,
              others.empty() ? "no safetensors file" : fmt::format("{}", fmt::join(others, ", ")));
}

Result<void> refuse_fp8(const TensorSource& source) {
  for (const TensorInfo& tensor : source.tensors()) {
    if (tensor.dtype == DType::f8_e4m3 || tensor.dtype == DType::f8_e5m2) {
      return fail("{}: tensor \"{}\" is {}: FP8 checkpoints are not read yet", source.origin(tensor),
                  tensor.name, dtype_name(tensor.dtype));
    }
  }
  return {};
}

}  // namespace

Result<Checkpoint> open_checkpoint(const fs::path& path) {
  if (!present(path)) return fail("{}: no such file or directory", path.string());
  std::error_code ignored;
  const bool single = !fs::is_directory(path, ignored);
  if (single && is_gguf(path)) return refuse_gguf(path);
  if (single && path.extension() != ".safetensors") {
    return fail("{}: expected a checkpoint's directory or a .safetensors file", path.string());
  }
  const fs::path directory = single ? path.parent_path() : path;
  const std::set<std::string> gguf = files_with(directory, ".gguf");
  if (!gguf.empty() && files_with(directory, ".safetensors").empty()) {
    return refuse_gguf(directory / *gguf.begin());
  }
  const fs::path config = directory / "config.json";
  if (!present(config)) {
    return fail("{}: no such file: a checkpoint has its config.json beside its weights", config.string());
  }

  Checkpoint checkpoint;
  TERCET_TRY(checkpoint.config_json, read_text(config));
  if (const auto quantization = parse_quantization(checkpoint.config_json); !quantization) {
    return fail("{}: {}", config.string(), quantization.error().message);
  }
  TERCET_TRY(checkpoint.tensors, single ? open_safetensors(path) : open_weights(directory));
  TERCET_TRY_VOID(refuse_fp8(*checkpoint.tensors));
  return checkpoint;
}

}  // namespace tercet
