#include <limits>

#include "serve/divergence.h"
#include "serve/endpoints.h"
#include "serve/generation.h"

namespace tercet {
namespace {

constexpr int32_t kTop = 128;  // of the model's tokens at each position; uploads may have as many

/// A list of lists of equal length: `rows` of them.
template <class Value, class Read>
ApiResult<std::vector<Value>> read_rows(const Json& body, const char* name, size_t rows, size_t& width,
                                        Read read) {
  const auto wrong = [&](std::string_view message) {
    return refuse({.message = fmt::format("{}: {}", name, message), .param = name});
  };
  const Json* table = find_member(body, name);
  if (table == nullptr || !table->is_array() || table->size() != rows) {
    return wrong(fmt::format("expected a list of {} lists, one for each token", rows));
  }
  std::vector<Value> values;
  for (const Json& row : *table) {
    if (!row.is_array() || row.empty() || row.size() > kTop)
      return wrong(fmt::format("expected lists of 1 to {}", kTop));
    if (width == 0) width = row.size();
    if (row.size() != width) return wrong(fmt::format("a list has {} entries, others {}", row.size(), width));
    for (const Json& value : row) {
      if (!is_number(value)) return wrong(fmt::format("expected numbers, found {}", type_name(value)));
      values.push_back(read(number_value(value)));
    }
  }
  return values;
}

class KlConsumer final : public AnswerConsumer {
 public:
  KlConsumer(const Service& service, TopLogprobs uploaded, std::shared_ptr<Exchange> exchange)
      : service_(service), uploaded_(std::move(uploaded)), exchange_(std::move(exchange)), tally_(1, 1) {}

  void begin(const std::vector<Submitted>&) override {}

  bool add(Update& update) override {
    for (const TokenInfo& info : update.event.prompt) {
      ++own_.rows;
      own_.top = static_cast<int64_t>(info.top.size());
      for (const TokenLogprob& one : info.top) {
        own_.ids.push_back(one.token);
        own_.logprobs.push_back(one.logprob);
      }
    }
    if (update.event.finish) tally_.add_finish(update, 0);
    return true;
  }

  void end() override {
    const auto d = compare({{0, uploaded_}}, {{0, own_}});
    if (!d) return fail({.message = d.error().message});
    exchange_->respond({.body = wire_text({{"object", "kl"},
                                           {"positions", d->positions},
                                           {"mean", d->mean},
                                           {"median", d->median},
                                           {"percentile99", d->percentile99},
                                           {"maximum", d->maximum},
                                           {"top1_equal", d->top1_equal},
                                           {"sure", d->sure},
                                           {"sure_equal", d->sure_equal},
                                           {"system_fingerprint", service_.model.fingerprint},
                                           {"usage", tally_.usage_json()}})});
  }

  void fail(const ApiError& error) override { exchange_->respond(openai_error_response(error)); }

 private:
  const Service& service_;
  const TopLogprobs uploaded_;
  const std::shared_ptr<Exchange> exchange_;
  TopLogprobs own_;
  Tally tally_;
};

ApiResult<TopLogprobs> read_uploaded(const Json& body, size_t rows) {
  TopLogprobs top;
  size_t width = 0;
  const auto id = [](double value) {
    constexpr double kMost = std::numeric_limits<int32_t>::max();
    return value >= 0 && value <= kMost ? static_cast<int32_t>(value) : -1;
  };
  TERCET_TRY(top.ids, read_rows<int32_t>(body, "ids", rows, width, id));
  const auto real = [](double value) { return static_cast<float>(value); };
  TERCET_TRY(top.logprobs, read_rows<float>(body, "logprobs", rows, width, real));
  for (const float logprob : top.logprobs) {
    if (logprob >= -1e6F && logprob <= 0.01F) continue;
    return refuse(
        {.message = fmt::format("logprobs: expected logarithms of probabilities, found {}", logprob),
         .param = "logprobs"});
  }
  top.rows = static_cast<int64_t>(rows);
  top.top = static_cast<int64_t>(width);
  return top;
}

}  // namespace

ApiResult<void> answer_kl(const Service& service, const HttpRequest& request,
                          const std::shared_ptr<Exchange>& exchange) {
  TERCET_TRY(const Json body, parse_body(request.body));
  Fields fields(body);
  Request part;
  part.prompt = fields.tokens("tokens");
  part.params.max_tokens = 0;
  part.prompt_logprobs = PromptLogprobs{std::min(kTop, service.model.vocabulary)};
  if (part.prompt.empty()) fields.reject("tokens", "expected a list of token ids, not empty");
  if (fields.error()) return refuse(*fields.error());
  TERCET_TRY_VOID(check_length(part.prompt.size(), part.params, service, "tokens"));
  TERCET_TRY(TopLogprobs uploaded, read_uploaded(body, part.prompt.size()));
  std::vector<Request> parts;
  parts.push_back(std::move(part));
  auto consumer = std::make_unique<KlConsumer>(service, std::move(uploaded), exchange);
  return generate(service.driver, exchange, std::move(parts), std::move(consumer));
}

}  // namespace tercet
