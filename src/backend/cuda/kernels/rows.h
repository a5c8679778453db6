// Operations on whole rows: norms, sums, rounding, embeddings, SwiGLU.
#pragma once

#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// h = RMSNorm(x)·weight (rule 6); before that x = fl(x + z) where z is not null. Without a weight only the
/// sum. Rows of x, z and h begin every ldx, ldz and ldh floats. Where rounded.units or rounded.halves is not
/// null, h is also rounded for affine weights in groups of 64; unfit[row] says whether that failed (1), which
/// counts once a product takes the row. With `rest` what the rounding into halves left is rounded too, to row
/// rows + row (rule 10); norm_and_round() alone knows that.
///
/// With `experts`, z is written first: of row r Σ weight·experts[r·chosen + j], ascending j, then + shared[r]
/// where not null (combine() of router.h); or with `leaves_of_z`, as the sum of so many, leaf_stride apart
/// from `parts` on, rows k apart (LeafSumParams). norm_and_round() alone knows these too.
struct NormParams {
  float* x;
  float* z;
  const float* experts;  // [rows·chosen][k]
  const float* route_weights;
  const float* shared;
  const float* parts;
  const float* weight;
  float* h;
  Rounded rounded;
  uint8_t* unfit;
  int64_t ldx, ldz, ldh, leaf_stride;
  int32_t rows, k;
  float eps;
  int32_t leaves, rest, chosen, leaves_of_z, zero;
};
void norm(Launcher& launcher, const NormParams& params);

/// Rounds rows for products. Row i of the result is of x[ids[i]] (ids null: x[i / x_div]) in the form that
/// `weights` asks for, or list[which[i]] where `which` is not null. A row that fails sets
/// failed[ids[i]] or failed[i / flag_div]. With `rest`, [rows][k] floats of scratch, each row gives two
/// rounded rows, itself and what its rounding left (rule 10). Where `beside` is not null, rows from
/// first_beside on are of that, one after another, and set failed from its beginning on; round_held_rows()
/// and round_many() alone know that.
struct RoundParams {
  const float* x;
  const float* beside;
  const int32_t* ids;
  const Weights* list;
  const int32_t* which;
  uint8_t* failed;
  float* rest;
  Rounded rounded;
  Weights weights;
  int64_t ldx;
  int32_t rows, k, x_div, flag_div, units_per_row, first_beside;
};
void round_rows(Launcher& launcher, const RoundParams& params);

/// x[r] = table[tokens[r]] (rule 2). The table is in the checkpoint's own form.
struct EmbedParams {
  const uint8_t* values;
  const uint8_t* scales;
  const uint8_t* biases;
  const int32_t* tokens;
  float* x;
  int64_t ldx, row_bytes;
  int32_t rows, k, bits, group;
  int32_t dtype;  // 0: bf16, 1: f16, 2: f32
  int32_t zero;
};
void embed(Launcher& launcher, const EmbedParams& params);

/// a[r, i] = SwiGLU(y[r, i], y[r, inter + i]).
struct SwigluParams {
  const float* y;
  float* a;
  int32_t rows, inter;
};
void swiglu(Launcher& launcher, const SwigluParams& params);

}  // namespace tercet::cuda
