#include "apps/stage_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/loaded_model.h"

namespace tercet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kGiB = int64_t{1} << 30;

/// "cpu 0-43" of each stage, or the error.
std::vector<std::string> plan(const ModelOptions& options, const Machine& machine) {
  static const OpenedModel model =
      *open_model({.model = "synthetic:hy-mt2-30b", .gpu_layers = kLayersThatFit});  // 15.3 GiB
  const auto stages = plan_stages(options, model, {.max_rows = 512, .pages = 64, .mtp = false}, machine);
  if (!stages) return {stages.error().message};
  std::vector<std::string> lines;
  for (const StagePlan& stage : *stages) {
    const char* name = stage.backend == BackendKind::cuda  ? "cuda"
                       : stage.backend == BackendKind::cpu ? "cpu"
                                                           : "reference";
    lines.push_back(fmt::format("{} {}-{}", name, stage.layers.begin, stage.layers.end));
  }
  return lines;
}

Machine with_gpu(int64_t gib, int64_t used = 0) {
  return {CudaDevice{.name = "", .memory = gib * kGiB, .free = (gib - used) * kGiB}, 64 * kGiB};
}
Machine without_gpu() { return {fail("no driver"), 64 * kGiB}; }

TEST(StagePlan, TakesTheGpuThatThereIs) {
  EXPECT_THAT(plan({}, with_gpu(80)), ElementsAre("cuda 0-48"));
  EXPECT_THAT(plan({.backend = "cuda"}, with_gpu(80)), ElementsAre("cuda 0-48"));
  EXPECT_THAT(plan({.backend = "cpu"}, with_gpu(80)), ElementsAre("cpu 0-48"));
  EXPECT_THAT(plan({.backend = "reference"}, with_gpu(80)), ElementsAre("reference 0-48"));
  EXPECT_THAT(plan({}, without_gpu()), ElementsAre("cpu 0-48"));
  EXPECT_THAT(plan({.backend = "cuda"}, without_gpu()), ElementsAre("--backend cuda: no driver"));
}

TEST(StagePlan, LayersThatDoNotFitGoToTheCpu) {
  EXPECT_THAT(plan({}, with_gpu(8)), ElementsAre("cpu 0-28", "cuda 28-48"));
  EXPECT_THAT(plan({}, with_gpu(80, 72)), ElementsAre("cpu 0-48"));  // 0.9 of 80 is in use by others
  EXPECT_THAT(plan({.gpu_memory_utilization = 1.0}, with_gpu(80, 72)), ElementsAre("cpu 0-25", "cuda 25-48"));
  EXPECT_THAT(plan({.backend = "cuda"}, with_gpu(8)), ElementsAre(HasSubstr("would fit")));
}

TEST(StagePlan, LayersByNumber) {
  EXPECT_THAT(plan({.gpu_layers = 5}, with_gpu(80)), ElementsAre("cpu 0-43", "cuda 43-48"));
  EXPECT_THAT(plan({.gpu_layers = 99}, with_gpu(80)), ElementsAre("cuda 0-48"));
  EXPECT_THAT(plan({.gpu_layers = 0}, with_gpu(80)), ElementsAre("cpu 0-48"));
  EXPECT_THAT(plan({.model = "M", .gpu_layers = 47}, with_gpu(8)),
              ElementsAre("-ngl 47: M needs 16.05 GiB of memory (weights 15.59 GiB, KV cache of 4096 tokens "
                          "377.47 MiB, scratch 89.03 MiB), of 7.20 GiB available on the GPU "
                          "(--gpu-memory-utilization 0.9): -ngl 20 would fit"));
  EXPECT_THAT(plan({.gpu_layers = kAllLayers}, with_gpu(80)), ElementsAre("cuda 0-48"));
  EXPECT_THAT(plan({.gpu_layers = kAllLayers}, with_gpu(8)), ElementsAre(StartsWith("-ngl all: ")));
  EXPECT_THAT(plan({.gpu_layers = 5}, without_gpu()), ElementsAre("-ngl 5: no driver"));
  EXPECT_THAT(plan({.backend = "cpu", .gpu_layers = 5}, with_gpu(80)),
              ElementsAre("-ngl 5: --backend cpu has no GPU"));
}

TEST(StagePlan, StagesAndShards) {
  EXPECT_THAT(plan({.pipeline_stages = 3}, without_gpu()), ElementsAre("cpu 0-16", "cpu 16-32", "cpu 32-48"));
  EXPECT_THAT(plan({.pipeline_stages = 2}, with_gpu(80)), ElementsAre("cpu 0-24", "cpu 24-48"));
  EXPECT_THAT(plan({.backend = "cuda", .tensor_shards = 2}, with_gpu(80)),
              ElementsAre("--backend cuda: one GPU is one rank; expected 1 stage and 1 shard"));
  EXPECT_THAT(plan({.pipeline_stages = 49}, without_gpu()),
              ElementsAre("49 pipeline stages: expected 1 to 48, a layer each at least"));
}

TEST(StagePlan, TheCpuNeedsRoomForItsLayers) {
  Machine machine = without_gpu();
  machine.memory = 8 * kGiB;
  EXPECT_THAT(plan({}, machine), ElementsAre(HasSubstr("even without a cache it does not fit")));
  machine = with_gpu(80);
  machine.memory = 4 * kGiB;
  EXPECT_THAT(plan({}, machine), ElementsAre("cuda 0-48"));
  EXPECT_THAT(plan({.gpu_layers = 10}, machine), ElementsAre(HasSubstr("are available on this machine")));
  EXPECT_THAT(plan({.gpu_layers = 40}, machine), ElementsAre("cpu 0-8", "cuda 8-48"));
}

}  // namespace
}  // namespace tercet
