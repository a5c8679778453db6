#include "backend/cuda/runtime/memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "backend/cuda/runtime/status.h"
#include "base/check.h"

namespace tercet::cuda {
namespace {

constexpr int64_t kInputBytes = int64_t{64} << 20;
constexpr uint64_t kLeastInput = 256;
constexpr size_t kFlags = 1024;  // of a block: a page

}  // namespace

Stream::Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }

Stream::~Stream() { cudaStreamDestroy(stream_); }

DeviceBytes::DeviceBytes(int64_t bytes, int64_t& held) : size_(bytes), held_(&held) {
  if (bytes == 0) return;
  check(cudaMalloc(reinterpret_cast<void**>(&data_), static_cast<size_t>(bytes)));
  *held_ += bytes;
}

DeviceBytes::~DeviceBytes() {
  if (data_ == nullptr) return;
  cudaFree(data_);
  *held_ -= size_;
}

DeviceBytes::DeviceBytes(DeviceBytes&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), held_(other.held_) {}

DeviceBytes& DeviceBytes::operator=(DeviceBytes&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(held_, other.held_);
  return *this;
}

uint8_t* Scratch::bytes(int64_t size) {
  if (size > memory_.size()) {
    launcher_.wait();
    memory_ = {};
    memory_ = DeviceBytes(size, held_);
  }
  return memory_.get();
}

StepInput::StepInput(int64_t& held) : device_(kInputBytes, held) {
  check(cudaMallocHost(reinterpret_cast<void**>(&host_), static_cast<size_t>(kInputBytes)));
}

StepInput::~StepInput() { cudaFreeHost(host_); }

void StepInput::reset() { used_ = copied_ = 0; }

uint8_t* StepInput::put_bytes(const void* data, int64_t bytes) {
  const int64_t at = used_;
  used_ += static_cast<int64_t>(std::bit_ceil(std::max(kLeastInput, static_cast<uint64_t>(bytes))));
  TERCET_CHECK_LE(used_, kInputBytes);
  if (bytes > 0) std::memcpy(host_ + at, data, static_cast<size_t>(bytes));
  return device_.get() + at;
}

void StepInput::flush(cudaStream_t stream) {
  if (copied_ == used_) return;
  check(cudaMemcpyAsync(device_.get() + copied_, host_ + copied_, static_cast<size_t>(used_ - copied_),
                        cudaMemcpyHostToDevice, stream));
  copied_ = used_;
}

HostScratch::~HostScratch() { cudaFreeHost(data_); }

uint8_t* HostScratch::bytes(int64_t size) {
  if (size > size_) {
    launcher_.wait();
    check(cudaFreeHost(data_));
    data_ = nullptr;
    size_ = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(size)));
    check(cudaMallocHost(reinterpret_cast<void**>(&data_), static_cast<size_t>(size_)));
  }
  return data_;
}

HostFlags::~HostFlags() {
  for (int32_t* block : blocks_) cudaFreeHost(block);
}

int32_t* HostFlags::next() {
  if (left_ == 0) {
    check(cudaMallocHost(reinterpret_cast<void**>(&blocks_.emplace_back()), kFlags * sizeof(int32_t)));
    std::memset(blocks_.back(), 0, kFlags * sizeof(int32_t));
    left_ = kFlags;
  }
  return blocks_.back() + --left_;
}

}  // namespace tercet::cuda
