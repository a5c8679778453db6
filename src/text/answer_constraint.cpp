#include "text/answer_constraint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "text/answer_grammar.h"
#include "text/bridge.h"

namespace tercet {
namespace {

using Mask = std::vector<uint32_t>;

struct FreeMatcher {
  void operator()(TercetMatcher* matcher) const { tercet_matcher_free(matcher); }
};
using Matcher = std::unique_ptr<TercetMatcher, FreeMatcher>;

size_t words_of(int32_t vocabulary) { return (static_cast<size_t>(vocabulary) + 31) / 32; }

void set(Mask& mask, int32_t token, bool allowed) {
  uint32_t& word = mask[static_cast<size_t>(token) / 32];
  const uint32_t bit = 1U << (token % 32);
  word = allowed ? word | bit : word & ~bit;
}

bool is_set(const Mask& mask, int32_t token) {
  return ((mask[static_cast<size_t>(token) / 32] >> (token % 32)) & 1U) != 0;
}

/// A message that may quote all of a grammar: its first line, or so much of it as one can read. Where that
/// only announces an error, the line that names it follows.
std::string readable(std::string_view message) {
  constexpr size_t kLongest = 300;
  constexpr std::string_view kError = "\nerror: ";
  std::string line(message.substr(0, message.find('\n')));
  if (const size_t error = message.find(kError); line.ends_with(':') && error != message.npos) {
    const std::string_view rest = message.substr(error + kError.size());
    line += fmt::format(" {}", rest.substr(0, rest.find('\n')));
  }
  if (line.size() <= kLongest) return line;
  size_t end = kLongest;
  while ((line[end] & 0xc0) == 0x80) --end;  // not within a character
  return line.substr(0, end);
}

bool is_tool_tag(Tag tag) { return tag >= Tag::tool_calls && tag <= Tag::end_tool_response; }

}  // namespace

struct AnswerConstraint::State {
  enum class Phase { thought, answer, ended };

  const Tokenizer* tokenizer;
  int32_t end_think;
  std::vector<int32_t> ends;
  int32_t vocabulary;
  std::shared_ptr<const Mask> in_thought;
  std::optional<int32_t> thought_left;  // tokens until the thought's end is forced
  Matcher matcher;                      // null: nothing binds after the thought
  Phase phase;

  bool is_end(int32_t token) const { return std::find(ends.begin(), ends.end(), token) != ends.end(); }

  tl::unexpected<Error> refused(int32_t token, std::string_view why = {}) const {
    return fail("the token {} ({}) does not belong to the answer's grammar here{}{}", token,
                to_json_text(tokenizer->decode({&token, 1}, false)), why.empty() ? "" : ": ", why);
  }

  Mask only(std::span<const int32_t> tokens) const {
    Mask mask(words_of(vocabulary));
    for (const int32_t token : tokens) set(mask, token, true);
    return mask;
  }

  Result<Mask> mask() {
    if (phase == Phase::ended) return only(ends);
    if (phase == Phase::thought) return thought_left == 0 ? only({&end_think, 1}) : *in_thought;
    if (!matcher) return Mask();
    Mask mask(words_of(vocabulary));
    bridge::Buffer error;
    if (!tercet_matcher_mask(matcher.get(), mask.data(), mask.size(), error.out())) {
      return fail("the answer's grammar cannot be followed further: {}", readable(error.text()));
    }
    return mask;
  }

  Result<void> accept(int32_t token) {
    if (token < 0 || token >= vocabulary) return refused(token);
    if (phase == Phase::ended) {  // who ignores ends gets more of them
      if (!is_end(token)) return refused(token);
      return {};
    }
    if (phase == Phase::thought) {
      if (token == end_think) {
        phase = Phase::answer;
        return {};
      }
      if (thought_left == 0 || !is_set(*in_thought, token)) return refused(token);
      if (thought_left) --*thought_left;
      return {};
    }
    if (is_end(token)) {
      TERCET_TRY(const Mask now, mask());  // a grammar that is at its end takes no token, not even this one
      if (!now.empty() && !is_set(now, token)) return refused(token);
      phase = Phase::ended;
      return {};
    }
    if (!matcher) return {};
    bridge::Buffer error;
    // It may also be too much work to follow a token that mask() allowed.
    if (!tercet_matcher_accept(matcher.get(), token, error.out())) {
      return refused(token, readable(error.text()));
    }
    return {};
  }
};

AnswerConstraint::AnswerConstraint(std::unique_ptr<State> state) : state_(std::move(state)) {}
AnswerConstraint::AnswerConstraint(AnswerConstraint&& other) noexcept = default;
AnswerConstraint& AnswerConstraint::operator=(AnswerConstraint&& other) noexcept = default;
AnswerConstraint::~AnswerConstraint() = default;

AnswerConstraint AnswerConstraint::copy() const {
  const State& s = *state_;
  Matcher matcher(s.matcher ? tercet_matcher_copy(s.matcher.get()) : nullptr);
  return AnswerConstraint(
      std::make_unique<State>(State{s.tokenizer, s.end_think, s.ends, s.vocabulary, s.in_thought,
                                    s.thought_left, std::move(matcher), s.phase}));
}

Result<std::vector<uint32_t>> AnswerConstraint::mask() { return state_->mask(); }
Result<void> AnswerConstraint::accept(int32_t token) { return state_->accept(token); }

void AnswerGrammars::Free::operator()(TercetGrammars* grammars) const { tercet_grammars_free(grammars); }

Result<AnswerGrammars> AnswerGrammars::create(const Tokenizer& tokenizer, const Tags& tags,
                                              std::span<const int32_t> end_tokens, int32_t vocabulary) {
  TERCET_CHECK_GE(vocabulary, tokenizer.vocabulary_size());
  AnswerGrammars grammars;
  grammars.tokenizer_ = &tokenizer;
  grammars.tags_ = &tags;
  grammars.end_tokens_.assign(end_tokens.begin(), end_tokens.end());
  grammars.vocabulary_ = vocabulary;
  const std::vector<int32_t> controls = tokenizer.controls();
  TercetGrammars* bridge = nullptr;
  bridge::Buffer error;
  if (!tercet_grammars_new(tokenizer.bridge(), controls.data(), controls.size(), end_tokens.data(),
                           end_tokens.size(), static_cast<size_t>(vocabulary), &bridge, error.out())) {
    return fail("{}: {}", tokenizer.origin(), error.text());
  }
  grammars.bridge_.reset(bridge);
  auto mask = std::make_shared<Mask>(words_of(vocabulary));
  for (int32_t token = 0; token < tokenizer.vocabulary_size(); ++token) {
    if (!tokenizer.token_bytes(token).empty()) set(*mask, token, true);
  }
  for (size_t i = 0; i < kTagCount; ++i) {
    const auto tag = static_cast<Tag>(i);
    if (is_tool_tag(tag) && tags.id(tag) >= 0) set(*mask, tags.id(tag), false);
  }
  for (const int32_t token : end_tokens) set(*mask, token, false);
  grammars.in_thought_ = std::move(mask);
  return grammars;
}

Result<AnswerConstraint> AnswerGrammars::compile(const AnswerForm& form, bool in_thought) const {
  using State = AnswerConstraint::State;
  Matcher matcher;
  const auto build = [&](const std::string& grammar) -> Result<void> {
    TercetMatcher* made = nullptr;
    bridge::Buffer error;
    if (!tercet_grammars_compile(bridge_.get(), bridge::bytes(grammar), grammar.size(), &made, error.out())) {
      return fail("{}", readable(error.text()));
    }
    matcher.reset(made);
    // A grammar without any text (references that only refer to each other) compiles, too.
    Mask first(words_of(vocabulary_));
    if (!tercet_matcher_mask(made, first.data(), first.size(), error.out())) {
      return fail("there is no text that fits, or too much work to find it ({})", readable(error.text()));
    }
    return {};
  };
  TERCET_TRY(std::optional<AnswerGrammar> grammar, answer_grammar(form, *tags_, LaxSchemas::known));
  if (grammar) {
    Result<void> built = build(grammar->whole);
    if (!built &&
        std::any_of(form.tools.begin(), form.tools.end(), [](const ToolForm& t) { return !t.strict; })) {
      TERCET_TRY(grammar, answer_grammar(form, *tags_, LaxSchemas::types));
      built = build(grammar->whole);
    }
    if (!built) {
      for (const AnswerGrammar::Part& part : grammar->parts) {
        if (const Result<void> alone = build(part.grammar); !alone) {
          return fail("{}: {}", part.where, alone.error().message);
        }
      }
      return fail("{}: the answer's grammar: {}", form.tools.empty() ? "response_format" : "tools",
                  built.error().message);
    }
  }
  return AnswerConstraint(std::make_unique<State>(State{
      tokenizer_, tags_->id(Tag::end_think), end_tokens_, vocabulary_, in_thought_, form.max_thinking_tokens,
      std::move(matcher), in_thought ? State::Phase::thought : State::Phase::answer}));
}

}  // namespace tercet
