#include "apps/nearest.h"

#include <algorithm>
#include <vector>

namespace tercet {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1);
  std::vector<int> above(b.size() + 1);
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string nearest(std::string_view name, std::span<const std::string> candidates) {
  // "--" alone abbreviates every option, so an abbreviation needs three characters after the dashes.
  const size_t dashes = std::min(name.find_first_not_of('-'), name.size());
  const size_t letters = name.size() - dashes;
  int best = 1 + static_cast<int>(letters / 4);
  if (letters < 2) return "";
  std::string found;
  for (const std::string& candidate : candidates) {
    const bool abbreviated = letters >= 3 && candidate.starts_with(name);
    const int distance = abbreviated ? 1 : edit_distance(name, candidate);
    if (distance < best || (distance == best && found.empty())) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

}  // namespace tercet
