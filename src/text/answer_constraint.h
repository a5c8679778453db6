// Which tokens may come next, for an answer to keep the form that was asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "text/answer_form.h"
#include "text/tags.h"
#include "text/tokenizer.h"

struct TercetGrammars;

namespace tercet {

/// Follows one answer from its first token, a TokenConstraint but for the name: text knows no engine. Not for
/// two threads at once.
class AnswerConstraint {
 public:
  AnswerConstraint(AnswerConstraint&& other) noexcept;
  AnswerConstraint& operator=(AnswerConstraint&& other) noexcept;
  ~AnswerConstraint();

  /// One that follows another answer from here on. Cheaper than to compile the form again.
  AnswerConstraint copy() const;

  /// Bit t of word t/32: token t may be drawn next. Empty: every token may. Changes nothing. Fails where the
  /// grammar is too ambiguous to be followed further (a bound on work a token), with a message.
  Result<std::vector<uint32_t>> mask();

  /// The token that was drawn; once for each, end tokens included. Fails for one that mask() forbids.
  Result<void> accept(int32_t token);

 private:
  friend class AnswerGrammars;
  struct State;
  explicit AnswerConstraint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// A vocabulary made ready for grammars: once a model. Immutable, threads may share it.
class AnswerGrammars {
 public:
  /// `tokenizer` and `tags` outlive this and all constraints. `end_tokens` end an answer; `vocabulary` is the
  /// number of logits, at least the tokenizer's size. Costs some 0.3 s for 120,000 tokens.
  static Result<AnswerGrammars> create(const Tokenizer& tokenizer, const Tags& tags,
                                       std::span<const int32_t> end_tokens, int32_t vocabulary);

  /// The constraint for an answer of this form that begins inside a thought or after it (ends_in_thought() of
  /// the prompt).
  ///
  /// In a thought, all may come but what would end the answer there: end tokens and tool tags; after
  /// max_thinking_tokens, only its end. After it, control tokens are those of the answer's grammar alone:
  /// - tool_choice none: text in its format, no call.
  /// - required, named: a tool_calls block with at least one call, and nothing else.
  /// - automatic: text in its format or calls; where the format is free text, calls may follow it.
  /// A call is of a declared (the named) tool, each argument is one that its schema allows, at most once and
  /// in any order, none that is required is missing. A value whose schema allows only strings, without
  /// restricting them, is any text; other strings are the text of such a string; the rest is JSON of the
  /// schema, objects in it with their members in the schema's order.
  ///
  /// Errors: a schema or grammar that is wrong, not supported (the message names the keyword) or beyond the
  /// limits on size, depth and effort. Of a tool that is not strict, what can't be enforced is left aside.
  Result<AnswerConstraint> compile(const AnswerForm& form, bool in_thought) const;

 private:
  struct Free {
    void operator()(TercetGrammars* grammars) const;
  };

  AnswerGrammars() = default;

  std::unique_ptr<TercetGrammars, Free> bridge_;
  const Tokenizer* tokenizer_ = nullptr;
  const Tags* tags_ = nullptr;
  std::vector<int32_t> end_tokens_;
  int32_t vocabulary_ = 0;
  std::shared_ptr<const std::vector<uint32_t>> in_thought_;  // what may come there
};

}  // namespace tercet
