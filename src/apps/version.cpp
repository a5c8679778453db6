#include "apps/version.h"

#include <fmt/format.h>

#include "ops/arithmetic_version.h"

namespace tercet {

std::string version_text() {
#ifdef __clang__
  constexpr const char* kCompiler = "Clang " __clang_version__;
#else
  constexpr const char* kCompiler = "GCC " __VERSION__;
#endif
  return fmt::format("tercet {}\narithmetic {}\ncompiler {}\n", TERCET_VERSION, kArithmeticVersion,
                     kCompiler);
}

}  // namespace tercet
