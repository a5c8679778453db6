// Exact under load, on a real model with real pages: two layers of random weights, the reference backend.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "backend/reference/reference_ops.h"
#include "engine/engine.h"
#include "engine/fake_executor.h"
#include "engine/local_executor.h"
#include "model/hy_v3/synthetic_model.h"

namespace tercet {
namespace {

constexpr int32_t kVocabulary = 320;

hy_v3::Config small_config() {
  hy_v3::Config c;
  c.vocab_size = kVocabulary;
  c.hidden_size = 128;
  c.num_layers = 2;
  c.layers = {hy_v3::LayerKind::dense, hy_v3::LayerKind::sparse};
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.intermediate_size = 128;
  c.moe_intermediate_size = 64;
  c.num_experts = 4;
  c.experts_per_token = 2;
  c.num_shared_experts = 1;
  c.max_positions = 1024;
  c.rms_norm_eps = 1e-5F;
  c.rope_theta = 10000;
  c.router_scaling = 1;
  c.route_norm = true;
  c.expert_bias = true;
  c.quantization.defaults = {4, 64};
  return c;
}

std::unique_ptr<LocalExecutor> make_executor(int32_t pages, int32_t max_rows) {
  const hy_v3::Config config = small_config();
  ExecutorOptions options;
  options.limits.max_rows = max_rows;
  options.limits.pages = pages;
  options.make_ops = [](size_t, int threads) { return make_reference_ops(threads); };
  auto executor = LocalExecutor::load(config, *make_synthetic_model(config, {}, 1).tensors, options);
  EXPECT_TRUE(executor) << executor.error().message;
  return std::move(*executor);
}

std::unique_ptr<Engine> make_engine(Executor& executor, int32_t max_prompt_rows = 0) {
  EngineOptions options;
  options.max_positions = 1024;
  options.max_sequences = 4;
  options.max_prompt_rows = max_prompt_rows;
  return std::move(*Engine::create(options, executor));
}

/// `shared` tokens that all such requests have in common, then others.
Request make_request(int32_t shared, int32_t own, int32_t kind, int32_t max_tokens) {
  Request request;
  for (int32_t i = 0; i < shared; ++i) request.prompt.push_back((7 * i + 3) % kVocabulary);
  for (int32_t i = 0; i < own; ++i) request.prompt.push_back((11 * i + 29 * kind) % kVocabulary);
  request.params.seed = static_cast<uint64_t>(kind);
  request.params.repetition_penalty = 1.1F;
  request.params.max_tokens = max_tokens;
  request.params.top_logprobs = 5;
  return request;
}

/// Runs everything submitted; the tokens of request `id`.
std::vector<TokenInfo> run(Engine& engine, RequestId id) {
  std::vector<TokenInfo> tokens;
  while (engine.busy()) {
    for (const Event& event : engine.step()) {
      if (event.id == id && event.token) tokens.push_back(*event.token);
    }
    engine.check_integrity();
  }
  return tokens;
}

class EngineOnModel : public testing::Test {
 protected:
  const Request wanted_ = make_request(100, 30, 1, 12);

  void expect_as_alone(const std::vector<TokenInfo>& tokens) {
    static const std::vector<TokenInfo> alone = [&] {
      const auto executor = make_executor(16, 256);
      const auto engine = make_engine(*executor);
      return run(*engine, engine->submit(copy_of(wanted_))->id);
    }();
    ASSERT_EQ(alone.size(), 12U);
    ASSERT_EQ(tokens.size(), alone.size());
    for (size_t i = 0; i < tokens.size(); ++i) EXPECT_TRUE(same_bits(tokens[i], alone[i])) << i;
  }
};

TEST_F(EngineOnModel, AfterItsOwnCachedPrompt) {
  const auto executor = make_executor(16, 256);
  const auto engine = make_engine(*executor);
  run(*engine, engine->submit(copy_of(wanted_))->id);
  expect_as_alone(run(*engine, engine->submit(copy_of(wanted_))->id));
  EXPECT_EQ(engine->stats().cached_tokens, 129U);
}

TEST_F(EngineOnModel, AfterCachedPrefixesOfAnyLength) {
  const auto executor = make_executor(16, 256);
  for (const int32_t shared : {1, 63, 64, 65, 100}) {
    const auto engine = make_engine(*executor);
    run(*engine, engine->submit(make_request(shared, 20, 5, 1))->id);
    expect_as_alone(run(*engine, engine->submit(copy_of(wanted_))->id));
    EXPECT_EQ(engine->stats().cached_tokens, static_cast<uint64_t>(shared));
  }
}

TEST_F(EngineOnModel, InChunksAmongOthers) {
  const auto executor = make_executor(16, 64);
  const auto engine = make_engine(*executor, 13);
  ASSERT_TRUE(engine->submit(make_request(70, 10, 2, 30)));
  engine->step();
  const RequestId id = engine->submit(copy_of(wanted_))->id;
  ASSERT_TRUE(engine->submit(make_request(0, 40, 3, 5)));
  ASSERT_TRUE(engine->submit(make_request(99, 1, 4, 10)));
  expect_as_alone(run(*engine, id));
}

TEST_F(EngineOnModel, AfterPreemption) {
  // The older request grows from two pages to four while the wanted one holds three of five.
  const auto executor = make_executor(5, 256);
  const auto engine = make_engine(*executor);
  ASSERT_TRUE(engine->submit(make_request(0, 124, 2, 80)));
  const RequestId id = engine->submit(copy_of(wanted_))->id;
  expect_as_alone(run(*engine, id));
  EXPECT_GT(engine->stats().preemptions, 0U);
}

}  // namespace
}  // namespace tercet
