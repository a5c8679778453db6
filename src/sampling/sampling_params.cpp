#include "sampling/sampling_params.h"

#include <cmath>
#include <string_view>
#include <unordered_set>

namespace tercet {
namespace {

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxStopTokens = 1024;

Result<void> in_range(std::string_view name, float value, float least, float most) {
  if (value >= least && value <= most) return {};
  return fail("{} must be from {} to {}, not {}", name, least, most, value);
}

Result<void> check_token(std::string_view name, int32_t token, int32_t vocabulary) {
  if (token >= 0 && token < vocabulary) return {};
  return fail("{}: token {} is not in the vocabulary of {}", name, token, vocabulary);
}

Result<void> check_draws(const SamplingParams& p) {
  if (p.temperature != 0.0F) {
    if (!(p.temperature >= 1e-6F && p.temperature <= 1e6F)) {
      return fail("temperature must be 0 or from 1e-06 to 1e+06, not {}", p.temperature);
    }
  }
  if (!(p.top_p > 0.0F && p.top_p <= 1.0F)) {
    return fail("top_p must be above 0 and at most 1, not {}", p.top_p);
  }
  if (p.top_k < -1) return fail("top_k must be at least 1, or 0 or -1 for off, not {}", p.top_k);
  TERCET_TRY_VOID(in_range("min_p", p.min_p, 0.0F, 1.0F));
  TERCET_TRY_VOID(in_range("repetition_penalty", p.repetition_penalty, 0.01F, 100.0F));
  TERCET_TRY_VOID(in_range("presence_penalty", p.presence_penalty, -2.0F, 2.0F));
  TERCET_TRY_VOID(in_range("frequency_penalty", p.frequency_penalty, -2.0F, 2.0F));
  return {};
}

Result<void> check_bias(const std::vector<LogitBias>& biases, int32_t vocabulary) {
  std::unordered_set<int32_t> seen;
  for (const LogitBias& bias : biases) {
    TERCET_TRY_VOID(check_token("logit_bias", bias.token, vocabulary));
    if (!seen.insert(bias.token).second) return fail("logit_bias names token {} twice", bias.token);
    if (!(std::fabs(bias.bias) <= 100.0F)) {
      return fail("logit_bias of token {} must be from -100 to 100, not {}", bias.token, bias.bias);
    }
  }
  return {};
}

Result<void> check_stops(const SamplingParams& p, int32_t vocabulary) {
  if (p.stop.size() > kMaxStops) return fail("stop: at most {} strings, not {}", kMaxStops, p.stop.size());
  for (const std::string& stop : p.stop) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return fail("stop: a string must have from 1 to {} bytes, not {}", kMaxStopBytes, stop.size());
    }
  }
  if (p.stop_tokens.size() > kMaxStopTokens) {
    return fail("stop_token_ids: at most {}, not {}", kMaxStopTokens, p.stop_tokens.size());
  }
  for (const int32_t token : p.stop_tokens) TERCET_TRY_VOID(check_token("stop_tokens", token, vocabulary));
  return {};
}

}  // namespace

Result<void> validate(const SamplingParams& p, int32_t vocabulary) {
  TERCET_TRY_VOID(check_draws(p));
  TERCET_TRY_VOID(check_bias(p.logit_bias, vocabulary));
  TERCET_TRY_VOID(check_stops(p, vocabulary));
  if (p.min_tokens < 0) return fail("min_tokens must not be negative, but is {}", p.min_tokens);
  if (p.max_tokens && *p.max_tokens < 0) {
    return fail("max_tokens must not be negative, but is {}", *p.max_tokens);
  }
  if (p.max_tokens && p.min_tokens > *p.max_tokens) {
    return fail("min_tokens ({}) is above max_tokens ({})", p.min_tokens, *p.max_tokens);
  }
  if (p.top_logprobs < 0 || p.top_logprobs > kMaxTopLogprobs) {
    return fail("top_logprobs must be from 0 to {}, not {}", kMaxTopLogprobs, p.top_logprobs);
  }
  return {};
}

}  // namespace tercet
