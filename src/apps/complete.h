#pragma once

#include "apps/command.h"

namespace tercet {

/// tercet complete MODEL
Result<int> run_complete(Arguments arguments, const Console& console);

}  // namespace tercet
