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

constexpr double kSqrt3 = 1.7320508075688772;

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
  const int64_t whole_blocks = count / kPerBlock;
  const auto fill_blocks = [&, out = out](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const Bits bits = philox4x32(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                         static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
      T* values = out + block * kPerBlock;
      if (block < whole_blocks) {
        for (int j = 0; j < kPerBlock; ++j) values[j] = draw(bits, j);
      } else {
        for (int j = 0; j < count % kPerBlock; ++j) values[j] = draw(bits, j);
      }
    }
  };
  const std::lock_guard lock(workers.turn);
  workers.pool.parallel_for((count + kPerBlock - 1) / kPerBlock, 1 << 14, fill_blocks);
  return bytes;
}

uint16_t to_bf16(double x) { return float_to_bf16(static_cast<float>(x)); }

/// A bf16 tensor, each value a function of 16 random bits; large ones look it up.
template <class Value>
TensorBytes fill_bf16(Workers& workers, uint64_t seed, std::string_view stream, int64_t count,
                      const Value& value) {
  constexpr uint32_t kValues = 1 << 16;
  const auto half = [](const Bits& bits, int j) {
    return bits[static_cast<size_t>(j / 2)] >> (j % 2 * 16) & (kValues - 1);
  };
  if (count < kValues) {
    return fill<8, uint16_t>(workers, seed, stream, count,
                             [&](const Bits& bits, int j) { return to_bf16(value(half(bits, j))); });
  }
  std::vector<uint16_t> table(kValues);
  for (uint32_t r = 0; r < kValues; ++r) table[r] = to_bf16(value(r));
  return fill<8, uint16_t>(workers, seed, stream, count,
                           [&](const Bits& bits, int j) { return table[half(bits, j)]; });
}

/// 16 bits to (-1, 1).
double symmetric(uint32_t r) { return (r - 32767.5) * 0x1p-15; }

/// The scale and the bias of a group, from the same 16 bits: 1 of sign, 7 of the middle, 8 of size.
struct GroupDraw {
  double base;  // scale's mean
  double middle;

  GroupDraw(double spread, int bits) {
    const double levels = std::ldexp(1.0, bits);
    base = spread / std::sqrt((levels * levels - 1) / 12);  // q is uniform over `levels` whole numbers
    middle = (levels - 1) / 2;
  }
  double scale(uint32_t r) const {
    const double size = base * (0.5 + (r >> 8) * 0x1p-8);
    return (r & 1) != 0 ? -size : size;
  }
  double bias(uint32_t r) const {
    const double off_centre = (r >> 1 & 0x7f) * 0x1p-7 - 0.5;
    return -static_cast<double>(bf16_to_float(to_bf16(scale(r)))) * (middle + off_centre);
  }
};

TensorBytes make(const SyntheticTensor& tensor, uint64_t seed, Workers& workers) {
  const std::string& name = tensor.info.name;
  const int64_t count = tensor.info.elements();
  const double scale = tensor.scale;
  const std::string groups = name.substr(0, name.rfind('.')) + ".groups";
  const GroupDraw group(scale, tensor.bits);
  switch (tensor.kind) {
    case SyntheticKind::packed:
      return fill<4, uint32_t>(workers, seed, name, count,
                               [](const Bits& bits, int j) { return bits[static_cast<size_t>(j)]; });
    case SyntheticKind::scales:
      return fill_bf16(workers, seed, groups, count, [&](uint32_t r) { return group.scale(r); });
    case SyntheticKind::biases:
      return fill_bf16(workers, seed, groups, count, [&](uint32_t r) { return group.bias(r); });
    case SyntheticKind::weights:
      return fill_bf16(workers, seed, name, count, [&](uint32_t r) { return scale * kSqrt3 * symmetric(r); });
    case SyntheticKind::norm:
      return fill_bf16(workers, seed, name, count,
                       [&](uint32_t r) { return scale * (1 + symmetric(r) / 4); });
    case SyntheticKind::offsets:
      return fill<4, float>(workers, seed, name, count, [&](const Bits& bits, int j) {
        const double u = ((bits[static_cast<size_t>(j)] >> 8) - 8388607.5) * 0x1p-23;
        return static_cast<float>(scale * u);
      });
    case SyntheticKind::constant:
      return fill<4, float>(workers, seed, name, count,
                            [&](const Bits&, int) { return static_cast<float>(scale); });
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
