// How far one set of log-probabilities is from another.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/error.h"

namespace tercet {

/// The largest log-probabilities of each position of one sequence.
struct TopLogprobs {
  int64_t rows = 0;
  int64_t top = 0;
  std::vector<int32_t> ids;     // [rows, top]
  std::vector<float> logprobs;  // [rows, top]
};

struct Divergence {
  int64_t positions = 0;
  double mean = 0, median = 0, percentile99 = 0, maximum = 0;  // KL of A from B, in nats
  int64_t top1_equal = 0;
  int64_t sure = 0;  // positions where A's favourite leads its next by 1 nat at least
  int64_t sure_equal = 0;
};

/// KL(A‖B) of one position over A's ids; ids that B lacks, and everything else, are one cell of at least
/// 1e-9.
double kl_divergence(std::span<const int32_t> a_ids, std::span<const float> a, std::span<const int32_t> b_ids,
                     std::span<const float> b);

/// Over all sequences of A; each must be in B with the same number of positions.
Result<Divergence> compare(const std::map<int, TopLogprobs>& a, const std::map<int, TopLogprobs>& b);

}  // namespace tercet
