// The form that a request wants its answer in: tools, tool_choice, response_format and the like.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/json.h"

namespace tercet {

/// What the text of an answer is to be.
struct ResponseFormat {
  enum class Kind {
    text,         // anything
    json_schema,  // schema: a JSON schema
    regex,        // source: a regular expression, in the syntax of Rust's regex
    choice,       // choices: one of these texts
    lark,         // source: a grammar in llguidance's variant of Lark
  };
  Kind kind = Kind::text;
  Json schema;
  bool strict = true;  // as ToolForm::strict
  std::string source;
  std::vector<std::string> choices;
};

struct ToolChoice {
  enum class Kind { automatic, none, required, named };
  Kind kind = Kind::automatic;
  std::string name;  // of `named`: a declared tool's
};

/// A function that calls may name.
struct ToolForm {
  std::string name;
  Json parameters;      // a JSON schema: an object, or a boolean
  bool strict = false;  // refuse what of the schema can't be enforced, in place of leaving it aside
  /// Of a function that stands for a custom tool, what its argument `input` is: text, regex or lark.
  ResponseFormat input{};
};

/// The defaults bind nothing.
struct AnswerForm {
  ResponseFormat format;
  std::vector<ToolForm> tools;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;  // false: one call at most
  std::optional<int32_t> max_thinking_tokens;

  /// Reads `tools`, `tool_choice`, `parallel_tool_calls`, `response_format` (text, json_object, json_schema),
  /// vLLM's `structured_outputs` (json, json_object, regex, choice or grammar) and `thinking_token_budget` of
  /// an OpenAI-shaped chat request; ignores the rest. Fails on anything else in them, with one message that
  /// names the place, what was expected and what was found. Schemas are looked at when they are compiled.
  static Result<AnswerForm> read(const Json& request);

  /// Whether every answer has this form, so that no constraint is needed.
  bool free() const;
};

}  // namespace tercet
