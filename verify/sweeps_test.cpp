// The first promise, on whole models: what a token's log-probabilities are depends on the tokens before it
// and on nothing else.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "backend/cpu/cpu_ops.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/reference/reference_ops.h"
#include "base/check.h"
#include "harness.h"
#include "model/hy_v3/synthetic_model.h"

namespace tercet::verify {
namespace {

const std::string kTiny = TERCET_SOURCE_DIR "/models/hy3-tiny";

bool full() { return std::getenv("TERCET_FULL") != nullptr; }

using MakeOps = std::unique_ptr<Ops> (*)(int threads);

struct Backend {
  const char* name;
  MakeOps make;
};

const Backend kReference{"reference", make_reference_ops};
const Backend kCpu{"cpu", [](int threads) { return make_cpu_ops(threads); }};
const Backend kCuda{"cuda", [](int) { return std::move(*make_cuda_ops()); }};

std::string name_of(const testing::TestParamInfo<Backend>& backend) { return backend.param.name; }

/// The reference in one piece gives the right values for everything below, on every backend.
class Tiny : public testing::TestWithParam<Backend> {
 protected:
  static void SetUpTestSuite() {
    model_ = new TestModel(open_test_model(kTiny));
    const auto reference = load(*model_, {.mtp = true}, make_reference_ops);
    tokens_ = made_up_tokens(513, reference->vocabulary(), 1);
    const std::vector<int32_t> begin(tokens_.begin(), tokens_.begin() + 512);
    scores_ = score_together(*reference, {begin}, 512, true).front();
  }
  static void TearDownTestSuite() { delete model_; }
  void SetUp() override {
    const auto device = cuda_device();
    if (GetParam().name == kCuda.name && !device) GTEST_SKIP() << device.error().message;
    executor_ = load(*model_, {.mtp = true}, GetParam().make);
  }
  static std::vector<int32_t> first(int32_t count) { return {tokens_.begin(), tokens_.begin() + count}; }
  static Scores of_first(int32_t count) {
    const auto vocabulary = static_cast<size_t>(model_->config.vocab_size);
    Scores out = scores_;
    out.main.resize(static_cast<size_t>(count) * vocabulary);
    out.mtp.resize(static_cast<size_t>(count - 1) * vocabulary);
    return out;
  }

  static inline TestModel* model_ = nullptr;
  static inline std::vector<int32_t> tokens_;
  static inline Scores scores_;
  std::unique_ptr<LocalExecutor> executor_;
};

/// A prompt in pieces, then tokens alone, on each instruction set that this machine has.
void expect_bits_on_every_level(const TestModel& model, int32_t count, bool mtp) {
  const auto tokens = made_up_tokens(count, static_cast<int32_t>(model.config.vocab_size), 9);
  const Scores right =
      score_together(*load(model, {.pages = 8, .mtp = mtp}, make_reference_ops), {tokens}, count, mtp)
          .front();
  for (const CpuLevel level : cpu::available_levels()) {
    const auto make = [level](int threads) { return make_cpu_ops(threads, level); };
    const auto executor = load(model, {.pages = 8, .mtp = mtp}, make);
    for (const int32_t chunk : {count, 7, 1}) {
      EXPECT_EQ(score_together(*executor, {tokens}, chunk, mtp).front(), right)
          << cpu::kernels_of(level).name << ", " << chunk << " tokens a step";
    }
  }
}

TEST(EveryLevel, GivesTheBitsOfTiny) { expect_bits_on_every_level(open_test_model(kTiny), 260, true); }

TEST(EveryLevel, GivesTheBitsOfTrueShapes) {
  for (const char* model : {"synthetic:hy-mt2-30b:2", "synthetic:hy3:2"}) {
    if (!full() && std::string_view(model) == "synthetic:hy3:2")
      continue;  // its digest is checked at one level
    expect_bits_on_every_level(open_test_model(model), 9, false);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Tiny, testing::Values(kReference, kCpu, kCuda), name_of);

TEST_P(Tiny, ChunksOfAnyLength) {
  for (const int32_t chunk : {1, 2, 3, 7, 16, 63, 64, 65, 255, 256, 257}) {
    // Small chunks need not go as far to cross blocks, spans and pages.
    const int32_t count = full() || chunk >= 63 || GetParam().name != kReference.name ? 512 : 300;
    EXPECT_EQ(score_together(*executor_, {first(count)}, chunk, true).front(), of_first(count)) << chunk;
  }
}

TEST_P(Tiny, BatchesWithOthersOfAnyLength) {
  for (size_t size = 2; size <= 9; ++size) {
    std::vector<std::vector<int32_t>> sequences;
    for (size_t s = 0; s + 1 < size; ++s) {
      sequences.push_back(made_up_tokens(static_cast<int32_t>(1 + 37 * s), executor_->vocabulary(), 100 + s));
    }
    const auto place = sequences.begin() + static_cast<int64_t>(size / 2);
    sequences.insert(place, first(150));
    EXPECT_EQ(score_together(*executor_, sequences, 31, true)[size / 2], of_first(150)) << size;
  }
}

TEST_P(Tiny, AfterACachedPrefixOfAnyLength) {
  for (const int32_t prefix : {1, 2, 17, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 290}) {
    EXPECT_EQ(score_after_prefix(*executor_, first(300), prefix),
              rows_from(of_first(300), prefix, executor_->vocabulary()))
        << prefix;
  }
}

TEST_P(Tiny, AnyPlacement) {
  if (GetParam().name == kCuda.name) GTEST_SKIP() << "one GPU is one rank";
  for (const auto& [stages, shards] : {std::pair{2, 1}, {3, 1}, {5, 1}, {1, 2}, {2, 2}, {3, 2}}) {
    const auto placed = load(*model_, {.stages = stages, .shards = shards, .mtp = true}, GetParam().make);
    EXPECT_EQ(score_together(*placed, {first(200)}, 67, true).front(), of_first(200))
        << stages << "x" << shards;
  }
}

TEST_P(Tiny, AnyNumberOfThreads) {
  for (const int threads : {1, 3, 4}) {
    const auto placed = load(*model_, {.threads = threads, .mtp = true}, GetParam().make);
    EXPECT_EQ(score_together(*placed, {first(130)}, 130, true).front(), of_first(130)) << threads;
  }
}

/// A model whose parts are as small as the rules allow, for one feature at a time.
hy_v3::Config small_config() {
  hy_v3::Config c;
  c.vocab_size = 320;
  c.hidden_size = 256;
  c.num_layers = 3;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.intermediate_size = 1024;
  c.moe_intermediate_size = 256;
  c.num_experts = 8;
  c.experts_per_token = 3;
  c.num_shared_experts = 1;
  c.max_positions = 4096;
  c.mtp_layers = 1;
  c.layers = {hy_v3::LayerKind::dense, hy_v3::LayerKind::sparse, hy_v3::LayerKind::sparse};
  c.rms_norm_eps = 1e-5F;
  c.rope_theta = 10000.0;
  c.router_scaling = 2.5F;
  c.route_norm = true;
  c.expert_bias = true;
  c.eos_ids = {0};
  c.quantization.defaults = {.bits = 4, .group = 64};
  return c;
}

struct Shape {
  std::string name;
  hy_v3::Config config;
  hy_v3::SyntheticOptions options;
};

std::vector<Shape> shapes() {
  std::vector<Shape> out;
  const auto add = [&out](std::string name, auto change) {
    Shape shape{std::move(name), small_config(), {}};
    change(shape);
    out.push_back(std::move(shape));
  };
  add("leaves_1_to_4", [](Shape&) {});  // K of 256, 512 and 1024 in groups of 64
  add("group_32_leaves_to_8", [](Shape& s) {
    s.config.quantization.defaults.group = 32;
    s.config.intermediate_size = 2048;
  });
  add("group_128", [](Shape& s) { s.config.quantization.defaults.group = 128; });
  add("bits_8", [](Shape& s) { s.config.quantization.defaults.bits = 8; });
  add("bits_3", [](Shape& s) { s.config.quantization.defaults.bits = 3; });
  add("bf16", [](Shape& s) {
    s.config.quantization.defaults = {};
    s.options.spelling = hy_v3::Spelling::hugging_face;
  });
  add("no_shared_expert", [](Shape& s) { s.config.num_shared_experts = 0; });
  add("two_shared_experts", [](Shape& s) { s.config.num_shared_experts = 2; });
  add("tied_embeddings", [](Shape& s) { s.config.tied_embeddings = true; });
  add("tied_experts", [](Shape& s) { s.options.tie_experts = true; });
  add("weights_not_normalised", [](Shape& s) { s.config.route_norm = false; });
  add("no_mtp_all_sparse", [](Shape& s) {
    s.config.mtp_layers = 0;
    s.config.layers[0] = hy_v3::LayerKind::sparse;
  });
  return out;
}

class Shapes : public testing::TestWithParam<Shape> {};

TEST_P(Shapes, HaveTheSameBitsHoweverTheyAreRun) {
  const Shape& shape = GetParam();
  const TestModel model{shape.config, hy_v3::make_synthetic_model(shape.config, shape.options, 1)};
  const bool mtp = shape.config.mtp_layers > 0;
  const auto executor = load(model, {.max_rows = 330, .pages = 16, .mtp = mtp}, make_reference_ops);
  ASSERT_EQ(executor->has_mtp(), mtp);
  const auto tokens = made_up_tokens(150, executor->vocabulary(), 7);
  const Scores right = score_together(*executor, {tokens}, 150, mtp).front();
  ASSERT_EQ(right.main.size(), 150u * 320u);
  const auto fast = load(model, {.max_rows = 330, .pages = 16, .mtp = mtp}, kCpu.make);
  for (const int32_t chunk : {1, 13, 64}) {
    EXPECT_EQ(score_together(*executor, {tokens}, chunk, mtp).front(), right) << chunk;
    EXPECT_EQ(score_together(*fast, {tokens}, chunk, mtp).front(), right) << chunk << " on the CPU backend";
  }
  for (const CpuLevel level : cpu::available_levels()) {
    const auto make = [level](int threads) { return make_cpu_ops(threads, level); };
    const auto forced = load(model, {.pages = 16, .mtp = mtp}, make);
    EXPECT_EQ(score_together(*forced, {tokens}, 37, mtp).front(), right) << cpu::kernels_of(level).name;
  }
  if (cuda_device()) {
    const auto gpu = load(model, {.max_rows = 330, .pages = 16, .mtp = mtp}, kCuda.make);
    for (const int32_t chunk : {1, 3, 13, 64, 150}) {
      EXPECT_EQ(score_together(*gpu, {tokens}, chunk, mtp).front(), right) << chunk << " on the GPU";
    }
  }
  const auto other = made_up_tokens(90, executor->vocabulary(), 8);
  EXPECT_EQ(score_together(*executor, {other, tokens, other}, 110, mtp)[1], right);
  for (const auto& [stages, shards] : {std::pair{3, 1}, {1, 2}, {2, 2}}) {
    const auto placed = load(model, {.stages = stages, .shards = shards, .mtp = mtp}, make_reference_ops);
    EXPECT_EQ(score_together(*placed, {tokens}, 77, mtp).front(), right) << stages << "x" << shards;
  }
}

INSTANTIATE_TEST_SUITE_P(MadeUp, Shapes, testing::ValuesIn(shapes()),
                         [](const auto& shape) { return shape.param.name; });

/// A checkpoint in which token 5 alone has a value in the first channel, and the first layer's norm
/// multiplies that channel by 2^100: token 5's row leaves the range of rule 0, every other row is an ordinary
/// one.
class Overflowing final : public TensorSource {
 public:
  explicit Overflowing(std::shared_ptr<const TensorSource> plain) : plain_(std::move(plain)) {}
  const std::vector<TensorInfo>& tensors() const override { return plain_->tensors(); }
  std::string origin(const TensorInfo& tensor) const override { return plain_->origin(tensor); }
  Result<TensorBytes> read(const TensorInfo& tensor) const override {
    TERCET_TRY(const TensorBytes bytes, plain_->read(tensor));
    const bool embedding = tensor.name.find("embed_tokens") != std::string::npos;
    if (!embedding && tensor.name != "model.layers.0.input_layernorm.weight") return bytes;
    TERCET_CHECK(tensor.dtype == DType::bf16);
    const auto copy = std::make_shared<std::vector<std::byte>>(bytes.bytes.begin(), bytes.bytes.end());
    const auto row_bytes = static_cast<size_t>(tensor.shape.back()) * 2;
    for (size_t row = 0; row * row_bytes < copy->size(); ++row) {
      const uint16_t value = float_to_bf16(!embedding ? 0x1p100F : row == 5 ? 1.0F : 0.0F);
      std::memcpy(copy->data() + row * row_bytes, &value, 2);
    }
    return TensorBytes{*copy, copy};
  }

 private:
  std::shared_ptr<const TensorSource> plain_;
};

TEST(Failure, OfOneSequenceTouchesNoOther) {
  hy_v3::Config config = small_config();
  config.quantization.defaults = {};
  TestModel model{config,
                  hy_v3::make_synthetic_model(config, {.spelling = hy_v3::Spelling::hugging_face}, 1)};
  model.checkpoint.tensors = std::make_shared<Overflowing>(model.checkpoint.tensors);
  for (const auto& [stages, shards, backend] :
       {std::tuple{1, 1, kReference}, {3, 1, kReference}, {1, 2, kReference}, {1, 1, kCpu}, {3, 1, kCpu}}) {
    const auto executor = load(model, {.stages = stages, .shards = shards}, backend.make);
    const std::vector<int32_t> good{7, 8, 9, 10};
    const Scores alone = score_together(*executor, {good}, 4).front();
    StepPlan plan;
    plan.batch.tokens = {7, 8, 9, 10, 1, 5, 2};
    plan.batch.sequences = {{.first_row = 0, .rows = 4, .position = 0, .pages = {0}},
                            {.first_row = 4, .rows = 3, .position = 0, .pages = {1}}};
    for (int32_t row = 0; row < 7; ++row) {
      plan.outputs.emplace_back();
      plan.outputs.back().row = row;
      plan.outputs.back().all = true;
    }
    const StepResult result = executor->run(plan);
    EXPECT_EQ(result.failed, (std::vector<uint8_t>{0, 1}));
    std::vector<float> rows;
    for (size_t row = 0; row < 7; ++row) {
      EXPECT_EQ(result.rows[row].failed, row >= 5) << row;  // the failed row and what comes after it
      if (row < 4) rows.insert(rows.end(), result.rows[row].all.begin(), result.rows[row].all.end());
    }
    EXPECT_EQ(rows, alone.main);
  }
}

}  // namespace
}  // namespace tercet::verify
