#include "apps/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "apps/arguments.h"
#include "apps/loaded_model.h"
#include "apps/token_file.h"
#include "base/sha256.h"
#include "engine/scoring.h"
#include "serve/divergence.h"
#include "weights/safetensors.h"

namespace tercet {
namespace {

struct ScoreArguments {
  ModelOptions model;
  std::string tokens, out;
  int32_t top = 32;
  bool mtp = false, digest = false;
};

using Kinds = std::map<std::string, std::map<int, TopLogprobs>>;

void append(TopLogprobs& to, const RowResult& row) {
  ++to.rows;
  to.top = static_cast<int64_t>(row.top.size());
  for (const TokenLogprob& token : row.top) {
    to.ids.push_back(token.token);
    to.logprobs.push_back(token.logprob);
  }
}

/// Whether a file can be written, before there is much to write; it stays as it was.
Result<void> check_writable(const std::string& path) {
  const bool there = std::filesystem::exists(path);
  FILE* const file = std::fopen(path.c_str(), "ab");
  if (file == nullptr) return fail("{}: cannot be created: {}", path, std::generic_category().message(errno));
  std::fclose(file);
  if (!there) std::filesystem::remove(path);
  return {};
}

/// The average log-probability of the tokens that follow, for a person to look at.
struct Followed {
  double sum = 0;
  int64_t count = 0;
};

Result<void> score_all(const ScoreArguments& arguments, LoadedModel& model,
                       const std::map<int, std::vector<int32_t>>& sequences, const Console& console,
                       Kinds& kinds) {
  int64_t total = 0, done = 0;
  for (const auto& [index, tokens] : sequences) total += static_cast<int64_t>(tokens.size());
  Progress progress(console, "scoring", total);
  const ScoreOptions options{.chunk = model.executor->max_rows(),
                             .mtp = arguments.mtp,
                             .top = arguments.out.empty() ? 0 : arguments.top,
                             .all = true};
  Followed followed;
  for (const auto& [index, tokens] : sequences) {
    Sha256 main_digest, mtp_digest;
    const auto row = [&, index = index, &tokens = tokens](ScoreKind kind, int32_t position,
                                                          const RowResult& result) {
      const bool main = kind == ScoreKind::main;
      if (arguments.digest) (main ? main_digest : mtp_digest).add(std::as_bytes(std::span(result.all)));
      if (!arguments.out.empty()) append(kinds[main ? "main" : "mtp"][index], result);
      if (!main) return;
      progress.update(++done);
      if (static_cast<size_t>(position) + 1 == tokens.size()) return;
      followed.sum += result.all[static_cast<size_t>(tokens[static_cast<size_t>(position) + 1])];
      ++followed.count;
    };
    const Result<void> scored = score(*model.executor, tokens, options, row);
    if (!scored) return fail("tokens.{}: {}", index, scored.error().message);
    if (!arguments.digest) continue;
    fmt::print("main.{} {}\n", index, main_digest.hex());
    if (arguments.mtp && tokens.size() > 1) fmt::print("mtp.{} {}\n", index, mtp_digest.hex());
  }
  if (!arguments.digest && followed.count > 0) {
    fmt::print("{} sequences, {} tokens: mean log-probability of the next token {:.6f}\n", sequences.size(),
               total, followed.sum / static_cast<double>(followed.count));
  }
  return {};
}

/// "FILE" or "FILE:KIND".
Result<std::map<int, TopLogprobs>> read_side(const std::string& argument) {
  std::string path = argument, kind = "main";
  const size_t colon = argument.rfind(':');
  if (colon != std::string::npos && argument.find('/', colon) == std::string::npos) {
    path = argument.substr(0, colon);
    kind = argument.substr(colon + 1);
  }
  TERCET_TRY(const auto file, open_safetensors(path));
  auto sequences = read_top_logprobs(*file, kind);
  if (!sequences) return fail("{}: {} (name one as {}:KIND)", path, sequences.error().message, path);
  return sequences;
}

}  // namespace

Result<int> run_score(Arguments given, const Console& console) {
  ScoreArguments arguments;
  CommandLine app(
      "tercet score",
      "Log-probabilities that a model gives to the token sequences tokens.0, tokens.1, … of a file, each "
      "token given all tokens before it.",
      "tercet score models/hy3-tiny models/hy3-tiny-golden.safetensors --digest\n"
      "tercet score models/hy3-tiny tokens.safetensors --out mine.safetensors --mtp\n"
      "tercet score compare golden.safetensors:4bit mine.safetensors:main");
  add_model_options(app, arguments.model);
  app.add_option("TOKENS,--tokens", arguments.tokens, "A safetensors file with tokens.I (int32 or int16)")
      ->option_text("TOKENS")
      ->required();
  app.add_option("-o,--out", arguments.out,
                 "Write the largest log-probabilities of each position to this file")
      ->option_text("FILE");
  app.add_option("--top", arguments.top, "How many of each position (default: 32)")
      ->transform(whole_number(1, 1 << 20))
      ->option_text("N");
  app.add_flag("--mtp", arguments.mtp, "Also those of the MTP layer, which predicts one token further");
  app.add_flag("--digest", arguments.digest,
               "Print a SHA-256 over all log-probabilities of each sequence: equal digests are equal bits");
  if (const auto code = parse_arguments(app, given)) return *code;

  if (!arguments.out.empty()) TERCET_TRY_VOID(check_writable(arguments.out));
  TERCET_TRY(const auto file, open_safetensors(arguments.tokens));
  const auto sequences = read_token_sequences(*file);
  if (!sequences) return fail("{}: {}", arguments.tokens, sequences.error().message);
  size_t longest = 0;
  for (const auto& [index, tokens] : *sequences) longest = std::max(longest, tokens.size());
  const int64_t context = arguments.model.context;  // 0: the model's
  if (context > 0 && static_cast<int64_t>(longest) > context) {
    return fail("{}: a sequence of {} tokens; --ctx-size allows {}", arguments.tokens, longest, context);
  }
  const RunLimits limits{.cache_tokens = static_cast<int64_t>(longest), .mtp = arguments.mtp};
  TERCET_TRY(LoadedModel model, load_model(arguments.model, limits, console));
  if (arguments.mtp && !model.executor->has_mtp()) return fail("{}: no MTP layer", arguments.model.model);
  if (static_cast<int64_t>(longest) > model.config.max_positions) {
    return fail("{}: a sequence of {} tokens; {} was made for {}", arguments.tokens, longest,
                arguments.model.model, model.config.max_positions);
  }
  Kinds kinds;
  TERCET_TRY_VOID(score_all(arguments, model, *sequences, console, kinds));
  if (!arguments.out.empty()) TERCET_TRY_VOID(write_top_logprobs(arguments.out, kinds));
  return 0;
}

Result<int> run_score_compare(Arguments given, const Console&) {
  std::string a, b;
  CommandLine app(
      "tercet score compare",
      "The KL divergence, in nats, of the log-probabilities in A from those in B, over A's ids; the rest "
      "is one cell. A file may be followed by the kind to read (default: main).",
      "tercet score compare golden.safetensors:4bit mine.safetensors");
  app.add_option("A", a, "The reference: FILE or FILE:KIND")->required();
  app.add_option("B", b, "What is compared with it")->required();
  if (const auto code = parse_arguments(app, given)) return *code;
  TERCET_TRY(const auto left, read_side(a));
  TERCET_TRY(const auto right, read_side(b));
  TERCET_TRY(const Divergence d, compare(left, right));
  fmt::print("KL over {} positions: mean {:.3g}, median {:.3g}, 99th percentile {:.3g}, maximum {:.3g}\n",
             d.positions, d.mean, d.median, d.percentile99, d.maximum);
  fmt::print("top-1 equal: {} of {}; where A is at least 1 nat sure: {} of {}\n", d.top1_equal, d.positions,
             d.sure_equal, d.sure);
  return 0;
}

}  // namespace tercet
