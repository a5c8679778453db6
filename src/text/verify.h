// Runs files of cases against a checkpoint's tokenizer and template.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace tercet {

struct CaseReport {
  int passed = 0;
  int failed = 0;
  std::vector<std::string> failures;  // "FILE:LINE: NAME: what was expected and what came", one line each
};

/// Each line of a file is a JSON object, told apart by its members:
///   `pieces`  an answer: `tools`, `start` ("content" or "reasoning"), `complete` (false: the budget of
///   tokens
///             ended it) and the pieces, each a text or {"tag": BARE NAME}; expected are `reasoning`,
///             `content` and `tool_calls` of `name` and `arguments`. Fed in one piece and in all groupings of
///             1 to 4 tokens with every offset of the first group, which must give the same events.
///   `prompt`  a request and the text that it renders to; with `tokens`, also its token ids.
///   `error`   a request that is refused, with this text in the message.
///   `ids`     a `text` and its token ids as plain text.
/// Empty lines are skipped. Fails where the checkpoint or a file cannot be read.
Result<CaseReport> verify_text(const std::filesystem::path& model_dir,
                               std::span<const std::filesystem::path> files);

}  // namespace tercet
