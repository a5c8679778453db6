// Where the time of a step goes: operations of any backend, counted and timed by the part of the model that
// they compute.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "ops/ops.h"

namespace tercet {

/// In the order in which a step meets them.
enum class ModelPart : uint8_t {
  embedding,
  norms,  // and the sums before them
  qkv,
  write_kv,
  attention,
  attention_out,
  dense_gate_up,
  dense_down,
  router,
  shared_gate_up,
  shared_down,
  experts_gate_up,
  experts_down,
  mtp_input,
  lm_head,
  draw,
};
inline constexpr size_t kModelParts = 16;

std::string_view part_name(ModelPart part);

struct PartCost {
  int64_t calls = 0;
  int64_t bytes = 0;     // of weights and cache that must be read, each once a call
  int64_t products = 0;  // multiplications that the model asks for
  double seconds = 0;
};

/// What ProfiledOps writes to: one thread.
struct Profile {
  bool on = false;
  std::array<PartCost, kModelParts> parts;

  const PartCost& of(ModelPart part) const { return parts[static_cast<size_t>(part)]; }
  PartCost total() const;
};

/// `inner`, whose work is added to `profile` (which must outlive it) while that is on. Times are those of the
/// calls: of the work itself where a backend works within the call. Routes are downloaded to count the
/// experts really chosen, outside the time; off, a call costs one branch.
std::unique_ptr<Ops> make_profiled_ops(std::unique_ptr<Ops> inner, Profile& profile);

}  // namespace tercet
