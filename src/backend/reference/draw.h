// Log-probabilities and draws of one row of logits (docs/exactness.md, rule 12). fl(…) is one rounding to
// float32, ties to even; nothing else rounds.
//
// Log-probabilities. M is the largest logit; d = fl(x − M). A token's mass is the whole number nearest to
// exp2(fl(d·log2 e))·2^40, ties to even; S is the sum of all masses as 64-bit whole numbers, so in any order.
// logprob = fl(d − fl(ln 2 · log2(fl(S)·2^-40))). A row with a logit that is not finite fails.
//
// A draw, in this order:
// 1. For tokens in the context: l = l > 0 ? fl(l ÷ r) : fl(l·r), r the repetition penalty. For tokens n ≥ 1
//    times in the answer: l = fl(l − presence), then l = fl(l − fl(frequency·n)). For each bias: l = fl(l +
//    b). A neutral penalty (1, 0, 0) changes nothing. Tokens that the mask forbids are no candidates.
// 2. Temperature 0: the candidate of the largest l, ties to the lower index; −0 equals +0.
// 3. Otherwise v = fl(l ÷ T). Candidates are ordered by v descending, then index ascending (−0 equals +0).
// 4. top-k: the first k stay. From here on a candidate's mass is that of v relative to the first one's.
// 5. top-p below 1: with S′ the sum of the remaining masses and limit = ⌊p·S′⌋, p and S′ in binary64 (S′
//    rounded to it, then the product), a candidate stays while the masses before it sum to less than the
//    limit; the first always stays.
// 6. min-p above 0: a candidate stays where its mass is at least ⌊p·2^40⌋.
// 7. Each gets noise: w = Philox4x32-10(key = seed, counter = {position, token, 0, 0})[0], k = w >> 9,
//    u = (2k + 1)·2^-24, e = −fl(ln 2·log2(u)), noise = −fl(ln 2·log2(e)). The largest fl(v + noise) wins,
//    ties to the lower index.
// The draw fails where no candidate is left after the mask, or where l or v of a candidate is not finite.
#pragma once

#include <cstdint>
#include <span>

#include "ops/draw.h"

namespace tercet::reference {

/// Mass of a logit x ≤ max, in [0, 2^40].
uint64_t mass(float x, float max);

/// fl(ln 2 · log2(fl(S)·2^-40)), for S ≥ 2^40.
float log_of_mass(uint64_t sum);

/// What a logit's log-probability is taken from.
struct Normaliser {
  float max = 0.0F;
  float log_mass = 0.0F;
};

/// Of finite logits, at least one.
Normaliser normaliser(std::span<const float> logits);
float log_probability(float logit, const Normaliser& normaliser);
void log_probabilities(std::span<const float> logits, std::span<float> out);

/// The token drawn, or −1 where the draw fails. The logits are finite.
int32_t draw(std::span<const float> logits, const DrawParams& params);

/// Everything `output` asks of its row. Where logits or the draw fail, `failed` alone is set.
RowResult evaluate(std::span<const float> logits, const RowOutput& output);

}  // namespace tercet::reference
