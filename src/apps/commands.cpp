#include <array>

#include "apps/bench.h"
#include "apps/chat.h"
#include "apps/command.h"
#include "apps/complete.h"
#include "apps/inspect.h"
#include "apps/score.h"
#include "apps/serve.h"
#include "apps/verify.h"

namespace tercet {

std::span<const Command> commands() {
  static constexpr std::array kCommands{
      Command{"bench", "how fast a model runs, and how near that is to the floor", run_bench},
      Command{"chat", "a conversation with a model", run_chat},
      Command{"complete", "text that goes on where a prompt ends", run_complete},
      Command{"inspect", "what a checkpoint holds and what it takes in memory", run_inspect},
      Command{"score", "log-probabilities of given tokens, or their digest", run_score},
      Command{"score compare", "how far one file of log-probabilities is from another", run_score_compare},
      Command{"serve", "the model behind OpenAI's HTTP API", run_serve},
      Command{"verify device", "this machine's kernels against the reference", run_verify_device},
      Command{"verify text", "a checkpoint's tokenizer and template against files of cases", run_verify_text},
  };
  return kCommands;
}

}  // namespace tercet
