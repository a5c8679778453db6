#pragma once

#include "apps/command.h"

namespace tercet {

/// tercet bench MODEL
Result<int> run_bench(Arguments arguments, const Console& console);

}  // namespace tercet
