// The KV cache and attention over it (rules 6 to 8).
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

constexpr int kHead = 128;

/// Values divided by 2^E as fp16, a head's block of 64 positions together: keys [layer][page][head][64][128],
/// values [layer][page][head][128][64]; exponents [layer][page][head][64]. All finite from the beginning.
struct CacheView {
  uint16_t* keys;
  uint16_t* values;
  int8_t* key_exponents;
  int8_t* value_exponents;
  int32_t pages, heads;

  TERCET_DEVICE_HOST int64_t slot(int layer, int page, int head) const {
    return (static_cast<int64_t>(static_cast<int64_t>(layer) * pages + page) * heads + head) * 64;
  }
};

/// Of the step's rows: where each is, and the pages of its sequence.
struct RowPlaces {
  const int32_t* position;    // [rows]
  const int32_t* first_page;  // [rows]: where in `pages` the row's sequence begins
  const int32_t* pages;
};

/// cos and sin of fl(position·inv_i) for each of the step's rows: [rows][64].
struct Angle {
  float cosine, sine;
};
struct AngleParams {
  const int32_t* position;
  const float* frequencies;  // [64]
  Angle* angles;
  int32_t rows, zero;
};
void rope_angles(Launcher& launcher, const AngleParams& params);

/// Head norms, RoPE, rounding; k and v go to the cache, q stays in place (not yet rounded).
struct WriteKvParams {
  float* qkv;
  const float* q_norm;
  const float* k_norm;
  const Angle* angles;
  uint8_t* failed;
  RowPlaces places;
  CacheView cache;
  int64_t ld;
  int32_t rows, heads, layer;
  float eps;
};
void write_kv(Launcher& launcher, const WriteKvParams& params);

struct CopyPageParams {
  CacheView cache;
  int32_t layers, from, to, zero;
};
void copy_page(Launcher& launcher, const CopyPageParams& params);

/// out[row, head·128 …]: the plain form, a block a row and head.
struct AttentionParams {
  const float* qkv;
  float* out;
  uint8_t* failed;
  RowPlaces places;
  CacheView cache;
  int64_t ld, ld_out;
  int32_t rows, heads, layer, zero;
};
void attention(Launcher& launcher, const AttentionParams& params);

}  // namespace tercet::cuda
