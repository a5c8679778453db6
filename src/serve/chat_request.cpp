#include "serve/chat_request.h"

#include <ctime>

#include "serve/sampling_fields.h"

namespace tercet {
namespace {

/// What the engine asks of a form.
class FormConstraint final : public TokenConstraint {
 public:
  explicit FormConstraint(AnswerConstraint constraint) : constraint_(std::move(constraint)) {}
  Result<std::vector<uint32_t>> mask() override { return constraint_.mask(); }
  Result<void> accept(int32_t token) override { return constraint_.accept(token); }

 private:
  AnswerConstraint constraint_;
};

void read_stream_options(Fields& fields, ChatRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (options == nullptr) return;
  Fields inner(*options, "stream_options.");
  request.include_usage = inner.boolean("include_usage").value_or(false);
  if (inner.error()) fields.reject("stream_options", inner.error()->message);
}

void read_logprobs(Fields& fields, ChatRequest& request) {
  request.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, 128);
  if (!top) return;
  if (*top > 0 && !request.logprobs) fields.reject("top_logprobs", "needs `logprobs` to be true");
  request.params.top_logprobs = static_cast<int32_t>(*top);
}

}  // namespace

ApiResult<ChatRequest> read_chat_request(const Json& body, const Service& service) {
  const ServedModel& model = service.model;
  ChatRequest request;
  request.params = model.defaults;
  Fields fields(body);
  if (auto wrong = check_model(fields, model)) return refuse(std::move(*wrong));
  read_sampling(fields, request.params);
  request.choices = read_choices(fields);
  read_logprobs(fields, request);
  read_stream_options(fields, request);
  // What template and form read, and check, themselves.
  for (const char* name : {"messages", "reasoning_effort", "enable_thinking", "chat_template_kwargs",
                           "add_generation_prompt", "tool_choice", "parallel_tool_calls", "response_format",
                           "structured_outputs", "thinking_token_budget"}) {
    fields.any(name);
  }
  if (const Json* tools = fields.any("tools")) request.tools = *tools;
  auto ignored = finish_fields(fields, service);
  if (!ignored) return refuse(std::move(ignored).error());
  request.warnings = std::move(*ignored);
  if (const auto valid = validate(request.params, model.vocabulary); !valid) {
    return refuse(error_from(body, valid.error().message));
  }
  auto prompt = model.chat_template.render(body, model.tokenizer, std::time(nullptr));
  if (!prompt) return refuse(error_from(body, prompt.error().message));
  request.prompt = std::move(*prompt);
  auto form = AnswerForm::read(body);
  if (!form) return refuse(error_from(body, form.error().message));
  request.form = std::move(*form);
  request.in_thought = ends_in_thought(request.prompt.tokens, model.tags);
  if (auto wrong = check_length(request.prompt.tokens.size(), request.params, service, "messages")) {
    return refuse(std::move(*wrong));
  }
  return request;
}

ApiResult<std::vector<Request>> engine_requests(const ChatRequest& request, const Service& service) {
  std::vector<Request> parts;
  for (int32_t choice = 0; choice < request.choices; ++choice) {
    Request part;
    part.prompt = request.prompt.tokens;
    part.params = params_of_choice(request.params, choice);
    if (!request.form.free()) {
      auto constraint = service.model.grammars.compile(request.form, request.in_thought);
      if (!constraint) return refuse(field_error(constraint.error().message));
      part.constraint = std::make_unique<FormConstraint>(std::move(*constraint));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace tercet
