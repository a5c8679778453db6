// What fast kernels must show before they are used.
#include "backend/cuda/gate.h"

#include <fmt/format.h>

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
  int32_t* numbers(const std::vector<int32_t>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(int32_t));
    buffers_.push_back(ops_.allocate(bytes));
    ops_.upload(buffers_.back().get(), values.data(), bytes);
    return static_cast<int32_t*>(buffers_.back().get());
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

/// Weights of 4 bits, many of them the largest.
struct Matrix {
  std::vector<uint32_t> q;
  std::vector<uint16_t> scales, biases;
  MatrixData data;

  Matrix(Random& random, int64_t n, int64_t k) : q(static_cast<size_t>(n * k / 8)) {
    for (uint32_t& word : q) word = random.word() | ((random.word() & 15U) == 0 ? 0xffffffffU : 0U);
    scales.resize(static_cast<size_t>(n * k / 64));
    biases.resize(scales.size());
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = float_to_bf16(0.02F * random.value());
      biases[i] = float_to_bf16(0.2F * random.value());
    }
    data.n = n;
    data.k = k;
    data.bits = 4;
    data.values = reinterpret_cast<const std::byte*>(q.data());
    data.scales = reinterpret_cast<const std::byte*>(scales.data());
    data.biases = reinterpret_cast<const std::byte*>(biases.data());
  }
};

Outcome product(Ops& ops, cuda::GateShape shape) {
  constexpr int64_t kK = 128;
  Random random(1);
  const Matrix weights(random, shape.outputs, kK);
  Memory memory(ops);
  const auto linear = ops.pack_linear({&weights.data, 1});
  const auto step = ops.begin(one_sequence(0, static_cast<int32_t>(shape.rows)));
  const Rows x = memory.rows(random.values(shape.rows * kK), kK), y = memory.rows(shape.rows, shape.outputs);
  ops.linear(*step, x, *linear, y);
  return memory.read(y);
}

/// Of bf16 weights with rows that are theirs but for their size, so that sums come near the largest there
/// are.
Outcome float_product(Ops& ops, int64_t rows) {
  constexpr int64_t kOutputs = 80, kK = 1024;
  Random random(4);
  std::vector<uint16_t> weights;
  std::vector<float> x;
  for (int64_t i = 0; i < kOutputs * kK; ++i) {
    weights.push_back(float_to_bf16(random.value()));
    if (i < rows * kK) x.push_back(bf16_to_float(weights.back()) * (i / kK % 2 == 0 ? 1.0F : -0x1p-9F));
  }
  MatrixData data;
  data.n = kOutputs;
  data.k = kK;
  data.values = reinterpret_cast<const std::byte*>(weights.data());
  Memory memory(ops);
  const auto linear = ops.pack_linear({&data, 1});
  const auto step = ops.begin(one_sequence(0, static_cast<int32_t>(rows)));
  const Rows y = memory.rows(rows, kOutputs);
  ops.linear(*step, memory.rows(x, kK), *linear, y);
  return memory.read(y);
}

/// Experts, and the norm that sums them up.
Outcome experts(Ops& ops, cuda::GateExperts shape) {
  constexpr int64_t kCount = cuda::kGateExperts, kChosen = 2, kWidth = 128;
  const int32_t rows = shape.rows;
  Random random(3);
  std::vector<Matrix> matrices;
  for (int64_t i = 0; i < 3 * kCount; ++i) {
    const bool outer = i % 3 == 2;
    matrices.emplace_back(random, outer ? kWidth : shape.inter, outer ? shape.inter : kWidth);
  }
  std::vector<MatrixData> parts[3];
  for (size_t i = 0; i < matrices.size(); ++i) parts[i % 3].push_back(matrices[i].data);
  const auto packed = ops.pack_experts(parts[0], parts[1], parts[2]);
  std::vector<int32_t> chosen;  // of 40 rows experts have 10, 25 or 5
  for (int32_t row = 0; row < rows; ++row) {
    chosen.push_back(row % 4);
    chosen.push_back(4 + (row % 8 < 5 ? 0 : row % 8 - 4));
  }
  Memory memory(ops);
  const Rows weights = memory.rows(random.values(rows * kChosen), kChosen);
  const Routes routes{memory.numbers(chosen), weights.data, rows, kChosen};
  const auto step = ops.begin(one_sequence(0, rows));
  const Rows x = memory.rows(random.values(rows * kWidth), kWidth);
  const Rows a = memory.rows(rows * kChosen, shape.inter), z = memory.rows(rows, kWidth);
  const Rows sum = memory.rows(random.values(rows * kWidth), kWidth), h = memory.rows(rows, kWidth);
  const Vector norm{memory.rows(random.values(kWidth), kWidth).data, kWidth};
  ops.experts_gate_up(*step, x, routes, *packed, a);
  ops.experts_down(*step, a, routes, *packed, {}, z);
  ops.add_norm(*step, sum, z, norm, 1e-5F, h);
  return memory.read(h);
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
  good = true;
  for (const int64_t rows : cuda::kGateFloatRows) {
    good = good && reference::same(float_product(plain, rows), float_product(fast, rows));
  }
  if (!good) failing.emplace_back("products with float weights");
  for (const cuda::GateExperts shape : cuda::kGateExpertShapes) {
    if (reference::same(experts(plain, shape), experts(fast, shape))) continue;
    failing.push_back(fmt::format("experts of {} rows", shape.rows));
  }
  if (!reference::same(attention(plain), attention(fast))) failing.emplace_back("attention of many rows");
  return failing;
}

}  // namespace tercet
