#include "model/hy_v3/placement.h"

#include <utility>

namespace tercet::hy_v3 {

std::vector<LayerRange> equal_stages(const Config& config, int stages) {
  std::vector<LayerRange> ranges;
  for (int stage = 0; stage < stages; ++stage) {
    ranges.push_back({config.num_layers * stage / stages, config.num_layers * (stage + 1) / stages});
  }
  return ranges;
}

Result<void> check_placement(const Config& config, int stages, int shards) {
  if (stages < 1 || stages > config.num_layers) {
    return fail("{} pipeline stages: expected 1 to {}, a layer each at least", stages, config.num_layers);
  }
  const std::pair<const char*, int64_t> parts[] = {
      {"attention heads", config.num_heads},
      {"KV heads", config.num_kv_heads},
      {"hidden size", config.hidden_size},
      {"dense intermediate size", config.intermediate_size},
      {"expert intermediate size", config.moe_intermediate_size},
      {"vocabulary", config.vocab_size},
  };
  if (shards < 1) return fail("{} tensor shards: expected at least 1", shards);
  for (const auto& [name, count] : parts) {
    if (count % shards != 0) return fail("{} tensor shards do not divide the {} of {}", shards, name, count);
  }
  return {};
}

}  // namespace tercet::hy_v3
