// 16 lanes as an array, for the portable kernels.
#pragma once

#include <cstdint>
#include <cstring>

namespace tercet::cpu::TERCET_CPU_LEVEL {

inline constexpr int kRowsAtOnce = 4;
inline constexpr int kHeadsAtOnce = 4;
inline constexpr int kSumsAtOnce = 1;  // chains of dot products that keep a processor busy
inline constexpr int kHalves = 1;

struct alignas(64) F {
  float v[16];
};
struct alignas(64) I {
  int32_t v[16];
};
struct Mask {
  bool v[16];
};

/// f(lane) for every lane.
template <class Out, class Function>
Out each(Function f) {
  Out out;
  for (int i = 0; i < 16; ++i) out.v[i] = f(i);
  return out;
}

inline float float_from(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline uint32_t bits_from(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline F load(const float* p) {
  return each<F>([&](int i) { return p[i]; });
}
inline void store(float* p, const F& x) { std::memcpy(p, x.v, sizeof x.v); }
inline I load(const int32_t* p) {
  return each<I>([&](int i) { return p[i]; });
}
inline void store(int32_t* p, const I& x) { std::memcpy(p, x.v, sizeof x.v); }
inline I load_bytes(const int8_t* p) {
  return each<I>([&](int i) { return int32_t{p[i]}; });
}
inline void store_shorts(int16_t* p, const I& x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(x.v[i]);
}

inline F all(float x) {
  return each<F>([&](int) { return x; });
}
inline I all(int32_t x) {
  return each<I>([&](int) { return x; });
}
inline I lanes() {
  return each<I>([](int i) { return i; });
}

inline F operator+(const F& a, const F& b) {
  return each<F>([&](int i) { return a.v[i] + b.v[i]; });
}
inline F operator-(const F& a, const F& b) {
  return each<F>([&](int i) { return a.v[i] - b.v[i]; });
}
inline F operator*(const F& a, const F& b) {
  return each<F>([&](int i) { return a.v[i] * b.v[i]; });
}
inline F operator/(const F& a, const F& b) {
  return each<F>([&](int i) { return a.v[i] / b.v[i]; });
}
inline F fma(const F& a, const F& b, const F& c) {
  return each<F>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline F larger(const F& a, const F& b) {
  return each<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F nearest(const F& x) {
  return each<F>([&](int i) {
    const float magnitude = float_from(bits_from(x.v[i]) & 0x7fffffffU);
    const float rounded = (magnitude + 0x1p23F) - 0x1p23F;
    const float whole = float_from(bits_from(rounded) | (bits_from(x.v[i]) & 0x80000000U));
    return magnitude < 0x1p23F ? whole : x.v[i];
  });
}
inline F negated(const F& x) {
  return each<F>([&](int i) { return -x.v[i]; });
}

inline I operator+(const I& a, const I& b) {
  return each<I>([&](int i) { return static_cast<int32_t>(uint32_t(a.v[i]) + uint32_t(b.v[i])); });
}
inline I operator-(const I& a, const I& b) {
  return each<I>([&](int i) { return static_cast<int32_t>(uint32_t(a.v[i]) - uint32_t(b.v[i])); });
}
inline I operator&(const I& a, const I& b) {
  return each<I>([&](int i) { return a.v[i] & b.v[i]; });
}
inline I operator^(const I& a, const I& b) {
  return each<I>([&](int i) { return a.v[i] ^ b.v[i]; });
}
inline I larger(const I& a, const I& b) {
  return each<I>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int N>
I shift_left(const I& x) {
  return each<I>([&](int i) { return static_cast<int32_t>(uint32_t(x.v[i]) << N); });
}
template <int N>
I shift_right(const I& x) {
  return each<I>([&](int i) { return x.v[i] >> N; });
}
template <int N>
I shift_right_unsigned(const I& x) {
  return each<I>([&](int i) { return static_cast<int32_t>(uint32_t(x.v[i]) >> N); });
}
inline I shift_left(const I& x, const I& by) {
  return each<I>([&](int i) { return static_cast<int32_t>(uint32_t(x.v[i]) << (by.v[i] & 31)); });
}
/// The two 32-bit halves of a·b as unsigned numbers.
inline void multiply_wide(const I& a, uint32_t b, I& high, I& low) {
  for (int i = 0; i < 16; ++i) {
    const uint64_t product = uint64_t{static_cast<uint32_t>(a.v[i])} * b;
    high.v[i] = static_cast<int32_t>(product >> 32);
    low.v[i] = static_cast<int32_t>(product & 0xffffffffU);
  }
}

inline I bits_of(const F& x) {
  return each<I>([&](int i) { return static_cast<int32_t>(bits_from(x.v[i])); });
}
inline F float_of_bits(const I& x) {
  return each<F>([&](int i) { return float_from(static_cast<uint32_t>(x.v[i])); });
}
inline F to_float(const I& x) {
  return each<F>([&](int i) { return static_cast<float>(x.v[i]); });
}
/// Of floats to the nearest whole number, ties to even, where that fits; something else where it does not.
inline I to_int(const F& x) {
  const F whole = nearest(x);
  return each<I>([&](int i) {
    const float limited = whole.v[i] > -0x1p30F ? (whole.v[i] < 0x1p30F ? whole.v[i] : 0x1p30F) : -0x1p30F;
    return static_cast<int32_t>(limited);
  });
}

inline Mask less(const F& a, const F& b) {
  return each<Mask>([&](int i) { return a.v[i] < b.v[i]; });
}
inline Mask less(const I& a, const I& b) {
  return each<Mask>([&](int i) { return a.v[i] < b.v[i]; });
}
inline F choose(const Mask& where, const F& a, const F& b) {
  return each<F>([&](int i) { return where.v[i] ? a.v[i] : b.v[i]; });
}
inline I choose(const Mask& where, const I& a, const I& b) {
  return each<I>([&](int i) { return where.v[i] ? a.v[i] : b.v[i]; });
}

template <class Lanes>
auto largest_of(const Lanes& x) {
  auto out = x.v[0];
  for (int i = 1; i < 16; ++i) out = x.v[i] > out ? x.v[i] : out;
  return out;
}
inline int32_t sum_of(const I& x) {
  int32_t out = 0;
  for (int i = 0; i < 16; ++i) out += x.v[i];
  return out;
}
/// Lane j takes lane j + 8, j + 4, j + 2, j + 1 (rule 5).
inline float tree_sum(F x) {
  for (int step = 8; step >= 1; step /= 2) {
    for (int j = 0; j < step; ++j) x.v[j] = x.v[j] + x.v[j + step];
  }
  return x.v[0];
}

/// Sums of whole numbers up to 2^40.
struct WideSum {
  uint64_t sum[16] = {};

  void add(const F& x) {
    for (int i = 0; i < 16; ++i) sum[i] += static_cast<uint64_t>(x.v[i]);
  }
  uint64_t total() const {
    uint64_t out = 0;
    for (const uint64_t value : sum) out += value;
    return out;
  }
};

inline F load_bf16(const uint8_t* p) {
  return each<F>([&](int i) {
    uint16_t bits;
    std::memcpy(&bits, p + 2 * i, 2);
    return float_from(uint32_t{bits} << 16);
  });
}
inline F load_f16(const uint8_t* p) {
  return each<F>([&](int i) {
    uint16_t bits;
    std::memcpy(&bits, p + 2 * i, 2);
    // Exponent and mantissa as a float32's, then rebiased by a product, which also makes subnormals right.
    const float magnitude = float_from(uint32_t{bits & 0x7fffU} << 13) * 0x1p112F;
    return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
  });
}

/// Bytes of a row as products want them (ProductRow), from 16 values of a and b.
inline void store_planes(uint8_t* p, const I& a, const I& b) {
  for (int i = 0; i < 16; ++i) {
    uint8_t* block = p + i / 8 * 16 + i % 2 * 4 + i % 8 / 2;
    block[0] = static_cast<uint8_t>(a.v[i]);
    block[8] = static_cast<uint8_t>(b.v[i]);
  }
}

/// A tile's block of packed weights, or of cached numbers.
struct alignas(64) Register {
  uint8_t v[64];
};
inline Register load_register(const void* p) {
  Register out;
  std::memcpy(out.v, p, 64);
  return out;
}
/// Bits [kShift, kShift + kBits) of each byte.
template <int kShift, int kBits>
inline Register bits_at(const Register& x) {
  Register out;
  for (int i = 0; i < 64; ++i) out.v[i] = (x.v[i] >> kShift) & ((1U << kBits) - 1);
  return out;
}

using Wide = I;
template <int kHalf>
void add_half(I& d, const I& x) {
  d = d + x;
}
inline void prefetch(const void*) {}

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
