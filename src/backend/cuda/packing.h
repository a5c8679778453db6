// Weights on the device.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/kernels/pack.h"
#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"
#include "backend/cuda/runtime/memory.h"
#include "backend/cuda/runtime/staging.h"
#include "ops/ops.h"

namespace tercet::cuda {

/// Matrices of one form that lie together.
struct Part {
  Weights weights;
  int64_t first = 0;  // output of the whole
};

struct PackedLinear final : Linear {
  DeviceBytes memory;
  std::vector<Part> parts;
  bool tame = false;  // PackParams::wild
};

struct PackedTable final : Table {
  DeviceBytes memory;
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;
  const uint8_t* biases = nullptr;
  MatrixData form;  // without data
};

/// Of all experts at equal distances, of expert 0: where all have one form.
struct AlikeExperts {
  Weights gate_up, down;
  int64_t gate_up_values = 0, gate_up_scales = 0, down_values = 0, down_scales = 0;  // distances in bytes
};

struct PackedExperts final : Experts {
  DeviceBytes memory;
  const Weights* gate = nullptr;  // [count], on the device
  const Weights* up = nullptr;
  const Weights* down = nullptr;
  int64_t least_group = 0;  // of all
  bool alike = false;
  bool tame = false;  // as PackedLinear
  AlikeExperts same;
};

/// 0: bf16, 1: f16, 2: f32, as kernels have it.
int32_t dtype_code(DType dtype);

/// Copies and packs; done when the next queued work begins. Data may go when a call returns.
class Packer {
 public:
  /// `threads` of the host bring data on its way.
  Packer(Launcher& launcher, int64_t& held, int threads);

  std::unique_ptr<PackedLinear> linear(std::span<const MatrixData> parts);
  std::unique_ptr<PackedTable> table(const MatrixData& data);
  std::unique_ptr<PackedExperts> experts(std::span<const MatrixData> gate, std::span<const MatrixData> up,
                                         std::span<const MatrixData> down);

 private:
  void fill(const Weights& to, int64_t first, const MatrixData& data);
  void fill_floats(const Weights& to, int64_t first, const MatrixData& data);
  /// Sends and packs what fill() has gathered.
  void pack_gathered();
  /// Whether what was packed since the last call is.
  bool tame();

  Launcher& launcher_;
  int64_t& held_;
  Staging staging_;
  std::vector<PackParams> gathered_;  // their data are in staging_, not sent yet
  Scratch wide_, units_, flags_;
  DeviceBytes wild_;
};

}  // namespace tercet::cuda
