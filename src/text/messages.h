// What a chat request says, in the one form that chat templates read.
#pragma once

#include "base/error.h"
#include "text/json.h"

namespace tercet {

/// The variables of a chat template for an OpenAI-shaped request: `messages`, `tools`, `documents`,
/// `add_generation_prompt` (default true), `reasoning_effort` where the request says anything about it, and
/// each of chat_template_kwargs. Read from the request: `messages`, `tools`, `reasoning_effort`,
/// `enable_thinking`, `chat_template_kwargs`, `add_generation_prompt`; other members are ignored.
///
/// Messages come out so: `developer` is system; content is a string (text parts joined, null empty);
/// `reasoning` is reasoning_content; arguments are an object (a JSON string is parsed, an empty one is {},
/// and one that is no JSON object becomes {"arguments": THE STRING}); other members stay.
///
/// reasoning_effort comes from chat_template_kwargs, else from the request, else from enable_thinking (true:
/// high, false: no_think): none and no_think become no_think; minimal and low: low; medium, high, xhigh and
/// max: high.
///
/// Anything else is one error that names the place, what was expected and what was found.
Result<Json> template_variables(const Json& request);

}  // namespace tercet
