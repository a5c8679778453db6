// A step and a cache on the device.
#pragma once

#include <vector>

#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/runtime/memory.h"
#include "ops/ops.h"

namespace tercet::cuda {

struct CudaStep final : Step {
  RowPlaces places{};
  uint8_t* failed = nullptr;  // [rows], on the device
  int32_t last_position = 0;  // the largest of all rows
  int64_t* live = nullptr;    // steps that exist

  CudaStep() = default;
  CudaStep(const CudaStep&) = delete;
  ~CudaStep() override {
    if (live != nullptr) --*live;
  }
};

struct CudaCache final : KvCache {
  DeviceBytes memory;
  CacheView view{};
};

}  // namespace tercet::cuda
