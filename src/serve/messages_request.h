// A request to /v1/messages, put as a chat request.
#pragma once

#include "serve/dialect.h"

namespace tercet {

/// Reads `system`, `messages` (text, thinking, tool_use and tool_result blocks), `tools`, `tool_choice`,
/// `thinking`, `stop_sequences`, `max_tokens` and `output_config.effort`; what both protocols spell alike
/// stays. Images and documents are errors, and so is a last message of the assistant's to go on with.
/// `needs_limit`: max_tokens has to be there.
ApiResult<ChatBody> chat_body_of_messages(const Json& body, bool needs_limit);

}  // namespace tercet
