// All kernels of one instruction set. Everything here and below lies in the level's own namespace and calls
// nothing shared: see kernels.h.
#pragma once

#include "backend/cpu/attention-inl.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/logits-inl.h"
#include "backend/cpu/product-inl.h"
#include "backend/cpu/rounding-inl.h"
#include "backend/cpu/rows-inl.h"

#define TERCET_CPU_TEXT_(x) #x
#define TERCET_CPU_TEXT(x) TERCET_CPU_TEXT_(x)

namespace tercet::cpu::TERCET_CPU_LEVEL {

extern const Kernels kKernels;
const Kernels kKernels = {
    .name = TERCET_CPU_TEXT(TERCET_CPU_LEVEL),
    .product = product,
    .round_row = round_row,
    .round_head = round_head,
    .rms_norm = rms_norm,
    .rope = rope,
    .add = add,
    .add_product = add_product,
    .divide = divide,
    .swiglu = swiglu,
    .sigmoid = sigmoid,
    .attend_block = attend_block,
    .fold = fold,
    .largest = largest,
    .mass_sum = mass_sum,
    .log_probabilities = log_probabilities,
    .noisy_best = noisy_best,
};

}  // namespace tercet::cpu::TERCET_CPU_LEVEL
