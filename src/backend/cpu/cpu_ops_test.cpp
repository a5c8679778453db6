// What the CPU backend adds to the cases that all backends share (backend/reference/backend_*_test.cpp).
#include "backend/cpu/cpu_ops.h"

#include "backend/cpu/experts.h"
#include "backend/cpu/self_check.h"
#include "backend/reference/router.h"
#include "backend/reference/test_pair.h"

namespace tercet::backend_test {

std::vector<Backend> backends_under_test() {
  std::vector<Backend> backends;
  for (const CpuLevel level : cpu::available_levels()) {
    backends.push_back({cpu::kernels_of(level).name, [level](int threads) -> Result<std::unique_ptr<Ops>> {
                          return make_cpu_ops(threads, level);
                        }});
  }
  return backends;
}

}  // namespace tercet::backend_test

namespace tercet::cpu {
namespace {

using backend_test::TestMatrix;

TEST(Packing, TakesNoMoreThanTwoHundredthsMoreThanTheCheckpoint) {
  const auto ops = make_cpu_ops(1);
  for (const int bits : {2, 3, 4, 5, 6, 8, 0}) {
    const TestMatrix w(256, 512, bits, 64, 29);
    const int64_t before = ops->allocated();
    const auto packed = ops->pack_linear({&w.data, 1});
    const auto checkpoint = static_cast<double>(w.values.size() + w.scales.size() + w.biases.size());
    EXPECT_EQ(ops->allocated() - before, packed->bytes);
    EXPECT_GE(static_cast<double>(packed->bytes), checkpoint);
    EXPECT_LE(static_cast<double>(packed->bytes), 1.02 * checkpoint) << bits;
  }
}

TEST(ChooseExperts, TiesGoToTheLowerIndex) {
  const std::vector<float> logits = {0.5F, 2.0F, 0.5F, 2.0F, -1.0F};
  const std::vector<float> bias(5, 0.0F);
  const RouterParams params{3, 1.0F, true};
  std::vector<float> score(5), biased(5), weights(3), expected_weights(3);
  std::vector<int32_t> experts(3), expected(3);
  choose_experts(kernels_of(CpuLevel::portable), logits, bias, params, score, biased, experts, weights);
  reference::choose_experts(logits, bias, params, expected, expected_weights);
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(experts, expected);
  EXPECT_EQ(weights, expected_weights);
}

TEST(SelfCheck, PassesForEveryBackendOfThisMachine) {
  for (const CpuLevel level : available_levels()) {
    EXPECT_EQ(failing_kernels(kernels_of(level)), std::vector<std::string>{}) << kernels_of(level).name;
  }
}

/// A kernel that is wrong in one place must be found, whichever it is.
TEST(SelfCheck, FindsAWrongKernel) {
  static const Kernels& good = kernels_of(CpuLevel::portable);
  Kernels bad = good;
  bad.product = [](const TileLayout& w, const uint8_t* tile, const ProductRow* rows, int64_t count) {
    good.product(w, tile, rows, count);
    rows[count - 1].y[15] += 0x1p-20F;
  };
  EXPECT_EQ(failing_kernels(bad), std::vector<std::string>{"products"});
  bad = good;
  bad.attend_block = [](const int16_t* q, const float* size, int heads, const KeyBlock& block, int visible,
                        Partial* spans) {
    good.attend_block(q, size, heads, block, visible, spans);
    spans[heads - 1].l *= 1.0F + 0x1p-20F;
  };
  EXPECT_EQ(failing_kernels(bad), std::vector<std::string>{"attention"});
  bad = good;
  bad.rms_norm = [](const float* x, const float* weight, int64_t k, float, float* h) {
    good.rms_norm(x, weight, k, 2e-5F, h);
  };
  EXPECT_EQ(failing_kernels(bad), std::vector<std::string>{"norms, RoPE and SwiGLU"});
  bad = good;
  bad.mass_sum = [](const float* x, int64_t count, float max) {
    return good.mass_sum(x, count, max) + (uint64_t{1} << 30);
  };
  EXPECT_EQ(failing_kernels(bad), std::vector<std::string>{"log-probabilities"});
}

}  // namespace
}  // namespace tercet::cpu
