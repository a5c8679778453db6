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
  int64_t kernels = 0;  // of a device
};

/// What ProfiledOps adds up.
enum class Profiling : uint8_t {
  none,
  work,  // calls, bytes and products; routes are downloaded to count the experts really chosen
  time,  // seconds and kernels
};

/// What ProfiledOps writes to: one thread.
struct Profile {
  Profiling what = Profiling::none;
  std::array<PartCost, kModelParts> parts;

  const PartCost& of(ModelPart part) const { return parts[static_cast<size_t>(part)]; }
  PartCost total() const;
};

/// `inner`, whose work is added to `profile` (which must outlive it) as that says. Times are those of the
/// calls where work is done within them; else of the device, between marks after each operation, and what
/// waits for the next operation counts there. With Profiling::none a call costs a branch.
std::unique_ptr<Ops> make_profiled_ops(std::unique_ptr<Ops> inner, Profile& profile);

}  // namespace tercet
