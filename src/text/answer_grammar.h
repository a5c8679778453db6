// The grammar of an answer after its thought, for llguidance.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/answer_form.h"
#include "text/tags.h"

namespace tercet {

struct AnswerGrammar {
  /// One of the grammars that the whole refers to, to be compiled alone where the whole does not: it tells
  /// what is wrong where.
  struct Part {
    std::string where;    // "tools[0].function.parameters.properties.city"
    std::string grammar;  // as the whole
  };
  std::string whole;  // in the form that tercet_grammars_compile() takes
  std::vector<Part> parts;
};

/// What of the schemas of tools that are not strict the grammar has: everything that llguidance knows, or
/// types alone, which it always does.
enum class LaxSchemas { known, types };

/// Nothing where any text will do. (answer_constraint.h says what the grammar allows.) Fails on what the wire
/// format cannot carry, on strict schemas for strings that cannot be followed, and beyond limits.
Result<std::optional<AnswerGrammar>> answer_grammar(const AnswerForm& form, const Tags& tags, LaxSchemas lax);

}  // namespace tercet
