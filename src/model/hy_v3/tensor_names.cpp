#include "model/hy_v3/tensor_names.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <span>

#include "base/log.h"

namespace tercet::hy_v3 {
namespace {

/// A part whose name differs: by Spelling. Every other name is the same in all three.
using Spellings = std::array<const char*, 3>;

constexpr Spellings kRouter{"mlp.router.gate", "mlp.gate", "mlp.router.gate"};
constexpr Spellings kExpertBias{"mlp.expert_bias", "mlp.e_score_correction_bias", "mlp.router.expert_bias"};
constexpr Spellings kSharedGate{"mlp.shared_mlp.gate_proj", "mlp.shared_experts.gate_proj",
                                "mlp.shared_mlp.gate_proj"};
constexpr Spellings kSharedUp{"mlp.shared_mlp.up_proj", "mlp.shared_experts.up_proj",
                              "mlp.shared_mlp.up_proj"};
constexpr Spellings kSharedDown{"mlp.shared_mlp.down_proj", "mlp.shared_experts.down_proj",
                                "mlp.shared_mlp.down_proj"};

/// Where a module's tensors may end: a matrix is `NAME.weight` or `NAME`, with `NAME.scales`, `NAME.biases`.
constexpr std::array kEndings{"", ".weight", ".scales", ".biases"};

enum class ExpertStorage { apart, fused, stacked, stacked_in_experts };

/// Gives each part its name: either as a spelling has it, or as a source has it.
class Namer {
 public:
  virtual ~Namer() = default;
  virtual std::string matrix(const std::string& prefix, const Spellings& part) = 0;
  virtual std::string vector(const std::string& prefix, const Spellings& part) = 0;
  virtual ExpertStorage storage(const std::string& prefix) = 0;

  std::string matrix(const std::string& name) { return matrix(name, {"", "", ""}); }
  std::string vector(const std::string& name) { return vector(name, {"", "", ""}); }
};

class SpellingNamer final : public Namer {
 public:
  explicit SpellingNamer(Spelling spelling) : spelling_(spelling) {}
  using Namer::matrix;
  using Namer::vector;

  std::string matrix(const std::string& prefix, const Spellings& part) override {
    return prefix + part[static_cast<size_t>(spelling_)];
  }
  std::string vector(const std::string& prefix, const Spellings& part) override {
    return matrix(prefix, part);
  }
  ExpertStorage storage(const std::string&) override {
    constexpr std::array kStorage{ExpertStorage::apart, ExpertStorage::fused, ExpertStorage::stacked};
    return kStorage[static_cast<size_t>(spelling_)];
  }

 private:
  Spelling spelling_;
};

class SourceNamer final : public Namer {
 public:
  explicit SourceNamer(const TensorSource& source) : source_(source) {}
  using Namer::matrix;
  using Namer::vector;

  std::string matrix(const std::string& prefix, const Spellings& part) override {
    constexpr std::array kWeight{".weight", ""};
    return pick(prefix, part, kWeight, kEndings);
  }
  std::string vector(const std::string& prefix, const Spellings& part) override {
    constexpr std::array<const char*, 1> kWhole{""};
    return pick(prefix, part, kWhole, kWhole);
  }
  ExpertStorage storage(const std::string& prefix) override {
    if (has(prefix + "mlp.experts.gate_up_proj")) return ExpertStorage::fused;
    if (has(prefix + "mlp.switch_mlp.gate_proj")) return ExpertStorage::stacked;
    if (has(prefix + "mlp.experts.gate_proj")) return ExpertStorage::stacked_in_experts;
    return ExpertStorage::apart;
  }

  bool has(const std::string& matrix) const {
    return source_.find(matrix + ".weight") != nullptr || source_.find(matrix) != nullptr;
  }
  std::vector<std::string> missing;
  std::set<std::string> used;

 private:
  std::string pick(const std::string& prefix, const Spellings& part, std::span<const char* const> needed,
                   std::span<const char* const> endings) {
    for (const char* spelling : part) {
      std::string name = prefix + spelling;
      const bool found = std::ranges::any_of(
          needed, [&](const char* ending) { return source_.find(name + ending) != nullptr; });
      if (!found) continue;
      for (const char* ending : endings) used.insert(name + ending);
      return name;
    }
    missing.push_back(prefix + part[0] + needed[0]);
    return {};
  }

  const TensorSource& source_;
};

ExpertNames name_experts(Namer& namer, const std::string& prefix, int64_t num_experts) {
  const ExpertStorage storage = namer.storage(prefix);
  ExpertNames names;
  if (storage == ExpertStorage::apart) {
    for (int64_t e = 0; e < num_experts; ++e) {
      const std::string expert = fmt::format("{}mlp.experts.{}.", prefix, e);
      names.gate.push_back(namer.matrix(expert + "gate_proj"));
      names.up.push_back(namer.matrix(expert + "up_proj"));
      names.down.push_back(namer.matrix(expert + "down_proj"));
    }
    return names;
  }
  const std::string stack = prefix + (storage == ExpertStorage::stacked ? "mlp.switch_mlp." : "mlp.experts.");
  if (storage == ExpertStorage::fused) {
    names.gate_up.push_back(namer.matrix(stack + "gate_up_proj"));
  } else {
    names.gate.push_back(namer.matrix(stack + "gate_proj"));
    names.up.push_back(namer.matrix(stack + "up_proj"));
  }
  names.down.push_back(namer.matrix(stack + "down_proj"));
  return names;
}

MoeNames name_moe(Namer& namer, const std::string& prefix, const Config& config) {
  MoeNames names;
  names.router = namer.matrix(prefix, kRouter);
  if (config.expert_bias) names.expert_bias = namer.vector(prefix, kExpertBias);
  names.experts = name_experts(namer, prefix, config.num_experts);
  if (config.num_shared_experts > 0) {
    names.shared = SwiGluNames{namer.matrix(prefix, kSharedGate), namer.matrix(prefix, kSharedUp),
                               namer.matrix(prefix, kSharedDown)};
  }
  return names;
}

LayerNames name_layer(Namer& namer, const std::string& prefix, LayerKind kind, const Config& config) {
  LayerNames names;
  names.input_norm = namer.vector(prefix + "input_layernorm.weight");
  names.post_norm = namer.vector(prefix + "post_attention_layernorm.weight");
  names.q = namer.matrix(prefix + "self_attn.q_proj");
  names.k = namer.matrix(prefix + "self_attn.k_proj");
  names.v = namer.matrix(prefix + "self_attn.v_proj");
  names.o = namer.matrix(prefix + "self_attn.o_proj");
  names.q_norm = namer.vector(prefix + "self_attn.q_norm.weight");
  names.k_norm = namer.vector(prefix + "self_attn.k_norm.weight");
  if (kind == LayerKind::sparse) {
    names.moe = name_moe(namer, prefix, config);
  } else {
    names.dense = SwiGluNames{namer.matrix(prefix + "mlp.gate_proj"), namer.matrix(prefix + "mlp.up_proj"),
                              namer.matrix(prefix + "mlp.down_proj")};
  }
  return names;
}

MtpNames name_mtp(Namer& namer, const std::string& own, const std::string& layer, const Config& config) {
  MtpNames names;
  names.enorm = namer.vector(own + "enorm.weight");
  names.hnorm = namer.vector(own + "hnorm.weight");
  names.final_norm = namer.vector(own + "final_layernorm.weight");
  names.eh_proj = namer.matrix(own + "eh_proj");
  names.layer = name_layer(namer, layer, LayerKind::sparse, config);
  return names;
}

ModelNames name_model(Namer& namer, const Config& config) {
  ModelNames names;
  names.embed = namer.matrix("model.embed_tokens");
  names.norm = namer.vector("model.norm.weight");
  if (!config.tied_embeddings) names.lm_head = namer.matrix("lm_head");
  for (int64_t i = 0; i < config.num_layers; ++i) {
    names.layers.push_back(
        name_layer(namer, fmt::format("model.layers.{}.", i), config.layers[static_cast<size_t>(i)], config));
  }
  return names;
}

constexpr const char* kMlxMtp = "mtp.";

/// Hugging Face counts the MTP layer as one more decoder layer.
std::string last_layer(const Config& config) { return fmt::format("model.layers.{}.", config.num_layers); }

bool has_prefix(const TensorSource& source, const std::string& prefix) {
  const auto& tensors = source.tensors();
  const auto next = std::ranges::lower_bound(tensors, prefix, {}, &TensorInfo::name);
  return next != tensors.end() && next->name.starts_with(prefix);
}

std::string first_few(const std::vector<std::string>& names) {
  const size_t shown = std::min<size_t>(names.size(), 10);
  const std::string list = fmt::format("{}", fmt::join(std::span(names).first(shown), ", "));
  return shown == names.size() ? list : fmt::format("{} and {} more", list, names.size() - shown);
}

void log_unused(const TensorSource& source, const std::vector<std::string>& unused) {
  if (unused.empty()) return;
  log_warn("{} of the checkpoint's tensors are no part of the model and not used: {}", unused.size(),
           first_few(unused));
  for (const std::string& name : unused)
    log_info("not used: \"{}\" ({})", name, source.origin(*source.find(name)));
}

}  // namespace

ModelNames spell_names(const Config& config, Spelling spelling) {
  SpellingNamer namer(spelling);
  ModelNames names = name_model(namer, config);
  if (config.mtp_layers == 0) return names;
  const bool mlx = spelling == Spelling::mlx;
  const std::string own = mlx ? kMlxMtp : last_layer(config);
  names.mtp = name_mtp(namer, own, mlx ? own + "layer." : own, config);
  return names;
}

Result<ModelNames> resolve_names(const Config& config, const TensorSource& source) {
  SourceNamer namer(source);
  ModelNames names = name_model(namer, config);
  if (config.mtp_layers > 0) {
    if (has_prefix(source, kMlxMtp)) {
      names.mtp = name_mtp(namer, kMlxMtp, std::string(kMlxMtp) + "layer.", config);
    } else if (has_prefix(source, last_layer(config))) {
      names.mtp = name_mtp(namer, last_layer(config), last_layer(config), config);
    } else {
      log_info("the checkpoint has no MTP layer, though its config.json names one");
    }
  }
  if (!namer.missing.empty()) {
    return fail("{} of the model's tensors are missing: {}", namer.missing.size(), first_few(namer.missing));
  }
  for (const TensorInfo& tensor : source.tensors()) {
    if (!namer.used.contains(tensor.name)) names.unused.push_back(tensor.name);
  }
  log_unused(source, names.unused);
  return names;
}

}  // namespace tercet::hy_v3
