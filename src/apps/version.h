#pragma once

#include <string>

namespace tercet {

/// Three lines: program, arithmetic, compiler.
std::string version_text();

}  // namespace tercet
