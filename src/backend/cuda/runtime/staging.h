// The way of large data from the host to the device.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/cuda/runtime/launcher.h"
#include "backend/cuda/runtime/memory.h"

namespace tercet::cuda {

/// Threads gather data in page-locked memory, piece by piece, from where it goes to the device; several
/// pieces are on their way at a time, and who adds data waits for nothing but room. Holds the pieces' memory
/// on the host and on the device, which is little until a large one comes.
class Staging {
 public:
  static constexpr int64_t kBytes = int64_t{8} << 20;  // of a piece, at most
  static constexpr int64_t kAlign = 256;

  /// `launcher` is this object's, and what send() is given may use it, until finish(); it must outlive this.
  Staging(Launcher& launcher, int64_t& held, int threads);
  ~Staging();
  Staging(const Staging&) = delete;

  /// What add() still takes before the next send().
  int64_t left() const { return bytes_ - used_; }
  /// Makes left() that much at least, up to kBytes. Nothing may have been added.
  void make_room(int64_t bytes);
  /// Where kernels find these bytes, at most left() of them, which must stay until finish(). `bytes` are
  /// rounded up to whole kAlign.
  uint8_t* add(const void* from, int64_t bytes);
  /// Keeps what was added, or what kernels write to, until it is no longer needed.
  void keep(std::shared_ptr<const void> owner);
  /// Brings what was added to the device and queues what `then` adds to the launcher, from another thread.
  void send(std::function<void()> then);
  /// Copies any number of bytes, which must stay until finish() unless `owner` keeps them, to a place that
  /// `target` keeps; nothing may have been added.
  void copy(const std::shared_ptr<DeviceBytes>& target, int64_t at, const void* from, int64_t bytes,
            const std::shared_ptr<const void>& owner);
  /// Waits until all is on the device and all kernels are done.
  void finish();

 private:
  static constexpr size_t kSlots = 8;
  static constexpr size_t kQueued = 64;  // pieces that wait to be sent at most: half a gigabyte
  struct Slot {
    uint8_t* host = nullptr;
    DeviceBytes device;
    cudaEvent_t sent = nullptr;  // `host` is on the device
    cudaEvent_t done = nullptr;  // kernels have read it
  };
  struct Part {
    const uint8_t* from;
    int64_t at, bytes;  // in the slot
  };
  struct Piece {
    Slot* slot = nullptr;
    uint8_t* to = nullptr;
    int64_t bytes = 0;
    std::vector<Part> parts;
    std::vector<std::shared_ptr<const void>> owners;
    std::function<void()> then;
    bool opened = false, open = false;  // whether a thread waits, or has waited, for the slot
    size_t taken = 0, copied = 0;       // parts
    bool sent = false;
  };

  Slot& slot();
  void drop();
  /// Adds parts of a moderate size.
  void gather(const void* from, int64_t at, int64_t bytes);
  void send_to(uint8_t* to, int64_t bytes, std::function<void()> then);
  /// What each thread does.
  void work();
  Piece* with_work();
  void dispatch(Piece& piece);

  Launcher& launcher_;
  int64_t& held_;
  int device_ = 0;
  Stream copies_;
  Slot slots_[kSlots];
  size_t next_ = 0;
  int64_t bytes_ = int64_t{1} << 20;  // of a slot
  int64_t used_ = 0;
  bool busy_ = false;  // since the last finish()
  Piece adding_;

  std::mutex mutex_;  // of what follows
  std::condition_variable work_, sent_;
  std::deque<Piece> pieces_;                         // in the order of send(), until sent
  std::vector<std::shared_ptr<const void>> unused_;  // what pieces kept: for the adding thread to let go
  bool stopping_ = false;
  std::mutex dispatching_;  // of launcher_ and copies_
  std::vector<std::thread> threads_;
};

}  // namespace tercet::cuda
