// A request to /v1/responses, put as a chat request.
#pragma once

#include "serve/dialect.h"

namespace tercet {

/// Reads `input` (a text, or items: messages, function calls and their outputs, reasoning), `instructions`,
/// `tools` (functions), `tool_choice`, `reasoning.effort`, `text.format`, `max_output_tokens` and
/// `top_logprobs`; what both protocols spell alike stays. Nothing is stored: a previous response or a
/// conversation to go on with is an error, and so are images and files.
ApiResult<ChatBody> chat_body_of_responses(const Json& body);

}  // namespace tercet
