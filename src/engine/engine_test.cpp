#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "engine/fake_executor.h"

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kVocabulary = 50;

EngineOptions options(int32_t max_positions = 1000, int32_t max_sequences = 4) {
  EngineOptions options;
  options.max_positions = max_positions;
  options.max_sequences = max_sequences;
  options.eos_tokens = {0};
  return options;
}

std::unique_ptr<Engine> engine_on(Executor& executor, EngineOptions engine_options = options()) {
  auto engine = Engine::create(std::move(engine_options), executor);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

std::vector<int32_t> tokens(int32_t count, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = 1 + first++ % (kVocabulary - 1);
  return tokens;
}

/// Greedy, never ended by the model.
Request request(std::vector<int32_t> prompt, std::optional<int32_t> max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.params.temperature = 0.0F;
  request.params.max_tokens = max_tokens;
  request.params.ignore_eos = true;
  return request;
}

RequestId submit(Engine& engine, Request request) {
  const auto submitted = engine.submit(std::move(request));
  EXPECT_TRUE(submitted) << submitted.error().message;
  return submitted ? submitted->id : 0;
}

struct Outcome {
  std::vector<TokenInfo> prompt;
  std::vector<TokenInfo> tokens;
  std::vector<int32_t> prompt_done;
  std::optional<Finish> finish;
};

void collect(const std::vector<Event>& events, std::map<RequestId, Outcome>& outcomes) {
  for (const Event& event : events) {
    Outcome& outcome = outcomes[event.id];
    EXPECT_FALSE(outcome.finish) << "an event after the last one";
    outcome.prompt.insert(outcome.prompt.end(), event.prompt.begin(), event.prompt.end());
    if (event.token) outcome.tokens.push_back(*event.token);
    outcome.prompt_done.push_back(event.prompt_done);
    outcome.finish = event.finish;
  }
}

std::map<RequestId, Outcome> run(Engine& engine) {
  std::map<RequestId, Outcome> outcomes;
  while (engine.busy()) {
    collect(engine.step(), outcomes);
    engine.check_integrity();
  }
  return outcomes;
}

Outcome run_one(Engine& engine, Request wanted) {
  const RequestId id = submit(engine, std::move(wanted));
  return run(engine)[id];
}

std::string refusal(Engine& engine, Request wanted) {
  const auto submitted = engine.submit(std::move(wanted));
  return submitted ? "" : submitted.error().message;
}

void expect_equal(const std::vector<TokenInfo>& found, const std::vector<TokenInfo>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i], expected[i])) << i;
}

TEST(Engine, AnswersAsTheModelSays) {
  FakeExecutor executor(16, 64);
  const auto engine = engine_on(executor);
  Request wanted = request(tokens(10), 20);
  wanted.params.top_logprobs = 3;
  const TokenAnswer expected = expected_answer(wanted, 0, {}, 1000, kVocabulary);
  const Outcome outcome = run_one(*engine, copy_of(wanted));
  expect_equal(outcome.tokens, expected.tokens);
  ASSERT_TRUE(outcome.finish);
  EXPECT_EQ(outcome.finish->reason, FinishReason::length);
  EXPECT_EQ(outcome.finish->prompt_tokens, 10);
  EXPECT_EQ(outcome.finish->cached_tokens, 0);
  EXPECT_EQ(outcome.finish->answer_tokens, 20);
  EXPECT_EQ(outcome.tokens[0].top.size(), 3U);
  EXPECT_FALSE(engine->busy());
  EXPECT_THAT(engine->step(), IsEmpty());
}

TEST(Engine, RefusesRequestsThatCannotBe) {
  FakeExecutor executor(4, 64);  // 256 positions
  const auto engine = engine_on(executor, options(1000));
  EXPECT_EQ(engine->context(), 256);
  EXPECT_EQ(refusal(*engine, request({}, 1)), "the prompt has no tokens");
  EXPECT_EQ(refusal(*engine, request({1, 50}, 1)), "prompt: token 50 is not in the vocabulary of 50");
  EXPECT_EQ(refusal(*engine, request({-1}, 1)), "prompt: token -1 is not in the vocabulary of 50");
  EXPECT_EQ(refusal(*engine, request(tokens(256), std::nullopt)),
            "the prompt has 256 tokens and 1 at least are to be drawn, but the context holds 256");
  EXPECT_EQ(refusal(*engine, request(tokens(257), 0)),
            "the prompt has 257 tokens and 0 at least are to be drawn, but the context holds 256");
  Request wanted = request(tokens(250), 100);
  wanted.params.min_tokens = 7;
  EXPECT_EQ(refusal(*engine, std::move(wanted)),
            "the prompt has 250 tokens and 7 at least are to be drawn, but the context holds 256");
  wanted = request({1}, 1);
  wanted.params.top_p = 2.0F;
  EXPECT_EQ(refusal(*engine, std::move(wanted)), "top_p must be above 0 and at most 1, not 2");
  wanted = request({1}, 1);
  wanted.prompt_logprobs = PromptLogprobs{.top = 129};
  EXPECT_EQ(refusal(*engine, std::move(wanted)), "prompt_logprobs must be from 0 to 128, not 129");
  EXPECT_FALSE(engine->busy());
  EXPECT_EQ(engine_on(executor, options(100))->context(), 100);
}

TEST(Engine, RefusesOptionsOutOfBounds) {
  FakeExecutor executor(4, 8);
  const auto error_of = [&](const EngineOptions& bad) {
    const auto engine = Engine::create(bad, executor);
    return engine ? std::string() : engine.error().message;
  };
  EXPECT_EQ(error_of(options(0)), "the context must hold a token at least, not 0");
  EXPECT_EQ(error_of(options(10, 9)), "from 1 to 8 requests can run at once, the rows of a step, not 9");
  EXPECT_EQ(error_of(options(10, 0)), "from 1 to 8 requests can run at once, the rows of a step, not 0");
  EngineOptions bad = options();
  bad.max_prompt_rows = -1;
  EXPECT_EQ(error_of(bad), "the prompts' rows of a step must not be negative, but are -1");
  bad = options();
  bad.eos_tokens = {50};
  EXPECT_EQ(error_of(bad), "end token 50 is not in the vocabulary of 50");
  FakeExecutor none(0, 8);
  const auto engine = Engine::create(options(), none);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().message, "the KV cache must have a page at least, not 0");
}

TEST(Engine, ReachingTheContextEndsWithLength) {
  FakeExecutor executor(2, 64);
  const auto engine = engine_on(executor);
  Outcome outcome = run_one(*engine, request(tokens(120), std::nullopt));
  EXPECT_EQ(outcome.tokens.size(), 8U);
  EXPECT_EQ(outcome.finish->reason, FinishReason::length);
  outcome = run_one(*engine, request(tokens(127), 500));
  EXPECT_EQ(outcome.tokens.size(), 1U);
  EXPECT_EQ(outcome.finish->reason, FinishReason::length);
}

TEST(Engine, MaxTokensOfZeroComputesThePromptAlone) {
  FakeExecutor executor(2, 64);
  const auto engine = engine_on(executor);
  Outcome outcome = run_one(*engine, request(tokens(128), 0));
  EXPECT_THAT(outcome.tokens, IsEmpty());
  EXPECT_EQ(outcome.finish->reason, FinishReason::length);
  EXPECT_EQ(outcome.finish->answer_tokens, 0);
  EXPECT_THAT(outcome.prompt_done, ElementsAre(64, 128));
  outcome = run_one(*engine, request(tokens(128), 0));
  EXPECT_EQ(outcome.finish->cached_tokens, 127);
}

TEST(Engine, EndTokensStop) {
  FakeExecutor executor(16, 64);
  Request wanted = request(tokens(10), 40);
  wanted.params.temperature = 1.0F;
  wanted.params.seed = 3;
  const TokenAnswer free = expected_answer(wanted, 3, {}, 1000, kVocabulary);
  const int32_t end = free.tokens[5].token;
  ASSERT_FALSE(std::any_of(free.tokens.begin(), free.tokens.begin() + 5,
                           [&](const TokenInfo& info) { return info.token == end; }));

  EngineOptions with_end = options();
  with_end.eos_tokens = {end};
  const auto engine = engine_on(executor, with_end);
  Outcome outcome = run_one(*engine, copy_of(wanted));
  EXPECT_EQ(outcome.tokens.size(), 40U);  // ignore_eos
  wanted.params.ignore_eos = false;
  outcome = run_one(*engine, copy_of(wanted));
  EXPECT_EQ(outcome.finish->reason, FinishReason::stop);
  ASSERT_EQ(outcome.tokens.size(), 6U);
  EXPECT_EQ(outcome.tokens.back().token, end);
  EXPECT_EQ(outcome.finish->answer_tokens, 6);

  wanted.params.ignore_eos = true;
  wanted.params.stop_tokens = {free.tokens[2].token};
  outcome = run_one(*engine, copy_of(wanted));
  EXPECT_EQ(outcome.finish->reason, FinishReason::stop);
  EXPECT_LE(outcome.tokens.size(), 3U);

  // An end token as the last one allowed is still a stop.
  wanted.params.stop_tokens = {end};
  wanted.params.max_tokens = 6;
  EXPECT_EQ(run_one(*engine, copy_of(wanted)).finish->reason, FinishReason::stop);

  wanted.params.min_tokens = 6;
  outcome = run_one(*engine, copy_of(wanted));
  EXPECT_EQ(outcome.tokens.size(), 6U);
  EXPECT_NE(outcome.tokens.back().token, end);
  EXPECT_EQ(outcome.finish->reason, FinishReason::length);
}

TEST(Engine, ReportsTheLogprobsOfThePrompt) {
  for (const int32_t rows : {1, 5, 64}) {
    FakeExecutor executor(16, rows);
    const auto engine = engine_on(executor, options(1000, 1));
    Request wanted = request(tokens(70), 3);
    wanted.prompt_logprobs = PromptLogprobs{.top = 2};
    const TokenAnswer expected = expected_answer(wanted, 0, {}, 1000, kVocabulary);
    run_one(*engine, request(tokens(70), 1));  // a cached prefix does not shorten what is reported
    const Outcome outcome = run_one(*engine, copy_of(wanted));
    expect_equal(outcome.prompt, expected.prompt);
    expect_equal(outcome.tokens, expected.tokens);
    ASSERT_EQ(outcome.prompt.size(), 70U);
    EXPECT_EQ(outcome.prompt[0].token, wanted.prompt[1]);
    EXPECT_EQ(outcome.prompt[69].token, -1);
    EXPECT_EQ(outcome.prompt[69].top.size(), 2U);
    EXPECT_EQ(outcome.finish->cached_tokens, 0);
  }
}

TEST(Engine, TakesPrefixesFromTheCache) {
  FakeExecutor executor(16, 300);
  const auto engine = engine_on(executor);
  const Outcome cold = run_one(*engine, request(tokens(200), 10));
  const Outcome warm = run_one(*engine, request(tokens(200), 10));
  EXPECT_EQ(warm.finish->cached_tokens, 199);
  expect_equal(warm.tokens, cold.tokens);

  // A conversation goes on after prompt and answer; of the answer the last token has no keys and values.
  Request next = request(tokens(200), 10);
  for (const TokenInfo& info : cold.tokens) next.prompt.push_back(info.token);
  next.prompt.push_back(1);
  const TokenAnswer expected = expected_answer(next, 0, {}, 1000, kVocabulary);
  const Outcome outcome = run_one(*engine, copy_of(next));
  EXPECT_EQ(outcome.finish->cached_tokens, 209);
  expect_equal(outcome.tokens, expected.tokens);

  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prompt_tokens, 200U + 200U + 211U);
  EXPECT_EQ(stats.cached_tokens, 199U + 209U);
  EXPECT_EQ(stats.answer_tokens, 30U);
  EXPECT_EQ(stats.rows, 200U + 1U + 2U + 27U);

  EngineOptions without = options();
  without.prefix_cache = false;
  const auto forgetful = engine_on(executor, without);
  run_one(*forgetful, request(tokens(200), 10));
  EXPECT_EQ(run_one(*forgetful, request(tokens(200), 10)).finish->cached_tokens, 0);
}

TEST(Engine, DecodingGoesOnWhilePromptsAreRead) {
  FakeExecutor executor(64, 16);
  const auto engine = engine_on(executor);
  std::map<RequestId, Outcome> outcomes;
  const RequestId first = submit(*engine, request(tokens(5), 100));
  collect(engine->step(), outcomes);
  const RequestId second = submit(*engine, request(tokens(150, 9), 5));
  for (int32_t i = 1; i <= 10; ++i) {
    collect(engine->step(), outcomes);
    EXPECT_EQ(outcomes[first].tokens.size(), static_cast<size_t>(i + 1));
    EXPECT_EQ(outcomes[second].prompt_done.back(), 15 * i);
  }
  EXPECT_EQ(outcomes[second].tokens.size(), 1U);
}

TEST(Engine, CancelFreesWithinOneStep) {
  FakeExecutor executor(16, 64);
  const auto engine = engine_on(executor);
  const RequestId running = submit(*engine, request(tokens(200), 100));
  const RequestId other = submit(*engine, request(tokens(10, 5), 100));
  engine->step();
  EXPECT_EQ(engine->stats().pages_active, 4);
  engine->cancel(running);
  engine->cancel(12345);  // unknown: nothing happens
  std::map<RequestId, Outcome> outcomes;
  collect(engine->step(), outcomes);
  engine->check_integrity();
  ASSERT_TRUE(outcomes[running].finish);
  EXPECT_EQ(outcomes[running].finish->reason, FinishReason::cancelled);
  EXPECT_EQ(outcomes[running].finish->prompt_tokens, 200);
  EXPECT_FALSE(outcomes[other].finish);
  EXPECT_EQ(engine->stats().running, 1);
  EXPECT_EQ(engine->stats().pages_active, 1);
  for (const SequenceRows& s : executor.last.batch.sequences) EXPECT_LE(s.position + s.rows, 12);
  // Twice, and before it ever ran.
  engine->cancel(running);
  const RequestId waiting = submit(*engine, request(tokens(10), 100));
  engine->cancel(waiting);
  engine->cancel(other);
  outcomes = run(*engine);
  EXPECT_EQ(outcomes.size(), 2U);
  EXPECT_EQ(outcomes[waiting].finish->reason, FinishReason::cancelled);
  EXPECT_EQ(outcomes[waiting].finish->answer_tokens, 0);
  EXPECT_EQ(engine->stats().finished[static_cast<size_t>(FinishReason::cancelled)], 3U);
}

TEST(Engine, FinishStopsBeforeTheNextToken) {
  FakeExecutor executor(16, 64);
  const auto engine = engine_on(executor);
  const RequestId id = submit(*engine, request(tokens(10), 100));
  std::map<RequestId, Outcome> outcomes;
  for (int i = 0; i < 3; ++i) collect(engine->step(), outcomes);
  engine->finish(id, FinishReason::stop);
  collect(engine->step(), outcomes);
  EXPECT_EQ(outcomes[id].tokens.size(), 3U);
  EXPECT_EQ(outcomes[id].finish->reason, FinishReason::stop);
  EXPECT_EQ(outcomes[id].finish->answer_tokens, 3);
  EXPECT_FALSE(engine->busy());
}

TEST(Engine, PreemptionChangesNoBits) {
  // 2 × 100 + 100 tokens in 5 pages of 64: the second has to wait for the first's end.
  FakeExecutor executor(5, 64);
  const auto engine = engine_on(executor);
  std::vector<Request> wanted;
  for (const int32_t first : {3, 17}) wanted.push_back(request(tokens(100, first), 100));
  std::vector<RequestId> ids;
  ids.reserve(wanted.size());
  for (const Request& r : wanted) ids.push_back(submit(*engine, copy_of(r)));
  auto outcomes = run(*engine);
  EXPECT_GT(engine->stats().preemptions, 0U);
  for (size_t i = 0; i < ids.size(); ++i) {
    expect_equal(outcomes[ids[i]].tokens, expected_answer(wanted[i], 0, {}, 1000, kVocabulary).tokens);
    EXPECT_EQ(outcomes[ids[i]].finish->cached_tokens, 0);
    EXPECT_TRUE(std::is_sorted(outcomes[ids[i]].prompt_done.begin(), outcomes[ids[i]].prompt_done.end()));
  }
}

TEST(Engine, AFailedRowEndsItsRequestAlone) {
  FakeExecutor executor(32, 100);
  executor.failing_token = 49;
  const auto engine = engine_on(executor);
  Request good = request(tokens(40), 30);
  good.params.logit_bias = {{49, -100.0F}};
  Request bad = request(tokens(40), 30);
  bad.params.logit_bias = {{49, -100.0F}};
  bad.prompt.resize(250, 7);
  bad.prompt[150] = 49;
  const RequestId bad_id = submit(*engine, copy_of(bad));
  const RequestId good_id = submit(*engine, copy_of(good));
  auto outcomes = run(*engine);
  expect_equal(outcomes[good_id].tokens, expected_answer(good, 0, {}, 1000, kVocabulary).tokens);
  ASSERT_EQ(outcomes[bad_id].finish->reason, FinishReason::error);
  EXPECT_THAT(
      outcomes[bad_id].finish->error,
      testing::MatchesRegex("the model met a value that is not finite at positions [0-9]+ to [0-9]+"));
  EXPECT_THAT(outcomes[bad_id].tokens, IsEmpty());
  // What failed is in no cache: it fails again, after the one page that was full before.
  const Outcome again = run_one(*engine, copy_of(bad));
  EXPECT_EQ(again.finish->reason, FinishReason::error);
  EXPECT_EQ(again.finish->cached_tokens, 64);
  EXPECT_EQ(engine->stats().pages_active, 0);
}

TEST(Engine, AFailedDrawEndsItsRequest) {
  FakeExecutor executor(4, 100);
  executor.failing_token = 9;
  const auto engine = engine_on(executor);
  Request wanted = request(tokens(5, 20), 10);
  wanted.params.logit_bias = {{9, 100.0F}};  // drawn first, fails as a row
  const Outcome outcome = run_one(*engine, std::move(wanted));
  EXPECT_EQ(outcome.tokens.size(), 1U);
  EXPECT_EQ(outcome.finish->reason, FinishReason::error);
  EXPECT_EQ(outcome.finish->error, "the model met a value that is not finite at positions 5 to 5");
}

/// Allows what `allow` says, by the tokens accepted so far.
class Scripted final : public TokenConstraint {
 public:
  using Masks = std::vector<std::vector<int32_t>>;
  Scripted(Masks masks, int32_t refused) : masks_(std::move(masks)), refused_(refused) {}

  Result<std::vector<uint32_t>> mask() override {
    if (accepted_ >= masks_.size()) return fail("the script is at its end");
    std::vector<uint32_t> words;
    if (masks_[accepted_].empty()) return words;
    words.assign((kVocabulary + 31) / 32, 0);
    for (const int32_t token : masks_[accepted_])
      words[static_cast<size_t>(token / 32)] |= 1U << (token % 32);
    return words;
  }

  Result<void> accept(int32_t token) override {
    ++accepted_;
    if (token == refused_) return fail("token {} is refused", token);
    return {};
  }

 private:
  Masks masks_;
  int32_t refused_;
  size_t accepted_ = 0;
};

TEST(Engine, ConstraintsBindTheDraws) {
  FakeExecutor executor(8, 64);
  const auto engine = engine_on(executor);
  Request free = request(tokens(10), 4);
  const TokenAnswer unbound = expected_answer(free, 0, {}, 1000, kVocabulary);
  Request bound = copy_of(free);
  bound.params.ignore_eos = false;
  bound.constraint = std::make_unique<Scripted>(Scripted::Masks{{}, {11}, {12, 13}, {0}}, -1);
  const RequestId bound_id = submit(*engine, std::move(bound));
  const RequestId free_id = submit(*engine, copy_of(free));
  auto outcomes = run(*engine);
  expect_equal(outcomes[free_id].tokens, unbound.tokens);
  const auto& drawn = outcomes[bound_id].tokens;
  ASSERT_EQ(drawn.size(), 4U);
  EXPECT_EQ(drawn[0].token, unbound.tokens[0].token);
  EXPECT_EQ(drawn[1].token, 11);
  EXPECT_TRUE(drawn[2].token == 12 || drawn[2].token == 13);
  EXPECT_EQ(drawn[3].token, 0);
  EXPECT_EQ(outcomes[bound_id].finish->reason, FinishReason::stop);
}

TEST(Engine, AConstraintsErrorEndsItsRequestAlone) {
  FakeExecutor executor(8, 64);
  const auto engine = engine_on(executor);
  const auto with = [](Scripted::Masks masks, int32_t refused) {
    Request wanted = request(tokens(10), 6);
    wanted.constraint = std::make_unique<Scripted>(std::move(masks), refused);
    return wanted;
  };
  const RequestId ended = submit(*engine, with({{11}, {12}}, -1));
  const RequestId refused = submit(*engine, with({{11}, {12}, {13}}, 12));
  const RequestId empty = submit(*engine, with({{11}, {63}}, -1));  // beyond the vocabulary
  const RequestId free = submit(*engine, request(tokens(10), 6));
  auto outcomes = run(*engine);
  EXPECT_EQ(outcomes[ended].finish->error, "the script is at its end");
  EXPECT_EQ(outcomes[ended].tokens.size(), 2U);
  EXPECT_EQ(outcomes[refused].finish->error, "token 12 is refused");
  EXPECT_EQ(outcomes[refused].tokens.size(), 2U);
  EXPECT_EQ(outcomes[empty].finish->error, "the constraint allows no token");
  EXPECT_EQ(outcomes[empty].tokens.size(), 1U);
  for (const RequestId id : {ended, refused, empty})
    EXPECT_EQ(outcomes[id].finish->reason, FinishReason::error);
  EXPECT_EQ(outcomes[free].tokens.size(), 6U);

  // With nothing else to do the step is over without the executor.
  const Outcome alone = run_one(*engine, with({}, -1));
  EXPECT_EQ(alone.finish->error, "the script is at its end");
}

TEST(Engine, ACopyThatNoStepCarriesOutLeavesNothingCached) {
  FakeExecutor executor(3, 200);
  const auto engine = engine_on(executor);
  run_one(*engine, request(tokens(41), 0));  // one page, of which the first request copies 29 tokens
  Request first = request(tokens(30), 5);
  first.constraint = std::make_unique<Scripted>(Scripted::Masks{}, -1);
  Request second = request(tokens(100, 20), 5);  // evicts the copied page
  second.constraint = std::make_unique<Scripted>(Scripted::Masks{}, -1);
  submit(*engine, std::move(first));
  submit(*engine, std::move(second));
  EXPECT_EQ(run(*engine).size(), 2U);
  EXPECT_EQ(engine->stats().steps, 1U);
  // The executor fails the test if it reads what was never copied.
  const Request last = request(tokens(60), 5);
  expect_equal(run_one(*engine, copy_of(last)).tokens, expected_answer(last, 0, {}, 192, kVocabulary).tokens);
}

TEST(Engine, IsBusyWhileAStepComputes) {
  FakeExecutor executor(8, 64);
  const auto engine = engine_on(executor);
  int steps = 0;
  executor.during_run = [&] {
    ++steps;
    EXPECT_TRUE(engine->busy());
    EXPECT_EQ(engine->stats().running + engine->stats().waiting, 1);
  };
  run_one(*engine, request(tokens(10), 3));
  EXPECT_EQ(steps, 3);
}

TEST(Engine, ChoosesASeedForARequestWithoutOne) {
  FakeExecutor executor(8, 64);
  EngineOptions seeded = options();
  seeded.seed = 5;
  const auto engine = engine_on(executor, seeded);
  Request wanted = request(tokens(10), 8);
  wanted.params.temperature = 1.5F;
  std::set<uint64_t> seeds;
  for (int i = 0; i < 8; ++i) {
    const auto submitted = engine->submit(copy_of(wanted));
    EXPECT_LT(submitted->seed, uint64_t{1} << 53);
    seeds.insert(submitted->seed);
    expect_equal(run(*engine)[submitted->id].tokens,
                 expected_answer(wanted, submitted->seed, {}, 1000, kVocabulary).tokens);
  }
  EXPECT_EQ(seeds.size(), 8U);
  wanted.params.seed = ~uint64_t{0};
  EXPECT_EQ(engine->submit(copy_of(wanted))->seed, ~uint64_t{0});
  // Another engine seed gives other seeds, the same one the same.
  EXPECT_TRUE(seeds.contains(engine_on(executor, seeded)->submit(request({1}, 1))->seed));
  seeded.seed = 6;
  EXPECT_FALSE(seeds.contains(engine_on(executor, seeded)->submit(request({1}, 1))->seed));
}

TEST(Engine, StatsAddUp) {
  FakeExecutor executor(8, 64);
  const auto engine = engine_on(executor, options(1000, 2));
  EXPECT_EQ(engine->stats().pages, 8);
  EXPECT_EQ(engine->stats().pages_free, 8);
  for (int i = 0; i < 3; ++i) submit(*engine, request(tokens(10, i), 5));
  EXPECT_EQ(engine->stats().waiting, 3);
  EXPECT_TRUE(engine->busy());
  engine->step();
  EXPECT_EQ(engine->stats().running, 2);
  EXPECT_EQ(engine->stats().waiting, 1);
  run(*engine);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages);
  EXPECT_EQ(stats.prompt_tokens, 30U);
  EXPECT_EQ(stats.answer_tokens, 15U);
  EXPECT_EQ(stats.rows, 3U * (10 + 4));
  EXPECT_EQ(stats.steps, 10U);
  EXPECT_THAT(stats.finished, ElementsAre(0U, 3U, 0U, 0U));
}

TEST(Engine, OtherThreadsMaySubmitAndCancel) {
  FakeExecutor executor(32, 64);
  const auto engine = engine_on(executor);
  constexpr int kThreads = 3;
  constexpr int kEach = 40;
  std::atomic<int> left{kThreads};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const RequestId id = submit(*engine, request(tokens(10 + i, t), 5));
        if (i % 3 == 0) engine->cancel(id);
        EXPECT_GE(engine->stats().pages, 32);
      }
      --left;
    });
  }
  std::map<RequestId, Outcome> outcomes;
  while (left > 0 || engine->busy()) collect(engine->step(), outcomes);
  for (std::thread& thread : threads) thread.join();
  engine->check_integrity();
  EXPECT_EQ(outcomes.size(), static_cast<size_t>(kThreads * kEach));
  for (const auto& [id, outcome] : outcomes) {
    ASSERT_TRUE(outcome.finish);
    EXPECT_TRUE(outcome.finish->reason == FinishReason::cancelled || outcome.tokens.size() == 5U);
  }
}

}  // namespace
}  // namespace tercet
