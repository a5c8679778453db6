// How tokens are drawn, when an answer ends and how it is told, under the names that OpenAI, vLLM and
// llama.cpp give it.
#pragma once

#include "engine/engine.h"
#include "serve/fields.h"

namespace tercet {

/// Replaces in `params` what the request says. Bounds are validate()'s to check, types are checked here.
void read_sampling(Fields& fields, SamplingParams& params);

/// `n`: answers to each prompt; 1 where nothing is said.
int32_t read_choices(Fields& fields);

struct StreamForm {
  bool on = false;             // the answer is told as it comes
  bool include_usage = false;  // and its counts at the end
};

/// `stream` and `stream_options`.
StreamForm read_stream(Fields& fields);

/// Parameters of the answer `choice` of several to one prompt: the first has the request's seed.
SamplingParams params_of_choice(const SamplingParams& params, int32_t choice);

}  // namespace tercet
