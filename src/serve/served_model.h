// What a server needs to know of the model that its engine runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/answer_constraint.h"
#include "text/chat_template.h"
#include "text/tags.h"
#include "text/tokenizer.h"

namespace tercet {

/// Constant while it is served; shared by all threads.
struct ServedModel {
  std::vector<std::string> names;  // the first is what answers say; "*" among them: any name will do
  std::string path;
  std::string fingerprint;  // equal fingerprints, tokens and seeds mean equal bits
  const Tokenizer& tokenizer;
  const Tags& tags;
  const ChatTemplate& chat_template;
  const AnswerGrammars& grammars;
  SamplingParams defaults;  // of the checkpoint
  int32_t vocabulary = 0;
  int32_t trained_context = 0;  // tokens that the model was made for
  int64_t created = 0;          // seconds since 1970, when it was loaded
};

}  // namespace tercet
