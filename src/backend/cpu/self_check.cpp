#include "backend/cpu/self_check.h"

#include <cstring>
#include <limits>

#include "backend/cpu/packing.h"
#include "backend/reference/attention.h"
#include "backend/reference/draw.h"
#include "backend/reference/hard_rows.h"
#include "backend/reference/norm.h"
#include "backend/reference/product.h"
#include "backend/reference/rope.h"
#include "ops/exact_math.h"

namespace tercet::cpu {
namespace {

using reference::uniform;

constexpr int64_t kK = 512;

bool same(std::span<const float> a, std::span<const float> b) {
  return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// 16 outputs; the first has the largest q everywhere, the second the smallest.
struct MatrixBytes {
  std::vector<uint8_t> values;
  std::vector<uint16_t> scales, biases;
  MatrixData data;

  explicit MatrixBytes(int bits) {
    const int64_t row_bytes = bits == 0 ? 2 * kK : kK * bits / 8;
    for (int64_t i = 0; i < kTile * row_bytes; ++i) {
      const auto random = static_cast<uint8_t>(philox4x32(1, {static_cast<uint32_t>(i), 0, 0, 0})[0]);
      values.push_back(i < row_bytes ? uint8_t{255} : i < 2 * row_bytes ? uint8_t{0} : random);
    }
    for (uint32_t i = 0; bits == 0 && i < kTile * kK; ++i) {
      const uint16_t value = float_to_bf16(i < kK ? 1.0F : uniform(2, i));
      std::memcpy(&values[2 * i], &value, 2);
    }
    for (uint32_t i = 0; i < kTile * kK / 64; ++i) {
      scales.push_back(float_to_bf16(0.01F * (1.5F + uniform(3, i))));
      biases.push_back(float_to_bf16(-0.07F * (1.5F + uniform(4, i))));
    }
    data.n = kTile;
    data.k = kK;
    data.bits = bits;
    data.values = reinterpret_cast<const std::byte*>(values.data());
    data.scales = reinterpret_cast<const std::byte*>(scales.data());
    data.biases = reinterpret_cast<const std::byte*>(biases.data());
  }
};

bool check_products(const Kernels& kernels) {
  const auto rows = reference::hard_rows(static_cast<size_t>(kK));
  const auto count = static_cast<int64_t>(rows.size());
  bool good = true;
  for (const int bits : {4, 8, 0, 3, 6, 5}) {
    const MatrixBytes matrix(bits);
    const reference::Matrix plain = reference::pack(matrix.data);
    reference::RoundedRows x = reference::make_rounded(count, kK, 64);
    for (int64_t r = 0; r < count; ++r)
      reference::round_row(rows[static_cast<size_t>(r)], plain.form(), x, r, {});
    std::vector<float> expected(static_cast<size_t>(count * kTile));
    reference::product(x, plain, 0, kTile, expected.data(), kTile);

    const PackedMatrix packed = lay_out(matrix.data);
    const PackedBytes tile = allocate_packed(packed.bytes());
    pack_tile(matrix.data, packed, 0, tile.get());
    std::vector<uint8_t> numbers(static_cast<size_t>(count * 2 * kK));
    std::vector<float> unit(static_cast<size_t>(count * kK / 64)), sum(unit.size()), y(expected.size());
    std::vector<ProductRow> list;
    for (int64_t r = 0; r < count; ++r) {
      list.push_back({numbers.data() + r * 2 * kK, unit.data() + r * kK / 64, sum.data() + r * kK / 64,
                      y.data() + r * kTile});
      kernels.round_row(rows[static_cast<size_t>(r)].data(), packed.layout, numbers.data() + r * 2 * kK,
                        unit.data() + r * kK / 64, sum.data() + r * kK / 64, nullptr);
    }
    kernels.product(packed.layout, tile.get(), list.data(), count);
    good = good && same(y, expected);
    kernels.product(packed.layout, tile.get(), list.data(), 1);
    good = good && same(y, expected);
  }
  return good;
}

bool check_attention(const Kernels& kernels) {
  constexpr int kHeads = 8;
  const auto rows = reference::hard_rows(128);
  int16_t plain_keys[64 * 128], plain_values[64 * 128];
  std::vector<int16_t> keys(64 * 128), values(64 * 128);
  int8_t key_exponents[64], value_exponents[64];
  for (size_t slot = 0; slot < 64; ++slot) {
    reference::RoundedHead k, v;
    const float small = slot % 3 == 0 ? 0x1p-20F : 1.0F;  // among the test rows are some of 2^30
    std::vector<float> row = rows[slot % rows.size()];
    for (float& value : row) value = value * small;
    reference::round_by_norm(row, k);
    reference::round_by_largest(rows[(slot + 5) % rows.size()], v);
    key_exponents[slot] = k.exponent;
    value_exponents[slot] = v.exponent;
    for (size_t d = 0; d < 128; ++d) {
      plain_keys[slot * 128 + d] = k.n[d];
      plain_values[slot * 128 + d] = v.n[d];
      keys[slot / 16 * 2048 + d / 2 * 32 + slot % 16 * 2 + d % 2] = k.n[d];
      values[d / 16 * 1024 + slot / 2 * 32 + d % 16 * 2 + slot % 2] = v.n[d];
    }
  }
  std::vector<int16_t> queries(kHeads * 128);
  float size[kHeads];
  reference::RoundedHead plain_queries[kHeads];
  for (size_t h = 0; h < kHeads; ++h) {
    reference::round_by_norm(rows[h], plain_queries[h]);
    std::memcpy(queries.data() + h * 128, plain_queries[h].n, 256);
    size[h] = power_of_two(plain_queries[h].exponent);
  }
  const KeyBlock block{keys.data(), values.data(), key_exponents, value_exponents, keys.data()};
  const reference::KeyBlock plain{plain_keys, key_exponents, plain_values, value_exponents};
  for (const int visible : {1, 17, 64, 64 + 31}) {  // the last: two blocks
    std::vector<Partial> spans(kHeads);
    for (Partial& span : spans) span.empty = true;
    if (visible > 64) kernels.attend_block(queries.data(), size, kHeads, block, 64, spans.data());
    kernels.attend_block(queries.data(), size, kHeads, block, (visible - 1) % 64 + 1, spans.data());
    for (size_t h = 0; h < kHeads; ++h) {
      float expected[128], out[128];
      reference::attend(
          plain_queries[h], visible - 1, [&](int32_t) { return plain; }, expected);
      kernels.divide(spans[h].o, spans[h].l, 128, out);
      if (!same(out, expected)) return false;
    }
  }
  return true;
}

bool check_rows(const Kernels& kernels) {
  const reference::RopeFrequencies frequencies = reference::rope_frequencies(11158840.0);
  const auto angles = reference::rope_angles(frequencies, 12345);
  float cosines[64], sines[64];
  for (size_t i = 0; i < 64; ++i) {
    cosines[i] = angles[i].cos;
    sines[i] = angles[i].sin;
  }
  for (const std::vector<float>& x : reference::hard_rows(336)) {
    std::vector<float> weight(x.size()), expected(x.size()), out(x.size());
    for (size_t i = 0; i < x.size(); ++i) weight[i] = 1.0F + 0.5F * uniform(5, static_cast<uint32_t>(i));
    reference::rms_norm(x, weight, 1e-5F, expected);
    kernels.rms_norm(x.data(), weight.data(), static_cast<int64_t>(x.size()), 1e-5F, out.data());
    if (!same(out, expected)) return false;
    for (size_t i = 0; i < x.size(); ++i) expected[i] = swiglu(x[i], weight[i]);
    kernels.swiglu(x.data(), weight.data(), static_cast<int64_t>(x.size()), out.data());
    if (!same(out, expected)) return false;
    std::vector<float> head(x.begin(), x.begin() + 128), plain = head;
    reference::rope(plain, angles);
    kernels.rope(head.data(), cosines, sines);
    if (!same(head, plain)) return false;
    for (const bool by_norm : {true, false}) {
      reference::RoundedHead rounded;
      int16_t numbers[128];
      int8_t exponent = 0;
      const std::span<const float> part(x.data(), 128);
      const bool finite =
          by_norm ? reference::round_by_norm(part, rounded) : reference::round_by_largest(part, rounded);
      if (kernels.round_head(x.data(), by_norm, numbers, &exponent) != finite) return false;
      if (exponent != rounded.exponent || std::memcmp(numbers, rounded.n, 256) != 0) return false;
    }
  }
  return true;
}

bool check_logits(const Kernels& kernels) {
  std::vector<float> x(1000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 20.0F * uniform(6, static_cast<uint32_t>(i));
  const auto size = static_cast<int64_t>(x.size());
  const reference::Normaliser n = reference::normaliser(x);
  float max = 0.0F;
  if (!kernels.largest(x.data(), size, &max) || max != n.max) return false;
  const float log_mass = reference::log_of_mass(kernels.mass_sum(x.data(), size, max));
  if (log_mass != n.log_mass) return false;
  std::vector<float> expected(x.size()), out(x.size());
  reference::log_probabilities(x, expected);
  kernels.log_probabilities(x.data(), size, max, log_mass, out.data());
  DrawParams params;
  params.seed = 7;
  params.position = 9;
  const int64_t drawn = kernels.noisy_best(x.data(), size, params.seed, params.position);
  x[500] = std::numeric_limits<float>::quiet_NaN();
  const bool finite = kernels.largest(x.data(), size, &max);
  x[500] = 20.0F * uniform(6, 500);
  return same(out, expected) && drawn == reference::draw(x, params) && !finite;
}

}  // namespace

std::vector<std::string> failing_kernels(const Kernels& kernels) {
  std::vector<std::string> failing;
  if (!check_products(kernels)) failing.emplace_back("products");
  if (!check_attention(kernels)) failing.emplace_back("attention");
  if (!check_rows(kernels)) failing.emplace_back("norms, RoPE and SwiGLU");
  if (!check_logits(kernels)) failing.emplace_back("log-probabilities");
  return failing;
}

}  // namespace tercet::cpu
