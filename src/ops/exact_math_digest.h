// A fingerprint of exact_math.h: equal on every compiler, optimisation level and machine.
#pragma once

#include "ops/exact_math.h"

namespace tercet {

inline constexpr uint64_t kExactMathDigest = 3466700031891322326ULL;

/// FNV-1a over the results of every function on floats spread over its whole range.
inline uint64_t exact_math_digest() {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto add = [&hash](float x) { hash = (hash ^ float_bits(x)) * 0x100000001b3ULL; };
  for (uint32_t bits = 0x00800000U; bits < 0x7f800000U; bits += 10007) {
    const float x = float_from_bits(bits);
    add(log2_(x));
    add(sigmoid(x));
    add(swiglu(-x, 3.0F));
    add(round_to_step(x, static_cast<int>(bits % 12) - 10));
    if (x < 128.0F) {
      add(exp2_(x));
      add(exp2_(-x));
    }
    if (x < 0x1p29F) {
      add(sin_cos(x).sin);
      add(sin_cos(x).cos);
    }
  }
  for (int i = 0; i < 64; ++i) add(rope_frequency(11158840.0, i));
  return hash;
}

}  // namespace tercet
