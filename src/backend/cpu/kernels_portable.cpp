// Plain C++ in the structure of the vector kernels: for machines without their instructions. A compiler makes
// vectors of its own from the loops over lanes (NEON on ARM).
#define TERCET_CPU_LEVEL portable
#include "backend/cpu/kernels-inl.h"
#include "backend/cpu/simd_portable-inl.h"
