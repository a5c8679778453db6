// A request to /v1/messages, put as a chat request.
#pragma once

#include "serve/dialect.h"

namespace tercet {

struct MessagesBody {
  ChatBody chat;
  bool omit_thoughts = false;  // their blocks have no text
};

/// Reads `system`, `messages` (text, thinking, tool_use and tool_result blocks), `tools`, `tool_choice`,
/// `thinking`, `stop_sequences`, `max_tokens` and `output_config` (effort and format); what both protocols
/// spell alike stays. Blocks and tools that only Anthropic can run are left out and named as ignored. Images
/// and documents are errors, and so is a last message of the assistant's to go on with. `needs_limit`:
/// max_tokens has to be there.
ApiResult<MessagesBody> chat_body_of_messages(const Json& body, bool needs_limit);

}  // namespace tercet
