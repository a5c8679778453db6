#include "text/verify.h"

#include <algorithm>
#include <optional>

#include "text/answer_events.h"
#include "text/answer_parser.h"
#include "text/chat_template.h"
#include "text/json.h"
#include "text/read_file.h"
#include "text/tags.h"
#include "text/tokenizer.h"

namespace tercet {
namespace {

/// What is wrong, if anything.
std::optional<std::string> compare(std::string_view what, std::string_view expected, std::string_view found) {
  if (expected == found) return std::nullopt;
  return fmt::format("{}: expected {}, found {}", what, to_json_text(expected), to_json_text(found));
}

std::string ids_text(const std::vector<int32_t>& ids) { return fmt::format("[{}]", fmt::join(ids, ", ")); }

Result<std::string> member_text(const Json& object, std::string_view name) {
  const Json* value = find_member(object, name);
  if (value == nullptr || !value->is_string()) return fail("`{}` is not a string", name);
  return value->get<std::string>();
}

const Json& member(const Json& object, std::string_view name) {
  static const Json kNone;
  const Json* value = find_member(object, name);
  return value == nullptr ? kNone : *value;
}

class Verifier {
 public:
  Verifier(const Tokenizer& tokenizer, const Tags& tags, const ChatTemplate& chat_template)
      : tokenizer_(tokenizer), tags_(tags), template_(chat_template) {}

  /// What is wrong with the case, if anything; an error where the case itself is.
  Result<std::optional<std::string>> run(const Json& test) const {
    if (test.contains("pieces")) return answer_case(test);
    if (test.contains("prompt")) return prompt_case(test);
    if (test.contains("error")) return error_case(test);
    if (test.contains("ids")) return ids_case(test);
    return fail("no case: it has none of `pieces`, `prompt`, `error`, `ids`");
  }

 private:
  using Outcome = Result<std::optional<std::string>>;

  Result<std::vector<int32_t>> tokens_of(const Json& pieces) const {
    if (!pieces.is_array()) return fail("`pieces` is not a list");
    std::vector<int32_t> tokens;
    for (const Json& piece : pieces) {
      if (piece.is_string()) {
        TERCET_TRY(const auto ids, tokenizer_.encode_text(piece.get_ref<const std::string&>()));
        tokens.insert(tokens.end(), ids.begin(), ids.end());
        continue;
      }
      TERCET_TRY(const std::string name, member_text(piece, "tag"));
      const auto tag = Tags::by_bare_name(name);
      if (!tag || tags_.id(*tag) < 0) return fail("the vocabulary has no tag `{}`", name);
      tokens.push_back(tags_.id(*tag));
    }
    return tokens;
  }

  /// The events of the tokens in groups of `size`, the first one of `first`.
  std::vector<AnswerEvent> events_of(const Json& test, std::span<const int32_t> tokens, size_t first,
                                     size_t size) const {
    AnswerParser parser(tokenizer_, tags_, member(test, "tools"), member(test, "start") == "reasoning");
    const AnswerEnd end = member(test, "complete") == false ? AnswerEnd::length : AnswerEnd::stop;
    std::vector<AnswerEvent> events;
    for (size_t group = std::min(first, tokens.size()); !tokens.empty();
         group = std::min(size, tokens.size())) {
      const bool last = group == tokens.size();
      append_joined(events, parser.add(tokens.first(group), last ? end : AnswerEnd::none));
      tokens = tokens.subspan(group);
      if (last) return events;
    }
    append_joined(events, parser.add({}, end));
    return events;
  }

  Outcome answer_case(const Json& test) const {
    TERCET_TRY(const std::vector<int32_t> tokens, tokens_of(test["pieces"]));
    TERCET_TRY(const std::string reasoning, member_text(test, "reasoning"));
    TERCET_TRY(const std::string content, member_text(test, "content"));
    const std::vector<AnswerEvent> whole = events_of(test, tokens, tokens.size(), tokens.size());
    Answer answer;
    answer.add(whole);
    Json calls = Json::array();
    for (const Answer::Call& call : answer.calls)
      calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
    if (auto wrong = compare("reasoning", reasoning, answer.reasoning)) return wrong;
    if (auto wrong = compare("content", content, answer.content)) return wrong;
    if (auto wrong = compare("tool_calls", to_json_text(member(test, "tool_calls")), to_json_text(calls)))
      return wrong;
    for (size_t size = 1; size <= 4; ++size) {
      for (size_t first = 1; first <= size; ++first) {
        if (events_of(test, tokens, first, size) != whole) {
          return fmt::format("fed in groups of {} tokens, the first of {}, it gives other events", size,
                             first);
        }
      }
    }
    return std::nullopt;
  }

  Outcome prompt_case(const Json& test) const {
    TERCET_TRY(const std::string expected, member_text(test, "prompt"));
    const Result<Prompt> prompt = template_.render(member(test, "request"), tokenizer_, kNow);
    if (!prompt) return fmt::format("the request is refused: {}", prompt.error().message);
    if (auto wrong = compare("prompt", expected, prompt->text)) return wrong;
    if (!test.contains("tokens")) return std::nullopt;
    return compare("tokens", to_json_text(test["tokens"]), ids_text(prompt->tokens));
  }

  Outcome error_case(const Json& test) const {
    TERCET_TRY(const std::string expected, member_text(test, "error"));
    const Result<Prompt> prompt = template_.render(member(test, "request"), tokenizer_, kNow);
    if (prompt)
      return fmt::format("error: expected {}, found the prompt {}", to_json_text(expected),
                         to_json_text(prompt->text));
    if (prompt.error().message.find(expected) != std::string::npos) return std::nullopt;
    return compare("error", expected, prompt.error().message);
  }

  Outcome ids_case(const Json& test) const {
    TERCET_TRY(const std::string text, member_text(test, "text"));
    TERCET_TRY(const std::vector<int32_t> ids, tokenizer_.encode_text(text));
    if (auto wrong = compare("ids", to_json_text(test["ids"]), ids_text(ids))) return wrong;
    return compare("decoded", text, tokenizer_.decode(ids, false));
  }

  static constexpr std::time_t kNow = 0;  // a case must not depend on the day

  const Tokenizer& tokenizer_;
  const Tags& tags_;
  const ChatTemplate& template_;
};

}  // namespace

Result<CaseReport> verify_text(const std::filesystem::path& model_dir,
                               std::span<const std::filesystem::path> files) {
  TERCET_TRY(const Tokenizer tokenizer, Tokenizer::load(model_dir));
  TERCET_TRY(const Tags tags, Tags::read(tokenizer));
  TERCET_TRY(const ChatTemplate chat_template, ChatTemplate::load(model_dir));
  const Verifier verifier(tokenizer, tags, chat_template);
  CaseReport report;
  for (const std::filesystem::path& path : files) {
    TERCET_TRY(const std::string text, read_file(path));
    int number = 0;
    for (std::string_view rest = text; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      ++number;
      if (line.find_first_not_of(" \t\r") == line.npos) continue;
      const Result<Json> test = parse_json(line);
      const auto outcome =
          test ? verifier.run(*test) : Result<std::optional<std::string>>(tl::unexpected(test.error()));
      if (outcome && !*outcome) {
        ++report.passed;
        continue;
      }
      ++report.failed;
      const Json* name = test ? find_member(*test, "name") : nullptr;
      report.failures.push_back(
          fmt::format("{}:{}: {}: {}", path.string(), number,
                      name != nullptr && name->is_string() ? name->get<std::string>() : "case",
                      outcome ? **outcome : outcome.error().message));
    }
  }
  return report;
}

}  // namespace tercet
