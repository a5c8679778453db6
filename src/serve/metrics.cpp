#include "serve/metrics.h"

#include "text/json.h"

namespace tercet {
namespace {

class Text {
 public:
  explicit Text(const std::string& model) { append_escaped(model, model_); }

  void gauge(std::string_view name, double value, std::string_view help) {
    sample(name, "gauge", value, help);
  }
  void counter(std::string_view name, double value, std::string_view help) {
    sample(name, "counter", value, help);
  }

  void labelled(std::string_view name, std::string_view help,
                const std::vector<std::pair<std::string, double>>& values, std::string_view label) {
    head(name, "counter", help);
    for (const auto& [key, value] : values) {
      out_ += fmt::format("{}{{model_name=\"{}\",{}=\"{}\"}} {}\n", name, model_, label, key, value);
    }
  }

  void histogram(std::string_view name, const Histogram& values, std::string_view help) {
    head(name, "histogram", help);
    for (size_t i = 0; i < Histogram::kBounds.size(); ++i) {
      out_ += fmt::format("{}_bucket{{model_name=\"{}\",le=\"{}\"}} {}\n", name, model_,
                          Histogram::kBounds[i], values.up_to(i));
    }
    out_ += fmt::format(
        "{0}_bucket{{model_name=\"{1}\",le=\"+Inf\"}} {2}\n{0}_sum{{model_name=\"{1}\"}} {3}\n"
        "{0}_count{{model_name=\"{1}\"}} {2}\n",
        name, model_, values.count(), values.sum());
  }

  const std::string& text() const { return out_; }

 private:
  void head(std::string_view name, std::string_view type, std::string_view help) {
    out_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void sample(std::string_view name, std::string_view type, double value, std::string_view help) {
    head(name, type, help);
    out_ += fmt::format("{}{{model_name=\"{}\"}} {}\n", name, model_, value);
  }

  std::string model_;  // as a label
  std::string out_;
};

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

void add_vllm(Text& text, const EngineStats& engine, const DriverMetrics& driver) {
  text.gauge("vllm:num_requests_running", engine.running, "Requests that are computed.");
  text.gauge("vllm:num_requests_waiting", engine.waiting, "Requests that wait.");
  text.gauge("vllm:kv_cache_usage_perc", ratio(engine.pages_active, engine.pages),
             "Pages in use; 1 means all.");
  text.counter("vllm:prefix_cache_queries_total", static_cast<double>(engine.prompt_tokens),
               "Prompt tokens looked up in the cache.");
  text.counter("vllm:prefix_cache_hits_total", static_cast<double>(engine.cached_tokens),
               "Prompt tokens found in the cache.");
  text.counter("vllm:num_preemptions_total", static_cast<double>(engine.preemptions),
               "Requests that gave way.");
  text.counter("vllm:prompt_tokens_total", static_cast<double>(engine.prompt_tokens), "Tokens of prompts.");
  text.counter("vllm:generation_tokens_total", static_cast<double>(engine.answer_tokens),
               "Tokens of answers.");
  const auto ended = [&](FinishReason reason) {
    return static_cast<double>(engine.finished[static_cast<size_t>(reason)]);
  };
  text.labelled("vllm:request_success_total", "Requests that ended, by reason.",
                {{"stop", ended(FinishReason::stop)},
                 {"length", ended(FinishReason::length)},
                 {"abort", ended(FinishReason::cancelled)},
                 {"error", ended(FinishReason::error)}},
                "finished_reason");
  text.histogram("vllm:time_to_first_token_seconds", driver.first_token, "From arrival to the first token.");
  text.histogram("vllm:inter_token_latency_seconds", driver.inter_token, "From a token to the next.");
  text.histogram("vllm:request_queue_time_seconds", driver.queue, "From arrival to the first row computed.");
  text.histogram("vllm:e2e_request_latency_seconds", driver.whole, "From arrival to the end.");
}

void add_llama(Text& text, const EngineStats& engine, const DriverMetrics& driver) {
  const auto read = static_cast<double>(engine.prompt_tokens - engine.cached_tokens);
  const auto drawn = static_cast<double>(engine.answer_tokens);
  text.counter("llamacpp:prompt_tokens_total", read, "Tokens of prompts that were computed.");
  text.counter("llamacpp:prompt_seconds_total", driver.prompt_seconds, "Time in which prompts were read.");
  text.counter("llamacpp:tokens_predicted_total", drawn, "Tokens of answers.");
  text.counter("llamacpp:tokens_predicted_seconds_total", driver.answer_seconds,
               "Time in which they were drawn.");
  text.counter("llamacpp:n_decode_total", static_cast<double>(engine.steps), "Steps of the engine.");
  text.gauge("llamacpp:prompt_tokens_seconds", ratio(read, driver.prompt_seconds), "Prompt tokens a second.");
  text.gauge("llamacpp:predicted_tokens_seconds", ratio(drawn, driver.answer_seconds),
             "Answer tokens a second.");
  text.gauge("llamacpp:kv_cache_usage_ratio", ratio(engine.pages_active, engine.pages),
             "Pages in use; 1 means all.");
  text.gauge("llamacpp:requests_processing", engine.running, "Requests that are computed.");
  text.gauge("llamacpp:requests_deferred", engine.waiting, "Requests that wait.");
}

}  // namespace

std::string metrics_text(const EngineStats& engine, const DriverMetrics& driver, const HttpCounts& http,
                         const std::string& model) {
  Text text(model);
  add_vllm(text, engine, driver);
  add_llama(text, engine, driver);
  text.gauge("tercet:cache_pages", engine.pages, "Pages of the KV cache.");
  text.gauge("tercet:cache_pages_free", engine.pages_free, "Pages that hold nothing.");
  text.gauge("tercet:cache_pages_cached", engine.pages_cached,
             "Pages that hold prefixes, in use by no request.");
  text.counter("tercet:rows_total", static_cast<double>(engine.rows), "Rows computed.");
  text.counter("tercet:requests_refused_total", static_cast<double>(driver.refused),
               "Requests without a place.");
  text.counter("tercet:requests_deadline_total", static_cast<double>(driver.deadlines),
               "Requests that ran out of time.");
  text.counter("tercet:clients_left_total", static_cast<double>(http.left),
               "Clients that left before the end.");
  text.gauge("tercet:connections", static_cast<double>(http.connections), "Open connections.");
  std::vector<std::pair<std::string, double>> statuses;
  for (const auto& [status, count] : http.by_status) statuses.emplace_back(std::to_string(status), count);
  text.labelled("tercet:http_responses_total", "Responses by status.", statuses, "status");
  return text.text();
}

}  // namespace tercet
