#pragma once

#include "apps/command.h"

namespace tercet {

/// tercet score MODEL TOKENS.safetensors …
Result<int> run_score(Arguments arguments, const Console& console);

/// tercet score compare A[:KIND] B[:KIND]
Result<int> run_score_compare(Arguments arguments, const Console& console);

}  // namespace tercet
