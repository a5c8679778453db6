#include "backend/cuda/runtime/staging.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/runtime/status.h"
#include "base/check.h"

namespace tercet::cuda {
namespace {

constexpr int64_t kGrain = int64_t{256} << 10;  // bytes that a thread copies at a time

}  // namespace

Staging::Staging(Launcher& launcher, int64_t& held, int threads)
    : launcher_(launcher), held_(held), pool_(threads) {}

Staging::~Staging() { drop(); }

void Staging::drop() {
  for (Slot& slot : slots_) {
    if (slot.host == nullptr) continue;
    cudaEventSynchronize(slot.sent);
    cudaEventDestroy(slot.sent);
    cudaFreeHost(slot.host);
    slot = {};
  }
}

void Staging::make_room(int64_t bytes) {
  TERCET_CHECK_EQ(used_, 0);
  TERCET_CHECK_LE(bytes, kBytes);
  if (bytes <= bytes_) return;
  launcher_.wait();
  drop();
  bytes_ = kBytes;
}

Staging::Slot& Staging::slot() {
  Slot& slot = slots_[next_];
  if (slot.host != nullptr) return slot;
  check(cudaMallocHost(reinterpret_cast<void**>(&slot.host), static_cast<size_t>(bytes_)));
  check(cudaEventCreateWithFlags(&slot.sent, cudaEventDisableTiming));
  slot.device = DeviceBytes(bytes_, held_);
  return slot;
}

void Staging::gather(const void* from, int64_t at, int64_t bytes) {
  const auto* const data = static_cast<const uint8_t*>(from);
  for (int64_t done = 0; done < bytes; done += kGrain) {
    parts_.push_back({data + done, at + done, std::min(kGrain, bytes - done)});
  }
}

uint8_t* Staging::add(const void* from, int64_t bytes) {
  TERCET_CHECK_LE(bytes, left());
  const int64_t at = used_;
  gather(from, at, bytes);
  used_ += (bytes + kAlign - 1) / kAlign * kAlign;
  return slot().device.get() + at;
}

void Staging::send_to(void* to, int64_t bytes) {
  Slot& slot = this->slot();
  check(cudaEventSynchronize(slot.sent));
  pool_.parallel_for(static_cast<int64_t>(parts_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Part& part = parts_[static_cast<size_t>(i)];
      std::memcpy(slot.host + part.at, part.from, static_cast<size_t>(part.bytes));
    }
  });
  check(
      cudaMemcpyAsync(to, slot.host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, launcher_.stream()));
  check(cudaEventRecord(slot.sent, launcher_.stream()));
  parts_.clear();
  used_ = 0;
  next_ ^= 1;
}

void Staging::send() {
  if (used_ > 0) send_to(slot().device.get(), std::min(used_, bytes_));
}

void Staging::copy(void* to, const void* from, int64_t bytes) {
  make_room(std::min(bytes, kBytes));
  for (int64_t done = 0; done < bytes; done += bytes_) {
    const int64_t here = std::min(bytes_, bytes - done);
    gather(static_cast<const uint8_t*>(from) + done, 0, here);
    send_to(static_cast<uint8_t*>(to) + done, here);
  }
}

}  // namespace tercet::cuda
