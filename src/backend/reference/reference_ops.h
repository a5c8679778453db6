// The backend that defines the bits: plain C++, whole numbers and floats, written to be read. Every other
// backend equals it. It is not meant to be fast; it is meant to be checked by eye.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace tercet {

/// `threads` work on disjoint rows or outputs, so their number changes no bit.
std::unique_ptr<Ops> make_reference_ops(int threads);

}  // namespace tercet
