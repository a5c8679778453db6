// Which rows the next step computes, in which pages. Knows tokens as integers; no draws, no ends of answers.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "kv/page_cache.h"
#include "ops/batch.h"

namespace tercet {

struct SchedulerOptions {
  int32_t pages = 0;            // of the KV cache
  int32_t max_rows = 1;         // of a step
  int32_t max_sequences = 1;    // running at once; at most max_rows
  int32_t max_prompt_rows = 1;  // of a step, beside one row for each sequence that needs just one
};

struct Sequence {
  SequenceId id = 0;
  std::vector<int32_t> tokens;  // prompt and answer so far
  int32_t reusable = 0;         // how many of the first tokens a cached prefix may cover; the last never
  int32_t computed = 0;         // tokens whose keys and values are in the cache; 0 while it waits
  int32_t cached = -1;          // tokens it found in the cache when it first ran
};

/// Consecutive rows of one sequence.
struct Slice {
  SequenceId id = 0;
  int32_t position = 0;
  int32_t rows = 0;
  bool last = false;           // they end with the sequence's last token, after which one can be drawn
  std::vector<int32_t> pages;  // up to the last row
};

struct Schedule {
  std::vector<PageCopy> copies;
  std::vector<Slice> slices;
};

/// First come, first served, by id: every running sequence is older than every waiting one, and where pages
/// run out the newest running one goes back to waiting; its tokens are computed again later, with equal bits.
/// A sequence alone always fits. Not thread-safe.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  /// Ids ascend from call to call. The sequence's tokens must at no time need more than all pages.
  void add(Sequence sequence);

  /// One row for each running sequence that lacks just one, then the others' and new sequences' rows up to
  /// the limits. Not empty unless there is no sequence at all. Each slice must be answered by computed() or
  /// remove() before the next call. The copies are to be carried out before any row, as long as a slice of
  /// the schedule is.
  Schedule next();

  /// The slice's rows are in the cache and none failed.
  void computed(const Slice& slice);
  /// To a sequence whose tokens are all computed.
  void append(SequenceId id, int32_t token);
  void set_reusable(SequenceId id, int32_t tokens);
  /// Without `keep`, what was computed since the last full page is not cached.
  void remove(SequenceId id, bool keep);

  const Sequence& sequence(SequenceId id) const;
  int32_t running() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  uint64_t preemptions() const { return preemptions_; }
  PageCounts pages() const { return cache_.counts(); }

  /// Stops the program where an invariant of CONTRACT.md is broken. Between steps only.
  void check_integrity() const;

 private:
  using Sequences = std::map<SequenceId, Sequence>;

  Sequence& find(SequenceId id);
  void plan_single_rows(Schedule& schedule);
  void plan_prompts(int32_t budget, Schedule& schedule);
  int32_t admit(int32_t budget, Schedule& schedule);
  static std::span<const int32_t> reusable(const Sequence& sequence);
  bool awaits_prefix(const Sequence& sequence) const;
  int32_t add_prompt_slice(const Sequence& sequence, int32_t budget, Schedule& schedule) const;
  void add_slice(const Sequence& sequence, int32_t rows, Schedule& schedule) const;
  void preempt(Sequences::iterator newest);

  const SchedulerOptions options_;
  PageCache cache_;
  Sequences running_;
  Sequences waiting_;
  uint64_t preemptions_ = 0;
  bool rows_weigh_ = false;  // in the step that is planned: somebody decodes
};

}  // namespace tercet
