#include "text/answer_parser.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tercet {
namespace {

constexpr std::string_view kWhite = " \t\r\n";

bool is_white(std::string_view text) { return text.find_first_not_of(kWhite) == text.npos; }

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhite);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhite) - begin + 1);
}

// Bounds on what is held back for a call that may be none.
constexpr size_t kLongestName = 256;
constexpr size_t kLongestKey = 1024;

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName && text.find_first_of(" \t\r\n{}\"") == text.npos;
}

/// What stands before the object that may follow a name at once.
std::string_view name_part(std::string_view text) { return trimmed(text.substr(0, text.find('{'))); }

bool opens_call(std::optional<Tag> tag) { return tag == Tag::tool_calls || tag == Tag::tool_call; }
bool closes_call(std::optional<Tag> tag) { return tag == Tag::end_tool_call || tag == Tag::end_of_tool_call; }
/// Tags that leave no doubt that the call before them is over.
bool follows_call(std::optional<Tag> tag) { return tag == Tag::tool_call || tag == Tag::end_tool_calls; }

}  // namespace

AnswerParser::AnswerParser(const Tokenizer& tokenizer, const Tags& tags, Json tools, bool in_thought)
    : tokenizer_(&tokenizer),
      tags_(&tags),
      tools_(std::move(tools)),
      state_(in_thought ? State::thought : State::blank) {}

std::vector<AnswerEvent> AnswerParser::add(std::span<const int32_t> tokens, AnswerEnd end) {
  TERCET_CHECK(state_ != State::ended);
  for (const int32_t token : tokens) add_token(token);
  if (end != AnswerEnd::none) on_end(end);
  return std::exchange(events_, {});
}

void AnswerParser::add_token(int32_t token) {
  std::string text;
  if (!tokenizer_->is_control(token)) {
    utf8_.add(tokenizer_->token_bytes(token), text);
    if (!text.empty()) on_text(text);
    return;
  }
  const std::optional<Tag> tag = tags_->tag(token);
  const bool in_grammar = tag && *tag < Tag::begin_of_sentence;
  if (!in_grammar && tokenizer_->is_special(token)) return;
  utf8_.finish(text);
  if (!text.empty()) on_text(text);
  on_tag(tag, tokenizer_->token_bytes(token));
}

void AnswerParser::on_text(std::string_view text) {
  if (state_ != State::thought && state_ != State::content) raw_ += text;
  switch (state_) {
    case State::thought:
      emit(AnswerEvent::Kind::reasoning, text);
      break;
    case State::content:
      emit(AnswerEvent::Kind::content, text);
      break;
    case State::blank:
    case State::block:
    case State::after_key:
      if (!is_white(text)) give_up();
      break;
    case State::name:
      name_ += text;
      if (!name_part(name_).empty() && !is_name(name_part(name_))) give_up();
      break;
    case State::arguments:
      if (is_white(text)) break;
      if (!arguments_->empty() || trimmed(text)[0] != '{') return give_up();
      object_ = text;
      state_ = State::object;
      break;
    case State::key:
      key_ += text;
      if (key_.size() > kLongestKey) give_up();
      break;
    case State::value:
      emit(AnswerEvent::Kind::arguments, arguments_->add(text));
      break;
    case State::object:
      object_ += text;
      break;
    case State::ended:
      TERCET_CHECK(false);
  }
}

void AnswerParser::on_tag(std::optional<Tag> tag, std::string_view spelling) {
  if (state_ == State::thought) return tag_in_thought(tag, spelling);
  if (state_ == State::blank || state_ == State::content) return tag_in_content(tag, spelling);
  raw_ += spelling;
  switch (state_) {
    case State::block:
      tag_in_block(tag);
      break;
    case State::name:
      tag_in_name(tag);
      break;
    case State::arguments:
      tag_in_arguments(tag);
      break;
    case State::key:
      if (tag != Tag::end_arg_key) return give_up();
      state_ = State::after_key;
      break;
    case State::after_key:
      if (tag != Tag::arg_value) return give_up();
      emit(AnswerEvent::Kind::arguments, arguments_->begin_value(trimmed(key_)));
      state_ = State::value;
      break;
    case State::value:
      if (tag != Tag::end_arg_value) {
        emit(AnswerEvent::Kind::arguments, arguments_->add(spelling));
        break;
      }
      emit(AnswerEvent::Kind::arguments, arguments_->end_value());
      state_ = State::arguments;
      break;
    case State::object:
      tag_in_object(tag, spelling);
      break;
    default:
      TERCET_CHECK(false);
  }
}

void AnswerParser::tag_in_thought(std::optional<Tag> tag, std::string_view spelling) {
  if (opens_call(tag)) return open(*tag);
  if (tag == Tag::end_think) {
    state_ = State::blank;
  } else if (tag != Tag::think || !blank_thought_) {
    emit(AnswerEvent::Kind::reasoning, spelling);
  }
}

void AnswerParser::tag_in_content(std::optional<Tag> tag, std::string_view spelling) {
  if (opens_call(tag)) return open(*tag);
  if (tag == Tag::think) {
    raw_.clear();
    blank_thought_ = true;
    state_ = State::thought;
  } else if (state_ == State::content) {
    emit(AnswerEvent::Kind::content, spelling);
  } else if (tag != Tag::end_think) {  // a thought that is closed may be closed again
    raw_ += spelling;
    give_up();
  }
}

void AnswerParser::tag_in_block(std::optional<Tag> tag) {
  if (tag == Tag::tool_call) {
    name_.clear();
    state_ = State::name;
  } else if (tag == Tag::end_tool_calls) {
    raw_.clear();
    state_ = State::blank;
  } else if (!closes_call(tag)) {
    give_up();
  }
}

void AnswerParser::tag_in_name(std::optional<Tag> tag) {
  if (tag == Tag::tool_sep || tag == Tag::arg_key) {
    name_ = trimmed(name_);
    if (!is_name(name_)) return give_up();
    arguments_.emplace(parameters_of(name_));
    state_ = State::arguments;
    if (tag == Tag::arg_key) tag_in_arguments(tag);
    return;
  }
  // Without a separator, an object may follow the name at once.
  const std::string rest = name_.substr(std::min(name_.find('{'), name_.size()));
  name_ = name_part(name_);
  const std::optional<std::string> whole = rest.empty() ? "{}" : CallArguments::from_object(rest);
  if (!closes_call(tag) || !is_name(name_) || !whole) return give_up();
  end_call(*whole);
}

void AnswerParser::tag_in_arguments(std::optional<Tag> tag) {
  if (tag == Tag::arg_key) {
    begin_call();
    key_.clear();
    state_ = State::key;
  } else if (closes_call(tag)) {
    end_call(arguments_->finish());
  } else if (follows_call(tag) && !arguments_->empty()) {
    end_call(arguments_->finish());
    raw_ = tokenizer_->token_bytes(tags_->id(*tag));
    tag_in_block(tag);
  } else {
    give_up();
  }
}

void AnswerParser::tag_in_object(std::optional<Tag> tag, std::string_view spelling) {
  const bool over = closes_call(tag) || follows_call(tag);
  const std::optional<std::string> whole = over ? CallArguments::from_object(object_) : std::nullopt;
  if (whole) {
    end_call(*whole);
    if (closes_call(tag)) return;
    raw_ = spelling;
    tag_in_block(tag);
  } else if (closes_call(tag)) {
    give_up();
  } else {
    object_ += spelling;
  }
}

void AnswerParser::open(Tag tag) {
  raw_ = tokenizer_->token_bytes(tags_->id(tag));
  name_.clear();
  state_ = tag == Tag::tool_call ? State::name : State::block;
}

void AnswerParser::begin_call() {
  if (begun_) return;
  begun_ = true;
  events_.push_back({AnswerEvent::Kind::call_begin, calls_++, name_});
}

void AnswerParser::end_call(std::string_view rest_of_arguments) {
  begin_call();
  emit(AnswerEvent::Kind::arguments, rest_of_arguments);
  events_.push_back({AnswerEvent::Kind::call_end, calls_ - 1, {}});
  begun_ = false;
  raw_.clear();
  state_ = State::block;
}

/// What was held back is no call: it is content, and so is what follows.
void AnswerParser::give_up() {
  begun_ = false;
  state_ = State::content;
  emit(AnswerEvent::Kind::content, std::exchange(raw_, {}));
}

void AnswerParser::on_end(AnswerEnd end) {
  std::string text;
  utf8_.finish(text);
  if (!text.empty()) on_text(text);
  const bool blank = state_ == State::blank || state_ == State::block;
  const bool layout = blank && calls_ > 0 && is_white(raw_);
  const bool cut = end == AnswerEnd::length && state_ != State::blank;
  if (!layout && !cut) emit(AnswerEvent::Kind::content, raw_);
  state_ = State::ended;
}

void AnswerParser::emit(AnswerEvent::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (kind == AnswerEvent::Kind::reasoning && !is_white(text)) blank_thought_ = false;
  const int call = kind == AnswerEvent::Kind::arguments ? calls_ - 1 : -1;
  if (!events_.empty() && events_.back().kind == kind && events_.back().call == call) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, call, std::string(text)});
  }
}

/// The schema that the request declares for a function; null where there is none.
const Json& AnswerParser::parameters_of(std::string_view name) const {
  static const Json kNone;
  if (!tools_.is_array()) return kNone;
  for (const Json& tool : tools_) {
    const Json* function = find_member(tool, "function");
    const Json* tool_name = function == nullptr ? nullptr : find_member(*function, "name");
    if (tool_name == nullptr || *tool_name != name) continue;
    const Json* parameters = find_member(*function, "parameters");
    return parameters == nullptr ? kNone : *parameters;
  }
  return kNone;
}

void Answer::add(std::span<const AnswerEvent> events) {
  for (const AnswerEvent& event : events) {
    switch (event.kind) {
      case AnswerEvent::Kind::reasoning:
        reasoning += event.text;
        break;
      case AnswerEvent::Kind::content:
        content += event.text;
        break;
      case AnswerEvent::Kind::call_begin:
        open_ = {event.text, {}};
        break;
      case AnswerEvent::Kind::arguments:
        open_.arguments += event.text;
        break;
      case AnswerEvent::Kind::call_end:
        calls.push_back(std::move(open_));
        break;
    }
  }
}

}  // namespace tercet
