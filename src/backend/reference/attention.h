// Attention over rounded queries, keys and values (docs/exactness.md, rule 8).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "ops/batch.h"

namespace tercet::reference {

/// A head's 128 values as whole numbers: value = n·2^(exponent − bits), |n| ≤ 2^bits; bits is 12 for queries
/// and keys, 10 for values. (The rule's fp16 form divided by 2^E holds the same numbers.)
struct RoundedHead {
  int16_t n[128];
  int8_t exponent;
};

/// Rounds q or k by its norm. False, and zeros, where it is not finite or too large.
bool round_by_norm(std::span<const float> head, RoundedHead& out);
/// Rounds v by its largest value.
bool round_by_largest(std::span<const float> head, RoundedHead& out);

/// The keys and values of one block of 64 absolute positions, for one KV head, as the cache holds them.
struct KeyBlock {
  const int16_t* keys;            // [64, 128]
  const int8_t* key_exponents;    // [64]
  const int16_t* values;          // [64, 128]
  const int8_t* value_exponents;  // [64]
};

/// out[128] of one query head at `position`, which sees keys 0 … position. block(b) gives block b.
void attend(const RoundedHead& query, int32_t position, const std::function<KeyBlock(int32_t)>& block,
            float* out);

}  // namespace tercet::reference
