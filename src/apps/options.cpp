#include "apps/options.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "apps/arguments.h"
#include "apps/numbers.h"

namespace tercet {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

/// A number of layers, or what stands for one.
CLI::Validator layers_of_gpu() {
  return {[](std::string& text) -> std::string {
            if (text == "auto") text = std::to_string(kLayersThatFit);
            if (text == "all") text = std::to_string(kAllLayers);
            const Result<int64_t> value = parse_whole(text);
            if (!value || *value < kLayersThatFit || *value > kAllLayers) {
              return fmt::format("expected a number of layers, all or auto, found {}", text);
            }
            text = std::to_string(*value);
            return "";
          },
          ""};
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.option_defaults()->group("Model");
  app.add_option(
         "-m,--model,MODEL", options.model,
         "A checkpoint's folder, as published (safetensors with config.json); or synthetic:hy3[:LAYERS] or "
         "synthetic:hy-mt2-30b[:LAYERS], random weights of the true shapes")
      ->option_text("MODEL")
      ->required();
  app.add_option("-c,--ctx,--ctx-size,--max-model-len", options.context,
                 "Tokens of prompt and answer together (default: what the model was made for)")
      ->transform(whole_number(0, kMaxInt))
      ->option_text("N");
  app.add_option("-t,--threads", options.threads, "CPU threads (default: all that this process may use)")
      ->transform(whole_number(0, 1024))
      ->option_text("N");
  app.add_option("-b,--batch-size,--chunk,--max-num-batched-tokens", options.chunk,
                 "Tokens that one step may compute: a longer prompt is read in pieces")
      ->transform(whole_number(1, 1 << 20))
      ->option_text("N");
  app.add_option(
         "--backend,--device", options.backend,
         "auto (the GPU where there is one, else the CPU), cuda, cpu, or reference (slow: it defines the "
         "bits)")
      ->check(one_of({"auto", "cuda", "cpu", "reference"}))
      ->option_text("NAME");
  app.add_option(
         "--ngl,--gpu-layers,--n-gpu-layers", options.gpu_layers,
         "Layers that the GPU runs, the CPU the others: a number, all, or auto (default), as many as fit")
      ->transform(layers_of_gpu())
      ->option_text("N");
  app.add_option("--gpu-memory-utilization", options.gpu_memory_utilization,
                 "Share of the GPU's memory that may be in use (default: 0.9)")
      ->check(real_number(0, 1))
      ->option_text("X");
  app.add_option("--pp,--pipeline-parallel-size", options.pipeline_stages, "Stages that share the layers")
      ->transform(whole_number(1, 1024))
      ->option_text("N");
  app.add_option("--tp,--tensor-parallel-size", options.tensor_shards, "Shards that share each layer")
      ->transform(whole_number(1, 1024))
      ->option_text("N");
  app.add_flag("-v,--verbose", options.verbose, "Tell on standard error what is done");
  app.option_defaults()->group("Options");
}

namespace {

void add_draw_options(CLI::App& app, SamplingOptions& options) {
  app.option_defaults()->group("Choice of tokens");
  const auto real = [&app](const char* names, std::optional<double>& value, CLI::Validator range,
                           const char* help) {
    app.add_option(names, value, help)->check(std::move(range))->option_text("X");
  };
  real("--temp,--temperature", options.temperature, real_number(0, 100),
       "Below 1: likelier tokens; 0: the likeliest");
  real("--top-p", options.top_p, real_number(0, 1, true),
       "Only the likeliest tokens that together reach X; 1: all");
  app.add_option("--top-k", options.top_k, "Only the N likeliest tokens; 0 or -1: all")
      ->transform(whole_number(-1, kMaxInt))
      ->option_text("N");
  real("--min-p", options.min_p, real_number(0, 1),
       "Only tokens at least X times as likely as the likeliest; 0: all");
  real("--repeat-penalty,--repetition-penalty", options.repetition_penalty, real_number(0, 100, true),
       "Above 1: tokens of prompt and answer become unlikelier; 1: off");
  real("--presence-penalty", options.presence_penalty, real_number(-2, 2),
       "Taken from the logit of each token that the answer has; 0: off");
  real("--frequency-penalty", options.frequency_penalty, real_number(-2, 2),
       "Taken from a token's logit each time that the answer has it; 0: off");
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&options](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) options.logit_bias.push_back(*parse_logit_bias(text));
         },
         "Add to a token's logit, as 15043+1 or 15043-1; may be repeated")
      ->check(CLI::Validator(
          [](std::string& text) {
            const auto parsed = parse_logit_bias(text);
            return parsed ? std::string() : parsed.error().message;
          },
          ""))
      ->option_text("ID+X")
      ->allow_extra_args(false);
  app.add_option_function<int64_t>(
         "-s,--seed",
         [&options](int64_t seed) {
           options.seed = seed < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(seed));
         },
         "The same seed gives the same text, on any machine; -1: another each time (default)")
      ->transform(whole_number(-1, std::numeric_limits<int64_t>::max()))
      ->option_text("N");
}

}  // namespace

void add_sampling_options(CLI::App& app, SamplingOptions& options) {
  add_draw_options(app, options);
  app.option_defaults()->group("Length of the answer");
  app.add_option_function<int64_t>(
         "-n,--predict,--n-predict,--max-tokens",
         [&options](int64_t count) {
           options.max_tokens = count < 0 ? std::nullopt : std::optional(static_cast<int>(count));
         },
         "Tokens of an answer at most; -1: until the context is full (default)")
      ->transform(whole_number(-1, kMaxInt))
      ->option_text("N");
  app.add_option("--min-tokens", options.min_tokens, "Tokens of an answer at least")
      ->transform(whole_number(0, kMaxInt))
      ->option_text("N");
  app.add_option("-r,--stop,--reverse-prompt", options.stop,
                 "End the answer before this text; may be repeated")
      ->option_text("TEXT")
      ->allow_extra_args(false);
  app.add_option("--stop-token-ids", options.stop_tokens, "End the answer at this token; may be repeated")
      ->transform(whole_number(0, kMaxInt))
      ->option_text("ID")
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", options.ignore_eos, "Go on where the model would end");
  app.option_defaults()->group("Options");
}

Result<LogitBias> parse_logit_bias(std::string_view text) {
  const size_t sign = text.find_first_of("+-");
  const auto token = parse_whole(text.substr(0, sign));
  const bool positive = sign != std::string_view::npos && text[sign] == '+';
  const auto bias =
      sign == std::string_view::npos ? fail("no sign") : parse_real(text.substr(sign + (positive ? 1 : 0)));
  if (!token || !bias || *token < 0 || *token > kMaxInt || std::fabs(*bias) > 1e6) {
    return fail("'{}' is not a token and a bias (like 15043+1 or 15043-0.5)", text);
  }
  return LogitBias{static_cast<int32_t>(*token), static_cast<float>(*bias)};
}

}  // namespace tercet
