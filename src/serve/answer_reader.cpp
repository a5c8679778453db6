#include "serve/answer_reader.h"

#include <utility>

namespace tercet {

AnswerReader::AnswerReader(const Tokenizer& tokenizer, const Tags& tags, Json tools, bool in_thought,
                           const std::vector<std::string>& stops)
    : tags_(&tags),
      parser_(tokenizer, tags, std::move(tools), in_thought),
      matcher_(stops),
      in_thought_(in_thought) {}

std::vector<AnswerEvent> AnswerReader::add(int32_t token) {
  if (stopped()) return {};
  const auto tag = tags_->tag(token);
  if (tag == Tag::think) in_thought_ = true;
  if (in_thought_) ++reasoning_tokens_;
  if (tag == Tag::end_think || tag == Tag::tool_calls || tag == Tag::tool_call) in_thought_ = false;
  return filtered(parser_.add({&token, 1}, AnswerEnd::none), false);
}

std::vector<AnswerEvent> AnswerReader::end(AnswerEnd why) {
  if (stopped()) return {};
  return filtered(parser_.add({}, why), true);
}

std::vector<AnswerEvent> AnswerReader::filtered(std::vector<AnswerEvent> events, bool done) {
  std::vector<AnswerEvent> out;
  for (AnswerEvent& event : events) {
    if (stopped()) return out;
    if (event.kind == AnswerEvent::Kind::content) {
      add_text(event.text, false, out);
      continue;
    }
    // A call ends the text before it.
    if (event.kind != AnswerEvent::Kind::reasoning) add_text("", true, out);
    out.push_back(std::move(event));
  }
  if (done && !stopped()) add_text("", true, out);
  return out;
}

void AnswerReader::add_text(std::string_view text, bool done, std::vector<AnswerEvent>& out) {
  std::string certain = matcher_.add(text, done);
  if (!certain.empty()) out.push_back({AnswerEvent::Kind::content, -1, std::move(certain)});
}

}  // namespace tercet
