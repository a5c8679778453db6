#include "apps/text_model.h"

#include <algorithm>
#include <filesystem>

#include "model/hy_v3/synthetic_model.h"
#include "text/read_file.h"

namespace tercet {
namespace {

/// generation_config.json, where there is one: published checkpoints may lack it.
Result<GenerationConfig> load_generation_config(const std::filesystem::path& folder, int32_t vocabulary) {
  const std::filesystem::path path = folder / "generation_config.json";
  if (!std::filesystem::exists(path)) return GenerationConfig{};
  TERCET_TRY(const std::string text, read_file(path));
  return parse_generation_config(text, path.string(), vocabulary);
}

void add_once(std::vector<int32_t>& to, int32_t token) {
  if (std::find(to.begin(), to.end(), token) == to.end()) to.push_back(token);
}

}  // namespace

Result<TextModel> load_text_model(const ModelOptions& options, const hy_v3::Config& config) {
  if (hy_v3::is_synthetic(options.model)) {
    return fail("{}: made-up weights have no tokenizer; expected a checkpoint's folder", options.model);
  }
  std::filesystem::path folder = options.model;
  if (!std::filesystem::is_directory(folder)) folder = folder.parent_path();
  const auto vocabulary = static_cast<int32_t>(config.vocab_size);
  TERCET_TRY(Tokenizer tokenizer, Tokenizer::load(folder));
  if (tokenizer.vocabulary_size() > vocabulary) {
    return fail("{}: {} tokens, but the model's vocabulary has {} (vocab_size in config.json)",
                tokenizer.origin(), tokenizer.vocabulary_size(), vocabulary);
  }
  TERCET_TRY(Tags tags, Tags::read(tokenizer));
  TERCET_TRY(ChatTemplate chat_template, ChatTemplate::load(folder));
  TERCET_TRY(GenerationConfig generation, load_generation_config(folder, vocabulary));
  for (const int32_t token : config.eos_ids) add_once(generation.eos_tokens, token);
  add_once(generation.eos_tokens, tags.id(Tag::eos));
  return TextModel{std::move(tokenizer), std::move(tags), std::move(chat_template), std::move(generation)};
}

Result<SamplingParams> TextModel::sampling(const SamplingOptions& options) const {
  SamplingParams params = generation.defaults;
  const auto take = [](const std::optional<double>& from, float& to) {
    if (from) to = static_cast<float>(*from);
  };
  take(options.temperature, params.temperature);
  take(options.top_p, params.top_p);
  take(options.min_p, params.min_p);
  take(options.repetition_penalty, params.repetition_penalty);
  take(options.presence_penalty, params.presence_penalty);
  take(options.frequency_penalty, params.frequency_penalty);
  if (options.top_k) params.top_k = *options.top_k;
  params.logit_bias = options.logit_bias;
  params.seed = options.seed;
  params.stop = options.stop;
  params.stop_tokens = options.stop_tokens;
  params.ignore_eos = options.ignore_eos;
  params.min_tokens = options.min_tokens;
  params.max_tokens = options.max_tokens;
  TERCET_TRY_VOID(validate(params, tokenizer.vocabulary_size()));
  return params;
}

}  // namespace tercet
