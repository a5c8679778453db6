// Weights on the device.
#pragma once

#include <memory>
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
  std::shared_ptr<DeviceBytes> memory;
  std::vector<Part> parts;
  const int32_t* wild = nullptr;  // PackParams::wild, known from Packer::finish() on

  bool tame() const { return *wild == 0; }
};

struct PackedTable final : Table {
  std::shared_ptr<DeviceBytes> memory;
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
  std::shared_ptr<DeviceBytes> memory;
  const Weights* gate = nullptr;  // [count], on the device
  const Weights* up = nullptr;
  const Weights* down = nullptr;
  int64_t least_group = 0;  // of all
  bool alike = false;
  const int32_t* wild = nullptr;  // as PackedLinear
  AlikeExperts same;

  bool tame() const { return *wild == 0; }
};

/// 0: bf16, 1: f16, 2: f32, as kernels have it.
int32_t dtype_code(DType dtype);

/// Copies and packs, on a stream of its own; what it returns is good from finish() on. Data may go when a
/// call returns, since what has no owner is waited for.
class Packer {
 public:
  /// `threads` of the host bring data on its way. `overlap`: the launcher's.
  Packer(int64_t& held, int threads, bool overlap);

  std::unique_ptr<PackedLinear> linear(std::span<const MatrixData> parts);
  std::unique_ptr<PackedTable> table(const MatrixData& data);
  std::unique_ptr<PackedExperts> experts(std::span<const MatrixData> gate, std::span<const MatrixData> up,
                                         std::span<const MatrixData> down);
  void finish() { staging_.finish(); }

 private:
  /// A list for kernels, in `memory`.
  const Weights* upload(const std::shared_ptr<DeviceBytes>& memory, int64_t at, std::vector<Weights> list);
  void fill(const Weights& to, int64_t first, const MatrixData& data);
  void fill_floats(const Weights& to, int64_t first, const MatrixData& data);
  /// Sends and packs what fill() has gathered.
  void pack_gathered();
  /// Begins and ends what is packed into one memory.
  const int32_t* start(std::shared_ptr<DeviceBytes> memory);
  void end(bool owned);

  int64_t& held_;
  Stream stream_;
  Launcher launcher_;
  HostFlags flags_;
  std::shared_ptr<DeviceBytes> memory_;  // being filled
  int32_t* wild_ = nullptr;              // of that
  std::vector<PackParams> gathered_;     // their data are in staging_, not sent yet
  Scratch wide_, units_, failed_;
  int64_t most_floats_ = 0;  // that these take
  Staging staging_;
};

}  // namespace tercet::cuda
