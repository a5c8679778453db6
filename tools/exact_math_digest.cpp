// Prints "equal" when this build's exact_math.h gives the frozen digest. tests/test_compilers.py builds it
// with each compiler and optimisation level.
#include "ops/exact_math_digest.h"

#include <cstdio>

int main() {
  const bool equal = tercet::exact_math_digest() == tercet::kExactMathDigest;
  std::puts(equal ? "equal" : "different");
  return equal ? 0 : 1;
}
