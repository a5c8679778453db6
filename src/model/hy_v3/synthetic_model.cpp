#include "model/hy_v3/synthetic_model.h"

#include <charconv>
#include <cmath>
#include <string>

#include "model/hy_v3/model_parts.h"
#include "weights/synthetic.h"

namespace tercet::hy_v3 {
namespace {

using Tensors = std::vector<SyntheticTensor>;
using Shape = std::vector<int64_t>;

constexpr std::string_view kPrefix = "synthetic:";

/// A matrix, or a stack of them where `leading` is not empty. `name`: that of the float tensor.
struct Stack {
  std::string base, name;
  Shape leading;
  int64_t n, k;
  double spread;  // standard deviation of the weights

  Shape shape(int64_t last) const {
    Shape result = leading;
    result.insert(result.end(), {n, last});
    return result;
  }
};

void add_stack(Tensors& tensors, const Quantization& quantization, const Stack& m) {
  const QuantizationEntry& entry = quantization.of(m.base);
  if (entry.bits == 0) {
    tensors.push_back({{m.name, DType::bf16, m.shape(m.k)}, SyntheticKind::weights, m.spread});
    return;
  }
  const Shape groups = m.shape(m.k / entry.group);
  tensors.push_back(
      {{m.base + ".weight", DType::u32, m.shape(m.k * entry.bits / 32)}, SyntheticKind::packed, 0});
  tensors.push_back({{m.base + ".scales", DType::bf16, groups}, SyntheticKind::scales, m.spread, entry.bits});
  tensors.push_back({{m.base + ".biases", DType::bf16, groups}, SyntheticKind::biases, m.spread, entry.bits});
}

/// With inputs near 1, products of this gain have outputs near it.
double spread(MatrixRole role, int64_t k, bool tied) {
  const double unit = 1 / std::sqrt(static_cast<double>(k));
  switch (role) {
    case MatrixRole::embedding:
      return tied ? 2 * unit : 1;  // a tied table is the head too
    case MatrixRole::lm_head:
    case MatrixRole::router:
      return 2 * unit;
    case MatrixRole::inner:
      break;
  }
  return unit;
}

void add_vector(Tensors& tensors, const VectorPart& part, bool tie_experts) {
  switch (part.role) {
    case VectorRole::norm:
      tensors.push_back({{part.name, DType::bf16, {part.n}}, SyntheticKind::norm, 1});
      break;
    case VectorRole::head_norm:  // attention scores of standard deviation about 2: neither flat nor one-hot
      tensors.push_back({{part.name, DType::bf16, {part.n}}, SyntheticKind::norm, 1.5});
      break;
    case VectorRole::expert_bias:
      if (tie_experts) {
        tensors.push_back({{part.name, DType::f32, {part.n}}, SyntheticKind::constant, 0x1p21});
      } else {
        tensors.push_back({{part.name, DType::f32, {part.n}}, SyntheticKind::offsets, 0.05});
      }
      break;
  }
}

void add_experts(Tensors& tensors, const Config& config, const ExpertNames& experts) {
  const auto add = [&](const std::vector<std::string>& names, int64_t n, int64_t k) {
    const bool stacked = names.size() == 1;
    for (const std::string& name : names) {
      // transformers keeps its stacks as parameters of the experts' module: no ".weight".
      const std::string tensor = stacked && !experts.gate_up.empty() ? name : name + ".weight";
      add_stack(tensors, config.quantization,
                {name, tensor, stacked ? Shape{config.num_experts} : Shape{}, n, k,
                 spread(MatrixRole::inner, k, false)});
    }
  };
  const int64_t inner = config.moe_intermediate_size;
  add(experts.gate, inner, config.hidden_size);
  add(experts.up, inner, config.hidden_size);
  add(experts.gate_up, 2 * inner, config.hidden_size);
  add(experts.down, config.hidden_size, inner);
}

/// What the two published models share.
Config common_config() {
  Config config;
  config.vocab_size = 120832;
  config.num_shared_experts = 1;
  config.experts_per_token = 8;
  config.max_positions = 262144;
  config.rms_norm_eps = 1e-5F;
  config.rope_theta = 11158840;
  config.router_scaling = 2.826F;
  config.route_norm = true;
  config.expert_bias = true;
  config.bos_ids = {120000};
  config.eos_ids = {120025};
  config.quantization.defaults = {.bits = 4, .group = 64};
  return config;
}

/// One dense layer before sparse ones, as in both models; their routers have 8 bits.
void set_layers(Config& config, int64_t num_layers) {
  config.num_layers = num_layers;
  config.layers.assign(static_cast<size_t>(num_layers), LayerKind::sparse);
  config.layers[0] = LayerKind::dense;
  config.quantization.modules.clear();
  for (const MatrixPart& part : list_parts(config, spell_names(config, Spelling::mlx)).matrices) {
    if (part.role == MatrixRole::router) config.quantization.modules[part.name] = {.bits = 8, .group = 64};
  }
}

}  // namespace

Checkpoint make_synthetic_model(const Config& config, const SyntheticOptions& options, int threads) {
  Tensors tensors;
  const ModelParts parts = list_parts(config, spell_names(config, options.spelling));
  for (const MatrixPart& part : parts.matrices) {
    add_stack(tensors, config.quantization,
              {part.name,
               part.name + ".weight",
               {},
               part.n,
               part.k,
               spread(part.role, part.k, config.tied_embeddings)});
  }
  for (const VectorPart& part : parts.vectors) add_vector(tensors, part, options.tie_experts);
  for (const ExpertNames& experts : parts.experts) add_experts(tensors, config, experts);
  return {write_config(config), make_synthetic_source(std::move(tensors), options.seed, threads)};
}

std::optional<Config> published_config(std::string_view name) {
  Config config = common_config();
  if (name == "hy3") {
    config.hidden_size = 4096;
    config.num_heads = 64;
    config.num_kv_heads = 8;
    config.intermediate_size = 13312;
    config.moe_intermediate_size = 1536;
    config.num_experts = 192;
    config.mtp_layers = 1;
    set_layers(config, 80);
  } else if (name == "hy-mt2-30b") {
    config.hidden_size = 2048;
    config.num_heads = 32;
    config.num_kv_heads = 4;
    config.intermediate_size = 6912;
    config.moe_intermediate_size = 768;
    config.num_experts = 128;
    set_layers(config, 48);
  } else {
    return std::nullopt;
  }
  return config;
}

bool is_synthetic(std::string_view model) { return model.starts_with(kPrefix); }

Result<Checkpoint> parse_synthetic(std::string_view model, uint64_t seed, int threads) {
  const std::string_view rest = is_synthetic(model) ? model.substr(kPrefix.size()) : std::string_view();
  const size_t colon = rest.find(':');
  std::optional<Config> config = published_config(rest.substr(0, colon));
  if (!config) {
    return fail("{}: expected synthetic:hy3[:LAYERS] or synthetic:hy-mt2-30b[:LAYERS]", model);
  }
  if (colon != std::string_view::npos) {
    const std::string_view text = rest.substr(colon + 1);
    int64_t layers = 0;
    const auto [end, error] = std::from_chars(text.begin(), text.end(), layers);
    if (error != std::errc() || end != text.end() || layers < 1 || layers > config->num_layers) {
      return fail("{}: expected 1 to {} layers, found \"{}\"", model, config->num_layers, text);
    }
    set_layers(*config, layers);
  }
  return make_synthetic_model(*config, {.seed = seed}, threads);
}

}  // namespace tercet::hy_v3
