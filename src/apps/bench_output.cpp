#include "apps/bench_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace tercet {
namespace {

using Row = std::vector<std::string>;
using OrderedJson = nlohmann::ordered_json;

size_t columns_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                           [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

/// The first row is the head; the first `left` columns are words, the others numbers.
std::string table(const std::vector<Row>& rows, size_t left) {
  std::vector<size_t> widths(rows.front().size(), 4);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string pad(widths[i] - columns_of(rows[r][i]), ' ');
      out += fmt::format("| {} ", i < left ? rows[r][i] + pad : pad + rows[r][i]);
    }
    out += "|\n";
    if (r != 0) continue;
    for (size_t i = 0; i < widths.size(); ++i) {
      out += i < left ? fmt::format("| {} ", std::string(widths[i], '-'))
                      : fmt::format("| {}: ", std::string(widths[i] - 1, '-'));
    }
    out += "|\n";
  }
  return out;
}

std::string rate(double value) { return fmt::format("{:.{}f}", value, value < 1000 ? 2 : 0); }

/// The least that part of a step can take, in seconds.
double floor_seconds(const BenchSetting& setting, double bytes, double products) {
  return std::max(bytes / setting.bandwidth, products / setting.multiply);
}

double giga(double value) { return value * 1e-9; }

OrderedJson profile_json(const BenchSetting& setting, const BenchResult& result) {
  OrderedJson parts = OrderedJson::array();
  const auto steps = static_cast<double>(result.steps);
  for (size_t i = 0; i < kModelParts; ++i) {
    const PartCost& cost = result.profile.parts[i];
    if (cost.calls == 0) continue;
    const auto bytes = static_cast<double>(cost.bytes);
    const auto products = static_cast<double>(cost.products);
    parts.push_back({{"part", part_name(static_cast<ModelPart>(i))},
                     {"calls_per_step", static_cast<double>(cost.calls) / steps},
                     {"kernels_per_step", static_cast<double>(cost.kernels) / steps},
                     {"seconds_per_step", cost.seconds / steps},
                     {"bytes_per_step", bytes / steps},
                     {"products_per_step", products / steps},
                     {"floor_seconds_per_step", floor_seconds(setting, bytes, products) / steps}});
  }
  return parts;
}

OrderedJson fields(const BenchSetting& setting, const BenchResult& result) {
  return {{"model", setting.model},
          {"model_size", setting.model_bytes},
          {"model_n_params", setting.parameters},
          {"cpu_info", setting.processor},
          {"kernels", setting.kernels},
          {"n_threads", setting.threads},
          {"n_batch", setting.chunk},
          {"test", result.test.name()},
          {"n_prompt", result.test.prompt},
          {"n_gen", result.test.generate},
          {"n_depth", result.test.depth},
          {"n_parallel", result.test.parallel},
          {"avg_ts", result.mean()},
          {"stddev_ts", result.deviation()},
          {"bytes_per_token", result.bytes},
          {"products_per_token", result.products},
          {"read_bandwidth", setting.bandwidth},
          {"multiply_rate", setting.multiply},
          {"floor_ts", floor_rate(setting, result)},
          {"share", result.mean() / floor_rate(setting, result)}};
}

std::string csv_cell(const OrderedJson& value) {
  if (!value.is_string()) return value.dump();
  std::string quoted = "\"";
  for (const char c : value.get<std::string>()) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

bool in_layers(ModelPart part) { return part != ModelPart::embedding && part < ModelPart::mtp_input; }

std::string profile_table(const BenchSetting& setting, const BenchResult& result) {
  const auto steps = static_cast<double>(result.steps);
  const auto layers = steps * static_cast<double>(setting.layers);
  const double seconds = result.profile_seconds;
  const bool kernels = result.profile.total().kernels > 0;  // else nobody counts them
  std::vector<Row> rows = {{"part", "time", "calls", "µs a call", "µs a step", "MB a call", "GB/s",
                            "of the bandwidth", "G products/s", "of its floor"}};
  if (kernels) rows.front().insert(rows.front().begin() + 3, "kernels a call");
  PartCost layer;
  for (size_t i = 0; i < kModelParts; ++i) {
    const PartCost& cost = result.profile.parts[i];
    if (cost.calls == 0) continue;
    const auto part = static_cast<ModelPart>(i);
    const auto calls = static_cast<double>(cost.calls);
    const auto bytes = static_cast<double>(cost.bytes);
    const auto products = static_cast<double>(cost.products);
    if (in_layers(part)) {
      layer.seconds += cost.seconds;
      layer.kernels += cost.kernels;
    }
    Row row = {std::string(part_name(part)),
               fmt::format("{:.1f} %", 100 * cost.seconds / seconds),
               fmt::format("{:.0f}", calls / steps),
               fmt::format("{:.1f}", cost.seconds / calls * 1e6),
               fmt::format("{:.0f}", cost.seconds / steps * 1e6),
               fmt::format("{:.3f}", bytes / calls * 1e-6),
               fmt::format("{:.1f}", giga(bytes / cost.seconds)),
               fmt::format("{:.0f} %", 100 * bytes / cost.seconds / setting.bandwidth),
               fmt::format("{:.1f}", giga(products / cost.seconds)),
               fmt::format("{:.0f} %", 100 * floor_seconds(setting, bytes, products) / cost.seconds)};
    if (kernels)
      row.insert(row.begin() + 3, fmt::format("{:.1f}", static_cast<double>(cost.kernels) / calls));
    rows.push_back(std::move(row));
  }
  const double usual = static_cast<double>(result.test.tokens()) / result.mean();
  const std::string alone = kernels ? ", when they do not overlap" : "";
  const std::string of_layer =
      kernels ? fmt::format(" and {:.1f} kernels", static_cast<double>(layer.kernels) / layers) : "";
  return fmt::format(
      "{}: {:.0f} µs a step, {:.0f} with its parts timed{}: {:.1f} µs{} a layer, {:.1f} % outside the "
      "parts\n\n{}",
      result.test.name(), usual / steps * 1e6, seconds / steps * 1e6, alone, layer.seconds / layers * 1e6,
      of_layer, std::max(0.0, 100 * (1 - result.profile.total().seconds / seconds)), table(rows, 1));
}

}  // namespace

double floor_rate(const BenchSetting& setting, const BenchResult& result) {
  return 1 / floor_seconds(setting, result.bytes, result.products);
}

std::string markdown(const BenchSetting& setting, std::span<const BenchResult> results) {
  std::vector<Row> rows = {{"model", "size", "params", "kernels", "threads", "test", "t/s", "MB/token",
                            "M products/token", "GB/s", "G products/s", "floor t/s", "share"}};
  for (const BenchResult& result : results) {
    rows.push_back(
        {setting.model, fmt::format("{:.2f} GiB", static_cast<double>(setting.model_bytes) / 0x1p30),
         setting.parameters < 1'000'000'000
             ? fmt::format("{:.2f} M", static_cast<double>(setting.parameters) * 1e-6)
             : fmt::format("{:.2f} B", giga(static_cast<double>(setting.parameters))),
         setting.kernels, fmt::format("{}", setting.threads), result.test.name(),
         fmt::format("{} ± {}", rate(result.mean()), rate(result.deviation())),
         fmt::format("{:.2f}", result.bytes * 1e-6), fmt::format("{:.1f}", result.products * 1e-6),
         fmt::format("{:.1f}", giga(result.mean() * result.bytes)),
         fmt::format("{:.1f}", giga(result.mean() * result.products)), rate(floor_rate(setting, result)),
         fmt::format("{:.0f} %", 100 * result.mean() / floor_rate(setting, result))});
  }
  return fmt::format("{}, {}, {} thread{}: reads {:.1f} GB/s, multiplies {:.0f} G/s\n\n{}", setting.processor,
                     setting.kernels, setting.threads, setting.threads == 1 ? "" : "s",
                     giga(setting.bandwidth), giga(setting.multiply), table(rows, 6));
}

std::string profile_tables(const BenchSetting& setting, std::span<const BenchResult> results) {
  std::string out;
  for (const BenchResult& result : results) out += fmt::format("\n{}", profile_table(setting, result));
  return out;
}

std::string csv(const BenchSetting& setting, std::span<const BenchResult> results) {
  std::string head, lines;
  for (const BenchResult& result : results) {
    std::string line;
    head.clear();
    const OrderedJson values = fields(setting, result);
    for (const auto& [key, value] : values.items()) {
      head += fmt::format("{}{}", head.empty() ? "" : ",", key);
      line += fmt::format("{}{}", line.empty() ? "" : ",", csv_cell(value));
    }
    lines += line + "\n";
  }
  return head + "\n" + lines;
}

std::string json(const BenchSetting& setting, std::span<const BenchResult> results) {
  OrderedJson out = OrderedJson::array();
  for (const BenchResult& result : results) {
    OrderedJson values = fields(setting, result);
    values["samples_ts"] = result.rates;
    if (result.profile_seconds > 0) values["profile"] = profile_json(setting, result);
    out.push_back(std::move(values));
  }
  return out.dump(2) + "\n";
}

}  // namespace tercet
