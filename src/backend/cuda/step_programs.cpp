#include "backend/cuda/step_programs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "backend/cuda/products.h"
#include "backend/cuda/runtime/status.h"
#include "backend/cuda/select/step.h"
#include "backend/cuda/step_plan.h"

namespace tercet::cuda {
namespace {

/// Where kernels of their own attend, a step has a program for each layer.
constexpr size_t kKnownPrograms = 512;

bool whole(const PackedLinear& weights) {
  return weights.parts.size() == 1 && fragments(weights.parts.front().weights);
}

const Weights& only(const PackedLinear& weights) { return weights.parts.front().weights; }

}  // namespace

StepPrograms::StepPrograms(Launcher& launcher, int64_t& held, const DeviceTraits& device)
    : launcher_(launcher), held_(held), device_(device), program_(launcher, held, device) {
  if (!few(1)) return;
  arrived_ = DeviceBytes(sizeof(uint64_t), held);
  check(cudaMemsetAsync(arrived_.get(), 0, sizeof(uint64_t), launcher.stream()));
}

bool StepPrograms::few(int64_t rows) const {
  // Between marks, an operation's kernels tell more of it than a program that is cut there.
  return rows > 0 && !launcher_.marked() && choose_step(device_, rows).kernel == StepForm::program;
}

template <class Args>
bool StepPrograms::ask(const Args& args) {
  if (asked_.empty() && now_ != nullptr && at_ < now_->asked.size() && now_->asked[at_].call.is(args)) {
    return now_->asked[at_++].taken;
  }
  return ask_other(Call(args));
}

bool StepPrograms::norm(Rows x, Rows z, Vector weight, float eps, Rows h) {
  return few(x.rows) && ask(NormCall{x, z, weight, h, eps, 0});
}

bool StepPrograms::linear(uint8_t* failed, Rows h, const PackedLinear& weights, Rows y) {
  return few(y.rows) && whole(weights) && ask(LinearCall{failed, h, only(weights), y});
}

bool StepPrograms::gate_up(uint8_t* failed, Rows h, const PackedLinear& weights, Rows a) {
  return few(a.rows) && whole(weights) && ask(GateUpCall{failed, h, only(weights), a});
}

bool StepPrograms::route(uint8_t* failed, Rows h, const PackedLinear& router, Vector bias,
                         RouterParams params, Routes routes) {
  return few(h.rows) && whole(router) &&
         ask(RouteCall{h, only(router),
                       choice_of(failed, nullptr, h.rows, only(router).n, bias, params, routes)});
}

bool StepPrograms::experts_gate_up(uint8_t* failed, Rows h, const Routes& routes,
                                   const PackedExperts& experts, Rows a) {
  const AlikeExperts& same = experts.same;
  return few(routes.rows) && experts.alike &&
         ask(ExpertsGateUpCall{
             failed, h, routes, {same.gate_up, same.gate_up_values, same.gate_up_scales}, a});
}

bool StepPrograms::experts_down(uint8_t* failed, Rows a, const Routes& routes, const PackedExperts& experts,
                                Rows shared, Rows z) {
  const AlikeExperts& same = experts.same;
  return few(routes.rows) && experts.alike &&
         ask(ExpertsDownCall{failed, a, routes, {same.down, same.down_values, same.down_scales}, shared, z});
}

bool StepPrograms::write_kv(const WriteKvAndQueriesParams& params) {
  return few(params.write.rows) && ask(WriteKvCall{params});
}

bool StepPrograms::attention(const AttentionParams& params, const Queries& queries, int32_t last_position,
                             bool single) {
  const int64_t spans = last_position / (kSpanBlocks * 64) + 1;
  // From a span for each processor on kernels of their own attend faster.
  if (!few(params.rows) || params.rows * params.cache.heads * spans >= device_.processors) return false;
  // Of powers of two there are few, and so programs.
  const auto blocks = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(last_position / 64 + 1)));
  return ask(AttentionCall{params, queries, blocks, single ? 1 : 0});
}

bool StepPrograms::ask_other(const Call& call) {
  if (asked_.empty()) {
    if (Known* const known = find(&call)) {
      now_ = known;
      return known->asked[at_++].taken;
    }
    draft();
  }
  return take(call);
}

bool StepPrograms::goes_on(const Known& known, const Call* call) const {
  if (call == nullptr ? known.asked.size() != at_
                      : known.asked.size() <= at_ || !(known.asked[at_].call == *call)) {
    return false;
  }
  return at_ == 0 || &known == now_ ||
         std::equal(known.asked.begin(), known.asked.begin() + static_cast<ptrdiff_t>(at_),
                    now_->asked.begin(), [](const Asked& a, const Asked& b) { return a.call == b.call; });
}

StepPrograms::Known* StepPrograms::find(const Call* call) {
  if (now_ != nullptr && goes_on(*now_, call)) return now_;
  const auto found =
      std::find_if(known_.begin(), known_.end(), [&](const Known& known) { return goes_on(known, call); });
  return found == known_.end() ? nullptr : &*found;
}

void StepPrograms::draft() {
  std::vector<Asked> before;
  if (at_ > 0) before.assign(now_->asked.begin(), now_->asked.begin() + static_cast<ptrdiff_t>(at_));
  at_ = 0;
  for (const Asked& asked : before) take(asked.call);
}

bool StepPrograms::take(const Call& call) {
  const size_t before = asked_.size();
  const bool taken = program_.take(call);
  // Where memory had to grow, what came before was finished within this call: what it leaves is not what the
  // call alone would.
  if (asked_.size() < before) whole_ = false;
  asked_.push_back({call, taken});
  return taken;
}

StepPrograms::Known StepPrograms::make(std::vector<Asked> asked, StepProgram::Made made) const {
  Known known;
  known.asked = std::move(asked);
  known.left = made.left;
  known.places = made.places;
  known.attending = made.attending;
  std::vector<Phase>& phases = made.phases;
  known.count = static_cast<int32_t>(phases.size());
  if (phases.empty()) return known;
  const ProgramPlan plan = plan_program(phases, device_.processors);
  const size_t phase_bytes = phases.size() * sizeof(Phase);
  std::vector<uint8_t> bytes(phase_bytes + plan.shares.size());
  known.memory = DeviceBytes(static_cast<int64_t>(bytes.size()), held_);
  const uint8_t* const shares = known.memory.get() + phase_bytes;
  known.shares = shares + plan.places.front().first;
  known.share_bytes = plan.places.front().share_bytes;
  for (size_t i = 1; i < phases.size(); ++i) {
    phases[i - 1].next_shares = shares + plan.places[i].first;
    phases[i - 1].next_share_bytes = plan.places[i].share_bytes;
  }
  std::memcpy(bytes.data(), phases.data(), phase_bytes);
  std::memcpy(bytes.data() + phase_bytes, plan.shares.data(), plan.shares.size());
  check(cudaMemcpyAsync(known.memory.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice,
                        launcher_.stream()));
  return known;
}

StepProgram::Left StepPrograms::run(Known& known) {
  if (last_ != nullptr) last_->then = &known;
  last_ = &known;
  now_ = known.then;
  if (known.count > 0) {
    ProgramParams p{};
    p.phases = reinterpret_cast<const Phase*>(known.memory.get());
    p.shares = known.shares;
    p.share_bytes = known.share_bytes;
    p.arrived = reinterpret_cast<uint64_t*>(arrived_.get());
    p.count = known.count;
    p.places = known.places;
    p.rows = known.attending;
    run_program(launcher_, p, device_.processors);
  }
  return known.left;
}

StepProgram::Left StepPrograms::finish() {
  if (asked_.empty()) {
    if (at_ == 0) return {};
    if (Known* const known = find(nullptr)) {
      at_ = 0;
      return run(*known);
    }
    draft();
  }
  std::vector<Asked> asked = std::exchange(asked_, {});
  if (!std::exchange(whole_, true)) asked.clear();  // nobody asks for that again
  StepProgram::Made made = program_.finish();
  if (memory_ != program_.memory()) {  // it has grown, after a wait for all that used the old one
    memory_ = program_.memory();
    known_.clear();
    last_ = now_ = nullptr;
  }
  if (known_.size() == kKnownPrograms) {
    launcher_.wait();  // it may be queued
    known_.pop_front();
    last_ = now_ = nullptr;
    for (Known& known : known_) known.then = nullptr;
  }
  return run(known_.emplace_back(make(std::move(asked), std::move(made))));
}

}  // namespace tercet::cuda
