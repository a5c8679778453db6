#pragma once

namespace tercet {

/// The version of the rules in docs/exactness.md. Equal versions, checkpoints and tokens mean equal bits.
inline constexpr int kArithmeticVersion = 1;

}  // namespace tercet
