// What one step computes, as plain data on the host.
#pragma once

#include <cstdint>
#include <vector>

namespace tercet {

/// Tokens in a page of the KV cache: one block of attention's keys (docs/exactness.md, rule 8).
inline constexpr int kPageTokens = 64;

/// The rows that one sequence has in a step: consecutive tokens, the first at absolute position `position`.
/// Everything before `position` is in the cache already.
struct SequenceRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t position = 0;
  std::vector<int32_t> pages;  // pages[i] holds positions [64·i, 64·i + 64); covers position + rows
};

/// Rows are ordered by sequence; each row belongs to exactly one.
struct Batch {
  std::vector<int32_t> tokens;  // [rows]
  std::vector<SequenceRows> sequences;

  int32_t rows() const { return static_cast<int32_t>(tokens.size()); }
};

/// Whole-page copy done before the step's rows are written, for sequences that share a part of a page.
struct PageCopy {
  int32_t from = 0;
  int32_t to = 0;
};

}  // namespace tercet
