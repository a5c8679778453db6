// The rows that a step works in, allocated once.
#pragma once

#include <cstdint>
#include <vector>

#include "model/hy_v3/config.h"
#include "model/hy_v3/placement.h"
#include "ops/ops.h"

namespace tercet::hy_v3 {

/// A result of which this shard computes `mine` columns and, after an all-gather, knows `all`. With one
/// shard both are the same memory.
struct Sharded {
  Rows mine;
  Rows all;

  Sharded first(int64_t rows) const { return {mine.first(rows), all.first(rows)}; }
};

/// Views of a step's rows; [rows, …] each.
struct Activations {
  Rows x;             // [hidden]: the residual stream
  Rows h;             // [hidden]: x after a norm
  Rows hidden;        // [hidden]: after the model's last norm, kept for the MTP layer
  Rows pair;          // [2·hidden]: the MTP layer's input
  Sharded mtp_x;      // [hidden]: the MTP layer's residual stream
  Rows qkv;           // [(heads + 2·kv_heads)/T·128]
  Sharded attention;  // [heads·128]
  Sharded z;          // [hidden]: what is added to x
  Sharded a;          // [inter] of the dense layers or the shared expert
  Sharded experts;    // [rows·chosen, inter of an expert]
  Rows shared;        // [hidden/T]: the shared expert's result
  Routes routes;
  Sharded logits;  // [at most kLogitRows, vocabulary]

  Activations first(int64_t rows) const;
};

/// Rows whose logits are held at a time.
inline constexpr int64_t kLogitRows = 64;

/// Owner of the memory; `view` holds max_rows rows.
struct ActivationMemory {
  std::vector<Buffer> buffers;
  Activations view;
};

ActivationMemory allocate_activations(const Config& config, const Placement& placement, int64_t max_rows,
                                      bool with_mtp, Ops& ops);

/// What allocate_activations() takes.
int64_t activation_bytes(const Config& config, const Placement& placement, int64_t max_rows, bool with_mtp);

}  // namespace tercet::hy_v3
