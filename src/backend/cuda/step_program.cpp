#include "backend/cuda/step_program.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "backend/cuda/runtime/status.h"
#include "backend/cuda/select/step.h"
#include "backend/cuda/step_plan.h"
#include "base/check.h"
#include "ops/leaves.h"

namespace tercet::cuda {
namespace {

constexpr int32_t kFoldedSpans = 16;  // by the block that is last; more by a phase of their own
constexpr int64_t kHalfRow = 4096;    // numbers of a row that half of a block's threads can round
constexpr int32_t kMostKvHeads = 64;

int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

int64_t item_cost(const Weights& w, int32_t slots) { return int64_t{slots} * w.groups() * w.planes; }

void add_hint(Phase& phase, const void* data, int64_t bytes) {
  for (Hint& hint : phase.hints) {
    if (hint.data == data) return;
    if (hint.data != nullptr) continue;
    hint = {data, bytes};
    return;
  }
}

/// Blocks reckon with fewer bytes of a matrix, and from one to the next of experts.
constexpr int64_t kWordBytes = int64_t{1} << 32;
uint32_t stride(int64_t bytes) {
  TERCET_CHECK(bytes >= 0 && bytes < kWordBytes);
  return static_cast<uint32_t>(bytes);
}

Divisor divisor(int64_t value) {
  const auto by = static_cast<uint64_t>(value);
  return {static_cast<uint32_t>(by),
          value == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) + by - 1) / by)};
}

}  // namespace

StepProgram::StepProgram(Launcher& launcher, int64_t& held, const DeviceTraits& device)
    : device_(device),
      planes_(launcher, held),
      units_(launcher, held),
      logits_(launcher, held),
      partials_(launcher, held) {
  if (choose_step(device, 1).kernel != StepForm::program) return;
  constexpr size_t kTicketBytes = size_t{kProgramRows} * kMostKvHeads * sizeof(uint32_t);
  tickets_ = DeviceBytes(kTicketBytes, held);
  check(cudaMemsetAsync(tickets_.get(), 0, kTicketBytes, launcher.stream()));
}

bool StepProgram::take(const Call& call) {
  switch (call.kind()) {
    case CallKind::norm: {
      const auto c = call.as<NormCall>();
      return norm(c.x, c.z, c.weight, c.eps, c.h);
    }
    case CallKind::linear: {
      const auto c = call.as<LinearCall>();
      return linear(c.failed, c.h, c.weights, c.y);
    }
    case CallKind::gate_up: {
      const auto c = call.as<GateUpCall>();
      return gate_up(c.failed, c.h, c.weights, c.a);
    }
    case CallKind::route: {
      const auto c = call.as<RouteCall>();
      return route(c.h, c.router, c.choice);
    }
    case CallKind::experts_gate_up: {
      const auto c = call.as<ExpertsGateUpCall>();
      return experts_gate_up(c.failed, c.h, c.routes, c.experts, c.a);
    }
    case CallKind::experts_down: {
      const auto c = call.as<ExpertsDownCall>();
      return experts_down(c.failed, c.a, c.routes, c.experts, c.shared, c.z);
    }
    case CallKind::write_kv:
      return write_kv(call.as<WriteKvCall>().params);
    case CallKind::attention:
      return attention(call.as<AttentionCall>());
  }
  return false;
}

std::array<const void*, 4> StepProgram::memory() {
  return {planes_.get<int8_t>(0), units_.get<UnitSum>(0), logits_.get<float>(0), partials_.get<float>(0)};
}

StepProgram::Ranges::Ranges(std::initializer_list<Range> ranges) {
  for (const Range& range : ranges) add(range);
}

void StepProgram::Ranges::add(const Range& range) {
  if (range.first == range.end) return;
  TERCET_CHECK_LT(count_, ranges_.size());
  ranges_[count_++] = range;
}

void StepProgram::Ranges::add(const Ranges& others) {
  for (size_t i = 0; i < others.count_; ++i) add(others.ranges_[i]);
}

bool StepProgram::Ranges::meet(const Ranges& others) const {
  for (size_t i = 0; i < count_; ++i) {
    for (size_t j = 0; j < others.count_; ++j) {
      if (ranges_[i].first < others.ranges_[j].end && others.ranges_[j].first < ranges_[i].end) return true;
    }
  }
  return false;
}

bool StepProgram::fits(const Weights& w, int64_t rows) const {
  return w.groups() <= kProgramGroups && rows * program_row_bytes(w.k) <= kProgramRowBytes &&
         int64_t{w.n} / kTile * w.leaves < kProgramLeaves;
}

std::optional<ShareNeed> StepProgram::need_of(const Weights& w, int64_t items, int32_t slots,
                                              int64_t rows) const {
  const ShareNeed need = share_need(items, item_cost(w, slots), int64_t{slots} * w.leaves, rows);
  return shares_fit({&need, 1}, device_.processors) ? std::optional(need) : std::nullopt;
}

bool StepProgram::joins(const Need& need) const {
  if (phases_.empty() || draft_.alone) return false;
  const Phase& last = phases_.back();
  if (need.product && !draft_.products.empty()) {
    std::vector<ShareNeed> products = draft_.products;
    products.push_back(*need.product);
    if (!shares_fit(products, device_.processors)) return false;
  }
  return last.work_count < kPhaseWorks && (need.shared == 0 || last.source_count < kPhaseSources) &&
         draft_.shared + need.shared <= kProgramRowBytes && !draft_.writes.meet(need.reads) &&
         !draft_.writes.meet(need.writes) && !draft_.reads.meet(need.writes);
}

void StepProgram::phase_for(const Need& need) {
  if (!joins(need)) {
    Phase& phase = phases_.emplace_back();
    std::memset(static_cast<void*>(&phase), 0, sizeof phase);  // programs are compared by their bytes
    draft_ = {};
  }
  draft_.reads.add(need.reads);
  draft_.writes.add(need.writes);
  if (need.product) draft_.products.push_back(*need.product);
  if (need.writes.meet({{kept_.h, kept_.h + kept_.rows * kept_.k}})) kept_ = {};
}

StepProgram::Place StepProgram::add_source(const Source& source, const float* of, int32_t step) {
  Phase& phase = phases_.back();
  const int32_t index = phase.source_count++;
  Source& own = phase.sources[index];
  own = source;
  own.shared = draft_.shared;
  draft_.of[index] = of;
  draft_.step[index] = step;
  if (source.norm != nullptr) add_hint(phase, source.norm, int64_t{source.k} * 4);
  return {index, step};
}

Work& StepProgram::add_work(WorkKind kind, int64_t items, int64_t cost, bool early) {
  Phase& phase = phases_.back();
  if (is_product(kind)) phase.products = 1;
  Work& work = phase.works[phase.work_count++];
  work.kind = kind;
  work.items = narrow(items);
  work.cost = narrow(cost);
  work.early = early ? 1 : 0;
  if (kind == WorkKind::experts || (kind == WorkKind::down && !early)) phase.late = 1;
  return work;
}

ProductWork& StepProgram::add_product(const Place& at, WorkKind kind, const Weights& w, int64_t rows,
                                      int64_t items, int32_t slots, bool swiglu, bool early) {
  Work& work = add_work(kind, items, item_cost(w, slots), early);
  work.source = at.source;
  ProductWork& p = work.product;
  TERCET_CHECK_LT(int64_t{(w.n + kTile - 1) / kTile} * w.blocks() * w.planes * kBlockBytes, kWordBytes);
  p.values = w.values;
  p.scales = w.scales;
  p.slots = slots;
  p.rows = narrow(rows);
  p.outputs = swiglu ? w.n / 2 : w.n;
  p.planes = w.planes;
  p.leaf_shift = std::countr_zero(static_cast<uint32_t>(w.leaves));
  p.groups = w.groups() / w.leaves;
  p.row_step = at.step;
  p.held = held_sums(rows);
  p.swiglu = swiglu ? 1 : 0;
  return p;
}

StepProgram::Place StepProgram::place(uint8_t* failed, Rows h, int32_t parts, Need need) {
  const int64_t groups = h.cols / kBlock;
  auto* const planes = planes_.get<int8_t>(kProgramRows * 2 * 2 * h.cols);
  auto* const units = units_.get<UnitSum>(kProgramRows * 2 * groups);
  const Range kept{planes, planes + kProgramRows * 2 * 2 * h.cols};
  if (!norm_ && !phases_.empty()) {  // the last phase may have them already
    const Phase& last = phases_.back();
    for (int32_t i = 0; i < last.source_count; ++i) {
      const Source& s = last.sources[i];
      if (draft_.of[i] == h.data && s.k == h.cols && s.rows >= h.rows * (s.ready != 0 ? draft_.step[i] : 1) &&
          draft_.step[i] >= parts && joins(need)) {
        phase_for(need);
        return {i, draft_.step[i]};
      }
    }
  }
  Source s{};
  s.k = narrow(h.cols);
  s.row_bytes = program_row_bytes(s.k);
  const bool ready =
      !norm_ && kept_.h == h.data && kept_.k == h.cols && kept_.rows >= h.rows && kept_.parts >= parts;
  Kept now = kept_;
  if (ready) {
    s.planes = planes;
    s.units = units;
    s.rows = narrow(h.rows) * parts;
    s.parts = 1;
    s.ready = 1;
    s.step = parts == kept_.parts ? 1 : kept_.parts;
    need.reads.add(kept);
  } else {
    s.failed = failed;
    s.x = h.data;
    s.rows = narrow(h.rows);
    s.octets = divisor(h.cols / 8);
    s.per_leaf = divisor(groups / leaf_count(groups));
    s.parts = parts;
    s.flags = divisor(1);
    if (norm_) {
      s.x = norm_->x.data;
      s.norm = norm_->weight.data;
      s.h = h.data;
      s.eps = norm_->eps;
      s.inverse = 1.0F / static_cast<float>(s.k);
      s.planes = planes;
      s.units = units;
      need.writes.add({range(h), kept});
      now = {h.data, s.rows, h.cols, parts};
      norm_.reset();
    }
    need.reads.add(range({const_cast<float*>(s.x), s.rows, s.k}));
  }
  need.shared = s.rows * s.parts * s.row_bytes;
  phase_for(need);
  const Place at = add_source(s, h.data, parts);
  draft_.shared += need.shared;
  kept_ = now;
  return at;
}

bool StepProgram::norm(Rows x, Rows z, Vector weight, float eps, Rows h) {
  if (norm_ || x.cols % kBlock != 0 || x.cols / kBlock > kProgramGroups || !(eps >= kLeastEps)) return false;
  if (z.data != nullptr) {
    if (phases_.empty()) return false;
    Phase& last = phases_.back();
    Work& work = last.works[last.work_count - 1];
    const bool product = work.kind == WorkKind::product || work.kind == WorkKind::down;
    ProductWork& p = work.product;
    if (!product || p.y != z.data || p.ldy != x.cols || p.sum != nullptr || p.swiglu != 0 ||
        z.rows != x.rows || draft_.reads.meet({range(x)}) || draft_.writes.meet({range(x)})) {
      return false;
    }
    if (work.kind == WorkKind::product && p.rows != x.rows) return false;
    p.sum = x.data;
    draft_.reads.add(range(x));
    draft_.writes.add(range(x));
  }
  kept_ = {};
  if (weight.data != nullptr) norm_ = Norm{x, weight, eps, h};
  return true;
}

bool StepProgram::linear(uint8_t* failed, Rows h, const Weights& w, Rows y) {
  if (other_norm(h) || !fits(w, y.rows)) return false;
  const int64_t tiles = (w.n + kTile - 1) / kTile;
  const std::optional<ShareNeed> need = need_of(w, tiles, 1, y.rows);
  if (!need) return false;
  const Place at = place(failed, h.first(y.rows), 1, {{}, {range(y)}, need});
  ProductWork& p = add_product(at, WorkKind::product, w, y.rows, tiles, 1, false, true);
  p.y = y.data;
  p.ldy = y.cols;
  return true;
}

bool StepProgram::gate_up(uint8_t* failed, Rows h, const Weights& w, Rows a) {
  if (a.cols % kTile != 0 || other_norm(h) || !fits(w, a.rows)) return false;
  const int64_t tiles = a.cols / kTile;
  const std::optional<ShareNeed> need = need_of(w, tiles, 2, a.rows);
  if (!need) return false;
  const Place at = place(failed, h.first(a.rows), 1, {{}, {range(a)}, need});
  ProductWork& p = add_product(at, WorkKind::product, w, a.rows, tiles, 2, true, true);
  p.y = a.data;
  p.ldy = a.cols;
  return true;
}

bool StepProgram::route(Rows h, const Weights& w, ChooseParams choice) {
  if (other_norm(h) || choose_ || !fits(w, 2 * h.rows) || w.n > 256 ||
      h.rows * choice.chosen > kProgramChosen) {
    return false;
  }
  const int64_t rows = 2 * h.rows;
  const int64_t tiles = (w.n + kTile - 1) / kTile;
  const std::optional<ShareNeed> need = need_of(w, tiles, 1, rows);
  if (!need) return false;
  auto* const logits = logits_.get<float>(2 * kProgramRows * 256);
  const Place at = place(choice.failed, h, 2, {{}, {range({logits, rows, w.n})}, need});
  ProductWork& p = add_product(at, WorkKind::product, w, rows, tiles, 1, false, true);
  p.y = logits;
  p.ldy = w.n;
  p.row_step = 1;
  choice.logits = logits;
  choice.step = 2;
  choice.rest = 1;
  choose_ = choice;
  chosen_in_ = nullptr;
  return true;
}

bool StepProgram::experts_gate_up(uint8_t* failed, Rows h, const Routes& routes, const ExpertWeights& experts,
                                  Rows a) {
  const int64_t pairs = routes.rows * routes.chosen;
  if (pairs > kProgramChosen) return false;
  const Weights& w = experts.first;
  if (!fragments(w) || !fits(w, routes.rows) || a.cols % kTile != 0) return false;
  if (norm_ || (choose_ && choose_->chosen_experts != routes.experts)) return false;
  if (h.cols > kHalfRow && kept_.h != h.data) return false;  // half of the threads round, two octets each
  const int64_t tiles = a.cols / kTile;
  Need need{{}, {range(a)}, need_of(w, pairs * tiles, 2, 1)};
  if (!need.product) return false;
  ChooseParams choose{};
  choose.chosen_experts = routes.experts;
  choose.weights = routes.weights;
  choose.rows = narrow(routes.rows);
  choose.chosen = narrow(routes.chosen);
  const Range chosen = routes_range(routes.experts, pairs);
  const Range weighed{routes.weights, routes.weights + pairs};
  if (choose_) {
    choose = *choose_;
    need.reads.add({choose.logits, choose.logits + 2 * int64_t{choose.rows} * choose.experts});
    need.writes.add(Ranges{chosen, weighed});
    choose_.reset();
  } else {
    need.reads.add(Ranges{chosen, weighed});
  }
  if (!phases_.empty()) {
    for (const Source& s : phases_.back().sources)
      draft_.alone = draft_.alone || (s.ready == 0 && s.k > kHalfRow);
  }
  const Place at = place(failed, h.first(routes.rows), 1, need);
  ProductWork& p = add_product(at, WorkKind::experts, w, 1, pairs * tiles, 2, true, false);
  p.y = a.data;
  p.ldy = a.cols;
  p.values_stride = stride(experts.values);
  p.scales_stride = stride(experts.scales);
  p.tiles = narrow(tiles);
  p.choose = choose;
  p.chosen = narrow(routes.chosen);
  if (choose.bias != nullptr) add_hint(phases_.back(), choose.bias, int64_t{choose.experts} * 4);
  chosen_in_ = routes.experts;
  return true;
}

bool StepProgram::experts_down(uint8_t* failed, Rows a, const Routes& routes, const ExpertWeights& experts,
                               Rows shared, Rows z) {
  const int64_t pairs = routes.rows * routes.chosen;
  if (pairs > kProgramChosen || norm_ || choose_) return false;
  const Weights& w = experts.first;
  const int32_t tiles = (w.n + kTile - 1) / kTile;
  const int64_t items = routes.rows * tiles;
  // A block's items lie one after another.
  const int64_t spanned = std::min<int64_t>(routes.rows, items / device_.processors / tiles + 2);
  if (!fragments(w) || !fits(w, spanned * routes.chosen)) return false;
  const std::optional<ShareNeed> need = need_of(w, items, narrow(routes.chosen), 1);
  if (!need) return false;
  draft_.alone = true;
  phase_for({{range(a), range(shared), routes_range(routes.experts, pairs)}, {range(z)}, need, 1});
  Source s{};
  s.x = a.data;
  s.failed = failed;
  s.rows = narrow(pairs);
  s.k = w.k;
  s.row_bytes = program_row_bytes(s.k);
  s.octets = divisor(w.k / 8);
  s.per_leaf = divisor(w.groups() / w.leaves);
  s.parts = 1;
  s.flags = divisor(routes.chosen);
  s.pairs = narrow(routes.chosen);
  const bool known = chosen_in_ == routes.experts;
  const Place at = add_source(s, nullptr, 1);
  ProductWork& p = add_product(at, WorkKind::down, w, 1, items, narrow(routes.chosen), false, known);
  p.y = z.data;
  p.ldy = z.cols;
  p.shared = shared.data;
  p.values_stride = stride(experts.values);
  p.scales_stride = stride(experts.scales);
  p.tiles = tiles;
  p.choose.chosen_experts = routes.experts;
  p.choose.weights = routes.weights;
  p.choose.rows = narrow(routes.rows);
  p.choose.chosen = narrow(routes.chosen);
  p.chosen = narrow(routes.chosen);
  draft_.alone = true;
  return true;
}

bool StepProgram::write_kv(const WriteKvAndQueriesParams& params) {
  const WriteKvParams& p = params.write;
  if (norm_ || choose_) return false;
  const int64_t heads = p.heads + 2 * p.cache.heads;
  const Range qkv{p.qkv, p.qkv + p.rows * p.ld};
  phase_for(
      {{qkv}, {qkv, {p.cache.keys, p.cache.keys + 1}, {params.queries.halves, params.queries.halves + 1}}});
  add_work(WorkKind::write_kv, p.rows * heads, 1, false).write = params;
  add_hint(phases_.back(), p.q_norm, kHead * 4);
  add_hint(phases_.back(), p.k_norm, kHead * 4);
  draft_.alone = true;
  return true;
}

bool StepProgram::attention(const AttentionCall& call) {
  const AttentionParams& params = call.params;
  const int32_t spans = std::max(1, call.blocks / kSpanBlocks);
  if (norm_ || choose_ || params.cache.heads > kMostKvHeads) return false;
  if (attending_ > 0 &&
      (attending_ != params.rows || std::memcmp(&places_, &params.places, sizeof places_) != 0)) {
    return false;
  }
  AttentionWork work{};
  work.partials = partials_.get<float>(int64_t{params.rows} * params.heads * spans * kPartial);
  places_ = params.places;  // only now: what was taken before may have been finished for the memory
  attending_ = params.rows;
  work.rows = params;
  work.queries = call.queries;
  work.spans = spans;
  const Range out{params.out, params.out + params.rows * params.ld_out};
  if (spans <= kFoldedSpans) work.tickets = reinterpret_cast<uint32_t*>(tickets_.get());
  if (!phases_.empty() && call.single != 0) {
    const Work& last = phases_.back().works[0];
    const WriteKvParams& write = last.write.write;
    if (last.kind == WorkKind::write_kv && phases_.back().work_count == 1 && write.qkv == params.qkv &&
        write.cache.keys == params.cache.keys && write.layer == params.layer) {
      work.write = last.write;
      work.writes = 1;
      phases_.pop_back();
    }
  }
  draft_.alone = true;
  phase_for({{}, {out}});
  const int64_t items = int64_t{params.rows} * params.cache.heads * spans;
  add_work(WorkKind::attention, items, 1, false).attention = work;
  draft_.alone = true;
  if (work.writes != 0 && phases_.size() > 1) {
    phases_[phases_.size() - 2].keys = {params.cache, params.places.pages, params.layer, params.rows};
  }
  if (work.writes != 0) {
    add_hint(phases_.back(), work.write.write.q_norm, kHead * 4);
    add_hint(phases_.back(), work.write.write.k_norm, kHead * 4);
  }
  if (work.tickets == nullptr) {
    phase_for({{}, {out}});
    add_work(WorkKind::fold, int64_t{params.rows} * params.heads, 1, false).attention = work;
    draft_.alone = true;
  }
  return true;
}

StepProgram::Made StepProgram::finish() {
  kept_ = {};
  chosen_in_ = nullptr;
  return {std::exchange(phases_, {}),
          {std::exchange(norm_, {}), std::exchange(choose_, {})},
          places_,
          std::exchange(attending_, 0)};
}

}  // namespace tercet::cuda
