// A chat request as it is understood, whatever protocol it came in.
#pragma once

#include <string>
#include <vector>

#include "serve/sampling_fields.h"
#include "serve/service.h"
#include "text/answer_form.h"
#include "text/chat_template.h"

namespace tercet {

struct ChatRequest {
  Prompt prompt;
  bool in_thought = false;  // the answer begins inside a thought
  Json tools;               // a list, or null
  AnswerForm form;          // to which the answer is held
  SamplingParams params;
  int32_t choices = 1;
  bool logprobs = false;
  StreamForm stream;
  std::vector<std::string> warnings;  // names of fields that were ignored
};

/// Reads an OpenAI-shaped request: /v1/chat/completions'.
ApiResult<ChatRequest> read_chat_request(const Json& body, const Service& service);

/// The engine's requests, one for each choice. Errors: a form that cannot be held to.
ApiResult<std::vector<Request>> engine_requests(const ChatRequest& request, const Service& service);

}  // namespace tercet
