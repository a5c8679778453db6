#include "backend/cuda/step_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "ops/leaves.h"

namespace tercet::cuda {
namespace {

constexpr int32_t kBlocks = 132;

Work product(WorkKind kind, int32_t items, int32_t slots, int32_t leaf_shift, int32_t rows) {
  Work work;
  std::memset(static_cast<void*>(&work), 0, sizeof work);
  work.kind = kind;
  work.items = items;
  work.cost = slots << leaf_shift;
  work.early = kind == WorkKind::product ? 1 : 0;
  ProductWork& p = work.product;
  p.slots = slots;
  p.leaf_shift = leaf_shift;
  p.groups = 8;
  p.planes = 1;
  p.rows = rows;
  p.held = rows == 1 ? 1 : 4;
  p.outputs = items * kTile;
  p.ldy = p.outputs;
  p.row_step = 1;
  return work;
}

Phase phase_of(std::initializer_list<Work> works) {
  Phase phase;
  std::memset(static_cast<void*>(&phase), 0, sizeof phase);
  for (const Work& work : works) phase.works[phase.work_count++] = work;
  return phase;
}

const Share& share_at(const PhasePlan& plan, int32_t block) {
  return *reinterpret_cast<const Share*>(plan.shares.data() + int64_t{block} * plan.share_bytes);
}

std::vector<ShareNeed> needs_of(const Phase& phase) {
  std::vector<ShareNeed> needs;
  for (int w = 0; w < phase.work_count; ++w) {
    const Work& work = phase.works[w];
    const ProductWork& p = work.product;
    needs.push_back(share_need(work.items, work.cost, p.slots << p.leaf_shift, p.rows));
  }
  return needs;
}

/// Every leaf of every tile is computed once, every number of y made once, of sums that its round's jobs
/// leave.
void expect_whole(const Phase& phase, const PhasePlan& plan) {
  std::map<std::tuple<int, int, int>, int> leaves;  // work, place of an expert, leaf
  std::map<std::pair<int, uint32_t>, int> numbers;  // work, place in y
  for (int32_t block = 0; block < kBlocks; ++block) {
    const Share& share = share_at(plan, block);
    int job = 0, output = 0;
    for (int round = 0; round < share.rounds; ++round) {
      std::set<int> sums;
      for (; job < share.jobs[round]; ++job) {
        const Job& it = share.job_list()[job];
        ++leaves[{it.work(), it.chosen(), it.leaf()}];
        const int held = phase.works[it.work()].product.held;
        ASSERT_LE((it.sums() + held) * kTile, kProgramSums);
        for (int i = 0; i < held; ++i) EXPECT_TRUE(sums.insert(it.sums() + i).second);
      }
      for (; output < share.outputs[round]; ++output) {
        const Outputs& it = share.output_list()[output];
        EXPECT_TRUE(sums.contains(it.sums / kTile));
        for (int i = 0; i <= it.count; ++i) ++numbers[{it.work, it.at + static_cast<uint32_t>(i)}];
      }
    }
    EXPECT_EQ(job, share.all_jobs);
  }
  size_t all_leaves = 0, all_numbers = 0;
  for (int w = 0; w < phase.work_count; ++w) {
    const Work& work = phase.works[w];
    const ProductWork& p = work.product;
    all_leaves += static_cast<size_t>(work.items) * static_cast<size_t>(p.slots << p.leaf_shift);
    const int rows = work.kind == WorkKind::product ? p.rows : work.items / p.tiles;
    all_numbers += static_cast<size_t>(rows) * static_cast<size_t>(p.outputs);
  }
  EXPECT_EQ(leaves.size(), all_leaves);
  EXPECT_EQ(numbers.size(), all_numbers);
  for (const auto& [_, times] : leaves) EXPECT_EQ(times, 1);
  for (const auto& [_, times] : numbers) EXPECT_EQ(times, 1);
}

TEST(ProgramNorm, QuotientsAreRounded) {
  std::mt19937 random(1);
  for (int k = 64; k <= kProgramGroups * kBlock; k += 64) {
    const auto divisor = static_cast<float>(k);
    for (int i = 0; i < 2000; ++i) {
      const float sum = std::ldexp(1.0F + static_cast<float>(random() >> 9) * 0x1p-23F,
                                   static_cast<int>(random() % 200) - 73);
      ASSERT_EQ(quotient(sum, divisor, 1.0F / divisor), sum / divisor) << sum << " / " << k;
    }
  }
}

TEST(StepPlan, OfADenseProduct) {
  Work qkv = product(WorkKind::product, 320, 1, 2, 1);
  qkv.product.outputs = 320 * kTile - 5;
  qkv.product.ldy = qkv.product.outputs;
  const Phase phase = phase_of({qkv});
  const PhasePlan plan = plan_phase(phase, kBlocks);
  expect_whole(phase, plan);
  for (int32_t block = 0; block < kBlocks; ++block) {
    EXPECT_GE(share_at(plan, block).all_jobs, 2 * 4);
    EXPECT_LE(share_at(plan, block).all_jobs, 3 * 4);
    EXPECT_EQ(share_at(plan, block).early, share_at(plan, block).all_jobs);
  }
  EXPECT_LE(plan.share_bytes, most_share_bytes(needs_of(phase), kBlocks));
}

TEST(StepPlan, LeavesBeginWhereTheirGroupsDo) {
  Work router = product(WorkKind::product, 8, 1, 2, 6);
  router.product.held = 8;
  router.product.planes = 2;
  Phase phase = phase_of({router});
  phase.sources[0].k = 2048;
  phase.sources[0].row_bytes = program_row_bytes(2048);
  const PhasePlan plan = plan_phase(phase, kBlocks);
  expect_whole(phase, plan);
  for (int32_t block = 0; block < kBlocks; ++block) {
    const Share& share = share_at(plan, block);
    for (int job = 0; job < share.all_jobs; ++job) {
      const Job& it = share.job_list()[job];
      const uint32_t group = it.leaf() % 4 * 8;
      EXPECT_EQ(it.row_at(), group * kBlock);
      EXPECT_EQ(it.units_at(), 2U * (2048 + 64) + group * 8);
      EXPECT_EQ(it.apart(), static_cast<uint32_t>(program_row_bytes(2048)));
      EXPECT_EQ(it.planes(), 2);
      EXPECT_EQ(it.rows(), 6);
      EXPECT_EQ(it.groups(), 8);
    }
  }
}

TEST(StepPlan, OfManyRowsInRounds) {
  Work up = product(WorkKind::product, 832, 2, 3, 4);
  up.product.swiglu = 1;
  const Phase phase = phase_of({up});
  const PhasePlan plan = plan_phase(phase, kBlocks);
  expect_whole(phase, plan);
  EXPECT_EQ(share_at(plan, 0).rounds, 2);  // 7 items of 64 times 16 sums, of which 4 fit
  EXPECT_LE(plan.share_bytes, kShareBytes);
}

TEST(StepPlan, OfExpertsBesideWhatIsKnownEarly) {
  Work shared = product(WorkKind::product, 48, 2, 2, 1);
  shared.product.swiglu = 1;
  Work experts = product(WorkKind::experts, 8 * 48, 2, 2, 1);
  experts.product.swiglu = 1;
  experts.product.tiles = 48;
  experts.product.chosen = 8;
  experts.product.outputs = 48 * kTile;
  experts.product.ldy = experts.product.outputs;
  const Phase phase = phase_of({shared, experts});
  const PhasePlan plan = plan_phase(phase, kBlocks);
  expect_whole(phase, plan);
  EXPECT_EQ(share_at(plan, 0).early, share_at(plan, 0).all_jobs);
  EXPECT_EQ(share_at(plan, kBlocks - 1).early, 0);
}

TEST(StepPlan, OfDownKnowsItsRowsOfPairs) {
  Work down = product(WorkKind::down, 2 * 128, 8, 0, 1);
  down.product.tiles = 128;
  down.product.chosen = 8;
  down.product.outputs = 128 * kTile;
  down.product.ldy = down.product.outputs;
  Phase phase = phase_of({down});
  phase.sources[0].pairs = 8;
  phase.sources[0].k = 768;
  phase.sources[0].shared = 4096;
  phase.sources[0].row_bytes = program_row_bytes(768);
  const PhasePlan plan = plan_phase(phase, kBlocks);
  expect_whole(phase, plan);
  EXPECT_EQ(share_at(plan, 0).first_row, 0);
  EXPECT_EQ(share_at(plan, 0).rows, 8);
  EXPECT_EQ(share_at(plan, kBlocks - 1).first_row, 8);
  EXPECT_EQ(share_at(plan, kBlocks - 1).rows, 8);
  for (int job = 0; job < share_at(plan, kBlocks - 1).all_jobs; ++job) {
    const Job& it = share_at(plan, kBlocks - 1).job_list()[job];
    EXPECT_GE(it.chosen(), 8);
    const int32_t row = 4096 + (it.chosen() - 8) * program_row_bytes(768);
    EXPECT_EQ(it.row_at(), static_cast<uint32_t>(row));
    EXPECT_EQ(it.gap(), 768U + 64);
    EXPECT_EQ(it.units_at(), static_cast<uint32_t>(row + 2 * (768 + 64)));
  }
}

/// Sizes of a model's layers.
struct Sizes {
  int32_t hidden, qkv, heads, dense, inter, experts;
};
constexpr Sizes kHy3{4096, 10240, 8192, 13312, 1536, 192};
constexpr Sizes kHyMt2{2048, 5120, 4096, 6912, 768, 128};
constexpr int32_t kChosen = 8;

/// A product of a model's: [n, k] in `planes` planes, with SwiGLU where there are two slots.
Work model_product(int32_t n, int32_t k, int32_t planes, int32_t slots, int32_t rows) {
  const auto leaves = static_cast<uint32_t>(leaf_count(k / kBlock));
  Work work = product(WorkKind::product, n / kTile / slots, slots, std::countr_zero(leaves), rows);
  work.cost = slots * k / kBlock * planes;
  work.product.swiglu = slots == 2 ? 1 : 0;
  work.product.held = held_sums(rows);
  return work;
}

/// The same for each of `pairs` of a row and an expert, or for each of so many rows.
Work for_each(Work work, WorkKind kind, int32_t pairs) {
  work.kind = kind;
  work.early = 0;
  work.product.tiles = work.items;
  work.product.chosen = kChosen;
  work.items *= pairs;
  return work;
}

/// All products of a layer, in order; `rows` rows.
std::vector<Work> products_of(const Sizes& m, int32_t rows) {
  Work down = model_product(m.hidden, m.inter, 1, 1, 1);
  down.product.slots = kChosen;
  down.cost *= kChosen;
  return {model_product(m.qkv, m.hidden, 1, 1, rows),
          model_product(m.hidden, m.heads, 1, 1, rows),
          model_product(2 * m.dense, m.hidden, 1, 2, rows),
          model_product(m.hidden, m.dense, 1, 1, rows),
          model_product(m.experts, m.hidden, 2, 1, 2 * rows),
          model_product(2 * m.inter, m.hidden, 1, 2, rows),
          model_product(m.hidden, m.inter, 1, 1, rows),
          for_each(model_product(2 * m.inter, m.hidden, 1, 2, 1), WorkKind::experts, rows * kChosen),
          for_each(down, WorkKind::down, rows)};
}

void expect_within(const std::vector<ShareNeed>& needs, const PhasePlan& plan, int32_t blocks) {
  EXPECT_LE(plan.share_bytes, most_share_bytes(needs, blocks));
  for (int32_t block = 0; block < blocks; ++block) {
    EXPECT_LE(share_at(plan, block).rounds, most_share_rounds(needs, blocks));
  }
}

TEST(StepPlan, OfModelsIsWithinWhatIsForeseen) {
  int joined = 0;
  for (const Sizes& sizes : {kHy3, kHyMt2}) {
    for (int32_t rows = 1; rows <= kProgramRows; ++rows) {
      const std::vector<Work> works = products_of(sizes, rows);
      for (size_t first = 0; first < works.size(); ++first) {
        for (size_t count = 1; count <= kPhaseWorks && first + count <= works.size(); ++count) {
          Phase phase = phase_of({});
          for (size_t i = 0; i < count; ++i) phase.works[phase.work_count++] = works[first + i];
          const std::vector<ShareNeed> needs = needs_of(phase);
          for (const int32_t blocks : {78, 114, kBlocks, 144}) {
            const bool fits = shares_fit(needs, blocks);
            EXPECT_TRUE(fits || count > 1 || blocks < kBlocks);
            if (!fits) continue;
            expect_within(needs, plan_phase(phase, blocks), blocks);
            if (count > 1) ++joined;
          }
        }
      }
    }
  }
  EXPECT_GT(joined, 100);
}

TEST(StepPlan, ManyCheapItemsDoNotFitBesideFewDearOnes) {
  const std::vector<Work> two = products_of(kHy3, 2), four = products_of(kHy3, 4);
  EXPECT_TRUE(shares_fit(needs_of(phase_of({two[6], two[7]})), kBlocks));
  EXPECT_FALSE(shares_fit(needs_of(phase_of({four[6], four[7]})), kBlocks));
  for (const Work& work : four) EXPECT_TRUE(shares_fit(needs_of(phase_of({work})), kBlocks));
}

TEST(StepPlan, OfAProgramHoldsSharesOfPhasesAlikeOnce) {
  const std::vector<Work> works = products_of(kHyMt2, 1);
  Phase first = phase_of({works[0]}), again = first, other = phase_of({works[0]});
  uint8_t values[1];
  float y[1];
  again.works[0].product.values = values;
  again.works[0].product.y = y;
  again.sources[0].x = y;
  other.works[0].product.ldy += kTile;
  const Phase down = phase_of({works[8]});
  Phase paired = down;
  paired.sources[0].pairs = kChosen;
  const Phase phases[] = {first, down, again, other, paired};
  const ProgramPlan plan = plan_program(phases, kBlocks);
  ASSERT_EQ(plan.places.size(), 5U);
  EXPECT_EQ(plan.places[2].first, plan.places[0].first);
  std::set<int64_t> places;
  int64_t bytes = 0;
  for (size_t i = 0; i < plan.places.size(); ++i) {
    const PhasePlan own = plan_phase(phases[i], kBlocks);
    const ProgramPlan::Place& place = plan.places[i];
    EXPECT_EQ(place.share_bytes, own.share_bytes);
    EXPECT_TRUE(std::equal(own.shares.begin(), own.shares.end(), plan.shares.begin() + place.first));
    if (places.insert(place.first).second) bytes += static_cast<int64_t>(own.shares.size());
  }
  EXPECT_EQ(places.size(), 4U);
  EXPECT_EQ(static_cast<int64_t>(plan.shares.size()), bytes);
}

TEST(StepPlan, OfAttentionIsEmpty) {
  Work attention;
  std::memset(static_cast<void*>(&attention), 0, sizeof attention);
  attention.kind = WorkKind::attention;
  attention.items = 32;
  attention.cost = 1;
  EXPECT_TRUE(plan_phase(phase_of({attention}), kBlocks).shares.empty());
}

}  // namespace
}  // namespace tercet::cuda
