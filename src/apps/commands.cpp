#include <array>

#include "apps/command.h"
#include "apps/inspect.h"
#include "apps/score.h"

namespace tercet {

std::span<const Command> commands() {
  static constexpr std::array kCommands{
      Command{"inspect", "what a checkpoint holds and what it takes in memory", run_inspect},
      Command{"score", "log-probabilities of given tokens, or their digest", run_score},
      Command{"score compare", "how far one file of log-probabilities is from another", run_score_compare},
  };
  return kCommands;
}

}  // namespace tercet
