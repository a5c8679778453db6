// Barriers in shared memory that count arrivals, and bytes of bulk copies. They turn over, so a waiter names
// the parity of the phase.
#pragma once

#include <cstdint>

namespace tercet::cuda {

__device__ inline void barrier_init(uint32_t at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ inline void barrier_arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
/// Arrives, and more bytes are to come by copies that name the barrier.
__device__ inline void barrier_expect(uint32_t at, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
/// Arrives once this thread's copies so far (copies.cuh) have.
__device__ inline void barrier_arrive_after_copies(uint32_t at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
__device__ inline void barrier_wait(uint32_t at, uint32_t parity) {
  uint32_t over = 0;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#endif
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(over)
        : "r"(at), "r"(parity)
        : "memory");
  } while (over == 0);
}

// From sm_90 on.

/// What this thread did to shared memory comes before what bulk copies and wgmma do to it from here on.
__device__ inline void fence_for_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Copies `bytes`, a multiple of 16 as the addresses are, from global to shared memory; the barrier counts
/// them. By one thread.
__device__ inline void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(barrier)
      : "memory");
}
/// The same as far as the second cache.
__device__ inline void prefetch_bulk(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(global)),
               "r"(bytes));
}

}  // namespace tercet::cuda
