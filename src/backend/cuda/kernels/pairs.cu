#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/choose.cuh"
#include "backend/cuda/kernels/pairs.h"
#include "backend/cuda/kernels/router.h"

namespace tercet::cuda {
namespace {

/// By thread `thread` of `threads`.
__device__ inline void put_beside(const PairParams& p, int thread, int threads) {
  for (int i = thread; i * p.most < p.beside; i += threads) {
    p.items[i] = {-1, p.pairs + i * p.most, min(p.most, p.beside - i * p.most)};
  }
  for (int i = thread; i < p.beside; i += threads) p.sorted[p.pairs + i] = i;
}

/// One block. Within an expert pairs come in any order: rows are apart.
__global__ void __launch_bounds__(kMaxExperts) sort_kernel(PairParams p) {
  after_earlier_kernels();
  __shared__ int counts[kMaxExperts];
  __shared__ int ends[kMaxExperts];   // of the pairs up to an expert
  __shared__ int items[kMaxExperts];  // likewise, but for the last ones where those are narrower
  __shared__ int narrower[kWidths];   // items, by how much
  const int e = static_cast<int>(threadIdx.x);
  counts[e] = 0;
  if (e < kWidths) narrower[e] = 0;
  __syncthreads();
  for (int i = e; i < p.pairs; i += kMaxExperts) atomicAdd(&counts[p.experts[i]], 1);
  __syncthreads();
  const int mine = counts[e];
  const int pieces = (mine + p.most - 1) / p.most;
  const int by = p.most == kWidths * kNarrower ? (pieces * p.most - mine) / kNarrower : 0;
  const int full = by > 0 ? pieces - 1 : pieces;
  const int place = by > 0 ? atomicAdd(&narrower[by], 1) : 0;
  ends[e] = mine;
  items[e] = full;
  for (int step = 1; step < kMaxExperts; step *= 2) {
    __syncthreads();
    const int pairs_before = e >= step ? ends[e - step] : 0;
    const int items_before = e >= step ? items[e - step] : 0;
    __syncthreads();
    ends[e] += pairs_before;
    items[e] += items_before;
  }
  __syncthreads();
  const int first = ends[e] - mine;
  const int beside = (p.beside + p.most - 1) / p.most;
  const int first_item = beside + items[e] - full;
  for (int i = 0; i < pieces; ++i) {
    int at = first_item + i;
    if (i == full) {
      at = beside + items[kMaxExperts - 1] + place;
      for (int before = 1; before < by; ++before) at += narrower[before];
    }
    p.items[at] = {e, first + i * p.most, min(p.most, mine - i * p.most)};
  }
  if (e < kWidths) {
    int end = beside + items[kMaxExperts - 1];
    for (int i = 1; i <= e; ++i) end += narrower[i];
    p.ends[e] = end;
  }
  put_beside(p, e, kMaxExperts);
  counts[e] = first;
  __syncthreads();
  for (int i = e; i < p.pairs; i += kMaxExperts) p.sorted[atomicAdd(&counts[p.experts[i]], 1)] = i;
}

constexpr int kChooseWarps = 8;
constexpr int kChooseThreads = kChooseWarps * 32;
constexpr int kExpertsEach = kMaxExperts / kChooseThreads;

struct SortScratch {
  int counts[kMaxExperts];
  uint32_t of_warps[kChooseWarps];
};

/// sort_kernel's work for narrow items, by a block of kChooseThreads; a thread has kExpertsEach neighbouring
/// experts. `choices` are read past this multiprocessor's cache.
__device__ inline void sort_narrow(const PairParams& p, SortScratch& s) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  for (int e = thread; e < kMaxExperts; e += kChooseThreads) s.counts[e] = 0;
  __syncthreads();
  for (int i = thread; i < p.pairs; i += kChooseThreads) atomicAdd(&s.counts[__ldcg(p.experts + i)], 1);
  __syncthreads();
  int mine[kExpertsEach];
  uint32_t own = 0;  // pairs, and behind them 16 bits of items
#pragma unroll
  for (int i = 0; i < kExpertsEach; ++i) {
    mine[i] = s.counts[thread * kExpertsEach + i];
    own += static_cast<uint32_t>(mine[i] << 16 | (mine[i] + p.most - 1) / p.most);
  }
  uint32_t up_to = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(kAll, up_to, step);
    if (lane >= step) up_to += before;
  }
  if (lane == 31) s.of_warps[warp] = up_to;
  __syncthreads();
  uint32_t before = up_to - own;
  for (int i = 0; i < warp; ++i) before += s.of_warps[i];
  const int beside = (p.beside + p.most - 1) / p.most;
  int first = static_cast<int>(before >> 16);
  int item = beside + static_cast<int>(before & 0xffffU);
#pragma unroll
  for (int i = 0; i < kExpertsEach; ++i) {
    s.counts[thread * kExpertsEach + i] = first;
    for (int taken = 0; taken < mine[i]; taken += p.most) {
      p.items[item++] = {thread * kExpertsEach + i, first + taken, min(p.most, mine[i] - taken)};
    }
    first += mine[i];
  }
  if (thread == kChooseThreads - 1) {
    for (int i = 0; i < kWidths; ++i) p.ends[i] = item;
  }
  put_beside(p, thread, kChooseThreads);
  __syncthreads();
  for (int i = thread; i < p.pairs; i += kChooseThreads) {
    p.sorted[atomicAdd(&s.counts[__ldcg(p.experts + i)], 1)] = i;
  }
}

template <int kPer>
__global__ void __launch_bounds__(kChooseThreads) choose_and_sort_kernel(ChooseAndSortParams p) {
  after_earlier_kernels();
  __shared__ ChooseScratch scratch[kChooseWarps];
  __shared__ SortScratch sort;
  __shared__ int last;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row = int64_t{blockIdx.x} * kChooseWarps + warp;
  const ChooseParams& c = p.choose;
  if (row < c.rows) {
    choose_of_row<kPer, true>(c, row, scratch[warp], [&](int place, int expert, float weight) {
      c.chosen_experts[row * c.chosen + place] = expert;
      c.weights[row * c.chosen + place] = weight;
    });
  }
  __syncthreads();
  if (gridDim.x == 1) return sort_narrow(p.sort, sort);
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(p.ticket, gridDim.x - 1) == gridDim.x - 1 ? 1 : 0;
    __threadfence();
  }
  __syncthreads();
  if (last != 0) sort_narrow(p.sort, sort);
}

}  // namespace

void choose_and_sort(Launcher& launcher, const ChooseAndSortParams& params) {
  const ChooseParams& c = params.choose;
  const auto kernel = c.experts <= 128   ? choose_and_sort_kernel<4>
                      : c.experts <= 256 ? choose_and_sort_kernel<8>
                                         : choose_and_sort_kernel<kMaxExperts / 32>;
  launcher.add(kernel, dim3(static_cast<unsigned>((c.rows + kChooseWarps - 1) / kChooseWarps)),
               dim3(kChooseThreads), params);
}

void sort_pairs(Launcher& launcher, const PairParams& params) {
  launcher.add(sort_kernel, dim3(1), dim3(kMaxExperts), params);
}

}  // namespace tercet::cuda
