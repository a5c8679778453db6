#include "backend/cuda/select/attention.h"

#include "backend/cuda/select/products.h"

namespace tercet::cuda {
namespace {

/// Tiles take a sequence's blocks one after another: from so many rows times KV heads on they are faster.
constexpr int64_t kTiledRowHeads = 160;

}  // namespace

Choice<AttentionKernel> choose_attention(const DeviceTraits& device, int64_t heads, int64_t kv_heads,
                                         int64_t rows) {
  if (device.plain) return {AttentionKernel::plain, "only the plain kernels are to run"};
  if (heads > kMaxSharing * kv_heads) {
    return {AttentionKernel::plain, "more query heads share a KV head than fast kernels take"};
  }
  if (rows * kv_heads < kTiledRowHeads)
    return {AttentionKernel::alone, "too few rows to fill the device with tiles"};
  if (!device.wgmma())
    return {AttentionKernel::mma, "rows enough to fill the device with tiles; it has no wgmma"};
  return {AttentionKernel::tiles, "rows enough to fill the device with tiles"};
}

Choice<FoldKernel> choose_fold(const DeviceTraits& device, bool all, int64_t rows, int64_t k,
                               int64_t leaves) {
  if (!all) return {FoldKernel::spans, "other rows of the step attend in tiles"};
  const std::string_view against = against_halves(device, rows, k);
  if (!against.empty()) return {FoldKernel::spans, against};
  if (k / leaves > kFoldedLeaf) return {FoldKernel::spans, "a leaf has more numbers than a block threads"};
  return {FoldKernel::rounding, "the product that follows takes halves, and a block has a whole leaf"};
}

std::string_view name_of(AttentionKernel kernel) {
  constexpr std::string_view kNames[] = {"attention", "attention_tiles", "attention_mma", "attention_blocks"};
  return kNames[static_cast<size_t>(kernel)];
}

std::string_view name_of(FoldKernel kernel) {
  constexpr std::string_view kNames[] = {"fold_spans", "fold_and_round"};
  return kNames[static_cast<size_t>(kernel)];
}

}  // namespace tercet::cuda
