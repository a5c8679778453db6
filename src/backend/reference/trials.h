// Random rounds of every operation on random and hard rows of random shapes, for any backend: two that follow
// the rules give the same bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ops/ops.h"

namespace tercet::reference {

/// What a backend makes of one round: the bytes to compare.
using Outcome = std::vector<float>;

struct Trial {
  std::string_view name;
  Outcome (*run)(Ops& ops, uint64_t seed);
};

/// Some milliseconds each on a fast backend.
std::span<const Trial> trials();

bool same(const Outcome& a, const Outcome& b);

}  // namespace tercet::reference
