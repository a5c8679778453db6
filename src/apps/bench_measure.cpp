#include "apps/bench_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/philox.h"

namespace tercet {
namespace {

class Runner {
 public:
  Runner(const BenchRun& run, const BenchTest& test)
      : run_(run), test_(test), pages_(static_cast<int32_t>(test.pages() / test.parallel)) {}

  /// Reads tokens [begin, end) of one sequence, the last with a draw where asked.
  Result<void> read(int32_t sequence, int32_t begin, int32_t end, bool draw_last) {
    for (int32_t at = begin; at < end;) {
      const int32_t next = std::min(at + run_.chunk, end);
      StepPlan plan;
      for (int32_t position = at; position < next; ++position) {
        plan.batch.tokens.push_back(random_token(sequence, position));
      }
      plan.batch.sequences.push_back(rows_of(sequence, 0, next - at, at));
      if (draw_last && next == end) plan.outputs.push_back(greedy(next - at - 1));
      TERCET_TRY_VOID(step(plan));
      at = next;
    }
    return {};
  }

  /// Each sequence draws `generate` tokens.
  Result<void> generate() {
    std::vector<int32_t> tokens;
    for (int32_t s = 0; s < test_.parallel; ++s) tokens.push_back(random_token(s, test_.depth));
    for (int32_t i = 0; i < test_.generate; ++i) {
      StepPlan plan;
      plan.batch.tokens = tokens;
      for (int32_t s = 0; s < test_.parallel; ++s) {
        plan.batch.sequences.push_back(rows_of(s, s, 1, test_.depth + i));
        plan.outputs.push_back(greedy(s));
      }
      TERCET_TRY(const StepResult result, step(plan));
      for (size_t s = 0; s < tokens.size(); ++s) tokens[s] = result.rows[s].token;
    }
    return {};
  }

  Result<void> repetition() {
    steps_ = 0;
    return test_.prompt > 0 ? read(0, test_.depth, test_.depth + test_.prompt, true) : generate();
  }

  int64_t steps() const { return steps_; }

 private:
  int32_t random_token(int32_t sequence, int32_t position) const {
    constexpr uint64_t kSeed = 1;
    const uint32_t random =
        philox4x32(kSeed, {static_cast<uint32_t>(position), static_cast<uint32_t>(sequence), 0, 0})[0];
    return static_cast<int32_t>(random % static_cast<uint32_t>(run_.executor.vocabulary()));
  }

  SequenceRows rows_of(int32_t sequence, int32_t first_row, int32_t rows, int32_t position) const {
    SequenceRows out{.first_row = first_row, .rows = rows, .position = position, .pages = {}};
    out.pages.resize(static_cast<size_t>((position + rows + kPageTokens - 1) / kPageTokens));
    std::iota(out.pages.begin(), out.pages.end(), sequence * pages_);
    return out;
  }

  static RowOutput greedy(int32_t row) {
    RowOutput output;
    output.row = row;
    output.draw = true;
    output.params.temperature = 0;
    return output;
  }

  Result<StepResult> step(const StepPlan& plan) {
    StepResult result = run_.executor.run(plan);
    ++steps_;
    if (run_.done) run_.done(plan.batch.rows());
    if (std::find(result.failed.begin(), result.failed.end(), 1) != result.failed.end()) {
      return fail("{}: the model met a value that is not finite", test_.name());
    }
    return result;
  }

  const BenchRun& run_;
  const BenchTest& test_;
  const int32_t pages_;  // of a sequence
  int64_t steps_ = 0;
};

void start_profiles(RankProfiles& profiles, Profiling what) {
  for (Profile& profile : profiles) profile = {.what = what, .parts = {}};
}

void add(Profile& sum, const RankProfiles& profiles) {
  for (const Profile& profile : profiles) {
    for (size_t i = 0; i < kModelParts; ++i) {
      sum.parts[i].calls += profile.parts[i].calls;
      sum.parts[i].bytes += profile.parts[i].bytes;
      sum.parts[i].products += profile.parts[i].products;
      sum.parts[i].seconds += profile.parts[i].seconds;
      sum.parts[i].kernels += profile.parts[i].kernels;
    }
  }
}

Result<double> timed(Runner& runner) {
  const auto start = std::chrono::steady_clock::now();
  TERCET_TRY_VOID(runner.repetition());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::string BenchTest::name() const {
  std::string name = prompt > 0 ? fmt::format("pp{}", prompt) : fmt::format("tg{}", generate);
  if (depth > 0) name += fmt::format(" @ d{}", depth);
  if (parallel > 1) name += fmt::format(" x{}", parallel);
  return name;
}

int64_t BenchTest::pages() const {
  return (int64_t{depth} + std::max(prompt, generate) + kPageTokens - 1) / kPageTokens * parallel;
}

double BenchResult::mean() const {
  return std::accumulate(rates.begin(), rates.end(), 0.0) / static_cast<double>(rates.size());
}

double BenchResult::deviation() const {
  if (rates.size() < 2) return 0;
  double squares = 0;
  for (const double rate : rates) squares += (rate - mean()) * (rate - mean());
  return std::sqrt(squares / static_cast<double>(rates.size() - 1));
}

Result<BenchResult> measure(const BenchRun& run, const BenchTest& test) {
  Runner runner(run, test);
  start_profiles(run.profiles, Profiling::none);
  for (int32_t s = 0; s < test.parallel && test.depth > 0; ++s) {
    TERCET_TRY_VOID(runner.read(s, 0, test.depth, false));
  }
  start_profiles(run.profiles, Profiling::work);
  TERCET_TRY_VOID(runner.repetition());
  BenchResult result;
  add(result.profile, run.profiles);
  const PartCost counted = result.profile.total();
  const auto tokens = static_cast<double>(test.tokens());
  result.test = test;
  result.steps = runner.steps();
  result.bytes = static_cast<double>(counted.bytes) / tokens;
  result.products = static_cast<double>(counted.products) / tokens;

  start_profiles(run.profiles, Profiling::none);
  for (int32_t i = 0; i < run.repetitions; ++i) {
    TERCET_TRY(const double seconds, timed(runner));
    result.rates.push_back(tokens / seconds);
  }
  if (!run.profile) return result;
  for (int i = 0; i < 2; ++i) {
    start_profiles(run.profiles, Profiling::time);
    TERCET_TRY(result.profile_seconds, timed(runner));
  }
  add(result.profile, run.profiles);
  return result;
}

}  // namespace tercet
