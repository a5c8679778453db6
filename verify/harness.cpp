#include "harness.h"

#include <algorithm>

#include "base/check.h"
#include "base/philox.h"
#include "model/hy_v3/synthetic_model.h"

namespace tercet::verify {
namespace {

template <class T>
T expect(Result<T> result) {
  if (!result) fmt::print(stderr, "{}\n", result.error().message);
  TERCET_CHECK(result.has_value());
  return std::move(*result);
}

void append(std::vector<float>& to, const std::vector<float>& row) {
  to.insert(to.end(), row.begin(), row.end());
}

/// The rows [begin, end) of a sequence, and their outputs, at the end of a plan.
void add_rows(StepPlan& plan, const std::vector<int32_t>& tokens, int32_t begin, int32_t end,
              std::vector<int32_t> pages, bool mtp) {
  SequenceRows rows{
      .first_row = plan.batch.rows(), .rows = end - begin, .position = begin, .pages = std::move(pages)};
  for (int32_t i = begin; i < end; ++i) {
    RowOutput output;
    output.row = plan.batch.rows();
    output.all = true;
    plan.batch.tokens.push_back(tokens[static_cast<size_t>(i)]);
    plan.outputs.push_back(output);
    if (!mtp) continue;
    const auto next = static_cast<size_t>(i) + 1;
    plan.next.push_back(next < tokens.size() ? tokens[next] : 0);
    if (next < tokens.size()) plan.mtp_outputs.push_back(output);
  }
  plan.batch.sequences.push_back(std::move(rows));
}

int32_t pages_for(size_t tokens) { return static_cast<int32_t>((tokens + kPageTokens - 1) / kPageTokens); }

}  // namespace

TestModel open_test_model(const std::string& model, int threads) {
  TestModel out;
  out.checkpoint =
      expect(hy_v3::is_synthetic(model) ? hy_v3::parse_synthetic(model, 0, threads) : open_checkpoint(model));
  out.config = expect(hy_v3::parse_config(out.checkpoint.config_json));
  return out;
}

std::unique_ptr<LocalExecutor> load(const TestModel& model, const Placement& placement,
                                    const std::function<std::unique_ptr<Ops>(int)>& make_ops) {
  ExecutorOptions options;
  options.stages = hy_v3::equal_stages(model.config, placement.stages);
  options.shards = placement.shards;
  options.threads = placement.threads;
  options.limits = {.max_rows = placement.max_rows, .pages = placement.pages, .mtp = placement.mtp};
  options.make_ops = [&](size_t, int threads) { return make_ops(threads); };
  return expect(LocalExecutor::load(model.config, *model.checkpoint.tensors, options));
}

std::vector<int32_t> made_up_tokens(int32_t count, int32_t vocabulary, uint64_t key) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t random = philox4x32(key, {static_cast<uint32_t>(i), 0, 0, 0})[0];
    tokens.push_back(static_cast<int32_t>(random % static_cast<uint32_t>(vocabulary)));
  }
  return tokens;
}

std::vector<Scores> score_together(Executor& executor, const std::vector<std::vector<int32_t>>& sequences,
                                   int32_t chunk, bool mtp) {
  std::vector<std::vector<int32_t>> pages(sequences.size());
  int32_t next_page = executor.pages();
  for (bool more = true; more;) {  // in turn and from the end, so that neighbours' pages interleave
    more = false;
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (pages[s].size() == static_cast<size_t>(pages_for(sequences[s].size()))) continue;
      TERCET_CHECK(next_page > 0);
      pages[s].push_back(--next_page);
      more = true;
    }
  }
  std::vector<Scores> scores(sequences.size());
  std::vector<int32_t> done(sequences.size(), 0);
  for (;;) {
    StepPlan plan;
    std::vector<size_t> owner, mtp_owner;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto size = static_cast<int32_t>(sequences[s].size());
      const int32_t room = executor.max_rows() - plan.batch.rows();
      const int32_t end = std::min({done[s] + chunk, size, done[s] + room});
      if (end <= done[s]) continue;
      const auto first = pages[s].begin();
      add_rows(plan, sequences[s], done[s], end, {first, first + pages_for(static_cast<size_t>(end))}, mtp);
      owner.resize(plan.outputs.size(), s);
      mtp_owner.resize(plan.mtp_outputs.size(), s);
      done[s] = end;
    }
    if (plan.batch.tokens.empty()) return scores;
    const StepResult result = executor.run(plan);
    for (const uint8_t failed : result.failed) TERCET_CHECK_EQ(failed, 0);
    for (size_t i = 0; i < owner.size(); ++i) append(scores[owner[i]].main, result.rows[i].all);
    for (size_t i = 0; i < mtp_owner.size(); ++i) append(scores[mtp_owner[i]].mtp, result.mtp_rows[i].all);
  }
}

std::vector<float> score_after_prefix(Executor& executor, const std::vector<int32_t>& tokens,
                                      int32_t prefix) {
  // The other sequence: the prefix, then something else, on pages 0, 1, ….
  std::vector<int32_t> other(tokens.begin(), tokens.begin() + prefix);
  other.push_back((tokens[static_cast<size_t>(prefix)] + 1) % executor.vocabulary());
  std::vector<int32_t> pages;
  for (int32_t i = 0; i < pages_for(other.size()); ++i) pages.push_back(i);
  StepPlan first;
  add_rows(first, other, 0, static_cast<int32_t>(other.size()), pages, false);
  executor.run(first);

  // Ours: whole pages shared, the last one copied, the rest its own.
  StepPlan plan;
  const auto shared = static_cast<size_t>(prefix / kPageTokens);
  pages.resize(shared);
  int32_t fresh = executor.pages();
  if (prefix % kPageTokens != 0) plan.copies.push_back({static_cast<int32_t>(shared), fresh - 1});
  while (pages.size() < static_cast<size_t>(pages_for(tokens.size()))) pages.push_back(--fresh);
  add_rows(plan, tokens, prefix, static_cast<int32_t>(tokens.size()), pages, false);
  std::vector<float> rows;
  for (const RowResult& row : executor.run(plan).rows) append(rows, row.all);
  return rows;
}

std::vector<float> rows_from(const Scores& scores, int32_t first, int64_t vocabulary) {
  return {scores.main.begin() + first * vocabulary, scores.main.end()};
}

}  // namespace tercet::verify
