#include "weights/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <string_view>

#include "base/check.h"
#include "base/philox.h"
#include "base/threads.h"
#include "weights/generated_source.h"

namespace tercet {
namespace {

using Bits = std::array<uint32_t, 4>;

const double kSqrt3 = std::sqrt(3.0);

/// Reads take turns: a ThreadPool serves one caller.
struct Workers {
  explicit Workers(int threads) : pool(threads) {}
  ThreadPool pool;
  std::mutex turn;
};

/// FNV-1a.
uint64_t hash(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h;
}

/// out[i] = draw(block i / kPerBlock, i % kPerBlock): a block is 128 random bits.
template <int kPerBlock, class T, class Draw>
TensorBytes fill(Workers& workers, uint64_t seed, std::string_view stream, int64_t count, const Draw& draw) {
  auto [out, bytes] = new_tensor<T>(count);
  const uint64_t key = hash(stream);
  const auto fill_blocks = [&, out = out](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const Bits bits = philox4x32(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                         static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
      const int64_t first = block * kPerBlock;
      const int in_block = static_cast<int>(std::min<int64_t>(kPerBlock, count - first));
      for (int j = 0; j < in_block; ++j) out[first + j] = draw(bits, j);
    }
  };
  const std::lock_guard lock(workers.turn);
  workers.pool.parallel_for((count + kPerBlock - 1) / kPerBlock, 1 << 14, fill_blocks);
  return bytes;
}

/// 16 bits of a block to (-1, 1).
double symmetric16(const Bits& bits, int j) {
  const uint32_t half = bits[static_cast<size_t>(j / 2)] >> (j % 2 * 16) & 0xffff;
  return (static_cast<double>(half) - 32767.5) * 0x1p-15;
}

uint16_t to_bf16(double x) { return float_to_bf16(static_cast<float>(x)); }

/// The scale and the bias of group j of a block: half a block for each.
struct GroupDraw {
  double base;  // scale's mean
  double middle;

  GroupDraw(double spread, int bits) {
    const double levels = std::ldexp(1.0, bits);
    base = spread / std::sqrt((levels * levels - 1) / 12);  // q is uniform over `levels` whole numbers
    middle = (levels - 1) / 2;
  }
  uint16_t scale(const Bits& bits, int j) const {
    const uint32_t r = bits[static_cast<size_t>(2 * j)];
    const double factor = 0.5 + (r >> 8) * 0x1p-24;
    return to_bf16((r & 1) != 0 ? -base * factor : base * factor);
  }
  uint16_t bias(const Bits& bits, int j) const {
    const double off_centre = (bits[static_cast<size_t>(2 * j + 1)] >> 8) * 0x1p-24 - 0.5;
    return to_bf16(-static_cast<double>(bf16_to_float(scale(bits, j))) * (middle + off_centre));
  }
};

TensorBytes make(const SyntheticTensor& tensor, uint64_t seed, Workers& workers) {
  const std::string& name = tensor.info.name;
  const int64_t count = tensor.info.elements();
  const double scale = tensor.scale;
  const std::string groups = name.substr(0, name.rfind('.')) + ".groups";
  switch (tensor.kind) {
    case SyntheticKind::packed:
      return fill<4, uint32_t>(workers, seed, name, count,
                               [](const Bits& bits, int j) { return bits[static_cast<size_t>(j)]; });
    case SyntheticKind::scales:
      return fill<2, uint16_t>(
          workers, seed, groups, count,
          [draw = GroupDraw(scale, tensor.bits)](const Bits& bits, int j) { return draw.scale(bits, j); });
    case SyntheticKind::biases:
      return fill<2, uint16_t>(
          workers, seed, groups, count,
          [draw = GroupDraw(scale, tensor.bits)](const Bits& bits, int j) { return draw.bias(bits, j); });
    case SyntheticKind::weights:
      return fill<8, uint16_t>(workers, seed, name, count, [width = scale * kSqrt3](const Bits& bits, int j) {
        return to_bf16(width * symmetric16(bits, j));
      });
    case SyntheticKind::norm:
      return fill<8, uint16_t>(workers, seed, name, count, [scale](const Bits& bits, int j) {
        return to_bf16(scale * (1 + symmetric16(bits, j) / 4));
      });
    case SyntheticKind::offsets:
      return fill<4, float>(workers, seed, name, count, [scale](const Bits& bits, int j) {
        const double u = (static_cast<double>(bits[static_cast<size_t>(j)] >> 8) - 8388607.5) * 0x1p-23;
        return static_cast<float>(scale * u);
      });
    case SyntheticKind::constant:
      return fill<4, float>(workers, seed, name, count,
                            [scale](const Bits&, int) { return static_cast<float>(scale); });
  }
  TERCET_CHECK(false);
  return {};
}

}  // namespace

std::shared_ptr<const TensorSource> make_synthetic_source(std::vector<SyntheticTensor> tensors, uint64_t seed,
                                                          int threads) {
  const auto workers = std::make_shared<Workers>(threads);
  std::vector<GeneratedTensor> generated;
  generated.reserve(tensors.size());
  for (SyntheticTensor& tensor : tensors) {
    TensorInfo info = tensor.info;
    auto maker = [tensor = std::move(tensor), seed, workers]() -> Result<TensorBytes> {
      return make(tensor, seed, *workers);
    };
    generated.push_back({std::move(info), std::move(maker)});
  }
  return make_generated_source(std::move(generated), "synthetic");
}

}  // namespace tercet
