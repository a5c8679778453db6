// A request to /v1/responses, put as a chat request.
#pragma once

#include "serve/responses_tools.h"

namespace tercet {

/// What `include` asks for where a client wants to send thoughts back: reasoning items with
/// encrypted_content.
inline constexpr std::string_view kEncryptedThoughts = "reasoning.encrypted_content";

struct ResponsesBody {
  ChatBody chat;
  ResponseCalls calls;
};

/// Reads `input` (a text, or items: messages, calls and their outputs, reasoning), `instructions`, `tools`
/// (functions, custom tools and namespaces of both), `tool_choice`, `reasoning.effort`, `text.format` and
/// `max_output_tokens`; what both protocols spell alike stays. Items and tools that only OpenAI can run are
/// left out and named as ignored. Nothing is stored: a previous response or a conversation to go on with is
/// an error, and so are images and files.
ApiResult<ResponsesBody> chat_body_of_responses(const Json& body);

}  // namespace tercet
