// Device memory that grows to what the largest step needs, and what a step's kernels read from the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// A stream of the current device, with one owner.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Bytes on the device with one owner. `held` counts them and must outlive this.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  DeviceBytes(int64_t bytes, int64_t& held);
  ~DeviceBytes();
  DeviceBytes(DeviceBytes&& other) noexcept;
  DeviceBytes& operator=(DeviceBytes&& other) noexcept;

  uint8_t* get() const { return data_; }
  int64_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  int64_t size_ = 0;
  int64_t* held_ = nullptr;
};

/// Memory of one use, kept from step to step. Growing waits for all queued work.
class Scratch {
 public:
  Scratch(Launcher& launcher, int64_t& held) : launcher_(launcher), held_(held) {}

  template <class T>
  T* get(int64_t count) {
    return reinterpret_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  uint8_t* bytes(int64_t size);

  Launcher& launcher_;
  int64_t& held_;
  DeviceBytes memory_;
};

/// As Scratch, in the host's memory, to which kernels may write.
class HostScratch {
 public:
  explicit HostScratch(Launcher& launcher) : launcher_(launcher) {}
  ~HostScratch();
  HostScratch(const HostScratch&) = delete;

  template <class T>
  T* get(int64_t count) {
    return reinterpret_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  uint8_t* bytes(int64_t size);

  Launcher& launcher_;
  uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

/// What the host hands a step: positions, pages, tokens. Copied to the device by flush(), before the kernels
/// that read it. Sizes are rounded up to powers of two, so that steps that repeat find theirs in one place.
class StepInput {
 public:
  explicit StepInput(int64_t& held);
  ~StepInput();
  StepInput(const StepInput&) = delete;

  /// Forgets everything; nothing of it may be in use.
  void reset();
  template <class T>
  T* put(const T* data, int64_t count) {
    return reinterpret_cast<T*>(put_bytes(data, count * static_cast<int64_t>(sizeof(T))));
  }
  void flush(cudaStream_t stream);

 private:
  uint8_t* put_bytes(const void* data, int64_t bytes);

  DeviceBytes device_;
  uint8_t* host_ = nullptr;
  int64_t used_ = 0;
  int64_t copied_ = 0;
};

/// Words in the host's memory that are 0 until kernels set them, each given away once.
class HostFlags {
 public:
  HostFlags() = default;
  ~HostFlags();
  HostFlags(const HostFlags&) = delete;

  int32_t* next();

 private:
  std::vector<int32_t*> blocks_;
  size_t left_ = 0;  // of the last block
};

}  // namespace tercet::cuda
