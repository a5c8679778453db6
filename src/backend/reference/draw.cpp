#include "backend/reference/draw.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/philox.h"
#include "ops/exact_math.h"

namespace tercet::reference {
namespace {

struct Candidate {
  int32_t token;
  float value;
};

bool before(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.token < b.token;
}

bool finite(std::span<const float> values) { return std::none_of(values.begin(), values.end(), not_finite); }

size_t index_of(int32_t token, size_t vocabulary) {
  const auto index = static_cast<size_t>(token);
  TERCET_CHECK_LT(index, vocabulary);
  return index;
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

std::vector<Candidate> allowed(std::span<const float> values, std::span<const uint32_t> mask) {
  if (!mask.empty()) TERCET_CHECK_EQ(mask.size(), (values.size() + 31) / 32);
  std::vector<Candidate> candidates;
  candidates.reserve(values.size());
  for (size_t t = 0; t < values.size(); ++t) {
    if (mask.empty() || ((mask[t / 32] >> (t % 32)) & 1U) != 0) {
      candidates.push_back({static_cast<int32_t>(t), values[t]});
    }
  }
  return candidates;
}

/// Candidates in order; at least one. The first one always stays.
void keep_likely(std::vector<Candidate>& candidates, const DrawParams& params) {
  if (params.top_k > 0 && candidates.size() > static_cast<size_t>(params.top_k)) {
    candidates.resize(static_cast<size_t>(params.top_k));
  }
  const float max = candidates[0].value;
  if (params.top_p < 1.0F) {
    uint64_t sum = 0;
    for (const Candidate& c : candidates) sum += mass(c.value, max);
    const auto limit =
        static_cast<uint64_t>(std::floor(static_cast<double>(params.top_p) * static_cast<double>(sum)));
    uint64_t above = mass(max, max);
    size_t kept = 1;
    while (kept < candidates.size() && above < limit) above += mass(candidates[kept++].value, max);
    candidates.resize(kept);
  }
  if (params.min_p > 0.0F) {
    const auto least = static_cast<uint64_t>(std::floor(static_cast<double>(params.min_p) * 0x1p40));
    std::erase_if(candidates, [&](const Candidate& c) { return mass(c.value, max) < least; });
  }
}

float gumbel_noise(uint64_t seed, uint32_t position, int32_t token) {
  const uint32_t word = philox4x32(seed, {position, static_cast<uint32_t>(token), 0, 0})[0];
  const float u = static_cast<float>(2 * (word >> 9) + 1) * 0x1p-24F;
  const float e = -(kLn2 * log2_(u));
  return -(kLn2 * log2_(e));
}

/// The n most probable tokens, by log-probability, then lower index. Distinct logits can round to one
/// log-probability, so the order of logits will not do.
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

uint64_t mass(float x, float max) {
  return static_cast<uint64_t>(nearest(exp2_((x - max) * kLog2E) * 0x1p40F));
}

float log_of_mass(uint64_t sum) { return kLn2 * log2_(static_cast<float>(sum) * 0x1p-40F); }

Normaliser normaliser(std::span<const float> logits) {
  TERCET_CHECK(!logits.empty());
  TERCET_CHECK_LT(logits.size(), size_t{1} << 24);  // else the sum of masses could leave 64 bits
  const float max = *std::max_element(logits.begin(), logits.end());
  uint64_t sum = 0;
  for (const float x : logits) sum += mass(x, max);
  return {max, log_of_mass(sum)};
}

float log_probability(float logit, const Normaliser& normaliser) {
  return (logit - normaliser.max) - normaliser.log_mass;
}

void log_probabilities(std::span<const float> logits, std::span<float> out) {
  TERCET_CHECK_EQ(out.size(), logits.size());
  const Normaliser n = normaliser(logits);
  for (size_t t = 0; t < logits.size(); ++t) out[t] = log_probability(logits[t], n);
}

int32_t draw(std::span<const float> logits, const DrawParams& params) {
  std::vector<Candidate> candidates = allowed(penalised(logits, params), params.mask);
  bool failed = candidates.empty();
  for (Candidate& c : candidates) {
    failed = failed || not_finite(c.value);
    if (params.temperature > 0.0F) c.value = c.value / params.temperature;
    failed = failed || not_finite(c.value);
  }
  if (failed) return -1;
  if (!(params.temperature > 0.0F)) {
    return std::min_element(candidates.begin(), candidates.end(), before)->token;
  }
  std::sort(candidates.begin(), candidates.end(), before);
  keep_likely(candidates, params);
  for (Candidate& c : candidates) c.value = c.value + gumbel_noise(params.seed, params.position, c.token);
  return std::min_element(candidates.begin(), candidates.end(), before)->token;
}

RowResult evaluate(std::span<const float> logits, const RowOutput& output) {
  RowResult result;
  const bool usable = finite(logits);
  const int32_t token = usable && output.draw ? draw(logits, output.params) : output.target;
  result.failed = !usable || (output.draw && token < 0);
  if (result.failed) return result;
  result.token = token;
  const Normaliser n = normaliser(logits);
  if (token >= 0) result.logprob = log_probability(logits[index_of(token, logits.size())], n);
  if (output.top > 0 || output.all) {
    std::vector<float> logprobs(logits.size());
    log_probabilities(logits, logprobs);
    result.top = most_probable(logprobs, output.top);
    if (output.all) result.all = std::move(logprobs);
  }
  return result;
}

}  // namespace tercet::reference
