#include <algorithm>

#include "sampling/stop_matcher.h"
#include "serve/endpoints.h"
#include "serve/generation.h"
#include "serve/openai_json.h"
#include "serve/sampling_fields.h"

namespace tercet {
namespace {

struct CompletionRequest {
  std::vector<std::vector<int32_t>> prompts;
  AnswerForm form;  // to which the answers are held
  SamplingParams params;
  int32_t choices = 1;  // of each prompt
  std::optional<int32_t> logprobs;
  std::optional<int32_t> prompt_logprobs;
  bool echo = false;
  StreamForm stream;
  std::vector<std::string> warnings;
};

bool is_token_list(const Json& value) {
  return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_number);
}

/// A text, its tokens, or a list of either.
ApiResult<std::vector<std::vector<int32_t>>> read_prompts(const Json& body, int32_t choices,
                                                          const Service& service) {
  const Tokenizer& tokenizer = service.model.tokenizer;
  const Json* prompt = find_member(body, "prompt");
  if (prompt == nullptr || prompt->is_null())
    return refuse({.message = "prompt: is missing", .param = "prompt"});
  Json list = prompt->is_array() && !is_token_list(*prompt) ? *prompt : Json::array({*prompt});
  if (list.empty()) return refuse({.message = "prompt: is an empty list", .param = "prompt"});
  TERCET_TRY_VOID(check_answers(list.size() * static_cast<size_t>(choices), service, "prompt"));
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& one : list) {
    if (one.is_string()) {
      auto tokens = tokenizer.encode_prompt(one.get_ref<const std::string&>(), {});
      if (!tokens) return refuse({.message = "prompt: " + tokens.error().message, .param = "prompt"});
      prompts.push_back(std::move(*tokens));
    } else if (is_token_list(one)) {
      const Json wrapped{{"prompt", one}};
      Fields fields(wrapped);
      prompts.push_back(fields.tokens("prompt"));
      if (fields.error()) return refuse(*fields.error());
    } else {
      return refuse(
          {.message = fmt::format("prompt: expected a text, a list of token ids, or a list of such, found {}",
                                  type_name(one)),
           .param = "prompt"});
    }
    if (prompts.back().empty())
      return refuse({.message = "prompt: a text without tokens", .param = "prompt"});
  }
  return prompts;
}

ApiResult<void> check_prompt_logprobs(const CompletionRequest& request) {
  if (!request.prompt_logprobs && !(request.echo && request.logprobs)) return {};
  const int32_t top =
      std::max(request.prompt_logprobs.value_or(0), request.echo ? request.logprobs.value_or(0) : 0);
  int64_t tokens = 0;
  for (const auto& prompt : request.prompts) tokens += static_cast<int64_t>(prompt.size());
  const int64_t entries = tokens * request.choices * std::max(1, top);
  if (entries <= kMostLogprobs) return {};
  const char* name = request.prompt_logprobs ? "prompt_logprobs" : "logprobs";
  return refuse(
      {.message = fmt::format("{}: {} log-probabilities of prompts are wanted at once, at most {} may be: "
                              "send fewer prompts, or ask for fewer of each token",
                              name, entries, kMostLogprobs),
       .param = name});
}

ApiResult<CompletionRequest> read_request(const Json& body, const Service& service) {
  CompletionRequest request;
  request.params = service.model.defaults;
  Fields fields(body);
  TERCET_TRY_VOID(check_model(fields, service.model));
  fields.any("prompt");
  read_sampling(fields, request.params);
  if (find_member(body, "max_tokens") == nullptr && !request.params.max_tokens)
    request.params.max_tokens = 16;
  request.choices = read_choices(fields);
  const auto top = [&](const char* name) {
    const auto count = fields.integer(name, 0, 128);
    return count ? std::optional(static_cast<int32_t>(*count)) : std::nullopt;
  };
  request.logprobs = top("logprobs");
  request.prompt_logprobs = top("prompt_logprobs");
  request.params.top_logprobs = request.logprobs.value_or(0);
  request.echo = fields.boolean("echo").value_or(false);
  request.stream = read_stream(fields);
  for (const char* name : {"response_format", "structured_outputs"}) fields.any(name);
  TERCET_TRY(request.warnings, finish_fields(fields, service));
  if (const auto valid = validate(request.params, service.model.vocabulary); !valid) {
    return refuse(error_from(body, valid.error().message));
  }
  auto form = AnswerForm::read(body);
  if (!form) return refuse(error_from(body, form.error().message));
  request.form = std::move(*form);
  TERCET_TRY(request.prompts, read_prompts(body, request.choices, service));
  for (const auto& prompt : request.prompts) {
    TERCET_TRY_VOID(check_length(prompt.size(), request.params, service, "prompt"));
  }
  TERCET_TRY_VOID(check_prompt_logprobs(request));
  if (request.logprobs) {
    const auto answers = static_cast<int32_t>(request.prompts.size()) * request.choices;
    TERCET_TRY_VOID(bound_logprobs(request.params, answers, "logprobs"));
  }
  return request;
}

ApiResult<std::vector<Request>> engine_requests(const CompletionRequest& request, const Service& service) {
  FormConstraints constraints(request.form, service.model);
  std::vector<Request> parts;
  for (const auto& prompt : request.prompts) {
    for (int32_t choice = 0; choice < request.choices; ++choice) {
      Request part;
      part.prompt = prompt;
      part.params = params_of_choice(request.params, choice);
      const bool in_thought = ends_in_thought(prompt, service.model.tags);
      TERCET_TRY(part.constraint, constraints.next(in_thought));
      // With an echo, the prompt's tokens are part of `logprobs`.
      const bool echoed = request.echo && request.logprobs;
      if (echoed || request.prompt_logprobs) {
        part.prompt_logprobs =
            PromptLogprobs{std::max(request.prompt_logprobs.value_or(0), echoed ? *request.logprobs : 0)};
      }
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

/// OpenAI's old form: four lists of equal length. Offsets count characters of the choice's text.
class LegacyLogprobs {
 public:
  void add(const TokenInfo& info, bool known, int32_t top, size_t offset, const Tokenizer& tokenizer) {
    tokens_.push_back(key(info.token, tokenizer));
    offsets_.push_back(offset);
    logprobs_.push_back(known ? exact_number(info.logprob) : Json());
    Json likely;
    if (known) {
      likely = Json::object();
      const size_t count = std::min(info.top.size(), static_cast<size_t>(top));
      for (size_t i = 0; i < count; ++i) {
        const std::string name = key(info.top[i].token, tokenizer);
        if (!likely.contains(name)) likely[name] = exact_number(info.top[i].logprob);
      }
      likely[key(info.token, tokenizer)] = exact_number(info.logprob);
    }
    top_.push_back(std::move(likely));
  }

  /// What was added since the last call.
  Json take() {
    return {{"tokens", std::exchange(tokens_, Json::array())},
            {"token_logprobs", std::exchange(logprobs_, Json::array())},
            {"top_logprobs", std::exchange(top_, Json::array())},
            {"text_offset", std::exchange(offsets_, Json::array())}};
  }
  bool empty() const { return tokens_.empty(); }

 private:
  /// Tokens that are parts of characters would all look alike.
  static std::string key(int32_t token, const Tokenizer& tokenizer) {
    std::string text = token_text(token, tokenizer);
    const std::string_view bytes = tokenizer.token_bytes(token);
    if (text == bytes) return text;
    text = "bytes:";
    for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    return text;
  }

  Json tokens_ = Json::array(), logprobs_ = Json::array(), top_ = Json::array(), offsets_ = Json::array();
};

size_t characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

struct Part {
  Detokenizer detokenizer;
  StopMatcher stops;
  std::vector<TokenInfo> prompt;  // from its second token on
  LegacyLogprobs logprobs;
  std::string text;    // not yet told
  size_t decoded = 0;  // characters, the echo's among them
  bool echoed = false;
  bool ended = false;
  FinishReason reason = FinishReason::stop;
};

class CompletionConsumer : public AnswerConsumer {
 public:
  CompletionConsumer(const Service& service, CompletionRequest request, std::shared_ptr<Exchange> exchange)
      : service_(service),
        request_(std::move(request)),
        exchange_(std::move(exchange)),
        tally_(request_.prompts.size() * static_cast<size_t>(request_.choices),
               static_cast<size_t>(request_.choices)) {
    for (size_t i = 0; i < request_.prompts.size() * static_cast<size_t>(request_.choices); ++i) {
      parts_.push_back({.detokenizer = {tokenizer(), true},
                        .stops = StopMatcher(request_.params.stop),
                        .prompt = {},
                        .logprobs = {},
                        .text = {}});
    }
  }

  void begin(const std::vector<Submitted>& submitted) override { seed_ = submitted.front().seed; }

  bool add(Update& update) final {
    Part& part = parts_[update.part];
    Event& event = update.event;
    for (TokenInfo& info : event.prompt) {
      if (info.token >= 0) part.prompt.push_back(std::move(info));
    }
    if ((event.token || event.finish) && request_.echo && !part.echoed) echo(part, prompt_of(update.part));
    const bool stops = event.finish && event.finish->reason == FinishReason::stop;
    if (event.token && !part.stops.stopped()) {
      tally_.add(update);
      if (!stops) draw(part, *event.token);
    }
    if (event.finish) {
      tally_.add_finish(update, 0);
      if (!part.stops.stopped()) part.text += part.stops.add(part.detokenizer.finish(), true);
      part.ended = true;
      part.reason = part.stops.stopped() ? FinishReason::stop : event.finish->reason;
    }
    if (event.token || event.finish) on_text(update.part);
    return !part.stops.stopped();
  }

 protected:
  /// A part has text or log-probabilities to tell, or has ended.
  virtual void on_text(size_t /*part*/) {}

  const Tokenizer& tokenizer() const { return service_.model.tokenizer; }
  const std::vector<int32_t>& prompt_of(size_t part) const {
    return request_.prompts[part / static_cast<size_t>(request_.choices)];
  }

  Json choice(size_t index) {
    Part& part = parts_[index];
    Json choice{{"index", index},
                {"text", std::exchange(part.text, {})},
                {"logprobs", request_.logprobs ? part.logprobs.take() : Json()},
                {"finish_reason", nullptr}};
    if (!part.ended) return choice;
    choice["finish_reason"] = part.reason == FinishReason::length ? "length" : "stop";
    choice["stop_reason"] = part.stops.stopped() ? Json(part.stops.stop()) : Json();
    if (request_.prompt_logprobs) choice["prompt_logprobs"] = prompt_logprobs(part);
    return choice;
  }

  void add_seed_and_warnings(Json& body) const {
    body["seed"] = seed_;
    if (!request_.warnings.empty()) body["warnings"] = request_.warnings;
  }

  const Service& service_;
  const CompletionRequest request_;
  const std::shared_ptr<Exchange> exchange_;
  const AnswerHead head_ = AnswerHead::make("cmpl-");
  std::vector<Part> parts_;
  Tally tally_;
  uint64_t seed_ = 0;

 private:
  void echo(Part& part, const std::vector<int32_t>& prompt) {
    part.echoed = true;
    Detokenizer detokenizer(tokenizer(), false);
    for (size_t i = 0; i < prompt.size(); ++i) {
      if (request_.logprobs) {
        const TokenInfo first{.token = prompt[0], .logprob = 0, .top = {}};
        part.logprobs.add(i == 0 ? first : part.prompt[i - 1], i > 0, *request_.logprobs, part.decoded,
                          tokenizer());
      }
      const std::string text =
          detokenizer.add(prompt[i]) + (i + 1 == prompt.size() ? detokenizer.finish() : "");
      part.decoded += characters(text);
      part.text += text;
    }
  }

  void draw(Part& part, const TokenInfo& info) {
    if (request_.logprobs) part.logprobs.add(info, true, *request_.logprobs, part.decoded, tokenizer());
    const std::string text = part.detokenizer.add(info.token);
    part.decoded += characters(text);
    part.text += part.stops.add(text, false);
  }

  /// As vLLM spells them: for each token of the prompt those that were likely there, and itself.
  Json prompt_logprobs(const Part& part) const {
    Json all = Json::array({nullptr});
    for (const TokenInfo& info : part.prompt) {
      const auto entry = [&](int32_t token, float logprob, Json rank) {
        return Json{{"logprob", exact_number(logprob)},
                    {"rank", std::move(rank)},
                    {"decoded_token", token_text(token, tokenizer())}};
      };
      Json likely = Json::object();
      const size_t count = std::min(info.top.size(), static_cast<size_t>(*request_.prompt_logprobs));
      for (size_t i = 0; i < count; ++i) {
        likely[std::to_string(info.top[i].token)] = entry(info.top[i].token, info.top[i].logprob, i + 1);
      }
      const std::string own = std::to_string(info.token);
      if (!likely.contains(own)) likely[own] = entry(info.token, info.logprob, nullptr);
      all.push_back(std::move(likely));
    }
    return all;
  }
};

class WholeCompletion final : public CompletionConsumer {
 public:
  using CompletionConsumer::CompletionConsumer;

  void end() override {
    Json body = head_.json("text_completion", service_.model);
    Json choices = Json::array();
    for (size_t i = 0; i < parts_.size(); ++i) choices.push_back(choice(i));
    body["choices"] = std::move(choices);
    body["usage"] = tally_.usage_json();
    body["timings"] = tally_.timings_json();
    add_seed_and_warnings(body);
    tally_.note(*exchange_);
    respond_json(*exchange_, body);
  }

  void fail(const ApiError& error) override { exchange_->respond(openai_error_response(error)); }
};

class CompletionStream final : public CompletionConsumer {
 public:
  using CompletionConsumer::CompletionConsumer;

  void begin(const std::vector<Submitted>& submitted) override {
    CompletionConsumer::begin(submitted);
    exchange_->begin_stream({});
  }

  void end() override {
    if (request_.stream.include_usage) {
      exchange_->write(stream_head_.event(
          Json::array(), {{"usage", tally_.usage_json()}, {"timings", tally_.timings_json()}}));
    }
    tally_.note(*exchange_);
    exchange_->write(std::string(kSseDone));
    exchange_->end();
  }

  void fail(const ApiError& error) override {
    exchange_->write(sse_data(openai_error(error)));
    exchange_->write(std::string(kSseDone));
    exchange_->end();
  }

 protected:
  void on_text(size_t index) override {
    const Part& part = parts_[index];
    if (part.text.empty() && !part.ended) return;
    Json choices = Json::array();
    choices.push_back(choice(index));
    Json more = Json::object();
    if (request_.stream.include_usage) more["usage"] = nullptr;
    if (std::exchange(first_, false)) add_seed_and_warnings(more);
    const bool all = std::all_of(parts_.begin(), parts_.end(), [](const Part& other) { return other.ended; });
    if (all) more["timings"] = tally_.timings_json();
    exchange_->write(stream_head_.event(choices, more));
  }

 private:
  const StreamHead stream_head_{head_.json("text_completion", service_.model)};
  bool first_ = true;
};

}  // namespace

ApiResult<void> answer_completions(const Service& service, const HttpRequest& request,
                                   const std::shared_ptr<Exchange>& exchange) {
  TERCET_TRY(const Json body, parse_body(request.body));
  TERCET_TRY(CompletionRequest wanted, read_request(body, service));
  TERCET_TRY(std::vector<Request> parts, engine_requests(wanted, service));
  std::unique_ptr<AnswerConsumer> consumer;
  if (wanted.stream.on) {
    consumer = std::make_unique<CompletionStream>(service, std::move(wanted), exchange);
  } else {
    consumer = std::make_unique<WholeCompletion>(service, std::move(wanted), exchange);
  }
  return generate(service.driver, exchange, std::move(parts), std::move(consumer));
}

}  // namespace tercet
