#pragma once

#include "apps/command.h"

namespace tercet {

/// `tercet serve`
Result<int> run_serve(Arguments arguments, const Console& console);

}  // namespace tercet
