#include <algorithm>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/bandwidth.h"
#include "backend/cuda/runtime/memory.h"
#include "backend/cuda/runtime/status.h"

namespace tercet {

using cuda::check;

Result<CudaDevice> cuda_device(int device) {
  CudaDevice out;
  int count = 0;
  cudaDriverGetVersion(&out.driver);
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (out.driver == 0) return fail("no NVIDIA driver is installed");
  if (status != cudaSuccess) {
    return fail("CUDA: {} (the driver knows CUDA {}.{})", cudaGetErrorString(status), out.driver / 1000,
                out.driver % 1000 / 10);
  }
  if (device < 0 || device >= count) return fail("CUDA device {}: there are {}", device, count);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device));
  out.name = properties.name;
  out.major = properties.major;
  out.minor = properties.minor;
  out.processors = properties.multiProcessorCount;
  out.block_shared = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  check(cudaSetDevice(device));
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  out.memory = static_cast<int64_t>(total);
  out.free = static_cast<int64_t>(free);
  if (!cuda::has_code_here()) {
    return fail("CUDA device {}, {}: this program holds no code for compute capability {}.{}", device,
                out.name, out.major, out.minor);
  }
  return out;
}

Result<double> cuda_read_bandwidth(int device) {
  constexpr int kPasses = 5;
  TERCET_TRY(const CudaDevice found, cuda_device(device));
  int64_t held = 0;
  const int64_t bytes = std::min(int64_t{4} << 30, found.free / 2) / 4096 * 4096;
  const cuda::DeviceBytes memory(bytes, held);
  const cuda::DeviceBytes sink(sizeof(uint32_t), held);
  const cuda::Stream stream;
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  check(cudaMemsetAsync(memory.get(), 1, static_cast<size_t>(bytes), stream.get()));
  double best = 0;
  {
    cuda::Launcher launcher(stream.get(), false, false);
    for (int pass = 0; pass < kPasses; ++pass) {
      check(cudaEventRecord(begin, stream.get()));
      cuda::read_all(launcher, {memory.get(), reinterpret_cast<uint32_t*>(sink.get()), bytes});
      launcher.flush();
      check(cudaEventRecord(end, stream.get()));
      launcher.wait();
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin, end));
      best = std::max(best, static_cast<double>(bytes) / (1e-3 * static_cast<double>(milliseconds)));
    }
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  return best;
}

}  // namespace tercet
