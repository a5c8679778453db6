// The decoder layer: one function for prefill, decode, the MTP layer and every placement. Phases differ in
// the batch alone.
#pragma once

#include "comm/communicator.h"
#include "model/hy_v3/activations.h"
#include "model/hy_v3/config.h"
#include "model/hy_v3/weights.h"
#include "ops/ops.h"

namespace tercet::hy_v3 {

/// What a layer works with, besides its weights.
struct LayerContext {
  const Config& config;
  Ops& ops;
  Communicator& shards;
  KvCache& cache;
  Step& step;
  Activations& rows;
};

/// Before: rows.x is the residual stream, rows.h its norm by this layer's input_norm. After: rows.x has this
/// layer's results added, and rows.h is its norm by `next_norm` (untouched where that is empty).
void decoder_layer(const LayerContext& c, const Layer& w, int32_t cache_layer, Vector next_norm);

}  // namespace tercet::hy_v3
