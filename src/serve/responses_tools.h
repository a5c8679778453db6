// The tools of /v1/responses: which of them can be called here, and how their calls are told.
#pragma once

#include <map>
#include <string>

#include "serve/dialect.h"

namespace tercet {

/// By the name under which the model knows a tool, how an item begins that calls it: {"type", "name"} and, of
/// a tool in a namespace, {"namespace"}. The type is function_call or custom_tool_call.
using ResponseCalls = std::map<std::string, Json>;

/// The name under which the model knows a tool, of an item that calls it: "name" or "namespace.name".
ApiResult<std::string> name_of_call(const Json& item, const std::string& where);

/// Puts `tools` and `tool_choice` as a chat request has them. A custom tool becomes a function of one string,
/// `input`, whose grammar goes to chat.inputs. Hosted tools (web_search …) are left out and named in
/// chat.ignored.
ApiResult<ResponseCalls> read_response_tools(const Json& body, ChatBody& chat);

/// What a custom tool is given, of the arguments of the function that stands for it.
std::string custom_input(const std::string& arguments);

}  // namespace tercet
