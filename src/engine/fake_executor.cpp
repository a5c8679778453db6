#include "engine/fake_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "backend/reference/draw.h"
#include "base/philox.h"

namespace tercet {

FakeExecutor::FakeExecutor(int32_t pages, int32_t max_rows, int32_t vocabulary)
    : vocabulary_(vocabulary), max_rows_(max_rows), slots_(static_cast<size_t>(pages * kPageTokens)) {}

uint64_t FakeExecutor::hash(uint64_t before, int32_t token) {
  const auto words = philox4x32(before, {static_cast<uint32_t>(token), 1, 2, 3});
  return (uint64_t{words[0]} << 32) | words[1];
}

std::vector<float> FakeExecutor::logits(uint64_t hash, int32_t vocabulary) {
  std::vector<float> logits;
  for (uint32_t t = 0; t < static_cast<uint32_t>(vocabulary); ++t) {
    logits.push_back(static_cast<float>(philox4x32(hash, {t, 0, 0, 9})[0] >> 8) * 0x1p-21F - 4.0F);
  }
  return logits;
}

FakeExecutor::Slot& FakeExecutor::slot(const SequenceRows& sequence, int32_t position) {
  const int32_t page = sequence.pages[static_cast<size_t>(position / kPageTokens)];
  return *(slots_.begin() + page * kPageTokens + position % kPageTokens);
}

void FakeExecutor::check_plan(const StepPlan& plan) const {
  ASSERT_GE(plan.batch.rows(), 1);
  ASSERT_LE(plan.batch.rows(), max_rows_);
  int32_t row = 0;
  std::map<int32_t, int> uses;
  for (const SequenceRows& s : plan.batch.sequences) {
    ASSERT_EQ(s.first_row, row);
    ASSERT_GE(s.rows, 1);
    ASSERT_EQ(static_cast<int32_t>(s.pages.size()), (s.position + s.rows + kPageTokens - 1) / kPageTokens);
    row += s.rows;
    const std::set<int32_t> distinct(s.pages.begin(), s.pages.end());
    ASSERT_EQ(distinct.size(), s.pages.size());
    ASSERT_GE(*distinct.begin(), 0);
    ASSERT_LT(*distinct.rbegin(), pages());
    for (const int32_t page : distinct) ++uses[page];
  }
  ASSERT_EQ(row, plan.batch.rows());
  for (const SequenceRows& s : plan.batch.sequences) {
    for (size_t i = static_cast<size_t>(s.position / kPageTokens); i < s.pages.size(); ++i) {
      ASSERT_EQ(uses[s.pages[i]], 1) << "a page that is written belongs to one sequence";
    }
  }
  const auto by_row = [](const RowOutput& a, const RowOutput& b) { return a.row < b.row; };
  ASSERT_TRUE(std::is_sorted(plan.outputs.begin(), plan.outputs.end(), by_row));
}

StepResult FakeExecutor::run(const StepPlan& plan) {
  check_plan(plan);
  if (during_run) during_run();
  last = plan;
  for (const PageCopy& copy : plan.copies) {
    std::copy_n(slots_.begin() + copy.from * kPageTokens, kPageTokens,
                slots_.begin() + copy.to * kPageTokens);
  }
  StepResult result;
  std::vector<uint64_t> hashes;
  std::vector<bool> spoiled;
  for (const SequenceRows& s : plan.batch.sequences) {
    uint64_t h = 0;
    for (int32_t i = 0; i < s.position; ++i) {
      const Slot& read = slot(s, i);
      h = hash(h, read.token);
      EXPECT_EQ(read.hash, h) << "position " << i << " is of another sequence";
    }
    bool failed = false;
    for (int32_t r = 0; r < s.rows; ++r) {
      const int32_t token = *(plan.batch.tokens.begin() + s.first_row + r);
      failed = failed || token == failing_token;
      h = hash(h, token);
      slot(s, s.position + r) = {token, failed ? 0 : h};
      hashes.push_back(h);
      spoiled.push_back(failed);
    }
    result.failed.push_back(failed ? 1 : 0);
  }
  for (const RowOutput& output : plan.outputs) {
    const auto row = static_cast<size_t>(output.row);
    result.rows.push_back(reference::evaluate(logits(hashes[row], vocabulary_), output));
    if (spoiled[row]) result.rows.back().failed = true;
  }
  return result;
}

namespace {

TokenInfo info_of(const RowResult& result) { return {result.token, result.logprob, result.top}; }

/// The parameters of a draw, from nothing but the request and the tokens so far.
DrawParams draw_params(const Request& request, uint64_t seed, const std::vector<int32_t>& tokens,
                       const std::set<int32_t>& ends, int32_t vocabulary) {
  const SamplingParams& p = request.params;
  DrawParams draw;
  draw.temperature = p.temperature;
  draw.top_k = std::max(0, p.top_k);
  draw.top_p = p.top_p;
  draw.min_p = p.min_p;
  draw.repetition_penalty = p.repetition_penalty;
  draw.presence_penalty = p.presence_penalty;
  draw.frequency_penalty = p.frequency_penalty;
  draw.seed = seed;
  draw.position = static_cast<uint32_t>(tokens.size());
  draw.bias = p.logit_bias;
  const auto prompt_end = tokens.begin() + static_cast<ptrdiff_t>(request.prompt.size());
  for (int32_t t = 0; t < vocabulary; ++t) {
    const auto in_answer = static_cast<int32_t>(std::count(prompt_end, tokens.end(), t));
    const bool in_context = std::count(tokens.begin(), tokens.end(), t) > 0;
    draw.counts.push_back({.token = t, .in_context = in_context, .in_answer = in_answer});
  }
  if (tokens.end() - prompt_end < p.min_tokens) {
    draw.mask.assign(static_cast<size_t>((vocabulary + 31) / 32), ~0U);
    for (const int32_t t : ends) draw.mask[static_cast<size_t>(t / 32)] &= ~(1U << (t % 32));
  }
  return draw;
}

}  // namespace

TokenAnswer expected_answer(const Request& request, uint64_t seed, std::span<const int32_t> eos_tokens,
                            int32_t context, int32_t vocabulary, int32_t failing_token) {
  std::set<int32_t> ends(request.params.stop_tokens.begin(), request.params.stop_tokens.end());
  if (!request.params.ignore_eos) ends.insert(eos_tokens.begin(), eos_tokens.end());
  const auto prompt = static_cast<int32_t>(request.prompt.size());
  const int32_t room = context - prompt;
  const int32_t limit = prompt + std::min(room, request.params.max_tokens.value_or(room));

  TokenAnswer answer;
  std::vector<int32_t> tokens = request.prompt;
  uint64_t h = 0;
  for (int32_t i = 0;; ++i) {
    const int32_t token = tokens[static_cast<size_t>(i)];
    if (token == failing_token) return answer;
    h = FakeExecutor::hash(h, token);
    const std::vector<float> logits = FakeExecutor::logits(h, vocabulary);
    if (request.prompt_logprobs && i < prompt) {
      RowOutput output;
      output.target = i + 1 < prompt ? tokens[static_cast<size_t>(i) + 1] : -1;
      output.top = request.prompt_logprobs->top;
      answer.prompt.push_back(info_of(reference::evaluate(logits, output)));
    }
    if (i + 1 < static_cast<int32_t>(tokens.size())) continue;
    answer.reason = FinishReason::length;
    if (i + 1 >= limit) return answer;
    RowOutput output;
    output.draw = true;
    output.params = draw_params(request, seed, tokens, ends, vocabulary);
    output.top = request.params.top_logprobs;
    answer.tokens.push_back(info_of(reference::evaluate(logits, output)));
    tokens.push_back(answer.tokens.back().token);
    answer.reason = FinishReason::stop;
    if (ends.contains(tokens.back())) return answer;
    answer.reason = FinishReason::length;
    if (static_cast<int32_t>(tokens.size()) >= limit) return answer;
    answer.reason = FinishReason::error;
  }
}

Request copy_of(const Request& request) {
  return {request.prompt, request.params, request.prompt_logprobs, nullptr};
}

bool same_bits(const TokenInfo& a, const TokenInfo& b) {
  const auto equal = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token == y.token && std::bit_cast<uint32_t>(x.logprob) == std::bit_cast<uint32_t>(y.logprob);
  };
  return equal({a.token, a.logprob}, {b.token, b.logprob}) &&
         std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(), equal);
}

}  // namespace tercet
