#include "serve/sampling_fields.h"

#include <limits>

namespace tercet {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxChoices = 128;

void read_real(Fields& fields, std::initializer_list<const char*> names, float& value) {
  for (const char* name : names) {
    if (const auto given = fields.number(name)) value = static_cast<float>(*given);
  }
}

void read_seed(Fields& fields, SamplingParams& params) {
  const Json* value = fields.any("seed");
  if (value == nullptr) return;
  if (value->is_number_unsigned()) {
    params.seed = value->get<uint64_t>();
  } else if (const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(),
                                              std::numeric_limits<int64_t>::max())) {
    params.seed = *seed == -1 ? std::nullopt : std::optional(static_cast<uint64_t>(*seed));
  }
}

void read_bias(Fields& fields, SamplingParams& params) {
  const Json* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  params.logit_bias.clear();
  for (const auto& [name, value] : bias->get_ref<const Json::object_t&>()) {
    const bool digits =
        !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == name.npos;
    if (!digits || !is_number(value)) {
      return fields.reject("logit_bias", fmt::format("expected token ids with numbers, found {}: {}",
                                                     to_json_text(name), type_name(value)));
    }
    params.logit_bias.push_back({std::stoi(name), static_cast<float>(number_value(value))});
  }
}

}  // namespace

void read_sampling(Fields& fields, SamplingParams& params) {
  read_real(fields, {"temperature"}, params.temperature);
  read_real(fields, {"top_p"}, params.top_p);
  read_real(fields, {"min_p"}, params.min_p);
  read_real(fields, {"repeat_penalty", "repetition_penalty"}, params.repetition_penalty);
  read_real(fields, {"presence_penalty"}, params.presence_penalty);
  read_real(fields, {"frequency_penalty"}, params.frequency_penalty);
  if (const auto k = fields.integer("top_k", -1, kMaxInt)) params.top_k = static_cast<int32_t>(*k);
  read_bias(fields, params);
  read_seed(fields, params);
  params.stop = fields.strings("stop");
  params.stop_tokens = fields.tokens("stop_token_ids");
  params.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  if (const auto least = fields.integer("min_tokens", 0, kMaxInt))
    params.min_tokens = static_cast<int32_t>(*least);
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    if (const auto most = fields.integer(name, -1, kMaxInt)) {
      params.max_tokens = *most < 0 ? std::nullopt : std::optional(static_cast<int32_t>(*most));
    }
  }
}

int32_t read_choices(Fields& fields) {
  return static_cast<int32_t>(fields.integer("n", 1, kMaxChoices).value_or(1));
}

StreamForm read_stream(Fields& fields) {
  StreamForm stream{.on = fields.boolean("stream").value_or(false)};
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return stream;
  Fields inner(*options, "stream_options.");
  stream.include_usage = inner.boolean("include_usage").value_or(false);
  if (inner.error()) fields.reject("stream_options", inner.error()->message);
  return stream;
}

SamplingParams params_of_choice(const SamplingParams& params, int32_t choice) {
  SamplingParams own = params;
  if (own.seed) *own.seed += static_cast<uint64_t>(choice);
  return own;
}

}  // namespace tercet
