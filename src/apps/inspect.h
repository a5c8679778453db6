#pragma once

#include "apps/command.h"

namespace tercet {

/// tercet inspect MODEL [--ctx N] [--json]
Result<int> run_inspect(Arguments arguments, const Console& console);

}  // namespace tercet
