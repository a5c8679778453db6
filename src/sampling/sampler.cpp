#include "sampling/sampler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tercet {
namespace {

bool allows_any(std::span<const uint32_t> mask) {
  return std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> eos,
                 int32_t vocabulary, std::span<const int32_t> prompt)
    : stop_tokens_(params.stop_tokens), vocabulary_(vocabulary), min_tokens_(params.min_tokens) {
  if (!params.ignore_eos) stop_tokens_.insert(stop_tokens_.end(), eos.begin(), eos.end());
  fixed_.temperature = params.temperature;
  fixed_.top_k = std::max(params.top_k, 0);
  fixed_.top_p = params.top_p;
  fixed_.min_p = params.min_p;
  fixed_.repetition_penalty = params.repetition_penalty;
  fixed_.presence_penalty = params.presence_penalty;
  fixed_.frequency_penalty = params.frequency_penalty;
  fixed_.seed = seed;
  fixed_.bias = params.logit_bias;
  if (fixed_.repetition_penalty != 1.0F) {
    for (const int32_t token : prompt) count(token, false);
  }
}

Result<DrawParams> Sampler::next(uint32_t position, std::vector<uint32_t> allowed) const {
  const auto words = static_cast<size_t>((vocabulary_ + 31) / 32);
  const uint32_t last_word = vocabulary_ % 32 == 0 ? ~0U : (1U << (vocabulary_ % 32)) - 1;
  if (!allowed.empty()) {
    if (allowed.size() != words) {
      return fail("the constraint's mask has {} words, the vocabulary {}", allowed.size(), words);
    }
    allowed.back() &= last_word;
    if (!allows_any(allowed)) return fail("the constraint allows no token");
  }
  DrawParams params = fixed_;
  params.position = position;
  params.counts = counts_;
  params.mask = allowed;
  if (drawn_ < min_tokens_ && !stop_tokens_.empty()) {
    if (allowed.empty()) {
      allowed.assign(words, ~0U);
      allowed.back() = last_word;
    }
    for (const int32_t token : stop_tokens_)
      allowed[static_cast<size_t>(token / 32)] &= ~(1U << (token % 32));
    if (allows_any(allowed)) params.mask = std::move(allowed);
  }
  return params;
}

void Sampler::accept(int32_t token) {
  ++drawn_;
  if (penalties()) count(token, true);
}

bool Sampler::stops(int32_t token) const {
  return std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
}

bool Sampler::penalties() const {
  return fixed_.repetition_penalty != 1.0F || fixed_.presence_penalty != 0.0F ||
         fixed_.frequency_penalty != 0.0F;
}

void Sampler::count(int32_t token, bool in_answer) {
  TERCET_CHECK(token >= 0 && token < vocabulary_);
  const auto [it, added] = count_of_.try_emplace(token, counts_.size());
  if (added) counts_.push_back({.token = token, .in_context = true, .in_answer = 0});
  if (in_answer) ++counts_[it->second].in_answer;
}

}  // namespace tercet
