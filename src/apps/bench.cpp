#include "apps/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/arguments.h"
#include "apps/bench_machine.h"
#include "apps/bench_measure.h"
#include "apps/bench_output.h"
#include "apps/loaded_model.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/self_check.h"
#include "backend/cuda/cuda_ops.h"
#include "base/log.h"
#include "engine/local_executor.h"

namespace tercet {
namespace {

struct BenchArguments {
  ModelOptions model;
  std::vector<int32_t> prompts, generations, depths, parallels;  // empty: the default
  int32_t repetitions = 5;
  int32_t micro_batch = 0;
  std::string kernels = "auto";
  std::string output = "md";
  bool profile = false;
};

std::vector<std::string> kernel_names() {
  std::vector<std::string> names = {"auto"};
  for (const CpuLevel level : cpu::available_levels()) names.emplace_back(cpu::kernels_of(level).name);
  return names;
}

void add_options(CLI::App& app, BenchArguments& arguments) {
  add_model_options(app, arguments.model);
  app.remove_option(app.get_option("--ctx-size"));  // the tests say how much they need
  app.option_defaults()->group("Tests");
  const auto list = [&app](const char* names, std::vector<int32_t>& values, int64_t low, int64_t high,
                           const char* help) {
    app.add_option(names, values, help)
        ->transform(whole_number(low, high))
        ->delimiter(',')
        ->option_text("N,…")
        ->allow_extra_args(false);
  };
  list("-p,--n-prompt", arguments.prompts, 0, 1 << 24,
       "Read prompts of so many tokens (default: 512); 0: none");
  list("-n,--n-gen", arguments.generations, 0, 1 << 24, "Draw so many tokens (default: 128); 0: none");
  list("-d,--n-depth", arguments.depths, 0, 1 << 24,
       "After so many tokens that the cache holds already (default: 0)");
  list("--np,--parallel", arguments.parallels, 1, 1 << 12, "Sequences that draw together (default: 1)");
  app.add_option("-r,--repetitions", arguments.repetitions, "Of each test, after one to warm up (default: 5)")
      ->transform(whole_number(1, 1 << 20))
      ->option_text("N");
  app.add_option("--ub,--ubatch-size", arguments.micro_batch, "As --batch-size; the smaller one counts")
      ->transform(whole_number(1, 1 << 20))
      ->option_text("N");
  app.add_option("--kernels", arguments.kernels, "Of which instruction set (default: the fastest here)")
      ->check(one_of(kernel_names()))
      ->option_text("NAME");
  app.option_defaults()->group("Options");
  app.add_option("-o,--output", arguments.output, "md, csv or json (default: md)")
      ->check(one_of({"md", "csv", "json"}))
      ->option_text("FORM");
  app.add_flag("--profile", arguments.profile,
               "Also the time of each part of the model, in a repetition more");
}

std::vector<int32_t> or_default(const std::vector<int32_t>& values, int32_t other) {
  return values.empty() ? std::vector<int32_t>{other} : values;
}

std::vector<BenchTest> tests_of(const BenchArguments& arguments) {
  std::vector<BenchTest> tests;
  for (const int32_t depth : or_default(arguments.depths, 0)) {
    for (const int32_t prompt : or_default(arguments.prompts, 512)) {
      if (prompt > 0) tests.push_back({.prompt = prompt, .generate = 0, .depth = depth, .parallel = 1});
    }
    for (const int32_t generate : or_default(arguments.generations, 128)) {
      for (const int32_t parallel : or_default(arguments.parallels, 1)) {
        if (generate == 0) continue;
        tests.push_back({.prompt = 0, .generate = generate, .depth = depth, .parallel = parallel});
      }
    }
  }
  return tests;
}

int32_t chunk_of(const BenchArguments& arguments) {
  const int32_t batch = arguments.model.chunk > 0 ? arguments.model.chunk : RunLimits{}.max_rows;
  return arguments.micro_batch > 0 ? std::min(batch, arguments.micro_batch) : batch;
}

/// The instruction set that is asked for, else the fastest one that gives the reference's bits; nothing for
/// other backends.
std::optional<CpuLevel> level_of(const BenchArguments& arguments, BackendKind backend) {
  if (backend != BackendKind::cpu) return std::nullopt;
  std::vector<CpuLevel> levels = cpu::available_levels();
  std::reverse(levels.begin(), levels.end());
  const auto wanted = std::find_if(levels.begin(), levels.end(), [&](CpuLevel level) {
    const cpu::Kernels& kernels = cpu::kernels_of(level);
    return arguments.kernels == "auto" ? cpu::failing_kernels(kernels).empty()
                                       : arguments.kernels == kernels.name;
  });
  return wanted == levels.end() ? std::nullopt : std::optional(*wanted);
}

struct BenchModel {
  hy_v3::Config config;
  BenchSetting setting;
  RankProfiles profiles;  // before the executor, whose ranks write to them
  std::unique_ptr<LocalExecutor> executor;
};

/// A cache for the largest test, and no larger.
Result<hy_v3::RankLimits> limits_of(const BenchArguments& arguments, std::span<const BenchTest> tests,
                                    const hy_v3::Config& config) {
  hy_v3::RankLimits limits;
  limits.max_rows = chunk_of(arguments);
  for (const BenchTest& test : tests) {
    const int64_t positions = int64_t{test.depth} + std::max(test.prompt, test.generate);
    if (positions > config.max_positions) {
      return fail("{}: {} tokens; {} was made for {}", test.name(), positions, arguments.model.model,
                  config.max_positions);
    }
    limits.pages = std::max(limits.pages, static_cast<int32_t>(test.pages()));
    limits.max_rows = std::max(limits.max_rows, test.parallel);
  }
  return limits;
}

Result<BenchSetting> describe(const BenchArguments& arguments, const OpenedModel& opened,
                              std::span<const StagePlan> stages, std::optional<CpuLevel> level) {
  TERCET_TRY(const auto inventory, inventory_of(opened, hy_v3::all_layers(opened.config)));
  BenchSetting setting;
  setting.model = arguments.model.model;
  for (const hy_v3::InventoryLine& line : inventory) {
    if (line.mtp) continue;
    setting.model_bytes += line.held_bytes;
    setting.parameters += line.parameters;
  }
  setting.layers = opened.config.num_layers;
  setting.processor = processor_name();
  setting.kernels = level ? cpu::kernels_of(*level).name : "reference";
  setting.threads = thread_count(arguments.model);
  if (stages.back().backend == BackendKind::cuda) {
    TERCET_TRY(const CudaDevice device, cuda_device());
    setting.processor = device.name;
    const bool all = stages.size() == 1;
    setting.kernels =
        all ? "cuda" : fmt::format("cuda ({} of {} layers)", stages.back().layers.size(), setting.layers);
    TERCET_TRY(setting.bandwidth, cuda_read_bandwidth());
  } else {
    setting.bandwidth = read_bandwidth(setting.threads);
  }
  setting.chunk = chunk_of(arguments);
  return setting;
}

Result<void> load(const BenchArguments& arguments, std::span<const BenchTest> tests, const Console& console,
                  BenchModel& model) {
  if (arguments.model.verbose) set_log_level(LogLevel::info);
  TERCET_TRY(const OpenedModel opened, open_model(arguments.model));
  model.config = opened.config;
  ExecutorOptions executor;
  TERCET_TRY(executor.limits, limits_of(arguments, tests, model.config));
  TERCET_TRY(const std::vector<StagePlan> stages,
             plan_stages(arguments.model, opened, executor.limits, this_machine()));
  const std::optional<CpuLevel> level = level_of(arguments, stages.front().backend);
  TERCET_TRY(model.setting, describe(arguments, opened, stages, level));
  const auto plain_ops = [&](size_t stage, int threads) {
    const BackendKind backend = stages[stage].backend;
    return level && backend == BackendKind::cpu ? make_cpu_ops(threads, level) : make_ops(backend, threads);
  };
  model.setting.multiply = multiply_rate(*plain_ops(stages.size() - 1, model.setting.threads));

  for (const StagePlan& stage : stages) executor.stages.push_back(stage.layers);
  executor.shards = arguments.model.tensor_shards;
  executor.threads = model.setting.threads;
  executor.make_ops = [&](size_t stage, int threads) {
    return make_profiled_ops(plain_ops(stage, threads), model.profiles.emplace_back());
  };
  Progress progress(console, "loading", 1000);
  executor.progress = [&](int64_t done, int64_t total) { progress.update(done * 1000 / total); };
  TERCET_TRY(model.executor, LocalExecutor::load(model.config, *opened.checkpoint.tensors, executor));
  return {};
}

Result<std::vector<BenchResult>> measure_all(const BenchArguments& arguments,
                                             std::span<const BenchTest> tests, BenchModel& model,
                                             const Console& console) {
  int64_t total = 0, done = 0;
  for (const BenchTest& test : tests) {
    total += test.tokens() * (arguments.repetitions + (arguments.profile ? 3 : 1)) +
             int64_t{test.depth} * test.parallel;
  }
  Progress progress(console, "measuring", total);
  const BenchRun run{*model.executor,
                     model.profiles,
                     chunk_of(arguments),
                     arguments.repetitions,
                     arguments.profile,
                     [&](int64_t tokens) {
                       done += tokens;
                       progress.update(done);
                     }};
  std::vector<BenchResult> results;
  for (const BenchTest& test : tests) {
    TERCET_TRY(results.emplace_back(), measure(run, test));
  }
  return results;
}

}  // namespace

Result<int> run_bench(Arguments given, const Console& console) {
  BenchArguments arguments;
  CommandLine app(
      "tercet bench",
      "How fast a model reads prompts (pp) and draws tokens (tg), and how near that is to the floor: the "
      "time that reading its weights and cache takes at the bandwidth, or its products at the multiply rate, "
      "measured in the same run.",
      "tercet bench models/hy3-tiny\n"
      "tercet bench synthetic:hy-mt2-30b:6 -p 512 -n 64 -d 0,16k --parallel 1,8\n"
      "tercet bench models/hy3-tiny -p 0 --profile -o json");
  add_options(app, arguments);
  if (const auto code = parse_arguments(app, given)) return *code;
  const std::vector<BenchTest> tests = tests_of(arguments);
  if (tests.empty()) {
    print_error("nothing to measure: both --n-prompt and --n-gen are 0");
    return 2;
  }
  if (arguments.profile && arguments.output == "csv") {
    print_error("a profile has no form in csv: --output md or json");
    return 2;
  }
  BenchModel model;
  TERCET_TRY_VOID(load(arguments, tests, console, model));
  TERCET_TRY(const std::vector<BenchResult> results, measure_all(arguments, tests, model, console));
  if (arguments.output == "json") {
    fmt::print("{}", json(model.setting, results));
  } else if (arguments.output == "csv") {
    fmt::print("{}", csv(model.setting, results));
  } else {
    fmt::print("{}", markdown(model.setting, results));
    if (arguments.profile) fmt::print("{}", profile_tables(model.setting, results));
  }
  return 0;
}

}  // namespace tercet
