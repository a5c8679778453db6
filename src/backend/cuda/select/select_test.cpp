// The choice of kernels; needs no GPU and no CUDA.
#include <gmock/gmock.h>

#include <string>

#include "backend/cuda/select/attention.h"
#include "backend/cuda/select/generation.h"
#include "backend/cuda/select/products.h"
#include "backend/cuda/select/table.h"

namespace tercet::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr DeviceTraits kA100{.major = 8, .minor = 0, .processors = 108, .shared_bytes = 163 << 10};
constexpr DeviceTraits kRtx4090{.major = 8, .minor = 9, .processors = 128, .shared_bytes = 99 << 10};
constexpr DeviceTraits kH200{.major = 9, .minor = 0, .processors = 132, .shared_bytes = 227 << 10};
constexpr DeviceTraits kB200{.major = 10, .minor = 0, .processors = 148, .shared_bytes = 227 << 10};
constexpr DeviceTraits kRtx5090{.major = 12, .minor = 0, .processors = 170, .shared_bytes = 99 << 10};

DeviceTraits plain(DeviceTraits device) {
  device.plain = true;
  return device;
}

Weights weights(int32_t n, int32_t k, int32_t planes, int32_t leaves, int32_t group = kBlock) {
  Weights out;
  out.n = n;
  out.k = k;
  out.group = group;
  out.planes = planes;
  out.leaves = leaves;
  return out;
}

std::vector<std::string> lines_of(const DeviceTraits& device, std::string_view operation) {
  std::vector<std::string> out;
  for (const TableLine& line : kernel_table(device)) {
    if (line.operation != operation) continue;
    out.push_back(std::to_string(line.from) + "-" + std::to_string(line.to) + " " + std::string(line.kernel));
  }
  return out;
}

TEST(KernelTable, OfAnH200) {
  EXPECT_THAT(lines_of(kH200, "norm"),
              ElementsAre("1-4 norm_and_round, into planes", "5-11 norm_and_round, into planes and halves",
                          "12-8192 norm_and_round, into halves"));
  EXPECT_THAT(lines_of(kH200, "linear"),
              ElementsAre("1-4 product_row", "5-11 product_few", "12-8192 product_many"));
  EXPECT_THAT(lines_of(kH200, "attention, one sequence"),
              ElementsAre("1-9 attention_blocks, a warp a block", "10-19 attention_blocks, a warp a span",
                          "20-8192 attention_tiles"));
  EXPECT_THAT(lines_of(kH200, "router"),
              ElementsAre("1-2 product_row", "3-11 product_few", "12-8192 product_many"));
  EXPECT_THAT(lines_of(kH200, "experts' gate and up"),
              ElementsAre("1-8 product_row", "9-8192 product_many, sorted pairs"));
  EXPECT_THAT(lines_of(kH200, "experts' down"),
              ElementsAre("1-8 product_row", "9-8192 product_many, sorted pairs"));
}

TEST(KernelTable, OfDevicesWithoutWgmma) {
  for (const DeviceTraits& device : {kA100, kRtx4090, kB200, kRtx5090}) {
    EXPECT_THAT(lines_of(device, "norm"), ElementsAre("1-8192 norm_and_round, into planes"));
    EXPECT_THAT(lines_of(device, "linear"), ElementsAre("1-4 product_row", "5-8192 product_few"));
    EXPECT_THAT(
        lines_of(device, "attention, one sequence"),
        ElementsAre("1-9 attention_blocks, a warp a block", "10-8192 attention_blocks, a warp a span"));
    EXPECT_THAT(lines_of(device, "experts' gate and up"),
                ElementsAre("1-8 product_row", "9-8192 product_few, sorted pairs"));
  }
}

TEST(KernelTable, OfWhatRunsPlainKernelsAlone) {
  for (const char* operation : {"linear", "router"}) {
    EXPECT_THAT(lines_of(plain(kH200), operation), ElementsAre("1-8192 product")) << operation;
  }
  for (const char* operation : {"experts' gate and up", "experts' down"}) {
    EXPECT_THAT(lines_of(plain(kH200), operation), ElementsAre("1-8192 product or product_warps"))
        << operation;
  }
  EXPECT_THAT(lines_of(plain(kH200), "norm"), ElementsAre("1-8192 norm"));
  EXPECT_THAT(lines_of(plain(kH200), "attention, one sequence"), ElementsAre("1-8192 attention"));
}

TEST(KernelTable, EveryLineSaysWhy) {
  for (const TableLine& line : kernel_table(kH200, 64)) EXPECT_FALSE(line.why.empty()) << line.operation;
}

TEST(ChooseProduct, GivesWhatIsNoFragmentsAWarpAnOutput) {
  const Weights floats = weights(4096, 4096, 0, 8);
  const Weights groups_of_32 = weights(4096, 4096, 1, 8, 32);
  Weights wide = weights(4096, 4096, 1, 8);
  wide.wide = 1;
  for (const Weights& w : {floats, groups_of_32, wide}) {
    const auto choice = choose_product(kH200, w, 1, true);
    EXPECT_EQ(choice.kernel, ProductKernel::warps);
    EXPECT_EQ(choice.why, "weights that are no fragments for tensor cores");
    EXPECT_EQ(choose_product(plain(kH200), w, 1, true).kernel, ProductKernel::plain);
    EXPECT_EQ(choose_router(kH200, w, 1, true).kernel, ProductKernel::warps);
  }
}

TEST(ChooseProduct, KeepsWildWeightsAndRowsBeyondThirtyTwoBitsFromWgmma) {
  const Weights w = weights(4096, 4096, 1, 8);
  EXPECT_EQ(choose_product(kH200, w, 512, true).kernel, ProductKernel::many);
  EXPECT_EQ(choose_product(kH200, w, 512, false).kernel, ProductKernel::few);
  EXPECT_THAT(choose_product(kH200, w, 512, false).why, HasSubstr("overflow"));
  EXPECT_EQ(choose_product(kH200, w, (1 << 19) - 1, true).kernel, ProductKernel::many);
  EXPECT_EQ(choose_product(kH200, w, 1 << 19, true).kernel, ProductKernel::few);
}

TEST(ChooseProduct, NeverAsksForMoreSharedMemoryThanTheDeviceHas) {
  for (const DeviceTraits& device : {kA100, kRtx4090, kH200, kB200, kRtx5090}) {
    for (const int32_t k : {64, 512, 1536, 4096, 8192, 13312, 16384}) {
      for (const int32_t leaves : {1, 2, 4, 8}) {
        if (k / kBlock % leaves != 0) continue;
        const Weights w = weights(4096, k, 2, leaves);
        for (int64_t rows = 1; rows <= kRowRows; ++rows) {
          if (choose_product(device, w, rows, true, true).kernel != ProductKernel::row) continue;
          EXPECT_LE(row_shared(w, rows, true), static_cast<size_t>(device.shared_bytes));
        }
        const ExpertsForm experts{w, w, true, true};
        if (choose_experts_down(device, experts, 8, 8).kernel == ExpertsKernel::row) {
          EXPECT_LE(down_shared(w, 8), static_cast<size_t>(device.shared_bytes));
        }
      }
    }
  }
  const Weights w = weights(4096, 4096, 2, 8);  // 76 KB and 9 KB a row
  EXPECT_EQ(choose_product(kH200, w, 4, true).kernel, ProductKernel::row);
  EXPECT_EQ(choose_product(kRtx4090, w, 2, true).kernel, ProductKernel::row);
  EXPECT_EQ(choose_product(kRtx4090, w, 4, true).kernel, ProductKernel::few);
}

TEST(ChooseExperts, OfUnlikeFormsGoOneByOne) {
  ExpertsForm experts{weights(3072, 4096, 1, 8), weights(4096, 1536, 1, 2), false, true};
  EXPECT_EQ(choose_experts_gate_up(kH200, experts, 8).why, "experts of unlike forms");
  experts.alike = true;
  experts.down.group = 32;
  EXPECT_EQ(choose_experts_gate_up(kH200, experts, 8).kernel, ExpertsKernel::any_form);
  EXPECT_EQ(choose_experts_down(kH200, experts, 8, 8).kernel, ExpertsKernel::any_form);
}

TEST(ChooseExperts, OfMoreThanEightARowAreSortedForDown) {
  const ExpertsForm experts{weights(3072, 4096, 1, 8), weights(4096, 1536, 1, 2), true, true};
  EXPECT_EQ(choose_experts_down(kH200, experts, 9, 9).kernel, ExpertsKernel::sorted_few);
  EXPECT_EQ(choose_experts_down(kH200, experts, 16, 8).kernel, ExpertsKernel::row);
}

TEST(SwigluInside, NeedsOnePartOfWholeTiles) {
  const Weights w = weights(3072, 4096, 1, 8);
  EXPECT_TRUE(swiglu_inside(kH200, w, 1, 1536));
  EXPECT_FALSE(swiglu_inside(kH200, w, 2, 1536));
  EXPECT_FALSE(swiglu_inside(kH200, w, 1, 1528));
  EXPECT_FALSE(swiglu_inside(plain(kH200), w, 1, 1536));
}

TEST(ChooseRounding, ByLengthAndNumberOfRows) {
  EXPECT_EQ(choose_rounding(kH200, 1, 16384, false).kernel, RoundKernel::held);
  EXPECT_EQ(choose_rounding(kH200, 1, 16448, false).kernel, RoundKernel::plain);
  EXPECT_EQ(choose_rounding(kH200, 1, 16448, true).kernel, RoundKernel::warps);
  EXPECT_EQ(choose_rounding(kH200, 1023, 4096, true).kernel, RoundKernel::held);
  EXPECT_EQ(choose_rounding(kH200, 1024, 4096, true).kernel, RoundKernel::warps);
  EXPECT_EQ(choose_rounding(kH200, 1024, 4096, false).kernel, RoundKernel::held);
}

TEST(PlanNorm, RoundsWhereAProductCanTakeIt) {
  EXPECT_FALSE(plan_norm(kH200, 1, 100).rounds());
  EXPECT_TRUE(plan_norm(kH200, 1, 16384).held);
  EXPECT_FALSE(plan_norm(kRtx4090, 1, 16384).held);  // 128 KB
  EXPECT_TRUE(plan_norm(kRtx4090, 1, 16384).planes);
  const NormPlan longer = plan_norm(kH200, 100, 16448);
  EXPECT_TRUE(longer.planes && !longer.held && !longer.halves);
}

TEST(ChooseAttention, TakesPlainKernelsWhereManyHeadsShare) {
  EXPECT_EQ(choose_attention(kH200, 64, 8, 100).kernel, AttentionKernel::tiles);
  EXPECT_EQ(choose_attention(kH200, 65, 8, 100).kernel, AttentionKernel::plain);
}

TEST(ChooseShare, CountsTheSpansOfTheLongestRow) {
  EXPECT_EQ(choose_share(48, 8, 255).kernel, AloneShare::span);
  EXPECT_EQ(choose_share(47, 8, 255).kernel, AloneShare::block);
  EXPECT_EQ(choose_share(1, 8, 256 * 47).kernel, AloneShare::span);
  EXPECT_EQ(choose_share(1, 8, 256 * 47 - 1).kernel, AloneShare::block);
}

TEST(ChooseKernels, RunsFastOnesOnlyWhereTheyAreProven) {
  EXPECT_EQ(choose_kernels(kH200, std::nullopt).kernel, KernelSet::fast);
  for (const DeviceTraits& device : {kA100, kRtx4090, kB200, kRtx5090}) {
    const auto choice = choose_kernels(device, std::nullopt);
    EXPECT_EQ(choice.kernel, KernelSet::plain);
    EXPECT_THAT(std::string(choice.why), HasSubstr("`tercet verify device`"));
    EXPECT_EQ(choose_kernels(device, true).kernel, KernelSet::fast);
  }
  EXPECT_EQ(choose_kernels(kH200, false).kernel, KernelSet::plain);
  EXPECT_THAT(std::string(choose_kernels(kH200, false).why), HasSubstr("found other bits"));
  EXPECT_EQ(choose_kernels(plain(kH200), true).kernel, KernelSet::plain);
}

}  // namespace
}  // namespace tercet::cuda
