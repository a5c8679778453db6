// The scalar functions of the arithmetic (docs/exactness.md, rule 0), for host and device alike: built from
// IEEE +, −, ×, ÷, √ and fma, integers, conversions and comparisons only, so every compiler and machine gives
// the same bits. Whoever compiles this must not contract or reassociate (-ffp-contract=off, --fmad=false).
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TERCET_HD __host__ __device__ inline
#else
#define TERCET_HD inline
#endif

namespace tercet {

TERCET_HD uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

TERCET_HD float float_from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

#ifdef __CUDA_ARCH__
TERCET_HD float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TERCET_HD double fma_(double a, double b, double c) { return __fma_rn(a, b, c); }
TERCET_HD float sqrt_(float x) { return __fsqrt_rn(x); }
#else
TERCET_HD float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TERCET_HD double fma_(double a, double b, double c) { return __builtin_fma(a, b, c); }
TERCET_HD float sqrt_(float x) { return __builtin_sqrtf(x); }
#endif
TERCET_HD float abs_(float x) { return float_from_bits(float_bits(x) & 0x7fffffffU); }

/// True for NaN and infinities.
TERCET_HD bool not_finite(float x) { return (float_bits(x) & 0x7f800000U) == 0x7f800000U; }

/// The whole number nearest to x, ties to even; the sign of zero is x's. Above 2^23 all floats are whole.
TERCET_HD float nearest(float x) {
  const float magnitude = abs_(x);
  if (!(magnitude < 0x1p23F)) return x;
  const float rounded = (magnitude + 0x1p23F) - 0x1p23F;
  return float_from_bits(float_bits(rounded) | (float_bits(x) & 0x80000000U));
}

/// 2^e as a float: +0 below the subnormals (e < −149), infinity above 127.
TERCET_HD float power_of_two(int e) {
  if (e > 127) return float_from_bits(0x7f800000U);
  if (e >= -126) return float_from_bits(static_cast<uint32_t>(e + 127) << 23);
  return e >= -149 ? float_from_bits(uint32_t{1} << (e + 149)) : 0.0F;
}

/// The exponents that rows and groups may have: a tiny row counts as one of size 2^-64, a row above 2^63
/// fails (exponent_fails).
constexpr int kMinExponent = -64;
constexpr int kMaxExponent = 63;

/// e of the smallest power of two 2^e ≥ y, for y ≥ 0; kMinExponent below that. Infinity and NaN: 128 or more.
TERCET_HD int ceil_exponent(float y) {
  const uint32_t bits = float_bits(y);
  const int e = static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffU) != 0 ? 1 : 0);
  return e < kMinExponent ? kMinExponent : e;
}

TERCET_HD bool exponent_fails(int e) { return e > kMaxExponent; }

/// x rounded to nearest even to a multiple of the larger of 2^step and its own 11-bit step
/// 2^(⌊log2|x|⌋ − 10), in one rounding: at most 11 significant bits remain. `step` ≥ −88.
TERCET_HD float round_to_step(float x, int step) {
  const int own = static_cast<int>((float_bits(x) >> 23) & 255U) - 137;
  const int s = own > step ? own : step;
  return nearest(x * power_of_two(-s)) * power_of_two(s);
}

/// 2^y. Error at most 1 ulp on [−126, 128); below −126 the result is +0, from 128 on infinity; NaN stays NaN.
/// The polynomial interpolates (2^f − 1)/f at Chebyshev nodes of [−½, ½].
TERCET_HD float exp2_(float y) {
  if (y < -126.0F) return 0.0F;
  if (y >= 128.0F) return float_from_bits(0x7f800000U);
  if (!(y == y)) return y;
  const float whole = nearest(y);
  const float f = y - whole;
  float p = 0x1.44138ap-13F;
  p = fma_(p, f, 0x1.5f0890p-10F);
  p = fma_(p, f, 0x1.3b2a54p-7F);
  p = fma_(p, f, 0x1.c6af6cp-5F);
  p = fma_(p, f, 0x1.ebfbe0p-3F);
  p = fma_(p, f, 0x1.62e430p-1F);
  p = fma_(p, f, 1.0F);
  // p lies in [0.707, 1.415]; halves keep 2^whole finite where whole is 128.
  const int e = static_cast<int>(whole);
  return p * power_of_two(e - e / 2) * power_of_two(e / 2);
}

/// log2(x) for normal positive x. Error at most 2 ulp. With x = 2^e·(1 + f), 1 + f in [√½, √2), the
/// polynomial interpolates (log2(1 + f) − f·log2(e))/f² at Chebyshev nodes.
TERCET_HD float log2_(float x) {
  const uint32_t bits = float_bits(x);
  const int e = static_cast<int>(bits - 0x3f3504f3U) >> 23;
  const float f = float_from_bits(bits - (static_cast<uint32_t>(e) << 23)) - 1.0F;
  float q = 0x1.900022p-4F;
  q = fma_(q, f, -0x1.5579e8p-3F);
  q = fma_(q, f, 0x1.5d018cp-3F);
  q = fma_(q, f, -0x1.6efd84p-3F);
  q = fma_(q, f, 0x1.a48380p-3F);
  q = fma_(q, f, -0x1.ec7732p-3F);
  q = fma_(q, f, 0x1.277c3ep-2F);
  q = fma_(q, f, -0x1.715480p-2F);
  q = fma_(q, f, 0x1.ec7094p-2F);
  q = fma_(q, f, -0x1.715474p-1F);
  return static_cast<float>(e) + fma_(f, 0x1.715476p+0F, (f * f) * q);
}

constexpr float kLog2E = 0x1.715476p+0F;  // log2(e), rounded
constexpr float kLn2 = 0x1.62e430p-1F;    // ln(2), rounded

/// 1 ÷ (1 + e^−x), by fl(x·log2 e): within 1.5e-7·(1 + |x|/2) relative for x > −87; 0 below.
TERCET_HD float sigmoid(float x) { return 1.0F / (1.0F + exp2_(-(x * kLog2E))); }

/// silu(gate)·up, rounded as fl(fl(gate·σ(gate))·up) (rule 9).
TERCET_HD float swiglu(float gate, float up) { return (gate * sigmoid(gate)) * up; }

/// log2(x) and 2^y in binary64, for tables made once: about 2 ulp of binary64.
TERCET_HD double log2_double(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  int e = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  if (m > 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    e += 1;
  }
  // log2(m) = 2/ln 2 · atanh(s), by its series; |s| ≤ 0.172, so the first term left out is below 1e-19.
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double sum = 0.0;
  for (int n = 23; n >= 1; n -= 2) sum = sum * s2 + 1.0 / n;
  return e + 0x1.71547652b82fep+1 * (s * sum);
}

TERCET_HD double exp2_double(double y) {
  const double whole = (y + 0x1.8p52) - 0x1.8p52;
  const double z = (y - whole) * 0x1.62e42fefa39efp-1;
  double sum = 1.0;
  for (int n = 18; n >= 1; --n) sum = 1.0 + sum * z / n;  // Taylor; |z| ≤ 0.35
  const uint64_t bits = static_cast<uint64_t>(static_cast<int64_t>(whole) + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return sum * power;
}

struct SinCos {
  float sin;
  float cos;
};

/// Sine and cosine of a float32 angle with |angle| < 2^30, computed in binary64 and rounded once: within
/// 0.51 ulp. π/2 is taken in two parts of 53 bits each, Taylor series on [−π/4, π/4].
TERCET_HD SinCos sin_cos(float angle) {
  const double a = angle;
  const double quarter = (a * 0x1.45f306dc9c883p-1 + 0x1.8p52) - 0x1.8p52;
  double r = fma_(-quarter, 0x1.921fb54442d18p+0, a);
  r = fma_(-quarter, 0x1.1a62633145c07p-54, r);
  const double r2 = r * r;
  double s = 1.0;
  double c = 1.0;
  for (int n = 16; n >= 2; n -= 2) {
    s = 1.0 - s * r2 / (n * (n + 1));
    c = 1.0 - c * r2 / (n * (n - 1));
  }
  s *= r;
  const int quadrant = static_cast<int>(static_cast<int64_t>(quarter) & 3);
  const double sine = (quadrant & 1) != 0 ? c : s;
  const double cosine = (quadrant & 1) != 0 ? s : c;
  return {static_cast<float>((quadrant & 2) != 0 ? -sine : sine),
          static_cast<float>(((quadrant + 1) & 2) != 0 ? -cosine : cosine)};
}

/// θ^(−2i/128) rounded to float32 (rule 7), i in [0, 64).
TERCET_HD float rope_frequency(double theta, int i) {
  return static_cast<float>(exp2_double(-(i / 64.0) * log2_double(theta)));
}

}  // namespace tercet
