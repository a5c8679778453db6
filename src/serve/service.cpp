#include "serve/service.h"

#include <algorithm>

namespace tercet {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// What the engine asks of a form.
class FormConstraint final : public TokenConstraint {
 public:
  explicit FormConstraint(AnswerConstraint constraint) : constraint_(std::move(constraint)) {}
  Result<std::vector<uint32_t>> mask() override { return constraint_.mask(); }
  Result<void> accept(int32_t token) override { return constraint_.accept(token); }

 private:
  AnswerConstraint constraint_;
};

}  // namespace

ApiResult<void> check_model(Fields& fields, const ServedModel& model) {
  const auto name = fields.string("model");
  const auto known = [&](const std::string& wanted) {
    return std::find(model.names.begin(), model.names.end(), wanted) != model.names.end();
  };
  if (!name || known(*name) || known("*")) return {};
  return refuse(
      {.status = 404,
       .message = fmt::format("model: `{}` is not served here, but {} is", *name, joined(model.names)),
       .param = "model",
       .code = "model_not_found"});
}

ApiResult<std::vector<std::string>> finish_fields(Fields& fields, const Service& service) {
  // Labels for the caller's own use, and hints, which ask for nothing.
  for (const char* label : {"user", "metadata", "safety_identifier", "prompt_cache_key",
                            "prompt_cache_retention", "service_tier"}) {
    fields.any(label);
  }
  const Json* store = fields.any("store");
  if (fields.error()) return refuse(*fields.error());
  std::vector<std::string> ignored = fields.ignored();
  if (store != nullptr && *store != false) ignored.emplace_back("store");
  if (!service.options.strict || ignored.empty()) return ignored;
  return refuse(
      {.message = fmt::format("not supported, and refused since the server is strict: {}", joined(ignored)),
       .param = ignored.front(),
       .code = "unsupported_parameter"});
}

ApiResult<std::unique_ptr<TokenConstraint>> FormConstraints::next(bool in_thought) {
  if (form_.free()) return nullptr;
  auto& compiled = compiled_[in_thought ? 1 : 0];
  if (!compiled) {
    auto constraint = model_.grammars.compile(form_, in_thought);
    if (!constraint) return refuse(field_error(constraint.error().message));
    compiled = std::move(*constraint);
  }
  return std::make_unique<FormConstraint>(compiled->copy());
}

ApiResult<void> check_answers(size_t answers, const Service& service, std::string_view param) {
  const size_t places = service.driver.places();
  if (answers <= places) return {};
  return refuse({.message = fmt::format("{}: {} answers are wanted at once, and no more than {} may be",
                                        param, answers, places),
                 .param = std::string(param)});
}

ApiResult<void> bound_logprobs(SamplingParams& params, int32_t answers, std::string_view param) {
  const int64_t each = int64_t{answers} * (1 + params.top_logprobs);
  const int64_t most = kMostLogprobs / each;
  const int64_t wanted = params.max_tokens.value_or(static_cast<int32_t>(most));
  params.max_tokens = static_cast<int32_t>(wanted);
  if (wanted <= most) return {};
  return refuse(
      {.message = fmt::format("{}: {} log-probabilities are wanted at once, at most {} may be: ask for "
                              "fewer of each token, or for fewer tokens",
                              param, wanted * each, kMostLogprobs),
       .param = std::string(param)});
}

ApiResult<void> check_length(size_t prompt_tokens, const SamplingParams& params, const Service& service,
                             std::string_view param) {
  const int32_t least = std::max(params.min_tokens, params.max_tokens.value_or(1) > 0 ? 1 : 0);
  const auto context = static_cast<size_t>(service.driver.context());
  if (prompt_tokens + static_cast<size_t>(least) <= context) return {};
  return refuse({.message = fmt::format(
                     "This model's maximum context length is {} tokens. However, your prompt has {} tokens, "
                     "and {} at least {} to be drawn.",
                     context, prompt_tokens, least, least == 1 ? "is" : "are"),
                 .param = std::string(param),
                 .code = "context_length_exceeded"});
}

}  // namespace tercet
