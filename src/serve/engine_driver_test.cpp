#include "serve/engine_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "engine/fake_executor.h"

namespace tercet {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr int32_t kVocabulary = 50;
constexpr int32_t kContext = 512;

std::unique_ptr<Engine> make_engine(FakeExecutor& executor, int32_t max_sequences) {
  EngineOptions options;
  options.max_positions = kContext;
  options.max_sequences = max_sequences;
  options.eos_tokens = {0};
  return std::move(*Engine::create(options, executor));
}

Request request_of(int32_t seed, int32_t max_tokens) {
  Request request;
  for (int32_t i = 0; i < 20; ++i) request.prompt.push_back(1 + (seed * 7 + i) % (kVocabulary - 1));
  request.params.seed = static_cast<uint64_t>(seed);
  request.params.max_tokens = max_tokens;
  request.params.ignore_eos = true;
  return request;
}

std::vector<Request> one(Request request) {
  std::vector<Request> parts;
  parts.push_back(std::move(request));
  return parts;
}

/// The updates of one submission, by part.
struct Told {
  explicit Told(size_t parts) : tokens(parts), finish(parts), left(parts) {}

  UpdateSink sink() {
    return [this](Update update) {
      const std::lock_guard lock(mutex);
      if (update.event.token) tokens[update.part].push_back(*update.event.token);
      if (!update.event.finish) return;
      EXPECT_FALSE(finish[update.part].has_value());
      finish[update.part] = update.event.finish;
      cut = update.cut;
      if (--left == 0) done.set_value();
    };
  }
  void wait() { ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready); }

  std::mutex mutex;
  std::vector<std::vector<TokenInfo>> tokens;
  std::vector<std::optional<Finish>> finish;
  Cut cut = Cut::none;
  size_t left;
  std::promise<void> done;
};

TEST(EngineDriver, TellsEachPartWhatTheEngineMakesOfIt) {
  FakeExecutor executor(64, 128, kVocabulary);
  EngineDriver driver(make_engine(executor, 8), {.max_sequences = 8, .max_waiting = 8});
  std::vector<Request> parts;
  for (int32_t i = 0; i < 5; ++i) parts.push_back(request_of(i, 10 + i));
  Told told(parts.size());
  const auto submitted = driver.submit(std::move(parts), told.sink());
  ASSERT_TRUE(submitted.has_value());
  EXPECT_EQ(submitted->size(), 5U);
  told.wait();
  for (int32_t i = 0; i < 5; ++i) {
    const auto index = static_cast<size_t>(i);
    const TokenAnswer expected =
        expected_answer(request_of(i, 10 + i), static_cast<uint64_t>(i), {}, kContext, kVocabulary);
    ASSERT_EQ(told.tokens[index].size(), expected.tokens.size());
    for (size_t t = 0; t < expected.tokens.size(); ++t) {
      EXPECT_TRUE(same_bits(told.tokens[index][t], expected.tokens[t]));
    }
    EXPECT_EQ(told.finish[index]->reason, FinishReason::length);
  }
  const DriverMetrics metrics = driver.metrics();
  EXPECT_EQ(metrics.queue.count(), 5U);
  EXPECT_EQ(metrics.first_token.count(), 5U);
  EXPECT_EQ(metrics.inter_token.count(), 10U + 11 + 12 + 13 + 14 - 5);
  EXPECT_EQ(metrics.whole.count(), 5U);
}

TEST(EngineDriver, RefusesWhatHasNoPlaceOrIsWrong) {
  FakeExecutor executor(64, 128, kVocabulary);
  EngineDriver driver(make_engine(executor, 1), {.max_sequences = 1, .max_waiting = 1});
  std::vector<Request> three;
  for (int32_t i = 0; i < 3; ++i) three.push_back(request_of(i, 400));
  const auto many = driver.submit(std::move(three), [](const Update&) {});
  ASSERT_FALSE(many.has_value());
  EXPECT_EQ(many.error().kind, Refusal::Kind::invalid);
  EXPECT_THAT(many.error().message, HasSubstr("3 answers are wanted at once, and no more than 2 may be"));

  std::vector<Request> half;
  half.push_back(request_of(1, 400));
  half.push_back(request_of(2, 400));
  half.back().prompt[0] = kVocabulary;
  const auto wrong = driver.submit(std::move(half), [](const Update&) { FAIL() << "nothing was submitted"; });
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().kind, Refusal::Kind::invalid);
  EXPECT_THAT(wrong.error().message, HasSubstr("not in the vocabulary"));
  while (driver.stats().finished[static_cast<size_t>(FinishReason::cancelled)] == 0)
    std::this_thread::yield();

  std::promise<void> hold;
  executor.during_run = [held = hold.get_future().share()] { held.wait(); };
  Told first(1), second(1);
  while (!driver.submit(one(request_of(1, 400)), first.sink())) std::this_thread::yield();
  ASSERT_TRUE(driver.submit(one(request_of(2, 400)), second.sink()).has_value());
  const auto full = driver.submit(one(request_of(3, 400)), [](const Update&) {});
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().kind, Refusal::Kind::full);
  EXPECT_THAT(full.error().message, HasSubstr("2 answers are being made or wait, and no more than 2 may"));
  EXPECT_GE(full.error().retry_after, 1);
  EXPECT_EQ(driver.metrics().refused, 1U);
  hold.set_value();
  first.wait();
  second.wait();
}

TEST(EngineDriver, CancelsBeforeTheNextStep) {
  FakeExecutor executor(64, 128, kVocabulary);
  std::atomic<int> steps{0};
  executor.during_run = [&] { ++steps; };
  EngineDriver driver(make_engine(executor, 2), {.max_sequences = 2, .max_waiting = 0});
  Told told(1);
  std::atomic<int> seen{0};
  const auto id = driver.submit(one(request_of(1, 400)), [&, sink = told.sink()](const Update& update) {
    if (update.event.token && ++seen == 3) driver.finish(update.event.id, FinishReason::cancelled);
    sink(update);
  });
  ASSERT_TRUE(id.has_value());
  told.wait();
  EXPECT_EQ(told.finish[0]->reason, FinishReason::cancelled);
  EXPECT_EQ(told.cut, Cut::none);
  EXPECT_EQ(told.tokens[0].size(), 3U);
  EXPECT_EQ(steps, 3);
}

TEST(EngineDriver, EndsWhatTakesTooLong) {
  FakeExecutor executor(64, 128, kVocabulary);
  executor.during_run = [] { std::this_thread::sleep_for(milliseconds(1)); };
  EngineDriver driver(make_engine(executor, 2),
                      {.max_sequences = 2, .max_waiting = 0, .deadline = milliseconds(20)});
  Told told(1);
  ASSERT_TRUE(driver.submit(one(request_of(1, 490)), told.sink()).has_value());
  told.wait();
  EXPECT_EQ(told.finish[0]->reason, FinishReason::cancelled);
  EXPECT_EQ(told.cut, Cut::deadline);
  EXPECT_EQ(driver.metrics().deadlines, 1U);
}

TEST(EngineDriver, DrainsUntilItsLimit) {
  FakeExecutor executor(64, 128, kVocabulary);
  EngineDriver driver(make_engine(executor, 2), {.max_sequences = 2, .max_waiting = 0});
  Told ended(1);
  ASSERT_TRUE(driver.submit(one(request_of(1, 20)), ended.sink()).has_value());
  ended.wait();
  EXPECT_EQ(ended.finish[0]->reason, FinishReason::length);

  executor.during_run = [] { std::this_thread::sleep_for(milliseconds(1)); };
  Told cut(1);
  ASSERT_TRUE(driver.submit(one(request_of(1, 490)), cut.sink()).has_value());
  driver.drain(milliseconds(10));
  cut.wait();
  EXPECT_EQ(cut.finish[0]->reason, FinishReason::cancelled);
  EXPECT_EQ(cut.cut, Cut::shutdown);
  EXPECT_TRUE(driver.draining());
  const auto refused = driver.submit(one(request_of(1, 1)), [](const Update&) {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, Refusal::Kind::shutdown);
}

TEST(EngineDriver, KnowsWhenNothingHappens) {
  FakeExecutor executor(64, 128, kVocabulary);
  std::promise<void> hold;
  executor.during_run = [held = hold.get_future().share()] { held.wait(); };
  EngineDriver driver(make_engine(executor, 2), {.max_sequences = 2, .max_waiting = 0});
  EXPECT_FALSE(driver.stalled(milliseconds(0)));
  Told told(1);
  ASSERT_TRUE(driver.submit(one(request_of(1, 2)), told.sink()).has_value());
  while (!driver.stalled(milliseconds(5))) std::this_thread::yield();
  EXPECT_FALSE(driver.stalled(milliseconds(60000)));
  hold.set_value();
  told.wait();
  while (driver.stalled(milliseconds(0))) std::this_thread::yield();
}

}  // namespace
}  // namespace tercet
