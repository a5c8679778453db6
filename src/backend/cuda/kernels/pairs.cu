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
  const int first_item = items[e] - full;
  for (int i = 0; i < pieces; ++i) {
    int at = first_item + i;
    if (i == full) {
      at = items[kMaxExperts - 1] + place;
      for (int before = 1; before < by; ++before) at += narrower[before];
    }
    p.items[at] = {e, first + i * p.most, min(p.most, mine - i * p.most)};
  }
  if (e < kWidths) {
    int end = items[kMaxExperts - 1];
    for (int i = 1; i <= e; ++i) end += narrower[i];
    p.ends[e] = end;
  }
  counts[e] = first;
  __syncthreads();
  for (int i = e; i < p.pairs; i += kMaxExperts) p.sorted[atomicAdd(&counts[p.experts[i]], 1)] = i;
}

}  // namespace

void sort_pairs(Launcher& launcher, const PairParams& params) {
  launcher.add(sort_kernel, dim3(1), dim3(kMaxExperts), params);
}

}  // namespace tercet::cuda
