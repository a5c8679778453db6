// "Did you mean …?"
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tercet {

/// Insertions, deletions, substitutions and swaps of neighbours that turn one into the other (optimal string
/// alignment).
int edit_distance(std::string_view a, std::string_view b);

/// The candidate that a person who typed `name` most likely meant: one that `name` abbreviates, or one that
/// differs by a few typing errors. Empty where there is none. Among equals the first.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

}  // namespace tercet
