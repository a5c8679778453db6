// Element types of checkpoints and their conversion to float32.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tercet {

/// The element types of the safetensors format, under its own names ("F32", "BF16", "F8_E4M3" …).
enum class DType : uint8_t {
  boolean,
  u8,
  i8,
  f8_e4m3,
  f8_e5m2,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64
};

/// Bytes of one element.
int dtype_size(DType dtype);
/// The safetensors name.
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

/// bfloat16 is float32's upper half: exact.
inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

/// Round to nearest even; NaN stays NaN.
inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// IEEE binary16, subnormals, infinities and NaN included: exact.
float f16_to_float(uint16_t bits);
/// Round to nearest even; overflow becomes infinity, NaN stays NaN.
uint16_t float_to_f16(float x);

}  // namespace tercet
