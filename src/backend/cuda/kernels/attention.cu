#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/halves.cuh"

namespace tercet::cuda {
namespace {

__global__ void angles_kernel(AngleParams p) {
  after_earlier_kernels();
  const int row = static_cast<int>(blockIdx.x);
  const SinCos angle = sin_cos(static_cast<float>(p.position[row]) * p.frequencies[threadIdx.x]);
  p.angles[row * 64 + static_cast<int>(threadIdx.x)] = {angle.cos, angle.sin};
}

/// 128 threads a row and head: q heads, then k heads, then v heads.
__global__ void __launch_bounds__(kHead) write_kv_kernel(WriteKvParams p) {
  after_earlier_kernels();
  __shared__ float shared[kHead];
  const int d = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  float* const at = p.qkv + row * p.ld + head * kHead;
  float x = at[d];
  const int position = p.places.position[row];
  const int page = p.places.pages[p.places.first_page[row] + position / 64];
  const int in_page = position % 64;
  if (head < p.heads + p.cache.heads) {
    const float mean = lane_tree<kHead>(fma_(x, x, 0.0F), shared) / static_cast<float>(kHead);
    const float r = 1.0F / sqrt_(mean + p.eps);
    x = (x * r) * (head < p.heads ? p.q_norm : p.k_norm)[d];
    shared[d] = x;
    __syncthreads();
    const float other = shared[d ^ 64];
    __syncthreads();
    const Angle angle = p.angles[row * 64 + d % 64];
    x = d < 64 ? fma_(-other, angle.sine, x * angle.cosine) : fma_(other, angle.sine, x * angle.cosine);
    at[d] = x;
    if (head < p.heads) return;
    const HeadNumber k = round_by_norm(x, shared);
    const int64_t slot = p.cache.slot(p.layer, page, head - p.heads) + in_page;
    p.cache.keys[slot * kHead + d] = half_bits(static_cast<float>(k.n) * 0x1p-12F);
    if (d == 0) p.cache.key_exponents[slot] = static_cast<int8_t>(k.exponent);
    if (d == 0 && !k.finite) p.failed[row] = 1;
    return;
  }
  const HeadNumber v = round_by_largest(x, shared);
  const int64_t slot = p.cache.slot(p.layer, page, head - p.heads - p.cache.heads);
  p.cache.values[slot * kHead + d * 64 + in_page] = half_bits(static_cast<float>(v.n) * 0x1p-10F);
  if (d == 0) p.cache.value_exponents[slot + in_page] = static_cast<int8_t>(v.exponent);
  if (d == 0 && !v.finite) p.failed[row] = 1;
}

__global__ void copy_page_kernel(CopyPageParams p) {
  after_earlier_kernels();
  const int layer = static_cast<int>(blockIdx.x);
  const int64_t from = p.cache.slot(layer, p.from, 0);
  const int64_t to = p.cache.slot(layer, p.to, 0);
  const int slots = p.cache.heads * 64;
  for (int i = static_cast<int>(threadIdx.x); i < slots * kHead; i += static_cast<int>(blockDim.x)) {
    p.cache.keys[to * kHead + i] = p.cache.keys[from * kHead + i];
    p.cache.values[to * kHead + i] = p.cache.values[from * kHead + i];
    if (i >= slots) continue;
    p.cache.key_exponents[to + i] = p.cache.key_exponents[from + i];
    p.cache.value_exponents[to + i] = p.cache.value_exponents[from + i];
  }
}

/// The order of rule 8: aₜ adds keys 2t, 2t+1, 8+2t, 8+2t+1, …; then (a₀ + a₁) + (a₂ + a₃).
__device__ __noinline__ float fragment_sum(const float* x) {
  float a[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    a[t] = 0.0F;
#pragma unroll 1
    for (int base = 0; base < 64; base += 8) {
      a[t] = a[t] + x[base + 2 * t];
      a[t] = a[t] + x[base + 2 * t + 1];
    }
  }
  return (a[0] + a[1]) + (a[2] + a[3]);
}

/// The running result of a span or a row; o is this thread's dimension.
struct Partial {
  bool empty = true;
  float m = 0.0F, l = 0.0F, o = 0.0F;
};

__device__ void fold(Partial& into, const Partial& next) {
  if (next.empty) return;
  if (into.empty) {
    into = next;
    return;
  }
  const float m = fmaxf(into.m, next.m);
  const float a = fold_factor(into.m - m);
  const float b = fold_factor(next.m - m);
  into.o = into.o * a + next.o * b;
  into.l = into.l * a + next.l * b;
  into.m = m;
}

struct BlockScratch {
  int q[kHead];
  float p[64], weighted[64], whole[64], tree[kHead];
  int weight[64];
  float m, l;
  int z;
};

__device__ Partial attend_block(BlockScratch& s, int q_exponent, const CacheView& cache, int64_t slot,
                                int visible) {
  const int d = static_cast<int>(threadIdx.x);
  float t = 0.0F;
  if (d < 64) {
    s.whole[d] = s.p[d] = s.weighted[d] = 0.0F;
    s.weight[d] = 0;
    if (d < visible) {
      const uint16_t* key = cache.keys + (slot + d) * kHead;
      int dot = 0;
#pragma unroll 4
      for (int i = 0; i < kHead; ++i) dot += s.q[i] * static_cast<int>(half_value(key[i]) * 0x1p12F);
      const float units = static_cast<float>(dot) * 0x1p-24F;
      t = units * power_of_two(q_exponent + cache.key_exponents[slot + d]) * kScale;
      s.whole[d] = nearest(t);
    }
  }
  __syncthreads();
  if (d == 0) {
    s.m = s.whole[0];
#pragma unroll 1
    for (int key = 1; key < visible; ++key) s.m = fmaxf(s.m, s.whole[key]);
  }
  __syncthreads();
  if (d < visible) {
    const float below = s.whole[d] - s.m;
    if (below >= -100.0F) {
      s.p[d] = exp2_(t - s.whole[d]) * power_of_two(static_cast<int>(below));
      s.weighted[d] = s.p[d] * power_of_two(cache.value_exponents[slot + d]);
    }
  }
  __syncthreads();
  if (d == 0) {
    s.l = fragment_sum(s.p);
    s.z = ceil_exponent(fragment_sum(s.weighted) * (1.0F + 0x1p-7F));
  }
  __syncthreads();
  if (d < visible) {
    s.weight[d] = static_cast<int>(round_to_step(s.weighted[d], s.z - 14) * power_of_two(14 - s.z));
  }
  __syncthreads();
  const uint16_t* values = cache.values + slot * kHead + d * 64;
  int sum = 0;
#pragma unroll 4
  for (int key = 0; key < visible; ++key) {
    sum += s.weight[key] * static_cast<int>(half_value(values[key]) * 0x1p10F);
  }
  const Partial out{false, s.m, s.l, static_cast<float>(sum) * power_of_two(s.z - 24)};
  __syncthreads();
  return out;
}

__global__ void __launch_bounds__(kHead) attention_kernel(AttentionParams p) {
  after_earlier_kernels();
  __shared__ BlockScratch s;
  const int d = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (p.heads / p.cache.heads);
  const HeadNumber q = round_by_norm(p.qkv[row * p.ld + head * kHead + d], s.tree);
  if (d == 0 && !q.finite) p.failed[row] = 1;
  s.q[d] = q.n;
  __syncthreads();
  const int position = p.places.position[row];
  const int* pages = p.places.pages + p.places.first_page[row];
  const int blocks = position / 64 + 1;
  Partial all;
  for (int first = 0; first < blocks; first += kSpanBlocks) {
    Partial span;
    for (int b = first; b < min(first + kSpanBlocks, blocks); ++b) {
      const int64_t slot = p.cache.slot(p.layer, pages[b], kv_head);
      fold(span, attend_block(s, q.exponent, p.cache, slot, min(64, position + 1 - b * 64)));
    }
    fold(all, span);
  }
  p.out[row * p.ld_out + head * kHead + d] = all.o / all.l;
}

}  // namespace

void rope_angles(Launcher& launcher, const AngleParams& params) {
  launcher.add_first(angles_kernel, dim3(static_cast<unsigned>(params.rows)), dim3(64), params);
}

void write_kv(Launcher& launcher, const WriteKvParams& params) {
  const dim3 grid(static_cast<unsigned>(params.rows),
                  static_cast<unsigned>(params.heads + 2 * params.cache.heads));
  launcher.add(write_kv_kernel, grid, dim3(kHead), params);
}

void copy_page(Launcher& launcher, const CopyPageParams& params) {
  launcher.add(copy_page_kernel, dim3(static_cast<unsigned>(params.layers)), dim3(1024), params);
}

void attention(Launcher& launcher, const AttentionParams& params) {
  const dim3 grid(static_cast<unsigned>(params.rows), static_cast<unsigned>(params.heads));
  launcher.add(attention_kernel, grid, dim3(kHead), params);
}

}  // namespace tercet::cuda
