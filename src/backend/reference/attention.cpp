#include "backend/reference/attention.h"

#include <algorithm>
#include <array>

#include "backend/reference/clones.h"
#include "backend/reference/rounding.h"
#include "ops/exact_math.h"

namespace tercet::reference {
namespace {

constexpr int kBlocksInSpan = 4;
constexpr float kScale = 0x1.0527dcp-3F;  // fl(log2(e)/√128)

bool round_head(std::span<const float> head, float size, int bits, RoundedHead& out) {
  const int e = ceil_exponent(size);
  const bool finite = !exponent_fails(e);
  out.exponent = static_cast<int8_t>(finite ? e : 0);
  const int step = out.exponent - bits;
  for (size_t i = 0; i < head.size(); ++i) {
    out.n[i] = finite ? static_cast<int16_t>(round_to_step(head[i], step) * power_of_two(-step)) : int16_t{0};
  }
  return finite;
}

float largest_magnitude(std::span<const float> x) {
  uint32_t largest = 0;  // as bits, so that NaN counts as larger than all
  for (const float value : x) largest = std::max(largest, float_bits(value) & 0x7fffffffU);
  return float_from_bits(largest);
}

/// The running result of a block, a span or the whole row: O and l relative to 2^M.
struct Partial {
  bool empty = true;
  float m = 0.0F;  // whole
  float l = 0.0F;
  std::array<float, 128> o{};
};

/// 2^difference for a whole difference ≤ 0; below 2^-60 it counts as 0.
float fold_factor(float difference) {
  return difference < -60.0F ? 0.0F : power_of_two(static_cast<int>(difference));
}

void fold(Partial& into, const Partial& next) {
  if (next.empty) return;
  if (into.empty) {
    into = next;
    return;
  }
  const float m = std::max(into.m, next.m);
  const float a = fold_factor(into.m - m);
  const float b = fold_factor(next.m - m);
  for (size_t d = 0; d < 128; ++d) into.o[d] = into.o[d] * a + next.o[d] * b;
  into.l = into.l * a + next.l * b;
  into.m = m;
}

/// The order in which a thread of an mma fragment holds 64 keys: a_t adds keys 2t, 2t+1, 8+2t, 8+2t+1, …
float fragment_sum(const std::array<float, 64>& x) {
  std::array<float, 4> a{};
  for (size_t t = 0; t < 4; ++t) {
    for (size_t base = 0; base < 64; base += 8) {
      a[t] = a[t] + x[base + 2 * t];
      a[t] = a[t] + x[base + 2 * t + 1];
    }
  }
  return (a[0] + a[1]) + (a[2] + a[3]);
}

TERCET_INLINE int32_t dot(const int16_t* a, const int16_t* b) {
  int32_t sum = 0;
  for (int i = 0; i < 128; ++i) sum += int32_t{a[i]} * b[i];
  return sum;
}

/// sum[d] += weight·v[d].
TERCET_CLONES void add_weighted(int32_t* __restrict sum, int32_t weight, const int16_t* __restrict v) {
  for (int d = 0; d < 128; ++d) sum[d] += weight * v[d];
}

TERCET_CLONES
Partial attend_block(const RoundedHead& q, const KeyBlock& block, int visible) {
  std::array<float, 64> t{};
  std::array<float, 64> whole{};
  Partial out;
  for (int key = 0; key < visible; ++key) {
    const float units = static_cast<float>(dot(q.n, block.keys + key * 128)) * 0x1p-24F;
    const float qk = units * power_of_two(q.exponent + block.key_exponents[key]);
    const auto i = static_cast<size_t>(key);
    t[i] = qk * kScale;
    whole[i] = nearest(t[i]);
    out.m = out.empty ? whole[i] : std::max(out.m, whole[i]);
    out.empty = false;
  }
  std::array<float, 64> p{};         // exp2(t − m)
  std::array<float, 64> weighted{};  // p' = p·2^(E of v)
  for (int key = 0; key < visible; ++key) {
    const auto i = static_cast<size_t>(key);
    const float below = whole[i] - out.m;
    if (below < -100.0F) continue;
    p[i] = exp2_(t[i] - whole[i]) * power_of_two(static_cast<int>(below));
    weighted[i] = p[i] * power_of_two(block.value_exponents[key]);
  }
  out.l = fragment_sum(p);
  // The margin of 2^-7 covers the rounding of 64 weights, so that Σ P·v stays exact.
  const int z = ceil_exponent(fragment_sum(weighted) * (1.0F + 0x1p-7F));
  const float per_unit = power_of_two(14 - z);
  std::array<int32_t, 128> sum{};
  for (int key = 0; key < visible; ++key) {
    const float rounded = round_to_step(weighted[static_cast<size_t>(key)], z - 14);
    const auto weight = static_cast<int16_t>(rounded * per_unit);
    add_weighted(sum.data(), weight, block.values + key * 128);
  }
  for (size_t d = 0; d < 128; ++d) out.o[d] = static_cast<float>(sum[d]) * power_of_two(z - 24);
  return out;
}

}  // namespace

bool round_by_norm(std::span<const float> head, RoundedHead& out) {
  const float largest = largest_magnitude(head);
  const bool finite = !exponent_fails(ceil_exponent(largest));
  return round_head(head, finite ? norm_of(head) * (1.0F + 0x1p-9F) : largest, 12, out);
}

bool round_by_largest(std::span<const float> head, RoundedHead& out) {
  return round_head(head, largest_magnitude(head), 10, out);
}

void attend(const RoundedHead& query, int32_t position, const std::function<KeyBlock(int32_t)>& block,
            float* out) {
  Partial row;
  const int32_t blocks = position / kPageTokens + 1;
  for (int32_t first = 0; first < blocks; first += kBlocksInSpan) {
    Partial span;
    for (int32_t b = first; b < std::min(first + kBlocksInSpan, blocks); ++b) {
      const int visible = std::min(kPageTokens, position + 1 - b * kPageTokens);
      fold(span, attend_block(query, block(b), visible));
    }
    fold(row, span);
  }
  for (size_t d = 0; d < 128; ++d) out[d] = row.o[d] / row.l;
}

}  // namespace tercet::reference
