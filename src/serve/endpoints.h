// What the server can be asked.
#pragma once

#include <memory>

#include "serve/http.h"
#include "serve/service.h"

namespace tercet {

/// Answers through `exchange`, now or later, or returns an error, having told nothing: its caller spells it.
using Endpoint = ApiResult<void>(const Service& service, const HttpRequest& request,
                                 const std::shared_ptr<Exchange>& exchange);

Endpoint answer_chat_completions;  // POST /v1/chat/completions
Endpoint answer_completions;       // POST /v1/completions
Endpoint answer_responses;         // POST /v1/responses: OpenAI's protocol of items, without a store
Endpoint answer_messages;          // POST /v1/messages: Anthropic's protocol of content blocks
Endpoint answer_count_tokens;      // POST /v1/messages/count_tokens
Endpoint answer_models;            // GET /v1/models
Endpoint answer_model;             // GET /v1/models/NAME
Endpoint answer_props;             // GET /props
Endpoint answer_tokenize;          // POST /tokenize
Endpoint answer_tokenizer_info;    // GET /tokenizer_info: vLLM's, as far as evaluations need it
Endpoint answer_detokenize;        // POST /detokenize
Endpoint answer_apply_template;    // POST /apply-template
Endpoint answer_kl;                // POST /v1/kl: how far log-probabilities of given tokens are from ours

}  // namespace tercet
