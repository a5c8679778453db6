// The way of large data from the host to the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "backend/cuda/runtime/launcher.h"
#include "backend/cuda/runtime/memory.h"
#include "base/threads.h"

namespace tercet::cuda {

/// Threads gather data in page-locked memory, from where it goes to the device in large pieces while they
/// gather the next. Holds two pieces' memory on the host and on the device, which is little until a large one
/// comes.
class Staging {
 public:
  static constexpr int64_t kBytes = int64_t{32} << 20;  // of a piece, at most

  Staging(Launcher& launcher, int64_t& held, int threads);
  ~Staging();
  Staging(const Staging&) = delete;

  /// What add() still takes before the next send().
  int64_t left() const { return bytes_ - used_; }
  /// Makes left() that much at least, up to kBytes. Nothing may have been added.
  void make_room(int64_t bytes);
  /// Where kernels find these bytes, at most left() of them, which send() reads. `bytes` are rounded up to
  /// whole kAlign.
  uint8_t* add(const void* from, int64_t bytes);
  /// Brings what was added to the device, in order with the launcher's stream. It stays there until the
  /// send() after the next.
  void send();
  /// Copies any number of bytes to a place of their own; nothing may have been added.
  void copy(void* to, const void* from, int64_t bytes);

  static constexpr int64_t kAlign = 256;

 private:
  struct Slot {
    uint8_t* host = nullptr;
    DeviceBytes device;
    cudaEvent_t sent = nullptr;  // when `host` may be written again
  };
  struct Part {
    const uint8_t* from;
    int64_t at, bytes;  // in the slot
  };

  Slot& slot();
  void drop();
  /// Adds parts of kGrain bytes at most.
  void gather(const void* from, int64_t at, int64_t bytes);
  void send_to(void* to, int64_t bytes);

  Launcher& launcher_;
  int64_t& held_;
  ThreadPool pool_;
  Slot slots_[2];
  int next_ = 0;
  int64_t bytes_ = int64_t{1} << 20;  // of a slot
  int64_t used_ = 0;
  std::vector<Part> parts_;
};

}  // namespace tercet::cuda
