#pragma once

#include <cstdint>

namespace tercet {

/// Into how many equal leaves a product's K is cut (docs/exactness.md, rule 3): the largest of 8, 4, 2, 1
/// that divides the groups and leaves at least 8 groups in a leaf.
constexpr int64_t leaf_count(int64_t groups) {
  for (const int64_t leaves : {8, 4, 2}) {
    if (groups % leaves == 0 && groups / leaves >= 8) return leaves;
  }
  return 1;
}

}  // namespace tercet
