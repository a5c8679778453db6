#pragma once

#include "apps/command.h"

namespace tercet {

/// tercet chat MODEL
Result<int> run_chat(Arguments arguments, const Console& console);

}  // namespace tercet
