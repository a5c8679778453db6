// The bf16 twin of a quantised checkpoint, as Hugging Face would publish it.
#pragma once

#include "base/error.h"
#include "model/hy_v3/tensor_names.h"
#include "weights/checkpoint.h"

namespace tercet::hy_v3 {

/// Every matrix as fl(fl(scale·q) + bias) in float32, rounded to bf16; vectors as they are. The MTP layer,
/// where the checkpoint has one, is named as the spelling has it. The result reads the original when it is
/// read, on `threads` threads; its config.json lacks the quantisation. Errors: those of reading the original.
Result<Checkpoint> to_bf16(const Checkpoint& checkpoint, Spelling spelling, int threads);

}  // namespace tercet::hy_v3
