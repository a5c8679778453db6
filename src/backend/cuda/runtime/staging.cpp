#include "backend/cuda/runtime/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cuda/runtime/status.h"
#include "base/check.h"

namespace tercet::cuda {
namespace {

constexpr int64_t kGrain = int64_t{512} << 10;  // bytes that a thread copies at a time

}  // namespace

Staging::Staging(Launcher& launcher, int64_t& held, int threads) : launcher_(launcher), held_(held) {
  check(cudaGetDevice(&device_));
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

Staging::~Staging() {
  finish();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  drop();
}

void Staging::drop() {
  for (Slot& slot : slots_) {
    if (slot.host == nullptr) continue;
    cudaEventDestroy(slot.sent);
    cudaEventDestroy(slot.done);
    cudaFreeHost(slot.host);
    slot = {};
  }
}

void Staging::make_room(int64_t bytes) {
  TERCET_CHECK_EQ(used_, 0);
  TERCET_CHECK_LE(bytes, kBytes);
  if (bytes <= bytes_) return;
  finish();
  drop();
  bytes_ = kBytes;
}

Staging::Slot& Staging::slot() {
  Slot& slot = slots_[next_];
  if (slot.host != nullptr) return slot;
  check(cudaMallocHost(reinterpret_cast<void**>(&slot.host), static_cast<size_t>(bytes_)));
  check(cudaEventCreateWithFlags(&slot.sent, cudaEventDisableTiming));
  check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming | cudaEventBlockingSync));
  slot.device = DeviceBytes(bytes_, held_);
  return slot;
}

void Staging::gather(const void* from, int64_t at, int64_t bytes) {
  const auto* const data = static_cast<const uint8_t*>(from);
  for (int64_t done = 0; done < bytes; done += kGrain) {
    adding_.parts.push_back({data + done, at + done, std::min(kGrain, bytes - done)});
  }
}

uint8_t* Staging::add(const void* from, int64_t bytes) {
  TERCET_CHECK_LE(bytes, left());
  const int64_t at = used_;
  gather(from, at, bytes);
  used_ += (bytes + kAlign - 1) / kAlign * kAlign;
  return slot().device.get() + at;
}

void Staging::keep(std::shared_ptr<const void> owner) {
  auto& owners = adding_.owners;
  if (owner != nullptr && (owners.empty() || owners.back() != owner)) owners.push_back(std::move(owner));
}

void Staging::send_to(uint8_t* to, int64_t bytes, std::function<void()> then) {
  adding_.slot = &slot();
  adding_.to = to;
  adding_.bytes = bytes;
  adding_.then = std::move(then);
  std::vector<std::shared_ptr<const void>> unused;
  {
    std::unique_lock lock(mutex_);
    sent_.wait(lock, [this] { return pieces_.size() < kQueued; });
    unused.swap(unused_);
    pieces_.push_back(std::exchange(adding_, {}));
  }
  work_.notify_all();
  used_ = 0;
  busy_ = true;
  next_ = (next_ + 1) % kSlots;
}

void Staging::send(std::function<void()> then) {
  if (used_ > 0) send_to(slot().device.get(), std::min(used_, bytes_), std::move(then));
}

void Staging::copy(const std::shared_ptr<DeviceBytes>& target, int64_t at, const void* from, int64_t bytes,
                   const std::shared_ptr<const void>& owner) {
  make_room(std::min(bytes, kBytes));
  for (int64_t done = 0; done < bytes; done += bytes_) {
    const int64_t here = std::min(bytes_, bytes - done);
    keep(owner);
    keep(target);
    gather(static_cast<const uint8_t*>(from) + done, 0, here);
    send_to(target->get() + at + done, here, {});
  }
}

void Staging::finish() {
  if (!busy_) return;
  std::vector<std::shared_ptr<const void>> unused;
  {
    std::unique_lock lock(mutex_);
    sent_.wait(lock, [this] { return pieces_.empty(); });
    unused.swap(unused_);
  }
  launcher_.wait();
  busy_ = false;
}

Staging::Piece* Staging::with_work() {
  // The slots' last pieces were sent.
  const auto end = pieces_.begin() + static_cast<ptrdiff_t>(std::min(kSlots, pieces_.size()));
  const auto found = std::find_if(pieces_.begin(), end, [](const Piece& piece) {
    return !piece.opened || (piece.open && piece.taken < piece.parts.size());
  });
  return found == end ? nullptr : &*found;
}

void Staging::work() {
  check(cudaSetDevice(device_));
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Piece* const piece = with_work();
    if (piece == nullptr) {
      work_.wait(lock);
      continue;
    }
    if (!piece->opened) {
      piece->opened = true;
      lock.unlock();
      check(cudaEventSynchronize(piece->slot->done));
      lock.lock();
      piece->open = true;
      work_.notify_all();
      continue;
    }
    const Part part = piece->parts[piece->taken++];
    lock.unlock();
    std::memcpy(piece->slot->host + part.at, part.from, static_cast<size_t>(part.bytes));
    lock.lock();
    if (++piece->copied < piece->parts.size()) continue;
    lock.unlock();
    dispatch(*piece);
    lock.lock();
    piece->sent = true;
    for (; !pieces_.empty() && pieces_.front().sent; pieces_.pop_front()) {
      for (auto& owner : pieces_.front().owners) unused_.push_back(std::move(owner));
    }
    work_.notify_all();
    sent_.notify_all();
  }
}

void Staging::dispatch(Piece& piece) {
  const std::lock_guard lock(dispatching_);
  const Slot& slot = *piece.slot;
  check(cudaMemcpyAsync(piece.to, slot.host, static_cast<size_t>(piece.bytes), cudaMemcpyHostToDevice,
                        copies_.get()));
  check(cudaEventRecord(slot.sent, copies_.get()));
  check(cudaStreamWaitEvent(launcher_.stream(), slot.sent, 0));
  if (piece.then) {
    piece.then();
    launcher_.flush();
  }
  check(cudaEventRecord(slot.done, launcher_.stream()));
}

}  // namespace tercet::cuda
