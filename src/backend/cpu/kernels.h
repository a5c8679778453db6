// The loops of the CPU backend, once for each instruction set: a table of functions, made from the same
// source (*-inl.h) over 16-lane vectors. Each works on one thread's piece and equals the reference bit for
// bit (docs/exactness.md).
//
// This header is included by files that are compiled for one instruction set. It holds no inline function:
// the linker keeps one copy of those, and must never keep one that not every machine can run.
#pragma once

#include <cstdint>

namespace tercet::cpu {

/// Outputs in a tile of packed weights: one vector lane each.
inline constexpr int kTile = 16;

enum class ScaleType : uint8_t { bf16, f16, f32 };

/// How a tile of 16 outputs lies in memory: its groups in ascending order, each `group_bytes` long.
/// Affine: q of more than 4 bits as two parts, q >> 4 then q & 15 (rule 2), else as one. A part of 1, 2 or 4
/// bits is one plane, one of 3 bits two: its upper bit, then the two below. A plane of B bits is group·B/32
/// blocks of 16 words, one an output. A word holds 32/B values: value 8·(i/2) + 2j + i%2 has bits 8j + B·i to
/// 8j + B·i + B − 1. So a shift and a mask give the even or the odd values of 8, one a byte. Then 16 scales
/// and 16 biases. Floats: group/2 blocks of 16 pairs m[o][2s], m[o][2s + 1] (int16), then 16 exponents F
/// (int8).
struct TileLayout {
  int64_t group = 0;
  int64_t groups = 0;
  int64_t groups_in_leaf = 0;
  int64_t group_bytes = 0;
  int bits = 0;  // of q; 0: floats
  ScaleType scale = ScaleType::bf16;
};

/// A rounded row as products read it: x' = n·unit, a group at a time.
/// For affine weights `numbers` holds n = 128a + b, 0 ≤ b < 128, as bytes: for every 8 values 4 words, a of
/// the even ones, a of the odd ones, b of the even ones, b of the odd ones: a word meets the low or the high
/// 4-bit halves of a word of q. For float weights it holds n as int16.
struct ProductRow {
  const uint8_t* numbers;  // [2·k] bytes
  const float* unit;       // [groups]
  const float* sum;        // [groups]: Σ n; affine only
  float* y;                // [16]: the tile's results go here
};

/// A head's running result: O and l relative to 2^m. Empty: nothing was visible yet.
struct Partial {
  float o[128];
  float m;  // whole
  float l;
  bool empty;
};

/// The keys and values of 64 positions of one KV head. Keys: 4 quarters of 16 positions, each 64 pairs of
/// dimensions, each 16 positions × 2. Values: 8 eighths of 16 dimensions, each 32 pairs of positions, each
/// 16 dimensions × 2. So a vector lane is one key, or one dimension, and no sum crosses lanes.
struct KeyBlock {
  const int16_t* keys;            // [4][64][16][2]
  const int16_t* values;          // [8][32][16][2]
  const int8_t* key_exponents;    // [64]
  const int8_t* value_exponents;  // [64]
  const int16_t* next_keys;       // of the block that is likely to be next: asked for ahead, never read
};

struct Kernels {
  const char* name;

  /// Rules 2 and 3: rows[r].y = the tile's outputs of row r. Reads the tile once for every block of rows.
  void (*product)(const TileLayout& layout, const uint8_t* tile, const ProductRow* rows, int64_t count);
  /// Rule 1. `rest`, where not null, receives x − x'. False, and a row of zeros, where it is not finite or
  /// too large.
  bool (*round_row)(const float* x, const TileLayout& layout, uint8_t* numbers, float* unit, float* sum,
                    float* rest);
  /// Rule 8: a head's 128 values by norm (12 bits) or by the largest (10 bits). False, and zeros, as above.
  bool (*round_head)(const float* x, bool by_norm, int16_t* numbers, int8_t* exponent);

  void (*rms_norm)(const float* x, const float* weight, int64_t k, float eps, float* h);
  void (*rope)(float* head, const float* cosines, const float* sines);         // 64 of each
  void (*add)(float* x, const float* z, int64_t count);                        // x = x + z
  void (*add_product)(float* z, float weight, const float* y, int64_t count);  // z = fma(weight, y, z)
  void (*divide)(const float* x, float by, int64_t count, float* y);
  void (*swiglu)(const float* gate, const float* up, int64_t count, float* a);
  void (*sigmoid)(const float* x, int64_t count, float* y);

  /// Rule 8 for `heads` (≤ 8) query heads over one block: queries [heads][128], query_size[h] = 2^E. Folds
  /// the block into spans[h].
  void (*attend_block)(const int16_t* queries, const float* query_size, int heads, const KeyBlock& block,
                       int visible, Partial* spans);
  void (*fold)(Partial* into, const Partial* next);

  /// The largest of `count` ≥ 1 values; false where one is not finite. Of −0 and +0 either may come.
  bool (*largest)(const float* x, int64_t count, float* max);
  /// Rule 12: Σ mass(x). −infinity has mass 0.
  uint64_t (*mass_sum)(const float* x, int64_t count, float max);
  void (*log_probabilities)(const float* x, int64_t count, float max, float log_mass, float* out);
  /// The index of the largest fl(x + Gumbel noise), ties to the lower; −infinity never wins over a number.
  int64_t (*noisy_best)(const float* x, int64_t count, uint64_t seed, uint32_t position);
};

}  // namespace tercet::cpu
