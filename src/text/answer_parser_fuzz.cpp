// Feeds the answer parser any tokens under any schema: it must not crash, the events must not depend on how
// the tokens are grouped, and each call that ends must have a JSON object as arguments.
//
// Input: a byte of choices, a tool's `parameters` as JSON up to a zero byte (or to the end), then the tokens:
// below 32 a tag, 255 the next two bytes' id, anything else a short text.
#include <cstdint>

#include "base/check.h"
#include "text/answer_events.h"
#include "text/answer_parser.h"

namespace tercet {
namespace {

struct Model {
  Tokenizer tokenizer = Tokenizer::load(TERCET_SOURCE_DIR "/models/hy3-tiny").value();
  Tags tags = Tags::read(tokenizer).value();
};

const Model& model() {
  static const Model model;
  return model;
}

std::vector<int32_t> read_tokens(std::string_view bytes) {
  static constexpr std::string_view kTexts[] = {
      "f", "g",  "a",  "b",  "\n", " ",    "{",    "}",  "[", "]",    "\"", ":",    ",",    "1",
      "-", ".5", "e3", "\\", "u",  "null", "true", "nu", "é", "\x01", "<",  "🙂", "x: y", "{\"a\": 1}"};
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte < 32) {
      tokens.push_back(model().tags.id(static_cast<Tag>(byte % kTagCount)));
    } else if (byte == 255 && i + 2 < bytes.size()) {
      tokens.push_back(static_cast<unsigned char>(bytes[i + 1]) << 8 |
                       static_cast<unsigned char>(bytes[i + 2]));
      i += 2;
    } else {
      const auto ids = model().tokenizer.encode_text(kTexts[byte % std::size(kTexts)]).value();
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    }
  }
  return tokens;
}

void check_events(const std::vector<AnswerEvent>& events) {
  int begun = 0;
  bool open = false;
  for (const AnswerEvent& event : events) {
    std::string valid;
    Utf8Decoder utf8;
    utf8.add(event.text, valid);
    utf8.finish(valid);
    TERCET_CHECK(valid == event.text);
    switch (event.kind) {
      case AnswerEvent::Kind::call_begin:
        TERCET_CHECK_EQ(event.call, begun++);
        TERCET_CHECK(!event.text.empty());
        open = true;
        break;
      case AnswerEvent::Kind::arguments:
        TERCET_CHECK(open && !event.text.empty());
        TERCET_CHECK_EQ(event.call, begun - 1);
        break;
      case AnswerEvent::Kind::call_end:
        TERCET_CHECK(open);
        TERCET_CHECK_EQ(event.call, begun - 1);
        open = false;
        break;
      case AnswerEvent::Kind::reasoning:
      case AnswerEvent::Kind::content:
        TERCET_CHECK(!event.text.empty() && event.call == -1);
        break;
    }
  }
  Answer answer;
  answer.add(events);
  for (const Answer::Call& call : answer.calls) {
    const auto arguments = parse_json(call.arguments);
    TERCET_CHECK(arguments && arguments->is_object());
    TERCET_CHECK(to_json_text(*arguments) == call.arguments);
  }
}

void run(std::string_view input) {
  if (input.empty()) return;
  const unsigned choices = static_cast<unsigned char>(input[0]);
  input.remove_prefix(1);
  const size_t zero = std::min(input.find('\0'), input.size());
  Json tools;
  if (auto parameters = parse_json(input.substr(0, zero))) {
    tools = Json::array({{{"function", {{"name", "f"}, {"parameters", std::move(*parameters)}}}}});
  }
  const std::vector<int32_t> tokens = read_tokens(input.substr(std::min(zero + 1, input.size())));
  const AnswerEnd end = (choices & 2) != 0 ? AnswerEnd::length : AnswerEnd::stop;
  const auto events_in_groups = [&](size_t size) {
    AnswerParser parser(model().tokenizer, model().tags, tools, (choices & 1) != 0);
    std::vector<AnswerEvent> events;
    for (size_t at = 0; at < tokens.size(); at += size) {
      append_joined(events, parser.add(std::span(tokens).subspan(at, std::min(size, tokens.size() - at)),
                                       AnswerEnd::none));
    }
    append_joined(events, parser.add({}, end));
    return events;
  };
  const std::vector<AnswerEvent> whole = events_in_groups(std::max<size_t>(tokens.size(), 1));
  check_events(whole);
  TERCET_CHECK(events_in_groups(1) == whole);
  TERCET_CHECK(events_in_groups(2 + (choices >> 2) % 4) == whole);
}

}  // namespace
}  // namespace tercet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tercet::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
