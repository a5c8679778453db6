#include "backend/cuda/step_plan.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/check.h"

namespace tercet::cuda {
namespace {

int32_t item_jobs(const ProductWork& p) { return p.slots << p.leaf_shift; }

/// A block's share while it grows.
struct Draft {
  Share share{};
  std::vector<Job> jobs;
  std::vector<Outputs> outputs;
  int32_t sums = 0;  // floats, of the round

  void end_round() {
    TERCET_CHECK_LT(share.rounds, kShareRounds);
    share.jobs[share.rounds] = static_cast<uint16_t>(jobs.size());
    share.outputs[share.rounds] = static_cast<uint16_t>(outputs.size());
    ++share.rounds;
    sums = 0;
  }
};

/// Where an item of a work lies: its tile, its pair (`experts`) or row (`down`).
struct Item {
  int32_t tile, of;
};

Item item_at(const Work& work, int32_t index) {
  if (work.kind == WorkKind::product) return {index, 0};
  return {index % work.product.tiles, index / work.product.tiles};
}

/// Numbers of so many bits each, the first lowest.
uint32_t packed(std::initializer_list<std::pair<int32_t, int>> fields) {
  uint32_t word = 0;
  int at = 0;
  for (const auto& [value, bits] : fields) {
    TERCET_CHECK(value >= 0 && int64_t{value} < int64_t{1} << bits);
    word |= static_cast<uint32_t>(value) << at;
    at += bits;
  }
  return word;
}

void add_jobs(Draft& draft, const Phase& phase, int32_t which, Item item) {
  const Work& work = phase.works[which];
  const ProductWork& p = work.product;
  const Source& source = phase.sources[work.source];
  const int32_t leaves = 1 << p.leaf_shift;
  for (int32_t slot = 0; slot < p.slots; ++slot) {
    const int32_t tile = item.tile + (p.swiglu != 0 ? slot * (p.outputs / kTile) : 0);
    int32_t row = 0, chosen = kNoExpert;
    if (work.kind == WorkKind::experts) {
      chosen = item.of;
      row = item.of / p.chosen * p.row_step;
    } else if (work.kind == WorkKind::down) {
      chosen = item.of * p.chosen + slot;
      row = chosen - draft.share.first_row;
    }
    const SharedRowPlaces places(source.k);
    const int32_t begin = source.shared + row * source.row_bytes;
    for (int32_t leaf = 0; leaf < leaves; ++leaf) {
      const int32_t group = leaf * p.groups;
      const int32_t sums = draft.sums / kTile + (slot * leaves + leaf) * p.held;
      const int32_t row_at = begin + group * kBlock, units_at = begin + places.units + group * 8;
      Job job{};
      job.what = packed({{tile * leaves + leaf, 24}, {which, 2}, {p.rows, 4}, {p.planes - 1, 2}});
      job.counts = packed({{chosen, 8}, {p.groups, 8}, {sums, 16}});
      job.begin = packed({{row_at / 16, 16}, {units_at / 8, 16}});
      job.steps = packed({{places.second_plane / 16, 16}, {p.row_step * source.row_bytes / 16, 16}});
      draft.jobs.push_back(job);
    }
  }
}

void add_outputs(Draft& draft, const Work& work, int32_t which, Item item) {
  const ProductWork& p = work.product;
  const int32_t n = item.tile * kTile;
  for (int32_t row = 0; row < p.rows; ++row) {
    Outputs made{};
    made.at = static_cast<uint32_t>((work.kind == WorkKind::product ? row : item.of) * p.ldy + n);
    made.sums = static_cast<uint16_t>(draft.sums + row);
    made.work = static_cast<uint8_t>(which & 15);
    made.count = static_cast<uint8_t>((std::min(p.outputs - n, kTile) - 1) & 15);
    made.row = static_cast<uint8_t>(item.of);
    draft.outputs.push_back(made);
  }
}

void add_item(Draft& draft, const Phase& phase, int32_t which, int32_t index) {
  const Work& work = phase.works[which];
  const ProductWork& p = work.product;
  const int32_t floats = item_jobs(p) * kTile * p.held;
  TERCET_CHECK_LE(floats, kProgramSums);
  if (draft.sums + floats > kProgramSums) draft.end_round();
  const Item item = item_at(work, index);
  if (phase.sources[work.source].pairs > 0) {
    if (draft.share.rows == 0) draft.share.first_row = static_cast<uint16_t>(item.of * p.chosen);
    draft.share.rows = static_cast<uint16_t>((item.of + 1) * p.chosen - draft.share.first_row);
  }
  add_jobs(draft, phase, which, item);
  add_outputs(draft, work, which, item);
  draft.sums += floats;
  if (work.early != 0 && draft.share.early + item_jobs(p) == static_cast<int32_t>(draft.jobs.size())) {
    draft.share.early = static_cast<uint16_t>(draft.jobs.size());
  }
}

int64_t bytes_of(const Draft& draft) {
  const auto bytes = static_cast<int64_t>(sizeof(Share) + draft.jobs.size() * sizeof(Job) +
                                          draft.outputs.size() * sizeof(Outputs));
  return (bytes + 15) / 16 * 16;
}

/// What all items of a block have together at most. Those that begin in the block's part of the cost are its
/// own. Of a work that ends there they cost no more than what it has of that part; only of the last one there
/// may be an item more.
int64_t most_of_a_block(std::span<const ShareNeed> works, int64_t ShareNeed::*each, int32_t blocks) {
  int64_t all = 0, densest = 0, largest = 0;
  for (const ShareNeed& work : works) all += work.items * work.cost;
  for (const ShareNeed& work : works) {
    densest = std::max(densest, all * work.*each / (work.cost * blocks));
    largest = std::max(largest, work.*each);
  }
  return densest + largest;
}

/// A phase without what shares do not follow from: without addresses.
Phase outline(const Phase& phase) {
  Phase out;
  std::memset(static_cast<void*>(&out), 0, sizeof out);
  out.work_count = phase.work_count;
  for (int32_t i = 0; i < phase.work_count; ++i) {
    const Work& work = phase.works[i];
    const Source& source = phase.sources[work.source];
    Source& own = out.sources[work.source];
    own.pairs = source.pairs;
    own.k = source.k;
    own.shared = source.shared;
    own.row_bytes = source.row_bytes;
    out.works[i] = work;
    if (!is_product(work.kind)) continue;
    ProductWork& p = out.works[i].product;
    p.values = p.scales = nullptr;
    p.y = p.sum = nullptr;
    p.shared = nullptr;
    std::memset(&p.choose, 0, sizeof p.choose);
  }
  return out;
}

}  // namespace

ShareNeed share_need(int64_t items, int64_t cost, int64_t item_jobs, int64_t rows) {
  return {items, cost,
          item_jobs * static_cast<int64_t>(sizeof(Job)) + rows * static_cast<int64_t>(sizeof(Outputs)),
          item_jobs * kTile * held_sums(rows)};
}

int64_t most_share_bytes(std::span<const ShareNeed> works, int32_t blocks) {
  return (static_cast<int64_t>(sizeof(Share)) + most_of_a_block(works, &ShareNeed::bytes, blocks) + 15) / 16 *
         16;
}

int64_t most_share_rounds(std::span<const ShareNeed> works, int32_t blocks) {
  int64_t largest = 0;
  for (const ShareNeed& work : works) largest = std::max(largest, work.floats);
  if (largest > kProgramSums) return kShareRounds + 1;
  // A round ends where an item does not fit.
  return most_of_a_block(works, &ShareNeed::floats, blocks) / (kProgramSums - largest + 1) + 1;
}

PhasePlan plan_phase(const Phase& phase, int32_t blocks) {
  int64_t all = 0;
  for (int32_t w = 0; w < phase.work_count; ++w) all += int64_t{phase.works[w].items} * phase.works[w].cost;
  std::vector<Draft> drafts(static_cast<size_t>(blocks));
  int64_t before = 0;
  for (int32_t w = 0; w < phase.work_count; ++w) {
    const Work& work = phase.works[w];
    if (!is_product(work.kind)) return {};
    for (int32_t i = 0; i < work.items; ++i, before += work.cost) {
      add_item(drafts[static_cast<size_t>(before * blocks / all)], phase, w, i);
    }
  }
  PhasePlan plan;
  for (Draft& draft : drafts) {
    draft.end_round();
    draft.share.all_jobs = static_cast<uint16_t>(draft.jobs.size());
    plan.share_bytes = std::max(plan.share_bytes, static_cast<int32_t>(bytes_of(draft)));
  }
  TERCET_CHECK_LE(plan.share_bytes, kShareBytes);
  plan.shares.resize(drafts.size() * static_cast<size_t>(plan.share_bytes));
  uint8_t* to = plan.shares.data();
  for (const Draft& draft : drafts) {
    std::memcpy(to, &draft.share, sizeof draft.share);
    std::memcpy(to + sizeof(Share), draft.jobs.data(), draft.jobs.size() * sizeof(Job));
    std::memcpy(to + sizeof(Share) + draft.jobs.size() * sizeof(Job), draft.outputs.data(),
                draft.outputs.size() * sizeof(Outputs));
    to += plan.share_bytes;
  }
  return plan;
}

ProgramPlan plan_program(std::span<const Phase> phases, int32_t blocks) {
  struct Planned {
    Phase outline;
    ProgramPlan::Place place;
  };
  std::vector<Planned> planned;
  ProgramPlan program;
  for (const Phase& phase : phases) {
    const Phase own = outline(phase);
    auto found = std::find_if(planned.begin(), planned.end(), [&](const Planned& other) {
      return std::memcmp(&other.outline, &own, sizeof own) == 0;
    });
    if (found == planned.end()) {
      const PhasePlan plan = plan_phase(phase, blocks);
      const ProgramPlan::Place place{static_cast<int64_t>(program.shares.size()), plan.share_bytes};
      program.shares.insert(program.shares.end(), plan.shares.begin(), plan.shares.end());
      found = planned.insert(planned.end(), {own, place});
    }
    program.places.push_back(found->place);
  }
  return program;
}

}  // namespace tercet::cuda
