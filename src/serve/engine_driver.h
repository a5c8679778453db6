// The thread that steps an engine, and who is told what a step did.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "serve/histogram.h"

namespace tercet {

using Clock = std::chrono::steady_clock;

struct DriverOptions {
  int32_t max_sequences = 1;             // the engine's
  int32_t max_waiting = 0;               // requests beyond those; more are refused
  std::chrono::milliseconds deadline{};  // from submit() to the end of a request; 0: none
};

/// Why a request was cancelled, where its client did not ask for it.
enum class Cut : uint8_t { none, deadline, shutdown };

/// What a step did for one part of a submission. The last one has event.finish.
struct Update {
  size_t part = 0;
  Event event;
  Clock::time_point started;  // when the step began that computed the first row
  Clock::time_point at;       // when this step was done
  Cut cut = Cut::none;        // with event.finish
};

/// Called by the stepping thread, for all other requests too late while it runs: hands on and returns.
using UpdateSink = std::function<void(Update)>;

struct Refusal {
  enum class Kind : uint8_t { invalid, full, shutdown };
  Kind kind = Kind::invalid;
  std::string message;
  int retry_after = 0;  // seconds, where full
};

/// Totals since the start, and times.
struct DriverMetrics {
  Histogram queue;            // from submit() to the beginning of the first step that computed a row
  Histogram first_token;      // from submit() to the first token
  Histogram inter_token;      // from a token to the next of its request
  Histogram whole;            // from submit() to the end
  double prompt_seconds = 0;  // of requests that drew a token: from the first row to that token
  double answer_seconds = 0;  // from the first token to the last
  uint64_t deadlines = 0;     // requests that ran into theirs
  uint64_t refused = 0;       // since all places were taken
};

/// Owns the engine and steps it while there is anything to do. All functions may be called by any thread.
class EngineDriver {
 public:
  EngineDriver(std::unique_ptr<Engine> engine, const DriverOptions& options);
  /// Ends all requests.
  ~EngineDriver();
  EngineDriver(const EngineDriver&) = delete;
  EngineDriver& operator=(const EngineDriver&) = delete;

  /// All of the requests or none: the parts of one answer. Each gets updates until its finish. `sink` may be
  /// called before this returns.
  tl::expected<std::vector<Submitted>, Refusal> submit(std::vector<Request> parts, UpdateSink sink);

  /// Takes effect before the next step; the finish is told as ever.
  void finish(RequestId id, FinishReason reason) { engine_->finish(id, reason); }

  /// Accepts nothing more, waits until all requests have ended, and cancels those that have not after
  /// `limit`.
  void drain(std::chrono::milliseconds limit);
  bool draining() const;

  /// Whether there is work and no step has been done for so long.
  bool stalled(std::chrono::milliseconds limit) const;

  int32_t context() const { return engine_->context(); }
  const DriverOptions& options() const { return options_; }
  /// Requests that may run or wait at once.
  size_t places() const {
    return static_cast<size_t>(options_.max_sequences) + static_cast<size_t>(options_.max_waiting);
  }
  EngineStats stats() const { return engine_->stats(); }
  DriverMetrics metrics() const;

 private:
  struct Live {
    std::shared_ptr<const UpdateSink> sink;
    size_t part = 0;
    Clock::time_point submitted;
    std::optional<Clock::time_point> started = {};
    std::optional<Clock::time_point> first_token = {};
    Clock::time_point last_token;
    Cut cut = Cut::none;
  };
  struct Delivery {
    std::shared_ptr<const UpdateSink> sink;
    Update update;
  };

  void run();
  void check_deadlines(Clock::time_point now);
  std::vector<Delivery> note(std::vector<Event> events, Clock::time_point begun, Clock::time_point done);
  void deliver(std::vector<Delivery> deliveries);
  void measure(Live& live, const Event& event, Clock::time_point begun, Clock::time_point done);
  int retry_after() const;

  const std::unique_ptr<Engine> engine_;
  const DriverOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable work_;   // for the stepping thread
  std::condition_variable ended_;  // for drain()
  std::map<RequestId, Live> live_;
  Clock::time_point last_step_;  // or since when there is work
  bool delivering_ = false;      // what a step did is being handed on
  bool draining_ = false;
  bool stopping_ = false;
  DriverMetrics metrics_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tercet
