#include "backend/reference/trials.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/philox.h"
#include "tensor/dtype.h"

namespace tercet::reference {
namespace {

/// Random numbers of one round, in order.
class Random {
 public:
  explicit Random(uint64_t key) : key_(key) {}

  uint32_t word() { return philox4x32(key_, {next_++, 0, 0, 0})[0]; }
  int64_t below(int64_t end) { return word() % end; }
  float uniform() { return static_cast<float>(static_cast<int32_t>(word())) * 0x1p-31F; }  // [−1, 1)

 private:
  uint64_t key_;
  uint32_t next_ = 0;
};

/// Values on which roundings differ: of one size, of sizes mixed from 2^-30 to 2^12, at powers of two and
/// just beside them, at ties, and one large among tiny ones.
std::vector<float> hard_values(Random& random, int64_t rows, int64_t cols) {
  std::vector<float> values;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t kind = random.below(8);
    for (int64_t i = 0; i < cols; ++i) {
      const float x = random.uniform();
      const float sign = x < 0 ? -1.0F : 1.0F;
      switch (kind) {
        case 0:
          values.push_back(std::ldexp(x, static_cast<int>(random.below(43)) - 30));
          break;
        case 1:
          values.push_back(sign);
          break;
        case 2:
          values.push_back(sign * (random.below(2) == 0 ? 1.0F + 0x1p-23F : 2.0F - 0x1p-23F));
          break;
        case 3:
          values.push_back(sign * (static_cast<float>(random.below(8192)) + 0.5F) * 0x1p-13F);
          break;
        case 4:
          values.push_back(i % 64 == 5 ? 1000.0F : 0x1p-20F * x);
          break;
        case 5:
          values.push_back(random.below(3) == 0 ? 0.0F * sign : x);
          break;
        default:
          values.push_back(3.0F * x);
      }
    }
  }
  return values;
}

struct RandomMatrix {
  std::vector<std::byte> values, scales, biases;
  MatrixData data;

  RandomMatrix(Random& random, int64_t n, int64_t k, int bits, int group) {
    data.n = n;
    data.k = k;
    data.bits = bits;
    data.group = group;
    for (int64_t i = 0; bits == 0 && i < n * k; ++i) append(values, random.uniform());
    for (int64_t i = 0; bits != 0 && i < n * k * bits / 8; ++i) {
      values.push_back(static_cast<std::byte>(random.below(7) == 0 ? 255 : random.below(256)));
    }
    for (int64_t i = 0; bits != 0 && i < n * k / group; ++i) {
      const float size = random.below(11) == 0 ? 1000.0F : 0.01F;
      append(scales, size * (1.5F + random.uniform()));
      append(biases, -7.0F * size * (1.5F + random.uniform()));
    }
    data.values = values.data();
    data.scales = scales.data();
    data.biases = biases.data();
  }
  RandomMatrix(RandomMatrix&&) = default;  // vectors keep their memory when they move

 private:
  static void append(std::vector<std::byte>& to, float value) {
    const uint16_t half = float_to_bf16(value);
    const auto* bytes = reinterpret_cast<const std::byte*>(&half);
    to.insert(to.end(), bytes, bytes + 2);
  }
};

RandomMatrix random_matrix(Random& random, int64_t n, int64_t k) {
  constexpr int kBits[] = {4, 4, 8, 0, 2, 3, 5, 6};
  constexpr int kGroupSizes[] = {64, 64, 32, 128};
  const int bits = kBits[random.below(8)];
  return {random, n, k, bits, bits == 0 ? 64 : kGroupSizes[random.below(4)]};
}

/// One backend's rows, in its own memory.
class Device {
 public:
  explicit Device(Ops& ops) : ops_(ops) {}

  Rows rows(int64_t count, int64_t cols) {
    buffers_.push_back(ops_.allocate(count * cols * static_cast<int64_t>(sizeof(float))));
    return {static_cast<float*>(buffers_.back().get()), count, cols};
  }
  Rows rows(const std::vector<float>& values, int64_t cols) {
    const Rows out = rows(static_cast<int64_t>(values.size()) / cols, cols);
    ops_.upload(out.data, values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
    return out;
  }
  Vector vector(const std::vector<float>& values) {
    const auto size = static_cast<int64_t>(values.size());
    return {rows(values, size).data, size};
  }
  Routes routes(int64_t count, int64_t chosen) {
    return {reinterpret_cast<int32_t*>(rows(count, chosen).data), rows(count, chosen).data, count, chosen};
  }
  void read(Rows rows, Outcome& out) { read(rows.data, rows.rows * rows.cols, out); }
  void read(const void* data, int64_t count, Outcome& out) {
    const size_t before = out.size();
    out.resize(before + static_cast<size_t>(count));
    ops_.download(&out[before], data, count * static_cast<int64_t>(sizeof(float)));
  }

 private:
  Ops& ops_;
  std::vector<Buffer> buffers_;
};

Batch one_sequence(int64_t rows, int64_t position) {
  Batch batch;
  batch.tokens.resize(static_cast<size_t>(rows));
  batch.sequences.push_back({.first_row = 0,
                             .rows = static_cast<int32_t>(rows),
                             .position = static_cast<int32_t>(position),
                             .pages = {}});
  std::vector<int32_t>& pages = batch.sequences.back().pages;
  pages.resize(static_cast<size_t>((position + rows + kPageTokens - 1) / kPageTokens));
  std::iota(pages.rbegin(), pages.rend(), 0);
  return batch;
}

Outcome products(Ops& ops, uint64_t seed) {
  Random random(seed);
  const int64_t k = 128 * (1 + random.below(16)), n = 1 + random.below(100), rows = 1 + random.below(70);
  const RandomMatrix first = random_matrix(random, n, k), second = random_matrix(random, n, k);
  const std::vector<float> values = hard_values(random, rows, k);
  Device device(ops);
  const auto step = ops.begin(one_sequence(rows, 0));
  const Rows x = device.rows(values, k), y = device.rows(rows, 2 * n), a = device.rows(rows, n);
  const MatrixData parts[] = {first.data, second.data};
  const auto linear = ops.pack_linear(parts);
  ops.linear(*step, x, *linear, y);
  ops.gate_up(*step, x, *linear, a);
  Outcome out;
  device.read(y, out);
  device.read(a, out);
  return out;
}

/// Which rows count as failed where some hold what no product can take.
Outcome flags(Ops& ops, uint64_t seed) {
  Random random(seed);
  const int64_t k = 128 * (1 + random.below(8)), rows = 1 + random.below(70);
  const RandomMatrix matrix = random_matrix(random, 16, k);
  std::vector<float> values = hard_values(random, rows, k);
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -0x1p100F, 0x1p60F};
  for (int64_t r = 0; r < rows; r += 1 + random.below(5)) {
    values[static_cast<size_t>(r * k + random.below(k))] = kBad[random.below(4)];
  }
  Device device(ops);
  const auto step = ops.begin(one_sequence(rows, 0));
  const auto linear = ops.pack_linear({&matrix.data, 1});
  ops.linear(*step, device.rows(values, k), *linear, device.rows(rows, 16));
  const std::vector<uint8_t> failed = ops.failed(*step);
  return {failed.begin(), failed.end()};
}

Outcome experts(Ops& ops, uint64_t seed) {
  Random random(seed);
  const int64_t count = 4 + random.below(12), chosen = 1 + random.below(4), rows = 1 + random.below(40);
  const int64_t hidden = 128 * (1 + random.below(4)), inter = 128 * (1 + random.below(3));
  std::vector<RandomMatrix> own;
  std::vector<MatrixData> gate, up, down;
  for (int64_t e = 0; e < count; ++e) {
    for (auto* list : {&gate, &up}) {
      own.emplace_back(random, inter, hidden, 4, 64);
      list->push_back(own.back().data);
    }
    own.emplace_back(random, hidden, inter, 4, 64);
    down.push_back(own.back().data);
  }
  const RandomMatrix router(random, count, hidden, 8, 64);
  const std::vector<float> values = hard_values(random, rows, hidden);
  const std::vector<float> shared = hard_values(random, rows, hidden);
  const std::vector<float> bias = hard_values(random, 1, count);
  const RouterParams params{static_cast<int32_t>(chosen), 2.5F, random.below(2) == 0};
  Device device(ops);
  const auto step = ops.begin(one_sequence(rows, 0));
  const Rows x = device.rows(values, hidden), z = device.rows(rows, hidden);
  const Rows a = device.rows(rows * chosen, inter);
  const Routes routes = device.routes(rows, chosen);
  const auto packed_router = ops.pack_linear({&router.data, 1});
  const auto packed = ops.pack_experts(gate, up, down);
  ops.route(*step, x, *packed_router, device.vector(bias), params, routes);
  ops.experts_gate_up(*step, x, routes, *packed, a);
  ops.experts_down(*step, a, routes, *packed, device.rows(shared, hidden), z);
  Outcome out;
  device.read(routes.experts, rows * chosen, out);
  device.read(routes.weights, rows * chosen, out);
  const std::vector<uint8_t> failed = ops.failed(*step);
  Outcome results;
  device.read(z, results);
  for (int64_t r = 0; r < rows; ++r) {  // what becomes of a failed row is not defined
    out.push_back(failed[static_cast<size_t>(r)]);
    const auto row = results.begin() + r * hidden;
    if (failed[static_cast<size_t>(r)] == 0) out.insert(out.end(), row, row + hidden);
  }
  return out;
}

Outcome attention(Ops& ops, uint64_t seed) {
  Random random(seed);
  const int64_t kv_heads = 1 + random.below(3), heads = kv_heads * (1 + random.below(8));
  const int64_t cols = (heads + 2 * kv_heads) * kHeadSize;
  const int64_t before = random.below(600), rows = 1 + random.below(70);
  const std::vector<float> history = hard_values(random, before + 1, cols);
  const std::vector<float> values = hard_values(random, rows, cols);
  const std::vector<float> q_norm = hard_values(random, 1, kHeadSize);
  const std::vector<float> k_norm = hard_values(random, 1, kHeadSize);
  const RopeParams rope{11158840.0};
  Device device(ops);
  const Vector q = device.vector(q_norm), k = device.vector(k_norm);
  const Batch batch = one_sequence(rows, before);
  const auto cache = ops.make_cache(1, static_cast<int32_t>(kv_heads),
                                    static_cast<int32_t>(batch.sequences[0].pages.size()));
  if (before > 0) {
    Batch earlier = one_sequence(before, 0);
    earlier.sequences[0].pages = batch.sequences[0].pages;
    const auto step = ops.begin(earlier);
    ops.write_kv(*step, device.rows(history, cols).first(before), q, k, 1e-5F, rope, *cache, 0);
  }
  const auto step = ops.begin(batch);
  const Rows x = device.rows(values, cols), y = device.rows(rows, heads * kHeadSize);
  ops.write_kv(*step, x, q, k, 1e-5F, rope, *cache, 0);
  ops.attention(*step, x, *cache, 0, y);
  Outcome out;
  device.read(y, out);
  return out;
}

Outcome norms(Ops& ops, uint64_t seed) {
  Random random(seed);
  const int64_t cols = 16 * (1 + random.below(300)), rows = 1 + random.below(40);
  const std::vector<float> values = hard_values(random, rows, cols);
  const std::vector<float> sums = hard_values(random, rows, cols);
  const std::vector<float> weight = hard_values(random, 1, cols);
  Device device(ops);
  const auto step = ops.begin(one_sequence(rows, 0));
  const Rows x = device.rows(values, cols), h = device.rows(rows, cols);
  Outcome out;
  ops.norm(*step, x, device.vector(weight), 1e-5F, h);
  device.read(h, out);
  ops.add_norm(*step, x, device.rows(sums, cols), device.vector(weight), 1e-5F, h);
  device.read(x, out);
  device.read(h, out);
  return out;
}

Outcome draws(Ops& ops, uint64_t seed) {
  Random random(seed);
  const int64_t vocabulary = 1 + random.below(20000), rows = 4;
  std::vector<float> logits = hard_values(random, rows, vocabulary);
  for (float& logit : logits) logit = std::clamp(4.0F * logit, -60.0F, 60.0F);
  std::vector<RowOutput> outputs(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    RowOutput& output = outputs[static_cast<size_t>(r)];
    output.row = static_cast<int32_t>(r);
    output.draw = output.all = true;
    output.top = 5;
    output.params.temperature = r == 0 ? 0.0F : 0.1F + std::fabs(2.0F * random.uniform());
    output.params.top_k = r == 2 ? static_cast<int32_t>(1 + random.below(100)) : 0;
    output.params.top_p = r == 3 ? 0.9F : 1.0F;
    output.params.min_p = r == 3 ? 0.01F : 0.0F;
    output.params.repetition_penalty = r == 2 ? 1.3F : 1.0F;
    output.params.counts = {{static_cast<int32_t>(random.below(vocabulary)), true, 1}};
    output.params.seed = random.word();
    output.params.position = random.word();
  }
  Device device(ops);
  const auto step = ops.begin(one_sequence(rows, 0));
  Outcome out;
  for (const RowResult& result : ops.evaluate(*step, device.rows(logits, vocabulary), outputs)) {
    out.push_back(result.failed ? 1.0F : 0.0F);
    out.push_back(static_cast<float>(result.token));
    out.push_back(result.logprob);
    for (const TokenLogprob& token : result.top) {
      out.push_back(static_cast<float>(token.token));
      out.push_back(token.logprob);
    }
    out.insert(out.end(), result.all.begin(), result.all.end());
  }
  return out;
}

constexpr Trial kTrials[] = {
    {"products, SwiGLU", products}, {"rows that fail", flags}, {"router, experts", experts},
    {"RoPE, attention", attention}, {"norms", norms},          {"log-probs, draws", draws}};

}  // namespace

std::span<const Trial> trials() { return kTrials; }

bool same(const Outcome& a, const Outcome& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace tercet::reference
