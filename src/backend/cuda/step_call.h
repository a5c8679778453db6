// An operation of a step as programs take it: all that its phases depend on, by value. Steps repeat, and
// calls are compared by their bytes, so arguments have no padding.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cuda/kernels/attention_blocks.h"
#include "backend/cuda/kernels/router.h"
#include "backend/cuda/kernels/views.h"
#include "backend/cuda/kernels/write_kv.h"
#include "ops/ops.h"

namespace tercet::cuda {

enum class CallKind : int32_t {
  norm,
  linear,
  gate_up,
  route,
  experts_gate_up,
  experts_down,
  write_kv,
  attention,
};

struct NormCall {
  static constexpr CallKind kKind = CallKind::norm;
  Rows x, z;
  Vector weight;
  Rows h;
  float eps = 0.0F;
  int32_t zero = 0;
};

struct LinearCall {
  static constexpr CallKind kKind = CallKind::linear;
  uint8_t* failed = nullptr;
  Rows h;
  Weights weights;
  Rows y;
};

struct GateUpCall {
  static constexpr CallKind kKind = CallKind::gate_up;
  uint8_t* failed = nullptr;
  Rows h;
  Weights weights;
  Rows a;
};

struct RouteCall {
  static constexpr CallKind kKind = CallKind::route;
  Rows h;
  Weights router;
  ChooseParams choice;  // without logits
};

/// Of all experts at equal distances.
struct ExpertWeights {
  Weights first;
  int64_t values = 0, scales = 0;  // distances in bytes
};

struct ExpertsGateUpCall {
  static constexpr CallKind kKind = CallKind::experts_gate_up;
  uint8_t* failed = nullptr;
  Rows h;
  Routes routes;
  ExpertWeights experts;
  Rows a;
};

struct ExpertsDownCall {
  static constexpr CallKind kKind = CallKind::experts_down;
  uint8_t* failed = nullptr;
  Rows a;
  Routes routes;
  ExpertWeights experts;
  Rows shared, z;
};

struct WriteKvCall {
  static constexpr CallKind kKind = CallKind::write_kv;
  WriteKvAndQueriesParams params;
};

struct AttentionCall {
  static constexpr CallKind kKind = CallKind::attention;
  AttentionParams params;
  Queries queries;
  int32_t blocks = 0;  // of 64 keys that the longest row has, or more: a power of two
  int32_t single = 0;  // no two rows are of one sequence
};

class Call {
 public:
  template <class Args>
  explicit Call(const Args& args) : kind_(Args::kKind), bytes_(sizeof args) {
    static_assert(std::is_trivially_copyable_v<Args> && sizeof args <= kMostBytes);
    std::memcpy(args_.data(), &args, sizeof args);
  }

  CallKind kind() const { return kind_; }
  template <class Args>
  Args as() const {
    Args args;
    std::memcpy(&args, args_.data(), sizeof args);
    return args;
  }
  template <class Args>
  bool is(const Args& args) const {
    return kind_ == Args::kKind && std::memcmp(args_.data(), &args, sizeof args) == 0;
  }
  bool operator==(const Call& other) const {
    return kind_ == other.kind_ && std::memcmp(args_.data(), other.args_.data(), bytes_) == 0;
  }

 private:
  static constexpr size_t kMostBytes = 168;
  CallKind kind_;
  uint32_t bytes_;
  alignas(8) std::array<std::byte, kMostBytes> args_;
};

}  // namespace tercet::cuda
