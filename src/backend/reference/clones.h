#pragma once

/// For the two loops in which the reference spends its time: GCC makes a second version of the function with
/// AVX2 and FMA, and the program takes it where the machine has them. The source stays plain, and so do the
/// bits: no flag lets a compiler contract or reorder.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define TERCET_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define TERCET_CLONES
#endif

/// For what such a function calls: it must become part of both versions.
#define TERCET_INLINE [[gnu::always_inline]] inline
