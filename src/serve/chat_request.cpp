#include "serve/chat_request.h"

#include <ctime>

#include "serve/sampling_fields.h"

namespace tercet {
namespace {

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
  TERCET_TRY_VOID(check_model(fields, model));
  read_sampling(fields, request.params);
  request.choices = read_choices(fields);
  TERCET_TRY_VOID(check_answers(static_cast<size_t>(request.choices), service, "n"));
  read_logprobs(fields, request);
  request.stream = read_stream(fields);
  if (request.logprobs) TERCET_TRY_VOID(bound_logprobs(request.params, request.choices, "top_logprobs"));
  // What template and form read, and check, themselves.
  for (const char* name : {"messages", "reasoning_effort", "enable_thinking", "chat_template_kwargs",
                           "add_generation_prompt", "tool_choice", "parallel_tool_calls", "response_format",
                           "structured_outputs", "thinking_token_budget"}) {
    fields.any(name);
  }
  if (const Json* tools = fields.any("tools")) request.tools = *tools;
  TERCET_TRY(request.warnings, finish_fields(fields, service));
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
  TERCET_TRY_VOID(check_length(request.prompt.tokens.size(), request.params, service, "messages"));
  return request;
}

ApiResult<std::vector<Request>> engine_requests(const ChatRequest& request, const Service& service) {
  FormConstraints constraints(request.form, service.model);
  std::vector<Request> parts;
  for (int32_t choice = 0; choice < request.choices; ++choice) {
    Request part;
    part.prompt = request.prompt.tokens;
    part.params = params_of_choice(request.params, choice);
    TERCET_TRY(part.constraint, constraints.next(request.in_thought));
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace tercet
