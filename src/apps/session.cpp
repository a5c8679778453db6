#include "apps/session.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>

namespace tercet {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

double Outcome::prompt_rate() const {
  return prompt_seconds > 0 ? (finish.prompt_tokens - finish.cached_tokens) / prompt_seconds : 0;
}

double Outcome::answer_rate() const {
  return answer_seconds > 0 && finish.answer_tokens > 1 ? (finish.answer_tokens - 1) / answer_seconds : 0;
}

Result<Session> Session::open(const ModelOptions& options, const Console& console) {
  TERCET_TRY(const OpenedModel opened, open_model(options));
  const hy_v3::Config& config = opened.config;
  if (options.context > config.max_positions) {
    return fail("--ctx-size {}: {} was made for {} tokens", options.context, options.model,
                config.max_positions);
  }
  Session session;
  TERCET_TRY(TextModel text, load_text_model(options, config));
  session.text_ = std::make_unique<TextModel>(std::move(text));
  const int64_t context =
      options.context > 0 ? options.context : std::min(config.max_positions, kDefaultContext);
  TERCET_TRY(session.model_, load_model(options, {.cache_tokens = context}, console));
  EngineOptions engine;
  engine.max_positions = static_cast<int32_t>(context);
  engine.eos_tokens = session.text_->generation.eos_tokens;
  engine.seed = std::random_device{}();
  TERCET_TRY(session.engine_, Engine::create(engine, *session.model_.executor));
  return session;
}

Result<Outcome> Session::run(Request request, const std::function<bool(const TokenInfo&)>& token,
                             Interrupts* interrupts, const Console& console) {
  using Clock = std::chrono::steady_clock;
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const auto start = Clock::now();
  std::optional<Clock::time_point> first;
  TERCET_TRY(const Submitted submitted, engine_->submit(std::move(request)));
  std::optional<Progress> reading(std::in_place, console, "reading", std::max<int64_t>(prompt_tokens, 1));
  Outcome outcome;
  outcome.seed = submitted.seed;
  while (engine_->busy()) {
    if (interrupts != nullptr && interrupts->requested()) engine_->cancel(submitted.id);
    for (const Event& event : engine_->step()) {
      if (reading) reading->update(event.prompt_done);
      if (event.token && !first) first = Clock::now();
      if (event.token || event.finish) reading.reset();
      const bool is_end = event.finish && event.finish->reason == FinishReason::stop;
      if (event.token && !is_end && !token(*event.token)) engine_->finish(submitted.id, FinishReason::stop);
      if (event.finish) outcome.finish = *event.finish;
    }
  }
  const auto end = Clock::now();
  outcome.prompt_seconds = seconds_between(start, first.value_or(end));
  outcome.answer_seconds = first ? seconds_between(*first, end) : 0;
  if (outcome.finish.reason == FinishReason::error) return fail("{}", outcome.finish.error);
  return outcome;
}

}  // namespace tercet
