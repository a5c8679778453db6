// A block of 64 keys as the lanes of an mma hold it: query heads are rows 0 to 7 of m16n8k16, rows 8 to 15
// are empty; keys, then dimensions, are its columns. A lane holds of head lane/4 the keys 8j + lane%4·2 + {0,
// 1}: the order of rule 8's sums.
#pragma once

#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/weighing.cuh"

namespace tercet::cuda {

/// What a block comes to, of a lane's head.
struct Weighed {
  float m, l;
  float up;  // 2^(z + 10)
  uint32_t weights[8];
};

// Tiles of eight columns are multiplied side by side, since a product waits for the one before in its sums.

/// q·k, in c[j][0] and c[j][1], of keys 8·(first + j) + lane%4·2 + {0, 1} of a block whose keys lie at
/// `keys`: 64 rows of 256 bytes, pieces of 16 bytes at piece ^ row % 8. q: as Queries has it, 32·(lane%4) and
/// on.
template <int kTiles>
__device__ inline void multiply_keys(float (&c)[kTiles][4], uint32_t keys, int first, const uint4 (&q)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int in_tile = lane % 8;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t b[kTiles][4];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      load_matrices(b[j], keys + (8 * (first + j) + in_tile) * 256 + ((4 * i + lane / 8) ^ in_tile) * 16);
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) mma_fp16(c[j], q[i].x, 0, q[i].y, 0, b[j][0], b[j][1]);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) mma_fp16(c[j], q[i].z, 0, q[i].w, 0, b[j][2], b[j][3]);
  }
}

/// P·V, in c[i][0] and c[i][1], of dimensions 8·(first + i) + lane%4·2 + {0, 1}; values: 128 rows of 128
/// bytes, likewise.
template <int kTiles>
__device__ inline void multiply_values(float (&c)[kTiles][4], uint32_t values, int first,
                                       const uint32_t (&weights)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int in_tile = lane % 8;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0F;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t b[kTiles][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      load_matrices(b[i],
                    values + (8 * (first + i) + in_tile) * 128 + ((4 * half + lane / 8) ^ in_tile) * 16);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      mma_fp16(c[i], weights[4 * half], 0, weights[4 * half + 1], 0, b[i][0], b[i][1]);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      mma_fp16(c[i], weights[4 * half + 2], 0, weights[4 * half + 3], 0, b[i][2], b[i][3]);
    }
  }
}

}  // namespace tercet::cuda
