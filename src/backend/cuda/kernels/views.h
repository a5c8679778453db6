// What kernels are handed: plain data, device pointers inside. Structs have no padding, since launches are
// compared by their bytes.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TERCET_DEVICE_HOST __host__ __device__
#else
#define TERCET_DEVICE_HOST
#endif

namespace tercet::cuda {

constexpr int kTile = 16;         // outputs that lie together
constexpr int kBlock = 64;        // weights along k that lie together
constexpr int kBlockBytes = 512;  // of a tile's block in one plane: 16·64 numbers of 4 bits
constexpr int kMaxGroups = 1024;  // of a row
constexpr int kMaxLeaves = 8;

/// One matrix [n, k], or several of one form stacked along n.
///
/// Affine weights: q in one plane of 4 bits, or two (q >> 4, then q & 15). values: [tile][block][plane][lane
/// of 32][16 bytes], which is the order in which a warp's mma.m16n8k32 takes them: lane 4·g + t holds k =
/// 16·t … 16·t + 15 of outputs g and g + 8, two numbers a byte, the lower first. Missing outputs are zeros.
/// scales: [tile][group][g][2][2]: scale and bias of outputs g and g + 8, as bf16, or as float32 where
/// `wide`.
///
/// Float weights (planes = 0): whole numbers m, of 11 bits besides zeros, values: fp16 [n][k]; scales: int8
/// [n][group], F of rule 2.
struct Weights {
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;
  int32_t n = 0;
  int32_t k = 0;
  int32_t group = 0;
  int32_t planes = 0;
  int32_t wide = 0;
  int32_t leaves = 1;

  TERCET_DEVICE_HOST int32_t groups() const { return k / group; }
  TERCET_DEVICE_HOST int32_t blocks() const { return (k + kBlock - 1) / kBlock; }
};

/// Beside a row's whole numbers, of each group.
struct UnitSum {
  float unit;  // u, a power of two
  float sum;   // Σ n
};

/// Rows as whole numbers, for the plain kernels: int16 [rows][k], or fp16 for float weights. For the others,
/// where `planes` is set: n = 128·a + b as int8, [rows][2][k], a first, in the order of Weights within each
/// 16 numbers: of every eight, those with even index first.
///
/// For kernels of many rows, where `halves` is set: fp16 [rows][k] of n·u·2^(15 − E of the leaf), the numbers
/// of odd index times 2^-4. In each block number 16·t + 8·w + 4·h + j lies at 16·j + 8·w + 2·t + h, which is
/// where wgmma meets the weights that a lane holds. sums: Σ n·u divided by the leaf's unit 2^(E + 9).
struct Rounded {
  int16_t* numbers = nullptr;
  int8_t* planes = nullptr;
  UnitSum* units = nullptr;  // [rows][groups]
  uint16_t* halves = nullptr;
  float* sums = nullptr;        // [rows][groups]
  float* leaf_units = nullptr;  // [rows][leaves]
};

}  // namespace tercet::cuda
