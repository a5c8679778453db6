// The engine on a real model: a request's tokens and log-probabilities are the same alone, among others, cold
// or cached, with room to spare or preempted; and memory is what the plan says.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "backend/reference/reference_ops.h"
#include "engine/engine.h"
#include "harness.h"
#include "model/hy_v3/bf16_checkpoint.h"
#include "model/hy_v3/inventory.h"

namespace tercet::verify {
namespace {

const std::string kTiny = TERCET_SOURCE_DIR "/models/hy3-tiny";

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool operator==(const Drawn&) const = default;
};

Request request_of(int32_t prompt, uint64_t key, float temperature) {
  Request request;
  request.prompt = made_up_tokens(prompt, 4000, key);
  request.params.temperature = temperature;
  request.params.seed = key;
  request.params.max_tokens = 12;
  request.params.ignore_eos = true;
  return request;
}

std::map<RequestId, Drawn> run(Engine& engine) {
  std::map<RequestId, Drawn> drawn;
  while (engine.busy()) {
    for (const Event& event : engine.step()) {
      if (event.finish) {
        EXPECT_EQ(event.finish->reason, FinishReason::length) << event.finish->error;
      }
      if (!event.token) continue;
      drawn[event.id].tokens.push_back(event.token->token);
      drawn[event.id].logprobs.push_back(event.token->logprob);
    }
    engine.check_integrity();
  }
  return drawn;
}

TEST(EngineOnModel, ExactUnderLoad) {
  const TestModel model = open_test_model(kTiny);
  const std::vector<std::pair<int32_t, float>> requests{{150, 0.0F}, {63, 1.0F}, {64, 1.0F},
                                                        {65, 0.7F},  {1, 1.0F},  {129, 1.0F}};
  std::vector<Drawn> alone;
  {
    const auto executor = load(model, {.pages = 4}, make_reference_ops);
    EngineOptions options;
    options.max_positions = 256;
    options.prefix_cache = false;
    const auto engine = Engine::create(options, *executor);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE((*engine)->submit(request_of(requests[i].first, i, requests[i].second)));
      alone.push_back(run(**engine).begin()->second);
      EXPECT_EQ(alone.back().tokens.size(), 12u);
    }
  }
  for (const int32_t pages : {64, 5}) {  // with room to spare, and so few that some must give way
    const auto executor = load(model, {.max_rows = 40, .pages = pages}, make_reference_ops);
    EngineOptions options;
    options.max_positions = 256;
    options.max_sequences = 6;
    const auto engine = Engine::create(options, *executor);
    for (int round = 0; round < 2; ++round) {  // cold, then with everything cached that still is
      std::map<RequestId, size_t> index;
      for (size_t i = 0; i < requests.size(); ++i) {
        const auto submitted = (*engine)->submit(request_of(requests[i].first, i, requests[i].second));
        ASSERT_TRUE(submitted) << submitted.error().message;
        index[submitted->id] = i;
      }
      for (const auto& [id, drawn] : run(**engine))
        EXPECT_EQ(drawn, alone[index[id]]) << pages << " " << index[id];
    }
    const EngineStats stats = (*engine)->stats();
    EXPECT_GT(pages == 5 ? stats.preemptions : stats.cached_tokens, 0u);
  }
}

/// Memory of this process that no file backs, in bytes.
int64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return -1;
}

TEST(Memory, IsWhatThePlanSays) {
  const TestModel four_bit = open_test_model(kTiny);
  auto twin = hy_v3::to_bf16(four_bit.checkpoint, hy_v3::Spelling::hugging_face, 2);
  ASSERT_TRUE(twin);
  const TestModel bf16{*hy_v3::parse_config(twin->config_json), *twin};
  for (const TestModel* model : {&four_bit, &bf16}) {
    const auto names = hy_v3::resolve_names(model->config, *model->checkpoint.tensors);
    const hy_v3::LayerRange layers = hy_v3::all_layers(model->config);
    const auto inventory = hy_v3::take_inventory(model->config, *names, *model->checkpoint.tensors, layers);
    ASSERT_TRUE(inventory) << inventory.error().message;
    const hy_v3::MemoryPlan plan = hy_v3::plan_memory(model->config, *inventory, layers, 32768, 512);
    const int64_t before = anonymous_memory();
    const auto executor = load(*model, {.pages = 512}, make_reference_ops);
    score_together(*executor, {made_up_tokens(100, 4000, 1)}, 100);
    const double ratio = static_cast<double>(executor->allocated()) / static_cast<double>(plan.total());
    EXPECT_GE(ratio, 0.98);
    EXPECT_LE(ratio, 1.02);
    EXPECT_LE(anonymous_memory() - before, plan.total() + (64 << 20));
  }
}

}  // namespace
}  // namespace tercet::verify
