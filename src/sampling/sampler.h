// One request's draws: its parameters and what it has drawn so far, turned into the next draw's parameters.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "ops/draw.h"
#include "sampling/sampling_params.h"

namespace tercet {

/// Not thread-safe.
class Sampler {
 public:
  /// `params` are valid, all tokens are in the vocabulary. `eos`: the model's own end tokens.
  Sampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> eos, int32_t vocabulary,
          std::span<const int32_t> prompt);

  /// What to draw the token at `position` with. `allowed`: a constraint's mask, empty for none. Until
  /// min_tokens are drawn, tokens that would end the answer are masked, unless `allowed` leaves no others:
  /// the constraint wins. Error: `allowed` has the wrong size or allows nothing. Cost: O(vocabulary / 32)
  /// where there is a mask, O(distinct tokens so far) where there are penalties.
  Result<DrawParams> next(uint32_t position, std::vector<uint32_t> allowed) const;

  /// `token` was drawn.
  void accept(int32_t token);

  /// True for a token that ends the answer.
  bool stops(int32_t token) const;
  int32_t drawn() const { return drawn_; }

 private:
  bool penalties() const;
  void count(int32_t token, bool in_answer);

  DrawParams fixed_;                  // what all draws have in common
  std::vector<int32_t> stop_tokens_;  // eos among them, where it counts
  int32_t vocabulary_;
  int32_t min_tokens_;
  int32_t drawn_ = 0;
  std::vector<TokenCount> counts_;                // only where there are penalties
  std::unordered_map<int32_t, size_t> count_of_;  // token → index in counts_
};

}  // namespace tercet
