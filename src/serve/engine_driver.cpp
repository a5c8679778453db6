#include "serve/engine_driver.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tercet {
namespace {

constexpr std::chrono::milliseconds kIdle{100};  // after which the engine's invariants are looked at

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

EngineDriver::EngineDriver(std::unique_ptr<Engine> engine, const DriverOptions& options)
    : engine_(std::move(engine)), options_(options), last_step_(Clock::now()), thread_([this] { run(); }) {}

EngineDriver::~EngineDriver() {
  drain(std::chrono::milliseconds(0));
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  thread_.join();
}

tl::expected<std::vector<Submitted>, Refusal> EngineDriver::submit(std::vector<Request> parts,
                                                                   UpdateSink sink) {
  const std::lock_guard lock(mutex_);
  if (draining_) return tl::unexpected(Refusal{Refusal::Kind::shutdown, "the server is shutting down", 0});
  if (parts.size() > places()) {
    return tl::unexpected(Refusal{
        Refusal::Kind::invalid,
        fmt::format("{} answers are wanted at once, and no more than {} may be", parts.size(), places()), 0});
  }
  if (live_.size() + parts.size() > places()) {
    ++metrics_.refused;
    return tl::unexpected(Refusal{
        Refusal::Kind::full,
        fmt::format("{} answers are being made or wait, and no more than {} may", live_.size(), places()),
        retry_after()});
  }
  const auto shared = std::make_shared<const UpdateSink>(std::move(sink));
  const auto now = Clock::now();
  if (live_.empty()) last_step_ = now;
  std::vector<Submitted> submitted;
  for (Request& part : parts) {
    auto one = engine_->submit(std::move(part));
    if (!one) {
      for (const Submitted& earlier : submitted) {
        engine_->cancel(earlier.id);
        live_[earlier.id].sink = std::make_shared<const UpdateSink>([](const Update&) {});
      }
      work_.notify_all();
      return tl::unexpected(Refusal{Refusal::Kind::invalid, one.error().message, 0});
    }
    live_[one->id] = {.sink = shared, .part = submitted.size(), .submitted = now, .last_token = now};
    submitted.push_back(*one);
  }
  work_.notify_all();
  return submitted;
}

void EngineDriver::drain(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto none = [this] { return live_.empty() && !delivering_; };
  if (ended_.wait_for(lock, limit, none)) return;
  for (auto& [id, live] : live_) {
    if (live.cut == Cut::none) live.cut = Cut::shutdown;
    engine_->cancel(id);
  }
  ended_.wait(lock, none);
}

bool EngineDriver::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

bool EngineDriver::stalled(std::chrono::milliseconds limit) const {
  const std::lock_guard lock(mutex_);
  return !live_.empty() && Clock::now() - last_step_ > limit;
}

DriverMetrics EngineDriver::metrics() const {
  const std::lock_guard lock(mutex_);
  return metrics_;
}

void EngineDriver::run() {
  bool checked = true;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto awaited = [this] { return stopping_ || !live_.empty(); };
      if (!work_.wait_for(lock, kIdle, awaited)) {
        if (!checked) engine_->check_integrity();
        checked = true;
        work_.wait(lock, awaited);
      }
      if (live_.empty()) return;
    }
    const auto begun = Clock::now();
    check_deadlines(begun);
    std::vector<Event> events = engine_->step();
    deliver(note(std::move(events), begun, Clock::now()));
    checked = false;
  }
}

/// When drain() returns, nobody is told any more, and no sink is held.
void EngineDriver::deliver(std::vector<Delivery> deliveries) {
  for (Delivery& delivery : deliveries) (*delivery.sink)(std::move(delivery.update));
  deliveries.clear();
  const std::lock_guard lock(mutex_);
  delivering_ = false;
  if (live_.empty()) ended_.notify_all();
}

void EngineDriver::check_deadlines(Clock::time_point now) {
  if (options_.deadline.count() == 0) return;
  const std::lock_guard lock(mutex_);
  for (auto& [id, live] : live_) {
    if (live.cut != Cut::none || now - live.submitted < options_.deadline) continue;
    live.cut = Cut::deadline;
    ++metrics_.deadlines;
    engine_->cancel(id);
  }
}

std::vector<EngineDriver::Delivery> EngineDriver::note(std::vector<Event> events, Clock::time_point begun,
                                                       Clock::time_point done) {
  std::vector<Delivery> deliveries;
  const std::lock_guard lock(mutex_);
  last_step_ = done;
  delivering_ = true;
  for (Event& event : events) {
    const auto found = live_.find(event.id);
    TERCET_CHECK(found != live_.end());
    Live& live = found->second;
    measure(live, event, begun, done);
    const bool end = event.finish.has_value();
    const bool cut = end && event.finish->reason == FinishReason::cancelled;
    deliveries.push_back({live.sink,
                          {.part = live.part,
                           .event = std::move(event),
                           .started = live.started.value_or(begun),
                           .at = done,
                           .cut = cut ? live.cut : Cut::none}});
    if (end) live_.erase(found);
  }
  return deliveries;
}

void EngineDriver::measure(Live& live, const Event& event, Clock::time_point begun, Clock::time_point done) {
  if (!live.started && event.prompt_done > 0) {
    live.started = begun;
    metrics_.queue.add(seconds(begun - live.submitted));
  }
  if (event.token) {
    if (live.first_token) {
      metrics_.inter_token.add(seconds(done - live.last_token));
      metrics_.answer_seconds += seconds(done - live.last_token);
    } else {
      live.first_token = done;
      metrics_.first_token.add(seconds(done - live.submitted));
      metrics_.prompt_seconds += seconds(done - live.started.value_or(begun));
    }
    live.last_token = done;
  }
  if (event.finish) metrics_.whole.add(seconds(done - live.submitted));
}

/// How long a place takes to become free, by what requests took so far.
int EngineDriver::retry_after() const {
  const uint64_t ended = metrics_.whole.count();
  const double mean = ended == 0 ? 1 : metrics_.whole.sum() / static_cast<double>(ended);
  return static_cast<int>(std::clamp(std::ceil(mean), 1.0, 60.0));
}

}  // namespace tercet
