// How the work of product_many() and product_mma() is divided among blocks.
#pragma once

#include "backend/cuda/kernels/limits.h"
#include "backend/cuda/select/device.h"

namespace tercet::cuda {

/// How many of `rows` rows (or pairs, on average of an expert) blocks of product_many() should take at a
/// time: 16, 32, 64 or 128. `copies`: experts that are in use.
int rows_together(const Weights& weights, bool swiglu, int64_t rows, int64_t copies, int processors);

/// How many product_mma() should take.
int mma_rows_together(const Weights& weights, int64_t rows);

/// How many product_floats() should take: 8, 16, 32 or kFloatRows.
int float_rows_together(int64_t rows);

/// Where there is less work than half the device, blocks take a leaf each: p.leaf_stride is then this, else
/// 0. y is scratch of as many floats for each leaf, without SwiGLU; add_leaves() makes y of it. `parts`: of
/// the outputs, that blocks side by side take.
int64_t leaf_floats(const Weights& weights, int64_t rows, int together, int parts, int processors);

/// Whether product_leaves() computes these instead: rows so few that all blocks run at once.
bool takes_leaves(const DeviceTraits& device, const Weights& weights, int64_t rows);

}  // namespace tercet::cuda
