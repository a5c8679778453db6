#include "backend/cuda/kernels/block.cuh"
#include "backend/cuda/kernels/pairs.h"
#include "backend/cuda/kernels/router.h"

namespace tercet::cuda {
namespace {

/// One block. Within an expert pairs come in any order: rows are apart.
__global__ void __launch_bounds__(kMaxExperts) sort_kernel(PairParams p) {
  after_earlier_kernels();
  __shared__ int counts[kMaxExperts];
  __shared__ int ends[kMaxExperts];   // of the pairs up to an expert
  __shared__ int items[kMaxExperts];  // likewise
  const int e = static_cast<int>(threadIdx.x);
  counts[e] = 0;
  __syncthreads();
  for (int i = e; i < p.pairs; i += kMaxExperts) atomicAdd(&counts[p.experts[i]], 1);
  __syncthreads();
  const int mine = counts[e];
  ends[e] = mine;
  items[e] = (mine + p.most - 1) / p.most;
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
  const int first_item = items[e] - (mine + p.most - 1) / p.most;
  for (int i = 0; i * p.most < mine; ++i) {
    p.items[first_item + i] = {e, first + i * p.most, min(p.most, mine - i * p.most)};
  }
  if (e == kMaxExperts - 1) *p.total = items[e];
  counts[e] = first;
  __syncthreads();
  for (int i = e; i < p.pairs; i += kMaxExperts) p.sorted[atomicAdd(&counts[p.experts[i]], 1)] = i;
}

}  // namespace

void sort_pairs(Launcher& launcher, const PairParams& params) {
  launcher.add(sort_kernel, dim3(1), dim3(kMaxExperts), params);
}

}  // namespace tercet::cuda
