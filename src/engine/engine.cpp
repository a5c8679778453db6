#include "engine/engine.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/philox.h"
#include "engine/scheduler.h"
#include "sampling/sampler.h"

namespace tercet {
namespace {

/// A request between submit() and its last event, beside what the scheduler knows of it.
struct Record {
  Sampler sampler;
  std::unique_ptr<TokenConstraint> constraint;
  std::optional<PromptLogprobs> prompt_logprobs;
  int32_t top_logprobs = 0;
  int32_t prompt_tokens = 0;
  int32_t limit = 0;            // tokens at which it has its length
  int32_t prompt_reported = 0;  // rows of the prompt whose log-probabilities have been reported
  int32_t prompt_done = 0;      // as last reported
  bool started = false;
};

struct Arrival {
  RequestId id;
  uint64_t seed;
  Request request;
};

struct Ending {
  RequestId id;
  FinishReason reason;
};

/// A slice in a step's plan, and which outputs of the plan are its own: those of the prompt, then the draw.
struct Task {
  Slice slice;
  size_t first_output;
  size_t outputs;
  bool draw;
};

struct Work {
  StepPlan plan;
  std::vector<Task> tasks;  // one for each sequence of the batch
};

uint64_t seed_for(uint64_t engine_seed, RequestId id) {
  const auto word =
      philox4x32(engine_seed, {static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32), 0, 0});
  return ((uint64_t{word[1]} << 32) | word[0]) >> 11;
}

TokenInfo info_of(RowResult& result) {
  return {.token = result.token, .logprob = result.logprob, .top = std::move(result.top)};
}

}  // namespace

struct Engine::State {
  State(EngineOptions engine_options, Executor& step_executor)
      : options(std::move(engine_options)),
        executor(step_executor),
        context(static_cast<int32_t>(
            std::min(int64_t{options.max_positions}, int64_t{executor.pages()} * kPageTokens))),
        scheduler({.pages = executor.pages(),
                   .max_rows = executor.max_rows(),
                   .max_sequences = options.max_sequences,
                   .max_prompt_rows =
                       options.max_prompt_rows > 0 ? options.max_prompt_rows : executor.max_rows()}) {}

  const EngineOptions options;
  Executor& executor;
  const int32_t context;

  // Of the stepping thread.
  Scheduler scheduler;
  std::map<RequestId, Record> records;

  // Of whoever holds the mutex.
  mutable std::mutex mutex;
  RequestId last_id = 0;
  std::vector<Arrival> arrivals;
  std::vector<Ending> endings;
  EngineStats stats;

  Result<void> check(const Request& request) const;
  std::vector<Event> step();
  std::vector<Event> take_inbox();
  void start(Arrival arrival);
  Work plan(Schedule schedule, std::vector<Event>& events);
  Result<std::vector<RowOutput>> outputs_of(const Slice& slice, int32_t first_row, bool draw);
  std::optional<Event> conclude(const Task& task, bool failed, std::span<RowResult> results);
  void draw_done(Record& record, Event& event);
  Event event_of(RequestId id) const;
  void end(Event& event, FinishReason reason, bool keep, std::string error = {});
};

Result<void> Engine::State::check(const Request& request) const {
  const int32_t vocabulary = executor.vocabulary();
  if (request.prompt.empty()) return fail("the prompt has no tokens");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= vocabulary) {
      return fail("prompt: token {} is not in the vocabulary of {}", token, vocabulary);
    }
  }
  TERCET_TRY_VOID(validate(request.params, vocabulary));
  if (request.prompt_logprobs &&
      (request.prompt_logprobs->top < 0 || request.prompt_logprobs->top > kMaxTopLogprobs)) {
    return fail("prompt_logprobs must be from 0 to {}, not {}", kMaxTopLogprobs,
                request.prompt_logprobs->top);
  }
  const SamplingParams& params = request.params;
  const int32_t least = std::max(params.min_tokens, params.max_tokens.value_or(1) > 0 ? 1 : 0);
  if (request.prompt.size() + static_cast<size_t>(least) > static_cast<size_t>(context)) {
    return fail("the prompt has {} tokens and {} at least are to be drawn, but the context holds {}",
                request.prompt.size(), least, context);
  }
  return {};
}

std::vector<Event> Engine::State::step() {
  std::vector<Event> events = take_inbox();
  Work work = plan(scheduler.next(), events);
  uint64_t answer_tokens = 0;
  if (!work.tasks.empty()) {
    StepResult result = executor.run(work.plan);
    TERCET_CHECK_EQ(result.rows.size(), work.plan.outputs.size());
    TERCET_CHECK_EQ(result.failed.size(), work.tasks.size());
    for (size_t i = 0; i < work.tasks.size(); ++i) {
      const Task& task = work.tasks[i];
      auto event = conclude(task, result.failed[i] != 0,
                            std::span(result.rows).subspan(task.first_output, task.outputs));
      if (!event) continue;
      if (event->token) ++answer_tokens;
      events.push_back(std::move(*event));
    }
  }
  const std::lock_guard lock(mutex);
  const PageCounts pages = scheduler.pages();
  stats.running = scheduler.running();
  stats.waiting = scheduler.waiting();
  stats.pages_free = pages.free;
  stats.pages_cached = pages.cached;
  stats.pages_active = pages.active;
  stats.preemptions = scheduler.preemptions();
  stats.answer_tokens += answer_tokens;
  if (!work.tasks.empty()) ++stats.steps;
  stats.rows += static_cast<uint64_t>(work.plan.batch.rows());
  return events;
}

std::vector<Event> Engine::State::take_inbox() {
  std::vector<Arrival> arrived;
  std::vector<Ending> ending;
  {
    const std::lock_guard lock(mutex);
    arrived.swap(arrivals);
    ending.swap(endings);
    stats.waiting += static_cast<int32_t>(arrived.size());
  }
  for (Arrival& arrival : arrived) start(std::move(arrival));
  std::vector<Event> events;
  for (const Ending& e : ending) {
    if (!records.contains(e.id)) continue;
    Event event = event_of(e.id);
    end(event, e.reason, true);
    events.push_back(std::move(event));
  }
  return events;
}

void Engine::State::start(Arrival arrival) {
  const SamplingParams& params = arrival.request.params;
  const auto prompt_tokens = static_cast<int32_t>(arrival.request.prompt.size());
  const int32_t room = context - prompt_tokens;
  Record record{.sampler = Sampler(params, arrival.seed, options.eos_tokens, executor.vocabulary(),
                                   arrival.request.prompt),
                .constraint = std::move(arrival.request.constraint),
                .prompt_logprobs = arrival.request.prompt_logprobs,
                .top_logprobs = params.top_logprobs,
                .prompt_tokens = prompt_tokens,
                .limit = prompt_tokens + std::min(room, params.max_tokens.value_or(room))};
  // Rows whose log-probabilities are wanted must be computed; later, once they are reported, no more.
  const bool reuse = options.prefix_cache && !record.prompt_logprobs;
  scheduler.add(
      {.id = arrival.id, .tokens = std::move(arrival.request.prompt), .reusable = reuse ? context : 0});
  records.emplace(arrival.id, std::move(record));
}

Work Engine::State::plan(Schedule schedule, std::vector<Event>& events) {
  Work work;
  work.plan.copies = std::move(schedule.copies);
  Batch& batch = work.plan.batch;
  for (Slice& slice : schedule.slices) {
    Record& record = records.at(slice.id);
    const Sequence& sequence = scheduler.sequence(slice.id);
    if (!record.started) {
      record.started = true;
      const std::lock_guard lock(mutex);
      stats.prompt_tokens += static_cast<uint64_t>(record.prompt_tokens);
      stats.cached_tokens += static_cast<uint64_t>(sequence.cached);
    }
    const bool draw = slice.last && static_cast<int32_t>(sequence.tokens.size()) < record.limit;
    auto outputs = outputs_of(slice, batch.rows(), draw);
    if (!outputs) {
      // Not kept: what would be cached may still wait for a copy that only a step carries out.
      Event event = event_of(slice.id);
      end(event, FinishReason::error, false, outputs.error().message);
      events.push_back(std::move(event));
      continue;
    }
    batch.sequences.push_back({.first_row = batch.rows(),
                               .rows = slice.rows,
                               .position = slice.position,
                               .pages = std::move(slice.pages)});
    const auto begin = sequence.tokens.begin() + slice.position;
    batch.tokens.insert(batch.tokens.end(), begin, begin + slice.rows);
    work.tasks.push_back({.slice = std::move(slice),
                          .first_output = work.plan.outputs.size(),
                          .outputs = outputs->size(),
                          .draw = draw});
    std::move(outputs->begin(), outputs->end(), std::back_inserter(work.plan.outputs));
  }
  return work;
}

Result<std::vector<RowOutput>> Engine::State::outputs_of(const Slice& slice, int32_t first_row, bool draw) {
  Record& record = records.at(slice.id);
  const std::vector<int32_t>& tokens = scheduler.sequence(slice.id).tokens;
  const int32_t end = slice.position + slice.rows;
  std::vector<RowOutput> outputs;
  if (record.prompt_logprobs) {
    for (int32_t i = std::max(slice.position, record.prompt_reported);
         i < std::min(end, record.prompt_tokens); ++i) {
      RowOutput output;
      output.row = first_row + (i - slice.position);
      if (i + 1 < record.prompt_tokens) output.target = tokens[static_cast<size_t>(i) + 1];
      output.top = record.prompt_logprobs->top;
      outputs.push_back(std::move(output));
    }
  }
  if (draw) {
    RowOutput output;
    output.row = first_row + slice.rows - 1;
    output.draw = true;
    output.top = record.top_logprobs;
    std::vector<uint32_t> allowed;
    if (record.constraint) {
      TERCET_TRY(allowed, record.constraint->mask());
    }
    TERCET_TRY(output.params, record.sampler.next(static_cast<uint32_t>(end), std::move(allowed)));
    outputs.push_back(std::move(output));
  }
  return outputs;
}

/// `results`: those of the task's outputs. No event where nothing new is to be told: rows computed again.
std::optional<Event> Engine::State::conclude(const Task& task, bool failed, std::span<RowResult> results) {
  const Slice& slice = task.slice;
  Record& record = records.at(slice.id);
  failed = failed || std::any_of(results.begin(), results.end(), [](const RowResult& r) { return r.failed; });
  if (failed) {
    Event event = event_of(slice.id);
    end(event, FinishReason::error, false,
        fmt::format("the model met a value that is not finite at positions {} to {}", slice.position,
                    slice.position + slice.rows - 1));
    return event;
  }
  scheduler.computed(slice);
  const int32_t done = std::min(slice.position + slice.rows, record.prompt_tokens);
  if (done <= record.prompt_done && !slice.last) return std::nullopt;
  record.prompt_done = std::max(record.prompt_done, done);
  Event event = event_of(slice.id);

  const size_t prompt_rows = results.size() - (task.draw ? 1 : 0);
  for (RowResult& result : results.first(prompt_rows)) event.prompt.push_back(info_of(result));
  record.prompt_reported += static_cast<int32_t>(prompt_rows);
  if (record.prompt_logprobs && options.prefix_cache) {
    const bool all = record.prompt_reported == record.prompt_tokens;
    scheduler.set_reusable(slice.id, all ? context : record.prompt_reported);
  }
  if (task.draw) {
    event.token = info_of(results.back());
    draw_done(record, event);
  } else if (slice.last) {
    end(event, FinishReason::length, true);
  }
  return event;
}

void Engine::State::draw_done(Record& record, Event& event) {
  const int32_t token = event.token->token;
  scheduler.append(event.id, token);
  record.sampler.accept(token);
  const auto accepted = record.constraint ? record.constraint->accept(token) : Result<void>();
  if (!accepted) {
    end(event, FinishReason::error, true, accepted.error().message);
  } else if (record.sampler.stops(token)) {
    end(event, FinishReason::stop, true);
  } else if (record.prompt_tokens + record.sampler.drawn() >= record.limit) {
    end(event, FinishReason::length, true);
  }
}

Event Engine::State::event_of(RequestId id) const {
  Event event;
  event.id = id;
  event.prompt_done = records.at(id).prompt_done;
  return event;
}

/// Takes the event's request out of everything; its record is gone afterwards.
void Engine::State::end(Event& event, FinishReason reason, bool keep, std::string error) {
  const auto it = records.find(event.id);
  TERCET_CHECK(it != records.end());
  event.finish = Finish{.reason = reason,
                        .error = std::move(error),
                        .prompt_tokens = it->second.prompt_tokens,
                        .cached_tokens = std::max(scheduler.sequence(event.id).cached, 0),
                        .answer_tokens = it->second.sampler.drawn()};
  scheduler.remove(event.id, keep);
  records.erase(it);
  const std::lock_guard lock(mutex);
  ++stats.finished[static_cast<size_t>(reason)];
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options, Executor& executor) {
  if (executor.pages() < 1) return fail("the KV cache must have a page at least, not {}", executor.pages());
  if (options.max_positions < 1) {
    return fail("the context must hold a token at least, not {}", options.max_positions);
  }
  if (options.max_sequences < 1 || options.max_sequences > executor.max_rows()) {
    return fail("from 1 to {} requests can run at once, the rows of a step, not {}", executor.max_rows(),
                options.max_sequences);
  }
  if (options.max_prompt_rows < 0) {
    return fail("the prompts' rows of a step must not be negative, but are {}", options.max_prompt_rows);
  }
  for (const int32_t token : options.eos_tokens) {
    if (token < 0 || token >= executor.vocabulary()) {
      return fail("end token {} is not in the vocabulary of {}", token, executor.vocabulary());
    }
  }
  auto state = std::make_unique<State>(std::move(options), executor);
  state->stats.pages = executor.pages();
  state->stats.pages_free = executor.pages();
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

Result<Submitted> Engine::submit(Request request) {
  TERCET_TRY_VOID(state_->check(request));
  const std::lock_guard lock(state_->mutex);
  const RequestId id = ++state_->last_id;
  const uint64_t seed = request.params.seed.value_or(seed_for(state_->options.seed, id));
  state_->arrivals.push_back({id, seed, std::move(request)});
  return Submitted{.id = id, .seed = seed};
}

void Engine::finish(RequestId id, FinishReason reason) {
  const std::lock_guard lock(state_->mutex);
  state_->endings.push_back({id, reason});
}

std::vector<Event> Engine::step() { return state_->step(); }

bool Engine::busy() const {
  const EngineStats now = stats();
  return now.running + now.waiting > 0;
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(state_->mutex);
  EngineStats stats = state_->stats;
  stats.waiting += static_cast<int32_t>(state_->arrivals.size());
  return stats;
}

int32_t Engine::context() const { return state_->context; }

void Engine::check_integrity() const {
  const Scheduler& scheduler = state_->scheduler;
  scheduler.check_integrity();
  TERCET_CHECK_EQ(state_->records.size(), static_cast<size_t>(scheduler.running() + scheduler.waiting()));
  for (const auto& [id, record] : state_->records) {
    const Sequence& sequence = scheduler.sequence(id);
    TERCET_CHECK_EQ(static_cast<int32_t>(sequence.tokens.size()),
                    record.prompt_tokens + record.sampler.drawn());
    TERCET_CHECK_LE(static_cast<int32_t>(sequence.tokens.size()), record.limit);
    TERCET_CHECK_LE(record.prompt_reported, record.prompt_tokens);
  }
}

}  // namespace tercet
