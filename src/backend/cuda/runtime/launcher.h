// The kernels of a step, in order: collected first, then run at once, as a CUDA graph where the same step
// came before.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace tercet::cuda {

class Launcher {
 public:
  /// The stream must outlive the launcher. `graphs`: whether steps that repeat become graphs. `overlap`:
  /// kernels may begin before earlier ones end, which devices can from compute capability 9.0 on; every
  /// kernel waits for the earlier ones itself (after_earlier_kernels() of block.cuh).
  Launcher(cudaStream_t stream, bool graphs, bool overlap)
      : stream_(stream), graphs_on_(graphs), overlap_(overlap) {}
  ~Launcher();
  Launcher(const Launcher&) = delete;

  /// Queues kernel<<<grid, block, shared>>>(params); a kernel takes one struct by value. With more than 48 KB
  /// of shared memory the kernel's limit is raised.
  template <class Params>
  void add(void (*kernel)(Params), dim3 grid, dim3 block, const Params& params, size_t shared = 0) {
    if (collected_) collected_();
    add_first(kernel, grid, block, params, shared);
  }
  /// The same, before what set_collected() speaks of.
  template <class Params>
  void add_first(void (*kernel)(Params), dim3 grid, dim3 block, const Params& params, size_t shared = 0,
                 bool together = false) {
    static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= kMaxParams);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    Launch launch;
    launch.kernel = reinterpret_cast<const void*>(kernel);
    launch.grid = grid;
    launch.block = block;
    launch.shared = static_cast<uint32_t>(shared);
    launch.together = together ? 1 : 0;
    std::memcpy(launch.params.data(), &params, sizeof params);
    add(launch);
  }

  /// Called before queued kernels run: copies what they read.
  void set_before(std::function<void()> before) { before_ = std::move(before); }
  /// Called before a kernel is queued and before queued ones run: queues what is collected elsewhere.
  void set_collected(std::function<void()> collected) { collected_ = std::move(collected); }

  /// Queues a mark, for laps(), behind what is collected. A kernel does not begin before the mark in front of
  /// it, nor a mark end before what is in front of it.
  void mark();
  /// What lies between the marks since the last call, which must have been reached.
  std::vector<Lap> laps();
  /// Whether marks were set since.
  bool marked() const { return set_ > 0; }

  /// Runs what is queued; returns before it is done.
  void flush();
  /// Runs what is queued and waits for it.
  void wait();

  cudaStream_t stream() const { return stream_; }

 private:
  static constexpr size_t kMaxParams = 248;
  struct Launch {
    const void* kernel = nullptr;
    dim3 grid, block;
    uint32_t shared = 0;
    uint32_t together = 0;       // 1: all blocks must be there at once
    cudaEvent_t mark = nullptr;  // instead of a kernel
    alignas(16) std::array<std::byte, kMaxParams> params{};

    bool operator==(const Launch& other) const;
  };
  /// A list that ran, and its graph from the second time on.
  struct Known {
    std::vector<Launch> launches;
    cudaGraphExec_t graph = nullptr;
  };

  void add(const Launch& launch);
  /// `captured`: into a graph.
  void run_one_by_one(std::vector<Launch>& launches, bool captured);
  cudaGraphExec_t make_graph(std::vector<Launch>& launches);

  cudaStream_t stream_;
  bool graphs_on_;
  bool overlap_;
  std::function<void()> before_;
  std::function<void()> collected_;
  std::unordered_map<const void*, uint32_t> shared_;  // limits that were raised, by kernel
  std::vector<Launch> queued_;
  std::deque<Known> known_;  // the latest first
  struct Mark {
    cudaEvent_t event;
    int64_t kernels;  // queued between it and the mark before
  };
  std::vector<Mark> marks_;
  size_t set_ = 0;       // marks since the last laps()
  int64_t kernels_ = 0;  // queued since the last mark
};

}  // namespace tercet::cuda
