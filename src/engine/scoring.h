// Teacher-forced log-probabilities: what a model makes of given tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/error.h"
#include "engine/executor.h"

namespace tercet {

struct ScoreOptions {
  int32_t chunk = 512;  // tokens a step, 1 to the executor's max_rows
  bool mtp = false;     // also the MTP layer's rows, one fewer than tokens
  int32_t top = 0;      // RowOutput::top and ::all of every row
  bool all = false;
};

enum class ScoreKind : uint8_t { main, mtp };

/// Calls `row(kind, position, result)` for every position, ascending within a kind. The row at position i of
/// `main` predicts token i + 1, of `mtp` token i + 2. Errors: tokens outside the vocabulary, more tokens than
/// the KV cache holds, a row that met a non-finite value.
Result<void> score(Executor& executor, std::span<const int32_t> tokens, const ScoreOptions& options,
                   const std::function<void(ScoreKind, int32_t, const RowResult&)>& row);

/// The digest of a sequence (docs/exactness.md, rule 12): SHA-256 over the little-endian float32
/// log-probabilities [position][vocabulary].
Result<std::string> score_digest(Executor& executor, std::span<const int32_t> tokens, int32_t chunk);

}  // namespace tercet
