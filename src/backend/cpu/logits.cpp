#include "backend/cpu/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/reference/draw.h"
#include "base/check.h"
#include "base/philox.h"
#include "ops/exact_math.h"

namespace tercet::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Candidate {
  int32_t token;
  float value;
};

bool before(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.token < b.token;
}

size_t index_of(int32_t token, size_t vocabulary) {
  const auto index = static_cast<size_t>(token);
  TERCET_CHECK_LT(index, vocabulary);
  return index;
}

bool allowed(std::span<const uint32_t> mask, size_t token) {
  return mask.empty() || ((mask[token / 32] >> (token % 32)) & 1U) != 0;
}

std::vector<float> penalised(std::span<const float> logits, const DrawParams& params) {
  std::vector<float> values(logits.begin(), logits.end());
  for (const TokenCount& count : params.counts) {
    float& l = values[index_of(count.token, values.size())];
    if (count.in_context && params.repetition_penalty != 1.0F) {
      l = l > 0.0F ? l / params.repetition_penalty : l * params.repetition_penalty;
    }
    if (count.in_answer > 0) {
      l = l - params.presence_penalty;
      l = l - params.frequency_penalty * static_cast<float>(count.in_answer);
    }
  }
  for (const LogitBias& bias : params.bias) {
    float& l = values[index_of(bias.token, values.size())];
    l = l + bias.bias;
  }
  return values;
}

/// The candidates' values after penalties and temperature; −infinity where the mask forbids a token. Empty
/// where there is no candidate, or one that is not finite.
std::vector<float> candidate_values(const Kernels& kernels, std::span<const float> logits,
                                    const DrawParams& params) {
  std::vector<float> values = penalised(logits, params);
  const auto size = static_cast<int64_t>(values.size());
  if (!params.mask.empty()) {
    TERCET_CHECK_EQ(params.mask.size(), (values.size() + 31) / 32);
    bool any = false;
    for (size_t t = 0; t < values.size(); ++t) {
      any |= allowed(params.mask, t);
      if (!allowed(params.mask, t)) values[t] = 0.0F;  // finite, whatever it was
    }
    if (!any) return {};
  }
  float max = 0.0F;
  if (!kernels.largest(values.data(), size, &max)) return {};
  if (params.temperature > 0.0F) {
    kernels.divide(values.data(), params.temperature, size, values.data());
    if (!kernels.largest(values.data(), size, &max)) return {};
  }
  for (size_t t = 0; !params.mask.empty() && t < values.size(); ++t) {
    if (!allowed(params.mask, t)) values[t] = kNothing;
  }
  return values;
}

/// The first `count` of the values in the order of draws; fewer where there are fewer.
std::vector<Candidate> first_in_order(std::vector<Candidate>& candidates, size_t count) {
  count = std::min(count, candidates.size());
  if (count < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(count), candidates.end(),
                     before);
  }
  std::vector<Candidate> first(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(count));
  std::sort(first.begin(), first.end(), before);
  return first;
}

/// How many candidates top-p keeps, or more than `ordered` has, where their masses do not reach the limit.
size_t kept_by_top_p(std::span<const Candidate> ordered, float max, uint64_t limit) {
  uint64_t above = reference::mass(max, max);
  size_t kept = 1;
  while (kept < ordered.size() && above < limit) above += reference::mass(ordered[kept++].value, max);
  return above < limit ? ordered.size() + 1 : kept;
}

/// What top-k, top-p and min-p leave of the values, in any order. `max` is the largest value.
std::vector<Candidate> likely(const Kernels& kernels, std::span<const float> values, float max,
                              const DrawParams& params) {
  // A mass below one half of 2^-40 is 0; with top-k such candidates count all the same.
  const bool by_mass = params.top_k == 0;
  const float least_value = by_mass ? max - 30.0F : kNothing;
  std::vector<Candidate> candidates;
  for (size_t t = 0; t < values.size(); ++t) {
    if (values[t] > kNothing && values[t] >= least_value) {
      candidates.push_back({static_cast<int32_t>(t), values[t]});
    }
  }
  uint64_t sum = 0;
  if (params.top_k > 0) {
    candidates = first_in_order(candidates, static_cast<size_t>(params.top_k));
    for (const Candidate& c : candidates) sum += reference::mass(c.value, max);
  } else {
    sum = kernels.mass_sum(values.data(), static_cast<int64_t>(values.size()), max);
  }
  if (params.top_p < 1.0F) {
    const auto limit =
        static_cast<uint64_t>(std::floor(static_cast<double>(params.top_p) * static_cast<double>(sum)));
    // Most of the mass is nearly always in few tokens: order no more than it takes.
    for (size_t count = 256;; count *= 8) {
      std::vector<Candidate> first = first_in_order(candidates, count);
      const size_t kept = kept_by_top_p(first, max, limit);
      if (kept > first.size() && first.size() < candidates.size()) continue;
      first.resize(std::min(kept, first.size()));
      candidates = std::move(first);
      break;
    }
  }
  if (params.min_p > 0.0F) {
    const auto least = static_cast<uint64_t>(std::floor(static_cast<double>(params.min_p) * 0x1p40));
    std::erase_if(candidates, [&](const Candidate& c) { return reference::mass(c.value, max) < least; });
  }
  return candidates;
}

float gumbel_noise(uint64_t seed, uint32_t position, int32_t token) {
  const uint32_t word = philox4x32(seed, {position, static_cast<uint32_t>(token), 0, 0})[0];
  const float u = static_cast<float>(2 * (word >> 9) + 1) * 0x1p-24F;
  const float e = -(kLn2 * log2_(u));
  return -(kLn2 * log2_(e));
}

int32_t draw(const Kernels& kernels, std::span<const float> logits, const DrawParams& params) {
  const std::vector<float> values = candidate_values(kernels, logits, params);
  if (values.empty()) return -1;
  const auto size = static_cast<int64_t>(values.size());
  float max = 0.0F;
  kernels.largest(values.data(), size, &max);
  if (!(params.temperature > 0.0F)) {
    return static_cast<int32_t>(std::find(values.begin(), values.end(), max) - values.begin());
  }
  const bool all = params.top_k == 0 && !(params.top_p < 1.0F) && !(params.min_p > 0.0F);
  if (all) {
    return static_cast<int32_t>(kernels.noisy_best(values.data(), size, params.seed, params.position));
  }
  std::vector<Candidate> candidates = likely(kernels, values, max, params);
  for (Candidate& c : candidates) c.value = c.value + gumbel_noise(params.seed, params.position, c.token);
  return std::min_element(candidates.begin(), candidates.end(), before)->token;
}

/// The n most probable tokens, by log-probability, then lower index.
std::vector<TokenLogprob> most_probable(std::span<const float> logprobs, int32_t n) {
  std::vector<int32_t> order(logprobs.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = std::min(static_cast<ptrdiff_t>(n), static_cast<ptrdiff_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    const float la = logprobs[static_cast<size_t>(a)];
    const float lb = logprobs[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  });
  std::vector<TokenLogprob> top;
  for (ptrdiff_t i = 0; i < count; ++i) {
    const int32_t token = order[static_cast<size_t>(i)];
    top.push_back({token, logprobs[static_cast<size_t>(token)]});
  }
  return top;
}

}  // namespace

RowResult evaluate(const Kernels& kernels, std::span<const float> logits, const RowOutput& output) {
  TERCET_CHECK(!logits.empty());
  TERCET_CHECK_LT(logits.size(), size_t{1} << 24);  // else the sum of masses could leave 64 bits
  const auto size = static_cast<int64_t>(logits.size());
  RowResult result;
  float max = 0.0F;
  const bool usable = kernels.largest(logits.data(), size, &max);
  const int32_t token = usable && output.draw ? draw(kernels, logits, output.params) : output.target;
  result.failed = !usable || (output.draw && token < 0);
  if (result.failed) return result;
  result.token = token;
  // Where −0 and +0 are both the largest, the first one counts: its sign can reach a log-probability.
  if (max == 0.0F) max = *std::find(logits.begin(), logits.end(), 0.0F);
  const float log_mass = reference::log_of_mass(kernels.mass_sum(logits.data(), size, max));
  if (token >= 0) {
    result.logprob = (logits[index_of(token, logits.size())] - max) - log_mass;
  }
  if (output.top > 0 || output.all) {
    std::vector<float> logprobs(logits.size());
    kernels.log_probabilities(logits.data(), size, max, log_mass, logprobs.data());
    result.top = most_probable(logprobs, output.top);
    if (output.all) result.all = std::move(logprobs);
  }
  return result;
}

}  // namespace tercet::cpu
