// What fast kernels must show before they are used.
#include "backend/cuda/gate.h"

#include <array>
#include <numeric>

#include "backend/cuda/cuda_ops.h"
#include "backend/reference/trials.h"
#include "base/philox.h"
#include "tensor/dtype.h"

namespace tercet {
namespace {

using Outcome = std::vector<float>;

/// Bytes and floats, the same for all backends.
class Random {
 public:
  explicit Random(uint64_t key) : key_(key) {}

  uint32_t word() {
    if (next_ % 4 == 0) words_ = philox4x32(key_, {next_ / 4, 7, 0, 0});
    return words_[next_++ % 4];
  }
  /// In [−1, 1), of sizes from 2^-12 to 1.
  float value() {
    const uint32_t x = word();
    return static_cast<float>(static_cast<int32_t>(x)) * 0x1p-31F /
           static_cast<float>(1U << (x & 7U) << (x & 5U));
  }
  std::vector<float> values(int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = value();
    return out;
  }

 private:
  uint64_t key_;
  uint32_t next_ = 0;
  std::array<uint32_t, 4> words_{};
};

class Memory {
 public:
  explicit Memory(Ops& ops) : ops_(ops) {}

  Rows rows(int64_t count, int64_t cols) {
    buffers_.push_back(ops_.allocate(count * cols * static_cast<int64_t>(sizeof(float))));
    return {static_cast<float*>(buffers_.back().get()), count, cols};
  }
  Rows rows(const std::vector<float>& values, int64_t cols) {
    const Rows out = rows(static_cast<int64_t>(values.size()) / cols, cols);
    ops_.upload(out.data, values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
    return out;
  }
  Outcome read(Rows rows) {
    Outcome out(static_cast<size_t>(rows.rows * rows.cols));
    ops_.download(out.data(), rows.data, static_cast<int64_t>(out.size() * sizeof(float)));
    return out;
  }

 private:
  Ops& ops_;
  std::vector<Buffer> buffers_;
};

Batch one_sequence(int32_t position, int32_t rows) {
  Batch batch;
  batch.tokens.resize(static_cast<size_t>(rows));
  SequenceRows sequence{.first_row = 0, .rows = rows, .position = position, .pages = {}};
  sequence.pages.resize(static_cast<size_t>((position + rows + kPageTokens - 1) / kPageTokens));
  std::iota(sequence.pages.begin(), sequence.pages.end(), 0);
  batch.sequences.push_back(sequence);
  return batch;
}

Outcome product(Ops& ops, cuda::GateShape shape) {
  constexpr int64_t kK = 128;
  Random random(1);
  std::vector<uint32_t> q(static_cast<size_t>(shape.outputs * kK / 8));
  for (uint32_t& word : q) word = random.word() | ((random.word() & 15U) == 0 ? 0xffffffffU : 0U);
  std::vector<uint16_t> scales(static_cast<size_t>(shape.outputs * kK / 64)), biases(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = float_to_bf16(0.02F * random.value());
    biases[i] = float_to_bf16(0.2F * random.value());
  }
  MatrixData weights;
  weights.n = shape.outputs;
  weights.k = kK;
  weights.bits = 4;
  weights.values = reinterpret_cast<const std::byte*>(q.data());
  weights.scales = reinterpret_cast<const std::byte*>(scales.data());
  weights.biases = reinterpret_cast<const std::byte*>(biases.data());
  Memory memory(ops);
  const auto linear = ops.pack_linear({&weights, 1});
  const auto step = ops.begin(one_sequence(0, static_cast<int32_t>(shape.rows)));
  const Rows x = memory.rows(random.values(shape.rows * kK), kK), y = memory.rows(shape.rows, shape.outputs);
  ops.linear(*step, x, *linear, y);
  return memory.read(y);
}

/// Rows enough for tiles of them, across blocks of keys and spans.
Outcome attention(Ops& ops) {
  constexpr int32_t kRows = 200, kHeads = 8;
  constexpr int64_t kCols = (kHeads + 2) * kHeadSize;
  Random random(2);
  Memory memory(ops);
  const std::vector<float> ones(kHeadSize, 1.0F);
  const Vector norm{memory.rows(ones, kHeadSize).data, kHeadSize};
  const auto cache = ops.make_cache(1, 1, (2 * kRows + kPageTokens - 1) / kPageTokens);
  const Rows out = memory.rows(kRows, kHeads * kHeadSize);
  for (const int32_t position : {0, kRows}) {
    const auto step = ops.begin(one_sequence(position, kRows));
    const Rows qkv = memory.rows(random.values(kRows * kCols), kCols);
    ops.write_kv(*step, qkv, norm, norm, 1e-5F, {11158840.0}, *cache, 0);
    ops.attention(*step, qkv, *cache, 0, out);
  }
  return memory.read(out);
}

}  // namespace

std::vector<std::string> failing_cuda_kernels(Ops& plain, Ops& fast) {
  constexpr uint64_t kSeeds = 3;
  std::vector<std::string> failing;
  for (const reference::Trial& trial : reference::trials()) {
    bool good = true;
    for (uint64_t seed = 0; seed < kSeeds && good; ++seed) {
      good = reference::same(trial.run(plain, seed), trial.run(fast, seed));
    }
    if (!good) failing.emplace_back(trial.name);
  }
  bool good = true;
  for (const cuda::GateShape shape : cuda::kGateShapes) {
    good = good && reference::same(product(plain, shape), product(fast, shape));
  }
  if (!good) failing.emplace_back("products of many rows");
  if (!reference::same(attention(plain), attention(fast))) failing.emplace_back("attention of many rows");
  return failing;
}

}  // namespace tercet
