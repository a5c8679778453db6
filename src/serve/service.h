// What the endpoints answer from.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>

#include "serve/engine_driver.h"
#include "serve/fields.h"
#include "serve/served_model.h"
#include "text/answer_form.h"

namespace tercet {

struct ServiceOptions {
  bool strict = false;                      // fields that would be ignored are errors
  bool reasoning_content = true;            // names under which thoughts are told: this,
  bool reasoning = false;                   // and this
  std::chrono::milliseconds stall{120000};  // without a step, after which the server is not ready
};

/// Shared by all threads; constant but for the driver.
struct Service {
  const ServedModel& model;
  EngineDriver& driver;
  ServiceOptions options;

  const std::string& model_name() const { return model.names.front(); }
};

/// Reads `model` and refuses one that is not served.
ApiResult<void> check_model(Fields& fields, const ServedModel& model);

/// Ends the reading of a request: its first error, or the names of what nobody read, which are an error where
/// the service is strict.
ApiResult<std::vector<std::string>> finish_fields(Fields& fields, const Service& service);

/// What holds the answers of one request to its form, compiled once for all of them.
class FormConstraints {
 public:
  /// Both outlive this.
  FormConstraints(const AnswerForm& form, const ServedModel& model) : form_(form), model_(model) {}

  /// For one more answer, that begins inside a thought or after it; null where every answer has the form.
  /// Errors: a form that cannot be held to.
  ApiResult<std::unique_ptr<TokenConstraint>> next(bool in_thought);

 private:
  const AnswerForm& form_;
  const ServedModel& model_;
  std::array<std::optional<AnswerConstraint>, 2> compiled_;  // by in_thought
};

/// The error for more answers to one request than there are places: to be asked before anything is made for
/// each of them.
ApiResult<void> check_answers(size_t answers, const Service& service, std::string_view param);

/// Log-probabilities that a request may ask for, of prompts and of answers: they are held until the answer's
/// end, as JSON of some hundred bytes to 1 KB an entry.
constexpr int64_t kMostLogprobs = 1 << 18;

/// Without max_tokens, sets it to what kMostLogprobs has room for. Errors: a max_tokens beyond, under the
/// name of the field that asks for them.
ApiResult<void> bound_logprobs(SamplingParams& params, int32_t answers, std::string_view param);

/// The error for a prompt that leaves no room for an answer.
ApiResult<void> check_length(size_t prompt_tokens, const SamplingParams& params, const Service& service,
                             std::string_view param);

}  // namespace tercet
