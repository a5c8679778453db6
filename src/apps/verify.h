#pragma once

#include "apps/command.h"

namespace tercet {

/// tercet verify text MODEL FILE.jsonl…
Result<int> run_verify_text(Arguments arguments, const Console& console);

/// tercet verify device
Result<int> run_verify_device(Arguments arguments, const Console& console);

}  // namespace tercet
