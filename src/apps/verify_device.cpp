// Every operation of every instruction set and GPU that this machine has, against the reference.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/verified_devices.h"
#include "apps/verify.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/self_check.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/select/table.h"
#include "backend/reference/reference_ops.h"
#include "backend/reference/trials.h"
#include "base/log.h"
#include "base/threads.h"

namespace tercet {
namespace {

struct Count {
  int64_t passed = 0, failed = 0;
};

/// One set of kernels and what was found.
struct Candidate {
  std::string name;
  std::unique_ptr<Ops> ops;
  Count short_check;
  std::vector<Count> groups;  // a trial each
};

constexpr const char* kFastOnGpu = "cuda";

int64_t failures_of(const Candidate& candidate) {
  int64_t failed = candidate.short_check.failed;
  for (const Count& count : candidate.groups) failed += count.failed;
  return failed;
}

/// Which kernels were verified, and the verdict for later starts.
void keep_verdict(const Candidate& fast, const CudaDevice& device, int64_t seconds) {
  fmt::print("\n{}, compute capability {}.{}: kernels for so many rows (of Hy3's shapes)\n", device.name,
             device.major, device.minor);
  for (const cuda::TableLine& line : cuda::kernel_table(traits_of(device))) {
    fmt::print("{:<24} {:>4} to {:<5} {}: {}\n", line.operation, line.from, line.to, line.kernel, line.why);
  }
  const std::optional<bool> verdict = verdict_of(failures_of(fast), seconds);
  const auto file = verified_devices_file();
  if (!verdict || !file) return;
  const Result<void> written = write_verdict(*file, device, *verdict);
  if (!written) return log_warn("{}", written.error().message);
  fmt::print("kept in {}: {}\n", file->string(),
             *verdict ? "the fast kernels may run on such a device" : "the plain kernels are to run there");
}

/// The total.
Count report(const std::vector<Candidate>& candidates) {
  const std::span trials = reference::trials();
  Count total;
  const auto line = [&](const std::string& kernels, std::string_view group, const Count& count) {
    fmt::print("{:<12} {:<18} {:>7}{}\n", kernels, group, count.passed,
               count.failed == 0 ? "" : fmt::format("  {} FAILED", count.failed));
    total.passed += count.passed;
    total.failed += count.failed;
  };
  for (const Candidate& candidate : candidates) {
    line(candidate.name, "start-up check", candidate.short_check);
    for (size_t g = 0; g < trials.size(); ++g) {
      line(candidate.name, trials[g].name, candidate.groups[g]);
    }
  }
  return total;
}

}  // namespace

Result<int> run_verify_device(Arguments given, const Console& console) {
  using Clock = std::chrono::steady_clock;
  int64_t seconds = 60;
  CommandLine app(
      "tercet verify device",
      "Runs every operation on each instruction set and on the GPU that this machine has, on random and "
      "hard rows of random shapes, against the reference. Prints how many rounds were equal bit for "
      "bit, and the counts. What a minute or more, or any failure, showed of a GPU is kept in the user's "
      "cache folder, and decides whether the fast kernels run there later.",
      "tercet verify device\n"
      "tercet verify device --seconds 600");
  app.add_option("--seconds", seconds, "How long, about; each group runs once at least (default: 60)")
      ->transform(whole_number(0, 1 << 24))
      ->option_text("N");
  if (const auto code = parse_arguments(app, given)) return *code;

  const int threads = available_threads();
  const std::unique_ptr<Ops> reference = make_reference_ops(threads);
  std::vector<Candidate> candidates;
  for (const CpuLevel level : cpu::available_levels()) {
    Candidate& candidate = candidates.emplace_back();
    candidate.name = cpu::kernels_of(level).name;
    candidate.ops = make_cpu_ops(threads, level);
    const bool good = cpu::failing_kernels(cpu::kernels_of(level)).empty();
    candidate.short_check = {good ? 1 : 0, good ? 0 : 1};
  }
  for (const bool plain : {true, false}) {
    auto ops = make_cuda_ops({.plain = plain, .untried = true});
    if (!ops) break;
    Candidate& candidate = candidates.emplace_back();
    candidate.name = plain ? "cuda plain" : kFastOnGpu;
    candidate.ops = std::move(*ops);
    if (!plain) {
      const bool good = failing_cuda_kernels(*candidates[candidates.size() - 2].ops, *candidate.ops).empty();
      candidate.short_check = {good ? 1 : 0, good ? 0 : 1};
    }
  }

  const std::span trials = reference::trials();
  for (Candidate& candidate : candidates) candidate.groups.resize(trials.size());
  Progress progress(console, "verifying", std::max<int64_t>(1, seconds * 1000));
  const auto start = Clock::now();
  int64_t elapsed = 0;  // milliseconds
  for (uint64_t round = 0; round == 0 || elapsed < seconds * 1000; ++round) {
    for (size_t g = 0; g < trials.size(); ++g) {
      const uint64_t seed = round * trials.size() + g;
      const reference::Outcome expected = trials[g].run(*reference, seed);
      for (Candidate& candidate : candidates) {
        const bool good = reference::same(trials[g].run(*candidate.ops, seed), expected);
        ++(good ? candidate.groups[g].passed : candidate.groups[g].failed);
      }
    }
    elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
    progress.update(elapsed);
  }
  const Count total = report(candidates);
  if (candidates.back().name == kFastOnGpu) {
    TERCET_TRY(const CudaDevice device, cuda_device());
    keep_verdict(candidates.back(), device, seconds);
  }
  fmt::print("{} passed, {} failed\n", total.passed, total.failed);
  return total.failed == 0 ? 0 : 1;
}

}  // namespace tercet
