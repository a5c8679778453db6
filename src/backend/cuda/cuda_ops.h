// The reference's bits on an NVIDIA GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/select/device.h"
#include "base/error.h"
#include "ops/ops.h"

namespace tercet {

struct CudaOptions {
  int device = 0;
  int threads = 1;       // of the host, which bring weights on their way
  bool plain = false;    // the plain kernels only: slow, and obviously right
  bool untried = false;  // the fast kernels, without the trials that make_cuda_ops() asks of them
  bool common =
      false;  // of the fast kernels those of all generations, and no more shared memory than these have
  std::optional<bool> verified = {};  // what `tercet verify device` found on such a device, if it ran
};

struct CudaDevice {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int64_t memory = 0;        // bytes
  int64_t free = 0;          // bytes, now
  int32_t driver = 0;        // the newest CUDA that the driver knows: 13000 is 13.0
  int32_t processors = 0;    // multiprocessors
  int64_t block_shared = 0;  // bytes of shared memory that a block may have
};

inline cuda::DeviceTraits traits_of(const CudaDevice& device, bool plain = false, bool common = false) {
  return {device.major,
          device.minor,
          device.processors,
          common ? std::min(device.block_shared, cuda::kCommonShared) : device.block_shared,
          plain,
          common};
}

/// Errors: this program was built without CUDA; no driver, or one too old; no such device; a device for which
/// the program holds no code.
Result<CudaDevice> cuda_device(int device = 0);

/// The names of the trials (backend/reference/trials.h) in which `fast` gives other bits than `plain`; empty
/// where all is well; and of more that concern the fast kernels alone (gate.h). Some tenths of a second.
std::vector<std::string> failing_cuda_kernels(Ops& plain, Ops& fast);

/// Unless `plain` or `untried` is set, fast kernels run where they are proven, which devices of some compute
/// capabilities are (select/generation.h) and `verified` may say, and where they give the plain ones' bits in
/// some tenths of a second of trials; on other devices a warning says why the plain ones run. Errors as
/// cuda_device(). The object and what it made are for one thread at a time.
Result<std::unique_ptr<Ops>> make_cuda_ops(const CudaOptions& options = {});

/// Bytes a second that the device reads from its own memory: the best of several passes over 4 GiB, or half
/// of what is free. Errors as cuda_device().
Result<double> cuda_read_bandwidth(int device = 0);

}  // namespace tercet
