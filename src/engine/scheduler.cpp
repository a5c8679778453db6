#include "engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace tercet {
namespace {

int32_t size(const Sequence& sequence) { return static_cast<int32_t>(sequence.tokens.size()); }
int32_t lacking(const Sequence& sequence) { return size(sequence) - sequence.computed; }

/// Tokens before a row at which attention to them takes about as long as the rest of its work.
constexpr int64_t kHeavyDepth = 4096;

template <class Sequences>
auto& lookup(Sequences& running, Sequences& waiting, SequenceId id) {
  if (const auto it = running.find(id); it != running.end()) return it->second;
  const auto it = waiting.find(id);
  TERCET_CHECK(it != waiting.end());
  return it->second;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), cache_(options.pages, kPageTokens) {
  TERCET_CHECK_GE(options.max_sequences, 1);
  TERCET_CHECK_LE(options.max_sequences, options.max_rows);
  TERCET_CHECK_GE(options.max_prompt_rows, 1);
}

void Scheduler::add(Sequence sequence) {
  TERCET_CHECK(!sequence.tokens.empty());
  const SequenceId id = sequence.id;
  TERCET_CHECK(running_.empty() || running_.rbegin()->first < id);
  TERCET_CHECK(waiting_.empty() || waiting_.rbegin()->first < id);
  waiting_.emplace_hint(waiting_.end(), id, std::move(sequence));
}

Schedule Scheduler::next() {
  Schedule schedule;
  plan_single_rows(schedule);
  // Who decodes waits for the whole step.
  rows_weigh_ = !schedule.slices.empty();
  // At least 1 where a sequence runs that lacks more than one row, or another may run: max_rows is no less
  // than max_sequences.
  const int32_t left = options_.max_rows - static_cast<int32_t>(schedule.slices.size());
  plan_prompts(std::min(left, options_.max_prompt_rows), schedule);
  TERCET_CHECK(!schedule.slices.empty() || (running_.empty() && waiting_.empty()));
  return schedule;
}

void Scheduler::plan_single_rows(Schedule& schedule) {
  for (auto it = running_.begin(); it != running_.end(); ++it) {
    const Sequence& sequence = it->second;
    if (lacking(sequence) != 1) continue;
    // Older ones come first, so what is preempted here has no slice yet.
    while (!cache_.reserve(sequence.id, size(sequence))) {
      TERCET_CHECK(running_.size() > 1);
      const auto newest = std::prev(running_.end());
      const bool itself = newest == it;
      preempt(newest);
      if (itself) return;
    }
    add_slice(sequence, 1, schedule);
  }
}

void Scheduler::plan_prompts(int32_t budget, Schedule& schedule) {
  for (const auto& [id, sequence] : running_) {
    if (lacking(sequence) == 1 || budget == 0) continue;
    budget -= add_prompt_slice(sequence, budget, schedule);
  }
  while (budget > 0 && running() < options_.max_sequences && !waiting_.empty()) {
    const int32_t rows = admit(budget, schedule);
    if (rows == 0) break;
    budget -= rows;
  }
}

/// The first tokens that a cached prefix may cover.
std::span<const int32_t> Scheduler::reusable(const Sequence& sequence) {
  return std::span(sequence.tokens)
      .first(static_cast<size_t>(std::clamp(sequence.reusable, 0, size(sequence) - 1)));
}

/// Whether a running sequence has yet to compute full pages that this one could take over: the same prompt
/// asked for several times at once is computed once.
bool Scheduler::awaits_prefix(const Sequence& sequence) const {
  const std::span<const int32_t> wanted = reusable(sequence);
  return std::any_of(running_.begin(), running_.end(), [&](const auto& entry) {
    const Sequence& other = entry.second;
    const auto differ =
        std::mismatch(wanted.begin(), wanted.end(), other.tokens.begin(), other.tokens.end()).first;
    const auto common = static_cast<int32_t>(differ - wanted.begin());
    return common / kPageTokens * kPageTokens > other.computed;
  });
}

/// Lets the oldest waiting sequence run; its rows, or 0 where pages do not suffice. All pages that its tokens
/// need are taken at once, so a prompt never stops halfway for want of them.
int32_t Scheduler::admit(int32_t budget, Schedule& schedule) {
  Sequence& sequence = waiting_.begin()->second;
  if (awaits_prefix(sequence)) return 0;
  const auto prefix = cache_.begin(sequence.id, reusable(sequence), size(sequence));
  if (!prefix) return 0;
  if (prefix->copy) schedule.copies.push_back({.from = prefix->copy->from, .to = prefix->copy->to});
  sequence.computed = prefix->tokens;
  if (sequence.cached < 0) sequence.cached = prefix->tokens;
  const int32_t spent = add_prompt_slice(sequence, budget, schedule);
  running_.insert(running_.end(), waiting_.extract(waiting_.begin()));
  return spent;
}

/// As many rows as the budget pays; what they cost of it. Beside decoding, deep rows cost more, so that a
/// step takes about as long at the end of a long prompt as at its beginning.
int32_t Scheduler::add_prompt_slice(const Sequence& sequence, int32_t budget, Schedule& schedule) const {
  const int64_t weight = rows_weigh_ ? kHeavyDepth + sequence.computed : kHeavyDepth;
  const int64_t affordable = std::max<int64_t>(1, (budget * kHeavyDepth + weight / 2) / weight);
  const int64_t rows = std::min<int64_t>(affordable, lacking(sequence));
  add_slice(sequence, static_cast<int32_t>(rows), schedule);
  return static_cast<int32_t>(std::min<int64_t>(budget, rows * weight / kHeavyDepth));
}

void Scheduler::add_slice(const Sequence& sequence, int32_t rows, Schedule& schedule) const {
  const int32_t end = sequence.computed + rows;
  const std::vector<int32_t>& pages = cache_.pages(sequence.id);
  const auto needed = static_cast<ptrdiff_t>((end + kPageTokens - 1) / kPageTokens);
  schedule.slices.push_back({.id = sequence.id,
                             .position = sequence.computed,
                             .rows = rows,
                             .last = end == size(sequence),
                             .pages = {pages.begin(), pages.begin() + needed}});
}

void Scheduler::preempt(Sequences::iterator newest) {
  cache_.end(newest->first, true);
  newest->second.computed = 0;
  waiting_.insert(waiting_.begin(), running_.extract(newest));
  ++preemptions_;
}

void Scheduler::computed(const Slice& slice) {
  Sequence& sequence = find(slice.id);
  TERCET_CHECK_EQ(sequence.computed, slice.position);
  cache_.commit(slice.id, std::span(sequence.tokens)
                              .subspan(static_cast<size_t>(slice.position), static_cast<size_t>(slice.rows)));
  sequence.computed += slice.rows;
}

void Scheduler::append(SequenceId id, int32_t token) {
  Sequence& sequence = find(id);
  TERCET_CHECK_EQ(lacking(sequence), 0);
  sequence.tokens.push_back(token);
}

void Scheduler::set_reusable(SequenceId id, int32_t tokens) { find(id).reusable = tokens; }

void Scheduler::remove(SequenceId id, bool keep) {
  if (running_.erase(id) > 0) {
    cache_.end(id, keep);
  } else {
    TERCET_CHECK_EQ(waiting_.erase(id), size_t{1});
  }
}

Sequence& Scheduler::find(SequenceId id) { return lookup(running_, waiting_, id); }

const Sequence& Scheduler::sequence(SequenceId id) const { return lookup(running_, waiting_, id); }

void Scheduler::check_integrity() const {
  cache_.check_integrity();
  TERCET_CHECK_EQ(cache_.sequences(), running_.size());
  TERCET_CHECK_LE(running(), options_.max_sequences);
  if (!running_.empty() && !waiting_.empty()) {
    TERCET_CHECK_LT(running_.rbegin()->first, waiting_.begin()->first);
  }
  for (const auto& [id, sequence] : running_) {
    TERCET_CHECK_EQ(id, sequence.id);
    TERCET_CHECK_EQ(cache_.tokens(id), sequence.computed);
    TERCET_CHECK_GE(lacking(sequence), 1);
    TERCET_CHECK_GE(sequence.cached, 0);
  }
  for (const auto& [id, sequence] : waiting_) {
    TERCET_CHECK_EQ(id, sequence.id);
    TERCET_CHECK_EQ(sequence.computed, 0);
  }
}

}  // namespace tercet
