#include "apps/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/arguments.h"
#include "apps/loaded_model.h"
#include "apps/numbers.h"
#include "model/hy_v3/inventory.h"
#include "model/hy_v3/tensor_names.h"

namespace tercet {
namespace {

using hy_v3::Config;
using hy_v3::InventoryLine;
using hy_v3::MemoryPlan;

struct Findings {
  Config config;
  std::vector<InventoryLine> inventory;
  MemoryPlan plan;
  int64_t context = 0;
  std::vector<std::string> odd;
};

/// Parameters that one token meets: all but the routed experts that are not chosen, and the embedding's other
/// rows.
int64_t active_parameters(const Findings& f) {
  int64_t active = 0;
  for (const InventoryLine& line : f.inventory) {
    if (line.mtp || line.part == "embedding") continue;
    const bool routed = line.part == "routed experts";
    active += routed ? line.parameters * f.config.experts_per_token / f.config.num_experts : line.parameters;
  }
  return active;
}

int64_t total_parameters(const Findings& f, bool mtp) {
  int64_t total = 0;
  for (const InventoryLine& line : f.inventory) total += line.mtp == mtp ? line.parameters : 0;
  return total;
}

std::string family_of(const Config& config) {
  if (config.num_layers == 80 && config.hidden_size == 4096) return "Hy3 (295B-A21B)";
  if (config.num_layers == 48 && config.hidden_size == 2048) return "Hy-MT2-30B-A3B";
  return "hy_v3";
}

Result<Findings> inspect(const ModelOptions& options, int max_rows) {
  TERCET_TRY(const OpenedModel opened, open_model(options));
  const TensorSource& tensors = *opened.checkpoint.tensors;
  Findings f;
  f.config = opened.config;
  TERCET_TRY(const hy_v3::ModelNames names, hy_v3::resolve_names(f.config, tensors));
  TERCET_TRY(f.inventory, hy_v3::take_inventory(f.config, names, tensors, hy_v3::all_layers(f.config)));
  f.context = options.context > 0 ? options.context : f.config.max_positions;
  f.plan = hy_v3::plan_memory(f.config, f.inventory, hy_v3::all_layers(f.config), f.context, max_rows);
  for (const std::string& tensor : names.unused)
    f.odd.push_back(fmt::format("{}: no part of the model, not read", tensor));
  if (f.config.mtp_layers > 0 && !names.mtp)
    f.odd.emplace_back("the config promises an MTP layer; the files have none");
  if (f.config.mtp_layers == 0 && names.mtp)
    f.odd.emplace_back("the files have an MTP layer; the config does not speak of it");
  if (f.context > f.config.max_positions) {
    f.odd.push_back(
        fmt::format("a context of {} tokens; the model was made for {}", f.context, f.config.max_positions));
  }
  return f;
}

nlohmann::ordered_json to_json(const Findings& f) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const InventoryLine& line : f.inventory) {
    parts.push_back({{"part", line.part},
                     {"form", line.form},
                     {"parameters", line.parameters},
                     {"file_bytes", line.file_bytes},
                     {"memory_bytes", line.held_bytes}});
  }
  return {{"family", family_of(f.config)},
          {"layers", f.config.num_layers},
          {"mtp_layers", f.config.mtp_layers},
          {"parameters", total_parameters(f, false)},
          {"active_parameters", active_parameters(f)},
          {"mtp_parameters", total_parameters(f, true)},
          {"context", f.context},
          {"max_context", f.config.max_positions},
          {"parts", parts},
          {"memory",
           {{"weights", f.plan.weights},
            {"kv_per_token", f.plan.cache_per_token},
            {"kv", f.plan.cache},
            {"scratch", f.plan.scratch},
            {"total", f.plan.total()}}},
          {"odd", f.odd}};
}

std::string readable_count(int64_t count) {
  if (count >= 1'000'000'000) return fmt::format("{:.2f} B", static_cast<double>(count) / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.2f} M", static_cast<double>(count) / 1e6);
  return fmt::format("{}", count);
}

void print(const Findings& f) {
  const Config& c = f.config;
  fmt::print("{}: {} layers ({} dense), {} experts of which {} are chosen, {} shared\n", family_of(c),
             c.num_layers, std::count(c.layers.begin(), c.layers.end(), hy_v3::LayerKind::dense),
             c.num_experts, c.experts_per_token, c.num_shared_experts);
  fmt::print("hidden {}, {} heads on {} KV heads, vocabulary {}, context {}\n", c.hidden_size, c.num_heads,
             c.num_kv_heads, c.vocab_size, c.max_positions);
  fmt::print("{} parameters, {} for one token", readable_count(total_parameters(f, false)),
             readable_count(active_parameters(f)));
  const int64_t mtp = total_parameters(f, true);
  fmt::print("{}\n\n", mtp > 0 ? fmt::format("; {} more in the MTP layer", readable_count(mtp)) : "");
  fmt::print("{:<24} {:<22} {:>12} {:>12}\n", "part", "form", "parameters", "in the files");
  for (const InventoryLine& line : f.inventory) {
    fmt::print("{:<24} {:<22} {:>12} {:>12}\n", line.part, line.form, readable_count(line.parameters),
               readable(line.file_bytes));
  }
  fmt::print("\nmemory for a context of {} tokens\n", f.context);
  fmt::print("{:<24} {:>12}\n", "weights", readable(f.plan.weights));
  fmt::print("{:<24} {:>12}  ({} a token)\n", "KV cache", readable(f.plan.cache),
             readable(f.plan.cache_per_token));
  fmt::print("{:<24} {:>12}\n", "scratch", readable(f.plan.scratch));
  fmt::print("{:<24} {:>12}\n", "total", readable(f.plan.total()));
  if (!f.odd.empty()) fmt::print("\nodd:\n");
  for (const std::string& line : f.odd) fmt::print("  {}\n", line);
}

}  // namespace

Result<int> run_inspect(Arguments given, const Console&) {
  ModelOptions options;
  bool json = false;
  CommandLine app(
      "tercet inspect",
      "What a checkpoint holds, what it would take in memory, and what is odd about it. Reads no weights.",
      "tercet inspect models/hy3-tiny --ctx 8k\n"
      "tercet inspect synthetic:hy3 --json");
  add_model_options(app, options);
  app.add_flag("--json", json, "Print one JSON object");
  if (const auto code = parse_arguments(app, given)) return *code;
  TERCET_TRY(const Findings findings,
             inspect(options, options.chunk > 0 ? options.chunk : RunLimits{}.max_rows));
  if (json) {
    fmt::print("{}\n", to_json(findings).dump(2));
  } else {
    print(findings);
  }
  return 0;
}

}  // namespace tercet
