#include "engine/scoring.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/check.h"
#include "base/sha256.h"

namespace tercet {
namespace {

static_assert(std::endian::native == std::endian::little, "digests are over little-endian floats");

Result<void> check_tokens(const Executor& executor, std::span<const int32_t> tokens) {
  const int64_t room = int64_t{executor.pages()} * kPageTokens;
  if (static_cast<int64_t>(tokens.size()) > room) {
    return fail("{} tokens do not fit a KV cache of {}", tokens.size(), room);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= executor.vocabulary()) {
      return fail("token {} at position {}: expected 0 to {}", tokens[i], i, executor.vocabulary() - 1);
    }
  }
  return {};
}

StepPlan plan_chunk(std::span<const int32_t> tokens, int32_t begin, int32_t end,
                    const ScoreOptions& options) {
  StepPlan plan;
  plan.batch.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
  SequenceRows rows{.first_row = 0, .rows = end - begin, .position = begin, .pages = {}};
  rows.pages.resize(static_cast<size_t>((end + kPageTokens - 1) / kPageTokens));
  std::iota(rows.pages.begin(), rows.pages.end(), 0);
  plan.batch.sequences.push_back(std::move(rows));
  const auto count = static_cast<int32_t>(tokens.size());
  for (int32_t position = begin; position < end; ++position) {
    RowOutput output;
    output.row = position - begin;
    output.top = options.top;
    output.all = options.all;
    plan.outputs.push_back(output);
    if (!options.mtp) continue;
    plan.next.push_back(position + 1 < count ? tokens[static_cast<size_t>(position) + 1] : 0);
    if (position + 1 < count) plan.mtp_outputs.push_back(output);
  }
  return plan;
}

}  // namespace

Result<void> score(Executor& executor, std::span<const int32_t> tokens, const ScoreOptions& options,
                   const std::function<void(ScoreKind, int32_t, const RowResult&)>& row) {
  TERCET_TRY_VOID(check_tokens(executor, tokens));
  TERCET_CHECK(options.chunk >= 1 && options.chunk <= executor.max_rows());
  const auto count = static_cast<int32_t>(tokens.size());
  for (int32_t begin = 0; begin < count; begin += options.chunk) {
    const int32_t end = std::min(begin + options.chunk, count);
    const StepResult result = executor.run(plan_chunk(tokens, begin, end, options));
    for (const auto& [kind, rows] :
         {std::pair{ScoreKind::main, &result.rows}, {ScoreKind::mtp, &result.mtp_rows}}) {
      for (size_t i = 0; i < rows->size(); ++i) {
        const int32_t position = begin + static_cast<int32_t>(i);
        if ((*rows)[i].failed) return fail("position {}: the model met a value that is not finite", position);
        row(kind, position, (*rows)[i]);
      }
    }
  }
  return {};
}

Result<std::string> score_digest(Executor& executor, std::span<const int32_t> tokens, int32_t chunk) {
  Sha256 digest;
  const ScoreOptions options{.chunk = chunk, .mtp = false, .top = 0, .all = true};
  TERCET_TRY_VOID(score(executor, tokens, options, [&](ScoreKind, int32_t, const RowResult& result) {
    digest.add(std::as_bytes(std::span(result.all)));
  }));
  return digest.hex();
}

}  // namespace tercet
