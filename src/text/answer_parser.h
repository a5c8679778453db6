// An answer's tokens, as they come, to what they mean: thought, text, tool calls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/call_arguments.h"
#include "text/json.h"
#include "text/tags.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace tercet {

struct AnswerEvent {
  enum class Kind {
    reasoning,   // text: a piece of the thought
    content,     // text: a piece of the answer
    call_begin,  // text: the function's name
    arguments,   // text: a piece of the arguments' JSON
    call_end,    // the call is whole, its arguments are a JSON object
  };
  Kind kind;
  int call = -1;  // which call, counted from 0, those that never end among them
  std::string text;

  bool operator==(const AnswerEvent&) const = default;
};

/// Why an answer ends.
enum class AnswerEnd {
  none,    // it goes on
  stop,    // the model ended it
  length,  // the budget of tokens did
};

/// Reads the grammar of Hy3's answers. A pure function of its arguments and the tokens, however these are
/// grouped: the events of all groups, neighbours of a kind joined, are the same.
///
/// Only tokens are tags; the same characters as text are text, and so is a tag where it makes no sense
/// (inside a value, any but the value's closer). Text is held back only while it may belong to a call's
/// frame, a value while its type is open. A call begins when its name is certain. One that breaks off before
/// its closer never ends: where the model ended the answer or wrote on in another way, the call's raw text,
/// tags spelled, follows as content; where the budget ended it, nothing follows. After a whole argument a
/// call may also end by the next call's opener or the block's closer. White space around calls is layout.
/// Special tokens that are no tags of this grammar (end of sentence …) are skipped.
class AnswerParser {
 public:
  /// `tokenizer` and `tags` outlive this. `tools` is the request's list (or null); anything in it that has
  /// not the expected shape is ignored. `in_thought`: see ends_in_thought().
  AnswerParser(const Tokenizer& tokenizer, const Tags& tags, Json tools, bool in_thought);
  AnswerParser(const AnswerParser&) = delete;  // arguments_ points into tools_
  AnswerParser& operator=(const AnswerParser&) = delete;

  /// The events that the next tokens make certain. After an end other than `none`, nothing may be added.
  std::vector<AnswerEvent> add(std::span<const int32_t> tokens, AnswerEnd end);

 private:
  enum class State {
    thought,
    blank,  // content that is so far only white space, which is layout if a call follows
    content,
    block,      // between the calls of a tool_calls block
    name,       // of a function
    arguments,  // between the pairs of a call
    key,
    after_key,
    value,
    object,  // a JSON object in place of pairs
    ended,
  };

  void add_token(int32_t token);
  void on_text(std::string_view text);
  void on_tag(std::optional<Tag> tag, std::string_view spelling);
  void on_end(AnswerEnd end);

  void tag_in_thought(std::optional<Tag> tag, std::string_view spelling);
  void tag_in_content(std::optional<Tag> tag, std::string_view spelling);
  void tag_in_block(std::optional<Tag> tag);
  void tag_in_name(std::optional<Tag> tag);
  void tag_in_arguments(std::optional<Tag> tag);
  void tag_in_object(std::optional<Tag> tag, std::string_view spelling);

  void open(Tag tag);
  void begin_call();
  void end_call(std::string_view rest_of_arguments);
  void give_up();
  void emit(AnswerEvent::Kind kind, std::string_view text);
  const Json& parameters_of(std::string_view name) const;

  const Tokenizer* tokenizer_;
  const Tags* tags_;
  Json tools_;
  State state_;
  Utf8Decoder utf8_;
  std::vector<AnswerEvent> events_;  // of this add()

  bool blank_thought_ = true;  // the thought so far is white space
  std::string raw_;  // what is held back: white space, or all since the block's or the call's opener
  std::string name_, key_, object_;         // so far
  std::optional<CallArguments> arguments_;  // of the call, in the states from `arguments` to `value`
  bool begun_ = false;                      // whether the call's name was sent
  int calls_ = 0;                           // how many were
};

/// What a whole answer says.
struct Answer {
  struct Call {
    std::string name;
    std::string arguments;  // the text of a JSON object
    bool operator==(const Call&) const = default;
  };
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;  // those that ended

  void add(std::span<const AnswerEvent> events);

 private:
  Call open_;
};

}  // namespace tercet
