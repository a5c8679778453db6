// Shared memory by its addresses, as asynchronous copies, ldmatrix and wgmma take them.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/copies.cuh"

namespace tercet::cuda {

/// Where rows of 64 fp16 numbers lie in shared memory, as wgmma reads them with a swizzle of 128 bytes and
/// ldmatrix without conflicts: rows of 128 bytes, of each eight rows (1,024 bytes, aligned likewise) piece c
/// of 16 bytes at c ^ row.
__device__ inline uint32_t swizzled(int row, int piece) {
  return static_cast<uint32_t>(row * 128 + ((piece ^ row) & 7) * 16);
}

/// An address in shared memory as a number that the compiler does not work out anew wherever it is used.
__device__ inline uint32_t held_address(const void* shared) {
  uint32_t at = shared_address(shared);
  asm volatile("mov.u32 %0, %0;" : "+r"(at));
  return at;
}

/// The same of a block's dynamic shared memory, a multiple of 1,024.
__device__ inline uint32_t shared_begin(const uint8_t* memory) {
  const uint32_t at = held_address(memory);
  if (at % 1024 != 0) __trap();
  return at;
}

__device__ inline uint4 read_words(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
__device__ inline uint2 read_pair(uint32_t at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
  return x;
}
__device__ inline float4 read_floats(uint32_t at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
__device__ inline float2 read_two_floats(uint32_t at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
  return x;
}
__device__ inline float read_float(uint32_t at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}
__device__ inline int read_int(uint32_t at) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
__device__ inline int read_byte(uint32_t at) {
  int x;
  asm volatile("ld.shared.s8 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
__device__ inline void write_byte(uint32_t at, int x) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ inline void write_floats(uint32_t at, float4 x) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
}
__device__ inline void write_float(uint32_t at, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
__device__ inline void write_pair(uint32_t at, uint2 x) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(x.x), "r"(x.y) : "memory");
}
__device__ inline void write_int(uint32_t at, int x) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ inline void write_half(uint32_t at, uint16_t x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(x) : "memory");
}

}  // namespace tercet::cuda
