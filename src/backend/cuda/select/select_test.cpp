// The choice of kernels; needs no GPU and no CUDA.
#include <gmock/gmock.h>

#include <string>

#include "backend/cuda/select/attention.h"
#include "backend/cuda/select/generation.h"
#include "backend/cuda/select/products.h"
#include "backend/cuda/select/step.h"
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
DeviceTraits common(DeviceTraits device) {
  device.common = true;
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

ExpertsForm experts_of(int64_t count, int32_t hidden, int32_t inter) {
  return {weights(2 * inter, hidden, 1, 8), weights(hidden, inter, 1, 2), true, true, count};
}

std::vector<std::string> lines_of(const DeviceTraits& device, std::string_view operation) {
  std::vector<std::string> out;
  for (const TableLine& line : kernel_table(device)) {
    if (line.operation != operation) continue;
    out.push_back(std::to_string(line.from) + "-" + std::to_string(line.to) + " " + std::string(line.kernel));
  }
  return out;
}

TEST(Step, OfFewRowsIsAProgramWhereItsMemoryIs) {
  EXPECT_EQ(choose_step(kH200, kProgramRows).kernel, StepForm::program);
  EXPECT_EQ(choose_step(kH200, kProgramRows + 1).kernel, StepForm::kernels);
  for (const DeviceTraits& device : {kA100, kRtx4090, kB200, kRtx5090}) {
    EXPECT_EQ(choose_step(device, 1).kernel, StepForm::kernels);
    EXPECT_THAT(choose_step(device, 1).why, HasSubstr("shared memory"));
  }
  EXPECT_EQ(choose_step(plain(kH200), 1).kernel, StepForm::kernels);
}

TEST(KernelTable, OfAnH200) {
  EXPECT_THAT(lines_of(kH200, "step"),
              ElementsAre("1-4 program, one kernel of phases", "5-8192 kernels, one after another"));
  EXPECT_THAT(lines_of(kH200, "norm"),
              ElementsAre("1-4 norm_and_round, into planes", "5-8192 norm_and_round, into halves"));
  EXPECT_THAT(lines_of(kH200, "norm before a router"),
              ElementsAre("1-4 norm_and_round, into planes", "5-8192 norm_and_round, into halves, twice"));
  EXPECT_THAT(lines_of(kH200, "linear"), ElementsAre("1-4 product_row", "5-8192 product_many"));
  EXPECT_THAT(lines_of(kH200, "attention, one sequence"),
              ElementsAre("1-19 attention_blocks", "20-8192 attention_tiles"));
  EXPECT_THAT(lines_of(kH200, "fold, a row a sequence"),
              ElementsAre("1-4 fold_spans", "5-8192 fold_and_round"));
  EXPECT_THAT(lines_of(kH200, "router"),
              ElementsAre("1-2 product_row", "3-4 product_few", "5-8192 product_many"));
  for (const char* operation : {"experts' gate and up", "experts' down"}) {
    EXPECT_THAT(lines_of(kH200, operation),
                ElementsAre("1-4 product_row", "5-288 product_batch, sorted pairs",
                            "289-8192 product_many, sorted pairs"))
        << operation;
  }
  EXPECT_THAT(lines_of(kH200, "experts' sum"), ElementsAre("1-4 down_few", "5-8192 norm_and_round"));
}

TEST(KernelTable, OfDevicesWithoutWgmma) {
  for (const DeviceTraits& device : {kA100, kRtx4090, kB200, kRtx5090, common(kH200)}) {
    EXPECT_THAT(lines_of(device, "norm"),
                ElementsAre("1-8 norm_and_round, into planes", "9-8192 norm_and_round, into halves"));
    EXPECT_THAT(lines_of(device, "norm before a router"),
                ElementsAre("1-8 norm_and_round, into planes", "9-8192 norm_and_round, into halves, twice"));
    EXPECT_THAT(lines_of(device, "linear"),
                ElementsAre("1-4 product_row", "5-8 product_few", "9-8192 product_mma"));
    EXPECT_THAT(lines_of(device, "attention, one sequence"),
                ElementsAre("1-19 attention_blocks", "20-8192 attention_mma"));
    EXPECT_THAT(lines_of(device, "fold, a row a sequence"),
                ElementsAre("1-8 fold_spans", "9-8192 fold_and_round"));
    EXPECT_THAT(lines_of(device, "experts' gate and up"),
                ElementsAre("1-4 product_row", "5-288 product_batch, sorted pairs",
                            "289-8192 product_mma, sorted pairs"));
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
  for (const char* operation : {"norm", "norm before a router"}) {
    EXPECT_THAT(lines_of(plain(kH200), operation), ElementsAre("1-8192 norm")) << operation;
  }
  EXPECT_THAT(lines_of(plain(kH200), "fold, a row a sequence"), ElementsAre("1-8192 none"));
  EXPECT_THAT(lines_of(plain(kH200), "experts' sum"), ElementsAre("1-8192 combine"));
  EXPECT_THAT(lines_of(plain(kH200), "attention, one sequence"), ElementsAre("1-8192 attention"));
}

TEST(KernelTable, EveryLineSaysWhy) {
  for (const TableLine& line : kernel_table(kH200, 64)) EXPECT_FALSE(line.why.empty()) << line.operation;
}

TEST(ChooseProduct, GivesWhatIsNoFragmentsAWarpAnOutput) {
  const Weights groups_of_32 = weights(4096, 4096, 1, 8, 32);
  Weights wide = weights(4096, 4096, 1, 8);
  wide.wide = 1;
  for (const Weights& w : {groups_of_32, wide}) {
    const auto choice = choose_product(kH200, w, 1, true);
    EXPECT_EQ(choice.kernel, ProductKernel::warps);
    EXPECT_EQ(choice.why, "weights that are no fragments for tensor cores");
    EXPECT_EQ(choose_product(plain(kH200), w, 1, true).kernel, ProductKernel::plain);
    EXPECT_EQ(choose_router(kH200, w, 1, true).kernel, ProductKernel::warps);
  }
}

TEST(ChooseProduct, TakesFloatsAsTheyAre) {
  const Weights w = weights(4096, 4096, 0, 8);
  for (const DeviceTraits& device : {kH200, kRtx4090}) {
    for (const int64_t rows : {1, 8, 4096}) {
      EXPECT_EQ(choose_product(device, w, rows, true).kernel, ProductKernel::floats);
      EXPECT_EQ(choose_router(device, w, rows, true).kernel, ProductKernel::floats);
    }
    EXPECT_TRUE(swiglu_inside(device, w, 1, 2048));
  }
  EXPECT_EQ(choose_product(plain(kH200), w, 1, true).kernel, ProductKernel::plain);
  EXPECT_FALSE(swiglu_inside(plain(kH200), w, 1, 2048));
}

TEST(ChooseExperts, OfFloatsAreSortedForTheirKernel) {
  ExpertsForm experts = experts_of(192, 4096, 1536);
  experts.gate_up.planes = experts.down.planes = 0;
  EXPECT_EQ(choose_experts_gate_up(kH200, experts, 8).kernel, ExpertsKernel::sorted_floats);
  EXPECT_EQ(choose_experts_down(kRtx4090, experts, 4096, 8).kernel, ExpertsKernel::sorted_floats);
  experts.down.planes = 1;
  EXPECT_EQ(choose_experts_gate_up(kH200, experts, 8).kernel, ExpertsKernel::any_form);
  experts.alike = false;
  EXPECT_EQ(choose_experts_down(kH200, experts, 8, 8).kernel, ExpertsKernel::any_form);
}

TEST(ChooseProduct, KeepsWildWeightsAndRowsBeyondThirtyTwoBitsFromHalves) {
  const Weights w = weights(4096, 4096, 1, 8);
  EXPECT_EQ(choose_product(kH200, w, 512, true).kernel, ProductKernel::many);
  EXPECT_EQ(choose_product(kH200, w, 512, false).kernel, ProductKernel::few);
  EXPECT_THAT(choose_product(kH200, w, 512, false).why, HasSubstr("overflow"));
  EXPECT_EQ(choose_product(kH200, w, (1 << 19) - 1, true).kernel, ProductKernel::many);
  EXPECT_EQ(choose_product(kH200, w, 1 << 19, true).kernel, ProductKernel::few);
  EXPECT_EQ(choose_product(kRtx4090, w, (1 << 19) - 1, true).kernel, ProductKernel::mma);
  EXPECT_EQ(choose_product(kRtx4090, w, 1 << 19, true).kernel, ProductKernel::few);
  EXPECT_EQ(choose_product(kRtx4090, w, 512, false).kernel, ProductKernel::few);
}

TEST(ChooseProduct, NeverAsksForMoreSharedMemoryThanTheDeviceHas) {
  for (const DeviceTraits& device : {kA100, kRtx4090, kH200, kB200, kRtx5090}) {
    EXPECT_LE(kCommonShared, device.shared_bytes);
    for (const int32_t k : {64, 512, 1536, 4096, 8192, 13312, 16384}) {
      for (const int32_t leaves : {1, 2, 4, 8}) {
        if (k / kBlock % leaves != 0) continue;
        const Weights w = weights(4096, k, 2, leaves);
        for (int64_t rows = 1; rows <= kRowRows; ++rows) {
          if (choose_product(device, w, rows, true, true).kernel != ProductKernel::row) continue;
          EXPECT_LE(row_shared(w, rows, true), static_cast<size_t>(device.shared_bytes));
        }
        const ExpertsForm experts{w, w, true, true, 128};
        if (choose_experts_down(device, experts, 8, 8).kernel == ExpertsKernel::row) {
          EXPECT_LE(down_shared(w, 8), static_cast<size_t>(device.shared_bytes));
        }
        if (choose_experts_gate_up(device, experts, 128).kernel == ExpertsKernel::sorted_batch) {
          EXPECT_LE(batch_shared(w, kBatchPairs), static_cast<size_t>(device.shared_bytes));
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
  ExpertsForm experts = experts_of(192, 4096, 1536);
  experts.alike = false;
  EXPECT_EQ(choose_experts_gate_up(kH200, experts, 8).why, "experts of unlike forms");
  experts.alike = true;
  experts.down.group = 32;
  EXPECT_EQ(choose_experts_gate_up(kH200, experts, 8).kernel, ExpertsKernel::any_form);
  EXPECT_EQ(choose_experts_down(kH200, experts, 8, 8).kernel, ExpertsKernel::any_form);
}

TEST(ChooseExperts, OfMoreThanEightARowAreSortedForDown) {
  const ExpertsForm experts = experts_of(192, 4096, 1536);
  EXPECT_EQ(choose_experts_down(kH200, experts, 9, 9).kernel, ExpertsKernel::sorted_batch);
  EXPECT_EQ(choose_experts_down(kA100, experts, 8, 9).kernel, ExpertsKernel::sorted_few);
  EXPECT_EQ(choose_experts_down(kA100, experts, 9, 9).kernel, ExpertsKernel::sorted_batch);
  EXPECT_EQ(choose_experts_down(kH200, experts, 16, 8).kernel, ExpertsKernel::row);
}

TEST(ChooseExperts, OfTwelvePairsOnAverageShareTheirWeights) {
  const ExpertsForm experts = experts_of(128, 2048, 768);
  for (const bool down : {false, true}) {
    const auto choose = [&](const DeviceTraits& device, const ExpertsForm& form, int64_t pairs) {
      return down ? choose_experts_down(device, form, pairs, 8) : choose_experts_gate_up(device, form, pairs);
    };
    EXPECT_EQ(choose(kH200, experts, 32).kernel, ExpertsKernel::row);
    EXPECT_EQ(choose(kH200, experts, 33).kernel, ExpertsKernel::sorted_batch);
    EXPECT_THAT(choose(kH200, experts, 33).why, HasSubstr("registers"));
    EXPECT_EQ(choose(kH200, experts, 1535).kernel, ExpertsKernel::sorted_batch);
    EXPECT_EQ(choose(kH200, experts, 1536).kernel, ExpertsKernel::sorted_batch);
    EXPECT_EQ(choose(kH200, experts, 1537).kernel, ExpertsKernel::sorted_many);
    EXPECT_THAT(choose(kH200, experts, 1537).why, HasSubstr("share"));
    EXPECT_EQ(choose(kA100, experts, 32).kernel, ExpertsKernel::row);
    EXPECT_EQ(choose(kA100, experts, 33).kernel, ExpertsKernel::sorted_batch);
    EXPECT_EQ(choose(kA100, experts, 1536).kernel, ExpertsKernel::sorted_batch);
    EXPECT_EQ(choose(kA100, experts, 1537).kernel, ExpertsKernel::sorted_mma);
    ExpertsForm wild = experts;
    wild.tame = false;
    EXPECT_EQ(choose(kH200, wild, 65).kernel, ExpertsKernel::sorted_few);
    const ExpertsForm wide = experts_of(128, 14080, 768);
    EXPECT_EQ(choose(kH200, wide, 65).kernel, ExpertsKernel::sorted_many);
    EXPECT_THAT(choose(kH200, wide, 65).why, HasSubstr("shared memory"));
  }
}

TEST(BatchWarps, AreFourWhereFiveBlocksHaveRoom) {
  EXPECT_EQ(batch_warps(kH200, weights(1536, 2048, 1, 4)), 4);
  EXPECT_EQ(batch_warps(kH200, weights(2048, 768, 1, 1)), 4);
  EXPECT_EQ(batch_warps(kH200, weights(3072, 4096, 1, 8)), 8);
  // Eight rows of 43 groups take 45 KB, of 44 too much for five blocks.
  EXPECT_EQ(batch_warps(kH200, weights(1536, 2752, 1, 1)), 4);
  EXPECT_EQ(batch_warps(kH200, weights(1536, 2816, 1, 1)), 8);
}

TEST(GoesBeside, WhereTheSharedExpertIsLikeTheOthers) {
  const ExpertsForm experts = experts_of(128, 2048, 768);
  const auto goes = [&](const DeviceTraits& device, const Weights& gate_up, const Weights& down,
                        int64_t pairs) { return goes_beside(device, experts, gate_up, down, pairs, 8); };
  EXPECT_FALSE(goes(kH200, experts.gate_up, experts.down, 32));
  EXPECT_TRUE(goes(kH200, experts.gate_up, experts.down, 33));
  EXPECT_TRUE(goes(kH200, experts.gate_up, experts.down, 1536));
  EXPECT_FALSE(goes(kH200, experts.gate_up, experts.down, 1537));
  EXPECT_TRUE(goes(kA100, experts.gate_up, experts.down, 512));
  EXPECT_FALSE(goes(plain(kH200), experts.gate_up, experts.down, 512));
  for (const Weights& other :
       {weights(1600, 2048, 1, 8), weights(1536, 1024, 1, 8), weights(1536, 2048, 2, 8),
        weights(1536, 2048, 1, 4), weights(1536, 2048, 1, 8, 32)}) {
    EXPECT_FALSE(goes(kH200, other, experts.down, 512));
  }
  EXPECT_FALSE(goes(kH200, experts.gate_up, weights(2048, 800, 1, 2), 512));
}

TEST(ChooseChoice, SortsFewPairsAtOnce) {
  const auto choose = [](ProductKernel router, int64_t rows, int64_t chosen) {
    return choose_choice(kH200, router, rows, chosen).kernel;
  };
  EXPECT_EQ(choose(ProductKernel::many, 5, 8), ChoiceKernel::with_sort);
  EXPECT_EQ(choose(ProductKernel::many, 128, 16), ChoiceKernel::with_sort);
  EXPECT_EQ(choose(ProductKernel::many, 128, 17), ChoiceKernel::alone);
  EXPECT_EQ(choose(ProductKernel::many, 129, 1), ChoiceKernel::alone);
  EXPECT_EQ(choose(ProductKernel::few, 5, 8), ChoiceKernel::alone);
  EXPECT_EQ(choose_choice(plain(kH200), ProductKernel::many, 5, 8).kernel, ChoiceKernel::alone);
  EXPECT_THAT(lines_of(kH200, "choice of experts"),
              ElementsAre("1-4 choose_experts", "5-128 choose_and_sort", "129-8192 choose_experts"));
}

TEST(ChooseSum, LeavesItToANormThatHoldsARow) {
  EXPECT_EQ(choose_sum(kH200, 16384).kernel, SumKernel::norm);
  EXPECT_EQ(choose_sum(kH200, 16448).kernel, SumKernel::combine);
  EXPECT_EQ(choose_sum(kH200, 100).kernel, SumKernel::combine);
  EXPECT_EQ(choose_sum(kRtx4090, 16384).kernel, SumKernel::norm);
  EXPECT_EQ(choose_sum(kRtx4090, 4096).kernel, SumKernel::norm);
  EXPECT_EQ(choose_sum(plain(kH200), 4096).kernel, SumKernel::combine);
  for (const DeviceTraits& device : {kA100, kRtx4090, kH200, kB200, kRtx5090, plain(kH200)}) {
    for (int64_t k = 100; k < 20000; k += 28) {
      if (choose_sum(device, k).kernel == SumKernel::combine) continue;
      EXPECT_TRUE(plan_norm(device, 1, k, false).held && plan_norm(device, 8192, k, true).held) << k;
    }
  }
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
  EXPECT_FALSE(plan_norm(kH200, 1, 100, true).rounds());
  EXPECT_TRUE(plan_norm(kH200, 1, 16384, true).held);
  EXPECT_TRUE(plan_norm(kRtx4090, 1, 16384, true).held);  // 64 KB
  const NormPlan longer = plan_norm(kH200, 100, 16448, true);
  EXPECT_TRUE(longer.planes && !longer.held && !longer.halves && !longer.rest);
}

TEST(PlanNorm, RoundsForARouterWhereOneMayFollow) {
  constexpr int64_t kMost = (int64_t{1} << 18) - 1;  // both forms of 4,096 numbers, below 2^32 bytes
  for (const int64_t rows : {int64_t{5}, int64_t{6}, int64_t{8192}, kMost}) {
    EXPECT_TRUE(plan_norm(kH200, rows, 4096, true).rest) << rows;
    EXPECT_EQ(choose_router(kH200, weights(192, 4096, 2, 8), rows, true).kernel, ProductKernel::many) << rows;
  }
  for (const int64_t rows : {int64_t{1}, int64_t{4}, kMost + 1}) {
    EXPECT_FALSE(plan_norm(kH200, rows, 4096, true).rest) << rows;
  }
  EXPECT_FALSE(plan_norm(kH200, 64, 4096, false).rest);
  EXPECT_TRUE(plan_norm(kA100, 9, 4096, true).rest);
  EXPECT_FALSE(plan_norm(kA100, 8, 4096, true).halves);
}

TEST(ChooseAttention, TakesPlainKernelsWhereManyHeadsShare) {
  EXPECT_EQ(choose_attention(kH200, 64, 8, 100).kernel, AttentionKernel::tiles);
  EXPECT_EQ(choose_attention(kH200, 65, 8, 100).kernel, AttentionKernel::plain);
  EXPECT_EQ(choose_attention(kA100, 64, 8, 100).kernel, AttentionKernel::mma);
  EXPECT_EQ(choose_attention(kA100, 65, 8, 100).kernel, AttentionKernel::plain);
}

TEST(ChooseFold, RoundsWhereTheProductTakesHalves) {
  const auto choose = [](int64_t rows, int64_t k, int64_t leaves) {
    return choose_fold(kH200, true, rows, k, leaves).kernel;
  };
  EXPECT_EQ(choose(4, 4096, 8), FoldKernel::spans);
  EXPECT_EQ(choose(5, 4096, 8), FoldKernel::rounding);
  EXPECT_EQ(choose(6, 4096, 8), FoldKernel::rounding);
  EXPECT_EQ(choose(64, 1024, 1), FoldKernel::rounding);
  EXPECT_EQ(choose(64, 1152, 1), FoldKernel::spans);
  EXPECT_EQ(choose(64, 8192, 8), FoldKernel::rounding);
  EXPECT_EQ(choose(64, 8704, 8), FoldKernel::spans);
  EXPECT_EQ(choose_fold(kH200, false, 64, 4096, 8).kernel, FoldKernel::spans);
  EXPECT_EQ(choose_fold(kA100, true, 9, 4096, 8).kernel, FoldKernel::rounding);
  EXPECT_EQ(choose_fold(kA100, true, 8, 4096, 8).kernel, FoldKernel::spans);
}

TEST(SpanShared, LetsSpansBeAttendedToAtOnceOnAMultiprocessor) {
  constexpr int kAll = 228 << 10, kSystem = 1 << 10;
  EXPECT_GE(kAll / (kSpanShared + kSystem), kSpansAtOnce);
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
