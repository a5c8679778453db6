#include "backend/cuda/kernels/rounding.cuh"
#include "backend/cuda/kernels/rows.h"
#include "backend/cuda/kernels/values.cuh"

namespace tercet::cuda {
namespace {

__global__ void __launch_bounds__(kRowThreads) norm_kernel(NormParams p) {
  after_earlier_kernels();
  __shared__ float tree[kRowThreads];
  __shared__ RoundingScratch scratch;
  const int64_t row = blockIdx.x;
  float* x = p.x + row * p.ldx;
  float lane = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < p.k; i += kRowThreads) {
    float value = x[i];
    if (p.z != nullptr) {
      value = value + p.z[row * p.ldz + i];
      x[i] = value;
    }
    lane = fma_(value, value, lane);
  }
  if (p.weight == nullptr) return;
  const float mean = lane_tree<kRowThreads>(lane, tree) / static_cast<float>(p.k);
  const float r = 1.0F / sqrt_(mean + p.eps);
  float* h = p.h + row * p.ldh;
  for (int i = static_cast<int>(threadIdx.x); i < p.k; i += kRowThreads) h[i] = (x[i] * r) * p.weight[i];
  if (p.rounded.units == nullptr) return;
  __syncthreads();
  const RoundedRow out = rounded_row(p.rounded, row, p.k, p.k / kBlock);
  const bool fit = round_row(h, p.k, kBlock, p.leaves, false, out, nullptr, scratch);
  if (threadIdx.x == 0) p.unfit[row] = fit ? 0 : 1;
}

__global__ void __launch_bounds__(kRowThreads) round_rows_kernel(RoundParams p) {
  after_earlier_kernels();
  __shared__ RoundingScratch scratch;
  const int64_t row = blockIdx.x;
  const Weights& w = p.which == nullptr ? p.weights : p.list[p.which[row]];
  const float* x = p.x + (p.ids == nullptr ? row / p.x_div : p.ids[row]) * p.ldx;
  const int64_t step_row = p.ids == nullptr ? row / p.flag_div : p.ids[row];
  const bool floats = w.planes == 0;
  const int64_t first = p.rest == nullptr ? row : 2 * row;
  float* rest = p.rest == nullptr ? nullptr : p.rest + row * p.k;
  RoundedRow out = rounded_row(p.rounded, first, p.k, p.units_per_row);
  bool finite = round_row(x, p.k, w.group, w.leaves, floats, out, rest, scratch);
  if (rest != nullptr) {
    out = rounded_row(p.rounded, first + 1, p.k, p.units_per_row);
    finite = round_row(rest, p.k, w.group, w.leaves, floats, out, nullptr, scratch) && finite;
  }
  if (!finite && threadIdx.x == 0) p.failed[step_row] = 1;
}

__global__ void embed_kernel(EmbedParams p) {
  after_earlier_kernels();
  const int64_t token = p.tokens[blockIdx.x];
  const uint8_t* values = p.values + token * p.row_bytes;
  float* x = p.x + blockIdx.x * p.ldx;
  for (int i = static_cast<int>(threadIdx.x); i < p.k; i += static_cast<int>(blockDim.x)) {
    if (p.bits == 0) {
      x[i] = value_at(p.dtype, values, i);
      continue;
    }
    const int64_t at = token * (p.k / p.group) + i / p.group;
    x[i] = fma_(value_at(p.dtype, p.scales, at), static_cast<float>(stream_at(values, p.bits, i)),
                value_at(p.dtype, p.biases, at));
  }
}

__global__ void swiglu_kernel(SwigluParams p) {
  after_earlier_kernels();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= int64_t{p.rows} * p.inter) return;
  const float* y = p.y + i / p.inter * 2 * p.inter + i % p.inter;
  p.a[i] = tercet::swiglu(y[0], y[p.inter]);
}

}  // namespace

void norm(Launcher& launcher, const NormParams& params) {
  launcher.add(norm_kernel, dim3(params.rows), dim3(kRowThreads), params);
}

void round_rows(Launcher& launcher, const RoundParams& params) {
  launcher.add(round_rows_kernel, dim3(params.rows), dim3(kRowThreads), params);
}

void embed(Launcher& launcher, const EmbedParams& params) {
  launcher.add(embed_kernel, dim3(params.rows), dim3(256), params);
}

void swiglu(Launcher& launcher, const SwigluParams& params) {
  const int64_t count = int64_t{params.rows} * params.inter;
  launcher.add(swiglu_kernel, dim3(static_cast<unsigned>((count + 255) / 256)), dim3(256), params);
}

}  // namespace tercet::cuda
