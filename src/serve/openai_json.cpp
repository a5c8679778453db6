#include "serve/openai_json.h"

#include <ctime>

#include "serve/ids.h"

namespace tercet {
namespace {

Json entry(int32_t token, float logprob, const Tokenizer& tokenizer) {
  Json bytes = Json::array();
  for (const char byte : tokenizer.token_bytes(token)) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", token_text(token, tokenizer)},
          {"id", token},
          {"logprob", exact_number(logprob)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

AnswerHead AnswerHead::make(std::string_view prefix) { return {random_id(prefix), std::time(nullptr)}; }

Json AnswerHead::json(std::string_view object, const ServedModel& model) const {
  return {{"id", id},
          {"object", object},
          {"created", created},
          {"model", model.names.front()},
          {"system_fingerprint", model.fingerprint}};
}

StreamHead::StreamHead(const Json& head) {
  const std::string text = wire_text(head);
  text_ = fmt::format("data: {}, \"choices\": ", std::string_view(text).substr(0, text.size() - 1));
}

std::string StreamHead::event(const Json& choices, const Json& more) const {
  const std::string rest = wire_text(more);
  return fmt::format("{}{}{}{}\n\n", text_, wire_text(choices), more.empty() ? "" : ", ",
                     std::string_view(rest).substr(1));
}

Json chat_logprobs(const std::vector<TokenInfo>& tokens, const Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const TokenInfo& info : tokens) {
    Json top = Json::array();
    for (const TokenLogprob& other : info.top) top.push_back(entry(other.token, other.logprob, tokenizer));
    Json one = entry(info.token, info.logprob, tokenizer);
    one["top_logprobs"] = std::move(top);
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

std::string sse_data(const Json& value) { return "data: " + wire_text(value) + "\n\n"; }

std::string sse_progress(int32_t done, size_t total) {
  return fmt::format(": prompt {}/{}\n\n", done, total);
}

std::string token_text(int32_t token, const Tokenizer& tokenizer) {
  return tokenizer.decode({&token, 1}, false);
}

}  // namespace tercet
