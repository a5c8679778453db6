#include "serve/generation.h"

#include <algorithm>

namespace tercet {
namespace {

class Generation final : public std::enable_shared_from_this<Generation> {
 public:
  Generation(EngineDriver& driver, std::shared_ptr<Exchange> exchange,
             std::unique_ptr<AnswerConsumer> consumer)
      : driver_(driver), exchange_(std::move(exchange)), consumer_(std::move(consumer)) {}

  ApiResult<void> start(std::vector<Request> parts) {
    unfinished_ = parts.size();
    // Updates are handed to the exchange's sequence, on which this runs: none is seen before this ends.
    auto submitted = driver_.submit(std::move(parts), [self = shared_from_this()](Update update) {
      self->exchange_->post([self, update = std::move(update)]() mutable { self->take(update); });
    });
    if (!submitted) return refuse(error_of(submitted.error()));
    submitted_ = std::move(*submitted);
    exchange_->on_leave([self = shared_from_this()] { self->stop(); });
    consumer_->begin(submitted_);
    return {};
  }

 private:
  static ApiError error_of(const Refusal& refusal) {
    switch (refusal.kind) {
      case Refusal::Kind::full:
        return {.status = 429,
                .message = refusal.message,
                .code = "queue_full",
                .retry_after = refusal.retry_after};
      case Refusal::Kind::shutdown:
        return {.status = 503, .message = refusal.message, .code = "shutting_down"};
      case Refusal::Kind::invalid:
        break;
    }
    return {.message = refusal.message};
  }

  void take(Update& update) {
    if (stopped_) return;
    const auto& finish = update.event.finish;
    if (finish && finish->reason == FinishReason::error) {
      return fail({.status = 500, .message = finish->error, .code = "generation_failed"});
    }
    if (finish && finish->reason == FinishReason::cancelled) return fail(cut_error(update.cut));
    const RequestId id = update.event.id;
    const bool last = finish.has_value();
    if (!consumer_->add(update) && !last) driver_.finish(id, FinishReason::stop);
    if (last && --unfinished_ == 0) consumer_->end();
  }

  static ApiError cut_error(Cut cut) {
    if (cut == Cut::deadline) {
      return {.status = 504,
              .message = "the answer took longer than the server allows",
              .code = "deadline_exceeded"};
    }
    return {.status = 503, .message = "the server is shutting down", .code = "shutting_down"};
  }

  void fail(const ApiError& error) {
    stop();
    consumer_->fail(error);
  }

  void stop() {
    stopped_ = true;
    for (const Submitted& part : submitted_) driver_.finish(part.id, FinishReason::cancelled);
  }

  EngineDriver& driver_;
  const std::shared_ptr<Exchange> exchange_;
  const std::unique_ptr<AnswerConsumer> consumer_;
  std::vector<Submitted> submitted_;
  size_t unfinished_ = 0;
  bool stopped_ = false;
};

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(std::max(duration, Clock::duration::zero())).count();
}

double rate(int32_t tokens, double ms) { return ms > 0 ? tokens * 1000.0 / ms : 0; }
double each(int32_t tokens, double ms) { return tokens > 0 ? ms / tokens : 0; }

}  // namespace

ApiResult<void> generate(EngineDriver& driver, const std::shared_ptr<Exchange>& exchange,
                         std::vector<Request> parts, std::unique_ptr<AnswerConsumer> consumer) {
  return std::make_shared<Generation>(driver, exchange, std::move(consumer))->start(std::move(parts));
}

void Tally::add(const Update& update) {
  Part& part = parts_[update.part];
  part.started = update.started;
  if (part.drawn++ == 0) part.first = update.at;
  part.last = update.at;
}

void Tally::add_finish(const Update& update, int32_t reasoning_tokens) {
  Part& part = parts_[update.part];
  part.prompt = update.event.finish->prompt_tokens;
  part.cached = update.event.finish->cached_tokens;
  part.reasoning = reasoning_tokens;
  if (part.drawn > 0) return;
  part.started = update.started;
  part.first = part.last = update.at;
}

Usage Tally::usage() const {
  Usage usage;
  for (size_t i = 0; i < parts_.size(); ++i) {
    usage.completion_tokens += parts_[i].drawn;
    usage.reasoning_tokens += parts_[i].reasoning;
    if (i % choices_ != 0) continue;
    usage.prompt_tokens += parts_[i].prompt;
    usage.cached_tokens += parts_[i].cached;
  }
  return usage;
}

Json Tally::usage_json() const {
  const Usage u = usage();
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.completion_tokens},
          {"total_tokens", u.prompt_tokens + u.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", u.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", u.reasoning_tokens}}}};
}

Json Tally::timings_json() const {
  const Usage u = usage();
  Clock::time_point started = parts_[0].started, first = parts_[0].first, last = parts_[0].last;
  for (const Part& part : parts_) {
    started = std::min(started, part.started);
    first = std::min(first, part.first);
    last = std::max(last, part.last);
  }
  const int32_t read = u.prompt_tokens - u.cached_tokens;
  const double prompt_ms = milliseconds(first - started), answer_ms = milliseconds(last - first);
  return {{"cache_n", u.cached_tokens},
          {"prompt_n", read},
          {"prompt_ms", prompt_ms},
          {"prompt_per_token_ms", each(read, prompt_ms)},
          {"prompt_per_second", rate(read, prompt_ms)},
          {"predicted_n", u.completion_tokens},
          {"predicted_ms", answer_ms},
          {"predicted_per_token_ms", each(u.completion_tokens, answer_ms)},
          {"predicted_per_second", rate(u.completion_tokens, answer_ms)}};
}

void Tally::note(Exchange& exchange) const {
  const Usage u = usage();
  exchange.note("prompt_tokens", std::to_string(u.prompt_tokens));
  exchange.note("cached_tokens", std::to_string(u.cached_tokens));
  exchange.note("completion_tokens", std::to_string(u.completion_tokens));
}

}  // namespace tercet
