// Products for few rows, at the speed of the memory: affine weights in groups of 64 with bf16 scales, on int8
// tensor cores. Equal to round_rows + product (+ swiglu) of the plain kernels.
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/kernels/pairs.h"
#include "backend/cuda/kernels/views.h"
#include "backend/cuda/runtime/launcher.h"

namespace tercet::cuda {

/// y = W·x, rows in chunks of up to kFewRows, each of which reads the weights. Weights of several experts lie
/// at equal distances: of expert e at values + e·values_stride, scales + e·scales_stride.
///
/// Without experts row i is x's row ids[i], or i. With experts (`which` or `items`) a row is a pair p of a
/// row and an expert: it takes x's row p / x_div, and is y's row p. `which`: pair p alone, with expert
/// which[p]; `items`: as sort_pairs made them.
struct FewProductParams {
  Weights weights;  // of expert 0
  const int32_t* ids;
  const int32_t* which;
  const PairItem* items;
  const int32_t* ends;    // of items (PairParams)
  const int32_t* sorted;  // pairs
  const uint8_t* unfit;   // of x's rows, or null: a row that is taken and unfit sets its failed flag
  uint8_t* failed;
  float* y;   // [rows][ldy]
  Rounded x;  // planes
  int64_t values_stride, scales_stride, ldy;
  int64_t leaf_stride;  // of product_many()
  int32_t rows;         // without experts
  int32_t slots;  // with `which`: pairs; with `items`: the most that there can be; else set by product_few()
  int32_t x_div;
  int32_t together;  // set by product_few(): leaves that warps compute side by side, all of them or one
  int32_t narrower;  // set by product_many(): of which width it takes items
  int32_t swiglu;    // y has n / 2 columns: SwiGLU of the first half of the outputs with the second

  // Of product_batch(), where there are items of expert −1 (PairParams): one more expert, which all rows
  // take. Its "pair" r is row r: of x from row first_beside on, of y_beside.
  int32_t first_beside;
  int32_t known;  // whether a product_batch() ran since items, ends and sorted were written
  const uint8_t* values_beside;
  const uint8_t* scales_beside;
  float* y_beside;
};
void product_few(Launcher& launcher, const FewProductParams& params);

}  // namespace tercet::cuda
