// Exact under load: whatever else an engine does, a request's answer is the one it has alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/engine.h"
#include "engine/fake_executor.h"

namespace tercet {
namespace {

constexpr int32_t kVocabulary = 50;
constexpr int32_t kFailing = 49;
const std::vector<int32_t> kEos = {0, 1};

struct Limits {
  int32_t pages;
  int32_t max_rows;
  int32_t max_sequences;
  int32_t max_prompt_rows;
  bool prefix_cache = true;
};

struct Client {
  Request request;  // as submitted
  uint64_t seed = 0;
  bool cancelled = false;
  std::vector<TokenInfo> prompt, tokens;
  int32_t prompt_done = 0;
  std::optional<Finish> finish;
};

class Load {
 public:
  Load(const Limits& limits, uint32_t seed) : executor_(limits.pages, limits.max_rows), random_(seed) {
    executor_.failing_token = kFailing;
    EngineOptions options;
    options.max_positions = 400;
    options.max_sequences = limits.max_sequences;
    options.max_prompt_rows = limits.max_prompt_rows;
    options.prefix_cache = limits.prefix_cache;
    options.eos_tokens = kEos;
    options.seed = seed;
    engine_ = std::move(*Engine::create(options, executor_));
    for (int i = 0; i < 4; ++i) stems_.push_back(some_tokens(150));
  }

  void run(int requests) {
    while (requests > 0 || engine_->busy()) {
      for (; requests > 0 && below(3) == 0; --requests) submit();
      if (!clients_.empty() && below(20) == 0) cancel();
      for (Event& event : engine_->step()) take(event);
      engine_->check_integrity();
      if (testing::Test::HasFatalFailure()) return;
    }
    check_end();
  }

  EngineStats stats() const { return engine_->stats(); }

 private:
  int32_t below(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }
  bool chance(int32_t one_in) { return below(one_in) == 0; }

  std::vector<int32_t> some_tokens(int32_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = 2 + below(kVocabulary - 4);
    return tokens;
  }

  SamplingParams some_params() {
    SamplingParams p;
    p.temperature = chance(3) ? 0.0F : 1.0F;
    if (chance(3)) p.seed = random_();
    if (chance(4)) p.top_k = 1 + below(10);
    if (chance(4)) p.top_p = 0.8F;
    if (chance(4)) p.min_p = 0.1F;
    if (chance(4)) p.repetition_penalty = 1.3F;
    if (chance(4)) p.presence_penalty = 0.7F;
    if (chance(4)) p.frequency_penalty = 0.4F;
    if (chance(4)) p.logit_bias = {{below(kFailing), 3.0F}, {kFailing, -100.0F}};
    if (chance(4)) p.stop_tokens = {below(kVocabulary)};
    p.ignore_eos = chance(2);
    p.max_tokens = below(160);
    if (chance(8)) p.max_tokens.reset();
    if (chance(4)) p.min_tokens = below(std::min(p.max_tokens.value_or(20), 20) + 1);
    if (chance(4)) p.top_logprobs = 3;
    return p;
  }

  /// A stem shared with others, cut anywhere, and tokens of its own; or a whole earlier conversation.
  std::vector<int32_t> some_prompt() {
    std::vector<int32_t> prompt = stems_[static_cast<size_t>(below(static_cast<int32_t>(stems_.size())))];
    prompt.resize(static_cast<size_t>(below(static_cast<int32_t>(prompt.size()) + 1)));
    const std::vector<int32_t> own = some_tokens(1 + below(40));
    prompt.insert(prompt.end(), own.begin(), own.end());
    if (chance(12)) prompt[static_cast<size_t>(below(static_cast<int32_t>(prompt.size())))] = kFailing;
    return prompt;
  }

  void submit() {
    Client client;
    client.request.prompt = some_prompt();
    client.request.params = some_params();
    if (chance(5)) client.request.prompt_logprobs = PromptLogprobs{.top = below(3)};
    const auto submitted = engine_->submit(copy_of(client.request));
    if (!submitted) {
      const auto least = static_cast<size_t>(std::max(client.request.params.min_tokens, 1));
      ASSERT_GT(client.request.prompt.size() + least, static_cast<size_t>(engine_->context()));
      return;
    }
    client.seed = submitted->seed;
    clients_.emplace(submitted->id, std::move(client));
  }

  void cancel() {
    const auto it = std::next(clients_.begin(), below(static_cast<int32_t>(clients_.size())));
    it->second.cancelled = true;
    engine_->cancel(it->first);
  }

  void take(Event& event) {
    Client& client = clients_.at(event.id);
    ASSERT_FALSE(client.finish) << "an event after the last one";
    ASSERT_GE(event.prompt_done, client.prompt_done);
    ASSERT_TRUE(event.token || event.finish || event.prompt_done > client.prompt_done) << "no news";
    client.prompt_done = event.prompt_done;
    client.prompt.insert(client.prompt.end(), event.prompt.begin(), event.prompt.end());
    if (event.token) client.tokens.push_back(*event.token);
    client.finish = event.finish;
    if (!event.finish) return;
    check(client);
    // Later prompts go on from this conversation.
    std::vector<int32_t> stem = client.request.prompt;
    for (const TokenInfo& info : client.tokens) stem.push_back(info.token);
    if (stem.size() < 250 && std::count(stem.begin(), stem.end(), kFailing) == 0) {
      stems_[static_cast<size_t>(below(4))] = std::move(stem);
    }
  }

  void check(const Client& client) {
    const TokenAnswer expected =
        expected_answer(client.request, client.seed, kEos, engine_->context(), kVocabulary, kFailing);
    const bool whole = client.finish->reason != FinishReason::cancelled;
    ASSERT_TRUE(whole || client.cancelled);
    if (whole) {
      ASSERT_EQ(client.finish->reason, expected.reason);
    }
    ASSERT_EQ(client.finish->answer_tokens, static_cast<int32_t>(client.tokens.size()));
    check(client.tokens, expected.tokens, whole);
    // Of a prompt that failed, rows of the same step as the failing one go unreported.
    check(client.prompt, expected.prompt, whole && expected.reason != FinishReason::error);
  }

  void check(const std::vector<TokenInfo>& found, const std::vector<TokenInfo>& expected, bool whole) {
    if (whole) {
      ASSERT_EQ(found.size(), expected.size());
    }
    ASSERT_LE(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) ASSERT_TRUE(same_bits(found[i], expected[i])) << i;
  }

  void check_end() {
    uint64_t answer_tokens = 0;
    for (const auto& [id, client] : clients_) {
      ASSERT_TRUE(client.finish) << id;
      answer_tokens += client.tokens.size();
    }
    const EngineStats stats = engine_->stats();
    ASSERT_EQ(stats.answer_tokens, answer_tokens);
    ASSERT_EQ(stats.running + stats.waiting + stats.pages_active, 0);
    ASSERT_EQ(stats.finished[0] + stats.finished[1] + stats.finished[2] + stats.finished[3], clients_.size());
  }

  FakeExecutor executor_;
  std::mt19937 random_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<int32_t>> stems_;
  std::map<RequestId, Client> clients_;
};

TEST(EngineRandom, ExactUnderLoad) {
  const Limits all[] = {
      {.pages = 4, .max_rows = 1, .max_sequences = 1, .max_prompt_rows = 0},
      {.pages = 5, .max_rows = 8, .max_sequences = 8, .max_prompt_rows = 0},
      {.pages = 7, .max_rows = 64, .max_sequences = 5, .max_prompt_rows = 0},
      {.pages = 10, .max_rows = 65, .max_sequences = 20, .max_prompt_rows = 3},
      {.pages = 12, .max_rows = 80, .max_sequences = 40, .max_prompt_rows = 0},
      {.pages = 16, .max_rows = 33, .max_sequences = 33, .max_prompt_rows = 7},
      {.pages = 16, .max_rows = 100, .max_sequences = 10, .max_prompt_rows = 0, .prefix_cache = false},
      {.pages = 200, .max_rows = 300, .max_sequences = 32, .max_prompt_rows = 0},
  };
  EngineStats sum;
  for (const Limits& limits : all) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(testing::Message()
                   << limits.pages << " pages, " << limits.max_rows << " rows, seed " << seed);
      Load load(limits, seed);
      load.run(100);
      if (HasFatalFailure()) return;
      const EngineStats stats = load.stats();
      sum.preemptions += stats.preemptions;
      sum.cached_tokens += stats.cached_tokens;
      for (size_t i = 0; i < kFinishReasons; ++i) sum.finished[i] += stats.finished[i];
    }
  }
  // The runs meet what they are for.
  EXPECT_GT(sum.preemptions, 150U);
  EXPECT_GT(sum.cached_tokens, 20000U);
  for (const uint64_t count : sum.finished) EXPECT_GT(count, 50U);
}

}  // namespace
}  // namespace tercet
