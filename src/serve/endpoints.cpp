#include "serve/endpoints.h"

#include <ctime>

#include "serve/openai_json.h"

namespace tercet {
namespace {

std::string utc_time(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

/// As OpenAI and Anthropic have it, whose members do not clash.
Json model_json(const Service& service, const std::string& name) {
  const ServedModel& model = service.model;
  return {{"id", name},
          {"object", "model"},
          {"type", "model"},
          {"display_name", name},
          {"created", model.created},
          {"created_at", utc_time(model.created)},
          {"owned_by", "tercet"},
          {"root", model.path},
          {"parent", nullptr},
          {"max_model_len", service.driver.context()},
          {"system_fingerprint", model.fingerprint},
          {"meta",
           {{"n_ctx", service.driver.context()},
            {"n_ctx_train", model.trained_context},
            {"n_vocab", model.vocabulary}}}};
}

/// The bytes that %41 and the like stand for.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string digits(text.substr(std::min(i + 1, text.size()), 2));
    if (text[i] == '%' && digits.size() == 2 &&
        digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos) {
      out += static_cast<char>(std::stoi(digits, nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Json token_list(const std::vector<int32_t>& tokens, bool pieces, const Tokenizer& tokenizer) {
  if (!pieces) return tokens;
  Json list = Json::array();
  for (const int32_t token : tokens) list.push_back({{"id", token}, {"piece", token_text(token, tokenizer)}});
  return list;
}

/// The tokens of a text, or of what the template makes of messages.
ApiResult<std::vector<int32_t>> tokens_of(const Json& body, Fields& fields, const ServedModel& model) {
  auto text = fields.string("content");
  if (auto prompt = fields.string("prompt")) text = std::move(prompt);
  const bool control = fields.boolean("parse_special").value_or(true);
  if (fields.error()) return refuse(*fields.error());
  if (find_member(body, "messages") != nullptr) {
    auto prompt = model.chat_template.render(body, model.tokenizer, std::time(nullptr));
    if (!prompt) return refuse(error_from(body, prompt.error().message));
    return std::move(prompt->tokens);
  }
  if (!text)
    return refuse({.message = "content: is missing (or `prompt`, or `messages`)", .param = "content"});
  auto tokens = control ? model.tokenizer.encode_prompt(*text, {}) : model.tokenizer.encode_text(*text);
  if (!tokens) return refuse({.message = tokens.error().message, .param = "content"});
  return std::move(*tokens);
}

}  // namespace

ApiResult<void> answer_models(const Service& service, const HttpRequest&,
                              const std::shared_ptr<Exchange>& exchange) {
  Json list = Json::array();
  for (const std::string& name : service.model.names) {
    if (name != "*") list.push_back(model_json(service, name));
  }
  const Json first = list.empty() ? Json() : list.front()["id"],
             last = list.empty() ? Json() : list.back()["id"];
  respond_json(*exchange, {{"object", "list"},
                           {"data", std::move(list)},
                           {"has_more", false},
                           {"first_id", first},
                           {"last_id", last}});
  return {};
}

ApiResult<void> answer_model(const Service& service, const HttpRequest& request,
                             const std::shared_ptr<Exchange>& exchange) {
  const std::string name = percent_decoded(request.path.substr(std::string_view("/v1/models/").size()));
  const Json wanted{{"model", name}};
  Fields fields(wanted);
  TERCET_TRY_VOID(check_model(fields, service.model));
  respond_json(*exchange, model_json(service, name));
  return {};
}

ApiResult<void> answer_props(const Service& service, const HttpRequest&,
                             const std::shared_ptr<Exchange>& exchange) {
  const ServedModel& model = service.model;
  const SamplingParams& p = model.defaults;
  const EngineStats stats = service.driver.stats();
  respond_json(*exchange, {{"default_generation_settings",
                            {{"n_ctx", service.driver.context()},
                             {"params",
                              {{"temperature", exact_number(p.temperature)},
                               {"top_p", exact_number(p.top_p)},
                               {"top_k", p.top_k},
                               {"min_p", exact_number(p.min_p)},
                               {"repeat_penalty", exact_number(p.repetition_penalty)}}}}},
                           {"total_slots", service.driver.options().max_sequences},
                           {"max_waiting", service.driver.options().max_waiting},
                           {"model_alias", service.model_name()},
                           {"model_path", model.path},
                           {"modalities", {{"vision", false}, {"audio", false}}},
                           {"build_info", "tercet " TERCET_VERSION},
                           {"system_fingerprint", model.fingerprint},
                           {"cache",
                            {{"pages", stats.pages},
                             {"free", stats.pages_free},
                             {"cached", stats.pages_cached},
                             {"active", stats.pages_active}}},
                           {"running", stats.running},
                           {"waiting", stats.waiting}});
  return {};
}

ApiResult<void> answer_tokenize(const Service& service, const HttpRequest& request,
                                const std::shared_ptr<Exchange>& exchange) {
  TERCET_TRY(const Json body, parse_body(request.body));
  Fields fields(body);
  const bool pieces = fields.boolean("with_pieces").value_or(false);
  TERCET_TRY(const std::vector<int32_t> tokens, tokens_of(body, fields, service.model));
  respond_json(*exchange, {{"tokens", token_list(tokens, pieces, service.model.tokenizer)},
                           {"count", tokens.size()},
                           {"max_model_len", service.driver.context()}});
  return {};
}

ApiResult<void> answer_tokenizer_info(const Service& service, const HttpRequest&,
                                      const std::shared_ptr<Exchange>& exchange) {
  const ServedModel& model = service.model;
  respond_json(*exchange, {{"tokenizer_class", "TercetTokenizer"},
                           {"bos_token", token_text(model.tags.id(Tag::begin_of_sentence), model.tokenizer)},
                           {"eos_token", token_text(model.tags.id(Tag::eos), model.tokenizer)},
                           {"model_max_length", service.driver.context()}});
  return {};
}

ApiResult<void> answer_detokenize(const Service& service, const HttpRequest& request,
                                  const std::shared_ptr<Exchange>& exchange) {
  TERCET_TRY(const Json body, parse_body(request.body));
  Fields fields(body);
  if (fields.any("tokens") == nullptr) fields.reject("tokens", "is missing");
  const std::vector<int32_t> tokens = fields.tokens("tokens");
  for (const int32_t token : tokens) {
    if (token < service.model.vocabulary) continue;
    fields.reject("tokens",
                  fmt::format("token {} is not in the vocabulary of {}", token, service.model.vocabulary));
  }
  if (fields.error()) return refuse(*fields.error());
  const std::string text = service.model.tokenizer.decode(tokens, false);
  respond_json(*exchange, {{"content", text}, {"prompt", text}});
  return {};
}

ApiResult<void> answer_apply_template(const Service& service, const HttpRequest& request,
                                      const std::shared_ptr<Exchange>& exchange) {
  TERCET_TRY(const Json body, parse_body(request.body));
  const ServedModel& model = service.model;
  const auto prompt = model.chat_template.render(body, model.tokenizer, std::time(nullptr));
  if (!prompt) return refuse(error_from(body, prompt.error().message));
  respond_json(*exchange, {{"prompt", prompt->text}, {"count", prompt->tokens.size()}});
  return {};
}

}  // namespace tercet
