// The fast kernels against the reference at every number of rows up to 513 and where more rows round
// otherwise, at positions near and far, with fixed inputs and with inputs that are new in each run; skipped
// where there is no GPU. TERCET_SEED in the environment repeats a run whose seed was printed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <thread>

#include "backend/cuda/cuda_ops.h"
#include "backend/reference/test_pair.h"
#include "backend/reference/trials.h"
#include "base/check.h"

namespace tercet::cuda {
namespace {

using namespace backend_test;  // NOLINT: its rows and matrices

const int64_t kMost = brief() ? 200 : 513;
constexpr RopeParams kRope{11158840.0};

/// Whether `rows` of at most `most` rows are to be tried.
bool wanted(int64_t rows, int64_t most) {
  constexpr int64_t kFew[] = {1, 4, 5, 8, 9, 17, 49, 81, 97, 129, 193};
  if (brief()) return std::find(std::begin(kFew), std::end(kFew), rows) != std::end(kFew);
  return rows <= kMost || rows + 2 >= most;
}

uint64_t fresh_seed() {
  const char* const given = std::getenv("TERCET_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

/// Rows in the backend's own memory, between others that nothing may touch.
class Output {
 public:
  Output(Ops& ops, int64_t most, int64_t cols)
      : ops_(ops), cols_(cols), memory_(ops.allocate((most * cols + 2 * kGuard) * 4)) {}

  /// What was there before changes from call to call, and never is what an operation leaves.
  Rows poisoned(int64_t rows) {
    constexpr float kPoisons[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max(),
                                  -std::numeric_limits<float>::infinity(), -0x1.234568p-100F};
    return holding(std::vector<float>(static_cast<size_t>(rows * cols_), kPoisons[calls_++ % 4]));
  }
  Rows holding(const std::vector<float>& values) {
    before_.assign(kGuard, 0x1.fedcbap5F);
    before_.insert(before_.end(), values.begin(), values.end());
    before_.insert(before_.end(), kGuard, 0x1.fedcbap5F);
    ops_.upload(memory_.get(), before_.data(), bytes());
    return {static_cast<float*>(memory_.get()) + kGuard, static_cast<int64_t>(values.size()) / cols_, cols_};
  }
  std::vector<float> values() const {
    std::vector<float> found(before_.size());
    ops_.download(found.data(), memory_.get(), bytes());
    return {found.begin() + kGuard, found.end() - kGuard};
  }
  /// Whether these are the first rows of `expected`, and what lies around them is as it was.
  testing::AssertionResult starts(const std::vector<float>& expected) const {
    std::vector<float> found(before_.size());
    ops_.download(found.data(), memory_.get(), bytes());
    const size_t count = found.size() - 2 * kGuard;
    TERCET_CHECK_LE(count, expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const bool guard = i < kGuard || i >= kGuard + count;
      const float& right = guard ? before_[i] : expected[i - kGuard];
      if (std::memcmp(&found[i], &right, sizeof(float)) == 0) continue;
      if (guard) return testing::AssertionFailure() << "something was written outside of the rows";
      const size_t at = i - kGuard, row = at / static_cast<size_t>(cols_);
      return testing::AssertionFailure() << fmt::format("row {}, column {}: {:a} instead of {:a}", row,
                                                        at % static_cast<size_t>(cols_), found[i], right);
    }
    return testing::AssertionSuccess();
  }

 private:
  static constexpr size_t kGuard = 64;  // floats: 256 bytes, as allocations are aligned
  int64_t bytes() const { return static_cast<int64_t>(before_.size() * sizeof(float)); }

  Ops& ops_;
  const int64_t cols_;
  const Buffer memory_;
  std::vector<float> before_;
  size_t calls_ = 0;
};

/// Memory of a backend, filled once.
class Input {
 public:
  Input(Ops& ops, const std::vector<float>& values, int64_t cols)
      : memory_(ops.allocate(static_cast<int64_t>(values.size()) * 4)),
        rows_{static_cast<float*>(memory_.get()), static_cast<int64_t>(values.size()) / cols, cols} {
    ops.upload(memory_.get(), values.data(), static_cast<int64_t>(values.size()) * 4);
  }
  Rows first(int64_t rows) const { return rows_.first(rows); }
  Vector vector() const { return {rows_.data, rows_.cols}; }

 private:
  const Buffer memory_;
  const Rows rows_;
};

enum class Kind {
  fixed,   // inputs
  fresh,   // in each run
  common,  // fixed inputs, by the kernels that all generations have
};

class EverySize : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    auto ops = make_cuda_ops({.untried = true, .common = GetParam() == Kind::common});
    if (!ops) GTEST_SKIP() << ops.error().message;
    ops_ = std::move(*ops);
    reference_ =
        make_reference_ops(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U)));
    if (GetParam() != Kind::fresh) return;
    key_ = fresh_seed();
    fmt::print("TERCET_SEED={}\n", key_);
  }

  /// `call(ops, step, rows, y)` leaves in y, of `each` rows for a row, the same with every number of rows up
  /// to `most`.
  template <class Call>
  void expect_same(int64_t most, int64_t each, int64_t cols, const Call& call, const std::string& what) {
    TestRows expected(most * each, cols);
    const auto right = reference_->begin(plain_batch(most));
    call(*reference_, *right, most, expected.view());
    const std::vector<uint8_t> failed = reference_->failed(*right);
    Output y(*ops_, most * each, cols);
    for (int64_t rows = 1; rows <= most; ++rows) {
      if (!wanted(rows, most)) continue;
      const auto step = ops_->begin(plain_batch(rows));
      call(*ops_, *step, rows, y.poisoned(rows * each));
      ASSERT_TRUE(y.starts(expected.values)) << what << ", " << rows << " rows";
      const std::vector<uint8_t> own = ops_->failed(*step);
      ASSERT_TRUE(std::equal(own.begin(), own.end(), failed.begin())) << what << ", " << rows << " rows";
    }
  }

  /// The same of both backends.
  template <class T>
  struct Pair {
    T reference, fast;
    const auto& of(const Ops& ops, const Ops& fast_ops) const {
      return &ops == &fast_ops ? *fast : *reference;
    }
  };
  Pair<std::unique_ptr<Linear>> pack(std::span<const MatrixData> parts) {
    return {reference_->pack_linear(parts), ops_->pack_linear(parts)};
  }
  Pair<std::unique_ptr<Input>> put(const std::vector<float>& values, int64_t cols) {
    return {std::make_unique<Input>(*reference_, values, cols), std::make_unique<Input>(*ops_, values, cols)};
  }

  std::unique_ptr<Ops> reference_, ops_;
  uint64_t key_ = 1;
};

std::string name_of(const testing::TestParamInfo<Kind>& kind) {
  constexpr const char* kNames[] = {"fixed", "fresh", "common"};
  return kNames[static_cast<int>(kind.param)];
}
INSTANTIATE_TEST_SUITE_P(Inputs, EverySize, testing::Values(Kind::fixed, Kind::fresh, Kind::common), name_of);

TEST_P(EverySize, Products) {
  const struct {
    int bits, group;
    int64_t n, k, most;
  } forms[] = {{4, 64, 80, 1024, 2 * kMost - 1},
               {4, 64, 48, 4096, kMost},
               {8, 64, 33, 768, kMost},
               {0, 64, 20, 512, kMost},
               {4, 32, 20, 512, kMost}};
  for (const auto& form : forms) {
    const TestMatrix w(form.n, form.k, form.bits, form.group, key_ + 10);
    const auto packed = pack({&w.data, 1});
    const auto h = put(hard_rows(form.most, form.k, key_ + 11).values, form.k);
    const auto call = [&](Ops& ops, Step& step, int64_t rows, Rows y) {
      ops.linear(step, h.of(ops, *ops_).first(rows), packed.of(ops, *ops_), y);
    };
    expect_same(form.most, 1, form.n, call,
                fmt::format("{} bits in groups of {}, {}x{}", form.bits, form.group, form.n, form.k));
  }
}

TEST_P(EverySize, GateAndUp) {
  constexpr int64_t kInter = 48, kK = 1024;
  const TestMatrix gate(kInter, kK, 4, 64, key_ + 12), up(kInter, kK, 4, 64, key_ + 13);
  const MatrixData parts[] = {gate.data, up.data};
  const auto packed = pack(parts);
  const auto h = put(hard_rows(kMost, kK, key_ + 14).values, kK);
  const auto call = [&](Ops& ops, Step& step, int64_t rows, Rows a) {
    ops.gate_up(step, h.of(ops, *ops_).first(rows), packed.of(ops, *ops_), a);
  };
  expect_same(kMost, 1, kInter, call, "gate and up");
}

/// Rows that choose at random, and rows of which most choose the same experts.
TEST_P(EverySize, Experts) {
  constexpr int64_t kHidden = 256, kInter = 128, kCount = 16, kChosen = 4;
  std::vector<std::unique_ptr<TestMatrix>> memory;
  std::vector<MatrixData> gate, up, down;
  for (int64_t e = 0; e < kCount; ++e) {
    for (auto* const to : {&gate, &up, &down}) {
      const bool outer = to == &down;
      memory.push_back(std::make_unique<TestMatrix>(outer ? kHidden : kInter, outer ? kInter : kHidden, 4, 64,
                                                    key_ + 100 + memory.size()));
      to->push_back(memory.back()->data);
    }
  }
  const Pair<std::unique_ptr<Experts>> packed{reference_->pack_experts(gate, up, down),
                                              ops_->pack_experts(gate, up, down)};
  const auto h = put(hard_rows(kMost, kHidden, key_ + 15).values, kHidden);
  const auto a = put(hard_rows(kMost * kChosen, kInter, key_ + 16).values, kInter);
  const auto shared = put(hard_rows(kMost, kHidden, key_ + 17).values, kHidden);
  const auto weights = put(random_values(kMost * kChosen, key_ + 18), kChosen);
  for (const bool alike : {false, true}) {
    std::mt19937_64 random(key_);
    std::vector<float> chosen(static_cast<size_t>(kMost * kChosen));
    for (int64_t r = 0; r < kMost; ++r) {
      int32_t all[kCount];
      std::iota(std::begin(all), std::end(all), 0);
      if (!alike || r % 13 == 0) std::shuffle(std::begin(all), std::end(all), random);
      std::sort(all, all + kChosen);
      std::memcpy(&chosen[static_cast<size_t>(r * kChosen)], all, kChosen * sizeof(float));
    }
    const auto experts = put(chosen, kChosen);
    const auto routes = [&](const Ops& ops, int64_t rows) {
      return Routes{reinterpret_cast<int32_t*>(experts.of(ops, *ops_).first(rows).data),
                    weights.of(ops, *ops_).first(rows).data, rows, kChosen};
    };
    const auto inner = [&](Ops& ops, Step& step, int64_t rows, Rows y) {
      ops.experts_gate_up(step, h.of(ops, *ops_).first(rows), routes(ops, rows), packed.of(ops, *ops_), y);
    };
    expect_same(kMost, kChosen, kInter, inner, fmt::format("gate and up, alike: {}", alike));
    const auto outer = [&](Ops& ops, Step& step, int64_t rows, Rows z) {
      ops.experts_down(step, a.of(ops, *ops_).first(rows * kChosen), routes(ops, rows), packed.of(ops, *ops_),
                       shared.of(ops, *ops_).first(rows), z);
    };
    expect_same(kMost, 1, kHidden, outer, fmt::format("down, alike: {}", alike));
  }
}

/// The published models' routers and a smaller one. A bias of 2^21 leaves steps of a quarter, so that most
/// experts tie.
TEST_P(EverySize, Routers) {
  constexpr int64_t kK = 512;
  for (const auto& [count, chosen] : {std::pair{192, 8}, {128, 8}, {32, 4}}) {
    const TestMatrix w(count, kK, 8, 64, key_ + 20);
    const auto packed = pack({&w.data, 1});
    std::vector<float> values = hard_rows(kMost, kK, key_ + 21).values;
    for (float& x : values) x *= 0.05F;
    const auto h = put(values, kK);
    for (const bool ties : {false, true}) {
      std::vector<float> offsets = random_values(count, key_ + 22);
      for (float& b : offsets) b = ties ? 0x1p21F : 0.3F * b;
      const auto bias = put(offsets, count);
      const RouterParams params{chosen, 2.826F, true};
      const auto call = [&, k = chosen](Ops& ops, Step& step, int64_t rows,
                                        Rows y) {  // experts, then weights
        const Buffer experts = ops.allocate(2 * rows * k * 4);
        auto* const ids = static_cast<float*>(experts.get());
        ops.route(step, h.of(ops, *ops_).first(rows), packed.of(ops, *ops_), bias.of(ops, *ops_).vector(),
                  params, {reinterpret_cast<int32_t*>(ids), ids + rows * k, rows, k});
        std::vector<float> both(static_cast<size_t>(2 * rows * k));
        ops.download(both.data(), ids, 2 * rows * k * 4);
        std::vector<float> by_row;
        for (int64_t r = 0; r < rows; ++r) {
          for (const int64_t from : {r * k, (rows + r) * k}) {
            by_row.insert(by_row.end(), both.begin() + from, both.begin() + from + k);
          }
        }
        ops.upload(y.data, by_row.data(), 2 * rows * k * 4);
      };
      expect_same(kMost, 2, chosen, call, fmt::format("{} of {} experts, ties: {}", chosen, count, ties));
    }
  }
}

TEST_P(EverySize, EmbeddingsAndTheInputOfMtp) {
  constexpr int64_t kHidden = 192, kVocabulary = 300;
  const TestMatrix data(kVocabulary, kHidden, 4, 64, key_ + 23);
  const Pair<std::unique_ptr<Table>> table{reference_->pack_table(data.data), ops_->pack_table(data.data)};
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kMost; ++i) tokens.push_back(i * 7 % kVocabulary);
  const auto hidden = put(hard_rows(kMost, kHidden, key_ + 24).values, kHidden);
  const auto norms = put(random_values(kHidden, key_ + 25), kHidden);
  const auto of = [&](int64_t rows) { return std::span(tokens).first(static_cast<size_t>(rows)); };
  const auto embed = [&](Ops& ops, Step& step, int64_t rows, Rows x) {
    ops.embed(step, of(rows), table.of(ops, *ops_), x);
  };
  expect_same(kMost, 1, kHidden, embed, "embeddings");
  const auto input = [&](Ops& ops, Step& step, int64_t rows, Rows out) {
    const Vector norm = norms.of(ops, *ops_).vector();
    ops.mtp_input(step, of(rows), table.of(ops, *ops_), hidden.of(ops, *ops_).first(rows), norm, norm, 1e-5F,
                  out);
  };
  expect_same(kMost, 1, 2 * kHidden, input, "MTP's input");
}

TEST_P(EverySize, LogProbabilities) {
  constexpr int64_t kVocabulary = 333;
  const auto logits = put(random_values(kMost * kVocabulary, key_ + 26), kVocabulary);
  const auto call = [&](Ops& ops, Step& step, int64_t rows, Rows y) {
    std::vector<RowOutput> outputs(static_cast<size_t>(rows));
    for (RowOutput& output : outputs) {
      output.row = static_cast<int32_t>(&output - outputs.data());
      output.all = output.draw = true;
      output.params.position = static_cast<uint32_t>(output.row);
    }
    std::vector<float> values;
    for (const RowResult& row : ops.evaluate(step, logits.of(ops, *ops_).first(rows), outputs)) {
      values.insert(values.end(), row.all.begin(), row.all.end());
      values.push_back(static_cast<float>(row.token));
    }
    ops.upload(y.data, values.data(), static_cast<int64_t>(values.size()) * 4);
  };
  expect_same(kMost, 1, kVocabulary + 1, call, "log-probabilities and draws");
}

/// A layer of every kind of operation, on one backend; what they leave rounded is for those that follow.
class TinyLayer {
 public:
  TinyLayer(Ops& ops, uint64_t key, int32_t pages)
      : ops_(ops),
        cache_(ops.make_cache(1, kKvHeads, pages)),
        x_(ops, kMost, kHidden),
        h_(ops, kMost, kHidden),
        z_(ops, kMost, kHidden),
        shared_(ops, kMost, kHidden),
        qkv_(ops, kMost, kQkv),
        attended_(ops, kMost, kHeads * kHeadSize),
        a_(ops, kMost, kInter),
        inner_(ops, kMost * kChosen, kInter),
        chosen_(ops, kMost, kChosen),
        weights_(ops, kMost, kChosen),
        norm_(ops, random_values(kHidden, key), kHidden),
        head_norm_(ops, random_values(kHeadSize, key + 1), kHeadSize),
        bias_(ops, random_values(kCount, key + 2), kCount) {
    const auto pack = [&](std::initializer_list<std::pair<int64_t, int64_t>> shapes, int bits) {
      std::vector<MatrixData> parts;
      for (const auto& [n, k] : shapes) parts.push_back(matrix(n, k, bits, key));
      return ops.pack_linear(parts);
    };
    to_qkv_ = pack({{kQkv, kHidden}}, 4);
    out_ = pack({{kHidden, kHeads * kHeadSize}}, 4);
    router_ = pack({{kCount, kHidden}}, 8);
    gate_up_ = pack({{kInter, kHidden}, {kInter, kHidden}}, 4);
    down_ = pack({{kHidden, kInter}}, 4);
    std::vector<MatrixData> gate, up, down;
    for (int64_t e = 0; e < kCount; ++e) {
      gate.push_back(matrix(kInter, kHidden, 4, key));
      up.push_back(matrix(kInter, kHidden, 4, key));
      down.push_back(matrix(kHidden, kInter, 4, key));
    }
    experts_ = ops.pack_experts(gate, up, down);
  }

  void run(const Batch& batch, const std::vector<float>& values) {
    const int64_t rows = batch.rows();
    const Rows x = x_.holding({values.begin(), values.begin() + rows * kHidden});
    const Rows h = h_.poisoned(rows), z = z_.poisoned(rows), shared = shared_.poisoned(rows);
    const Rows qkv = qkv_.poisoned(rows), attended = attended_.poisoned(rows), a = a_.poisoned(rows);
    const Rows inner = inner_.poisoned(rows * kChosen);
    const Routes routes{reinterpret_cast<int32_t*>(chosen_.poisoned(rows).data), weights_.poisoned(rows).data,
                        rows, kChosen};
    const auto step = ops_.begin(batch);
    ops_.norm(*step, x, norm_.vector(), 1e-5F, h);
    ops_.linear(*step, h, *to_qkv_, qkv);
    ops_.write_kv(*step, qkv, head_norm_.vector(), head_norm_.vector(), 1e-5F, kRope, *cache_, 0);
    ops_.attention(*step, qkv, *cache_, 0, attended);
    ops_.linear(*step, attended, *out_, z);
    ops_.add_norm(*step, x, z, norm_.vector(), 1e-5F, h);
    ops_.route(*step, h, *router_, bias_.vector(), {kChosen, 2.826F, true}, routes);
    ops_.gate_up(*step, h, *gate_up_, a);
    ops_.linear(*step, a, *down_, shared);
    ops_.experts_gate_up(*step, h, routes, *experts_, inner);
    ops_.experts_down(*step, inner, routes, *experts_, shared, z);
    ops_.add_norm(*step, x, z, norm_.vector(), 1e-5F, h);
    failed_ = ops_.failed(*step);
  }

  struct Result {
    std::vector<std::vector<float>> parts;
    std::vector<uint8_t> failed;
  };
  Result result() const {
    Result out{{}, failed_};
    for (const auto& [name, part] : kParts) out.parts.push_back((this->*part).values());
    return out;
  }
  /// Whether what this layer left is that of the first rows of `expected`.
  testing::AssertionResult starts(const Result& expected) const {
    if (!std::equal(failed_.begin(), failed_.end(), expected.failed.begin())) {
      return testing::AssertionFailure() << "other rows failed";
    }
    for (size_t i = 0; i < std::size(kParts); ++i) {
      const auto same = (this->*kParts[i].second).starts(expected.parts[i]);
      if (!same) return testing::AssertionFailure() << kParts[i].first << ": " << same.message();
    }
    return testing::AssertionSuccess();
  }

  static constexpr int64_t kHidden = 512;

 private:
  static constexpr int64_t kInter = 128, kCount = 16, kChosen = 4, kHeads = 16, kKvHeads = 2;
  static constexpr int64_t kQkv = (kHeads + 2 * kKvHeads) * kHeadSize;

  const MatrixData& matrix(int64_t n, int64_t k, int bits, uint64_t key) {
    memory_.push_back(std::make_unique<TestMatrix>(n, k, bits, 64, key + 1000 + memory_.size()));
    return memory_.back()->data;
  }

  static const std::pair<const char*, const Output TinyLayer::*> kParts[7];

  Ops& ops_;
  std::vector<std::unique_ptr<TestMatrix>> memory_;
  std::unique_ptr<KvCache> cache_;
  Output x_, h_, z_, shared_, qkv_, attended_, a_, inner_, chosen_, weights_;
  const Input norm_, head_norm_, bias_;
  std::unique_ptr<Linear> to_qkv_, out_, router_, gate_up_, down_;
  std::unique_ptr<Experts> experts_;
  std::vector<uint8_t> failed_;
};

const std::pair<const char*, const Output TinyLayer::*> TinyLayer::kParts[] = {
    {"attention", &TinyLayer::attended_},  {"the router's choice", &TinyLayer::chosen_},
    {"its weights", &TinyLayer::weights_}, {"the shared expert", &TinyLayer::shared_},
    {"the experts' sum", &TinyLayer::z_},  {"the residual stream", &TinyLayer::x_},
    {"its norm", &TinyLayer::h_}};

TEST_P(EverySize, OperationsOfALayerInTurn) {
  TinyLayer right(*reference_, key_, 9), fast(*ops_, key_, 9);
  const std::vector<float> values = random_values(kMost * TinyLayer::kHidden, key_ + 30);
  right.run(plain_batch(kMost), values);
  const TinyLayer::Result expected = right.result();
  for (int64_t rows = 1; rows <= kMost; ++rows) {
    if (!wanted(rows, kMost)) continue;
    fast.run(plain_batch(rows), values);
    ASSERT_TRUE(fast.starts(expected)) << rows << " rows";
  }
}

// Squares' means that are infinite, or too small to change what is added to them.
TEST_P(EverySize, LayersOfVeryLargeAndVerySmallNumbers) {
  constexpr int64_t kRows = 12;
  for (const float scale : {0x1p62F, 0x1p70F, 0x1p-11F, 0x1p-40F, 0x1p-70F, 0.0F}) {
    TinyLayer right(*reference_, key_, 1), fast(*ops_, key_, 1);
    std::vector<float> values = random_values(kRows * TinyLayer::kHidden, key_ + 33);
    for (float& value : values) value *= scale;
    right.run(plain_batch(kRows), values);
    const TinyLayer::Result expected = right.result();
    for (int64_t rows = 1; rows <= kRows; ++rows) {
      fast.run(plain_batch(rows), values);
      ASSERT_TRUE(fast.starts(expected)) << rows << " rows, times " << scale;
    }
  }
}

TEST_P(EverySize, DecodingAnyNumberOfSequences) {
  constexpr int32_t kSequences = 200;
  const auto pages = static_cast<int32_t>(kMost / kPageTokens);
  for (const int32_t position : {0, 64, 448}) {
    // The last page is a sequence's own; those before are shared, and hold what the first step wrote.
    TinyLayer right(*reference_, key_, pages + kSequences), fast(*ops_, key_, pages + kSequences);
    const std::vector<float> before = random_values(kMost * TinyLayer::kHidden, key_ + 31);
    const std::vector<float> values = random_values(kSequences * TinyLayer::kHidden, key_ + 32);
    for (TinyLayer* const layer : {&right, &fast})
      layer->run(plain_batch(int64_t{pages} * kPageTokens), before);
    const auto batch_of = [&](int32_t count) {
      Batch batch;
      batch.tokens.resize(static_cast<size_t>(count));
      for (int32_t r = 0; r < count; ++r) {
        SequenceRows sequence{.first_row = r, .rows = 1, .position = position, .pages = {}};
        for (int32_t page = 0; page < position / kPageTokens; ++page)
          sequence.pages.push_back((page + r) % pages);
        sequence.pages.push_back(pages + r);
        batch.sequences.push_back(sequence);
      }
      return batch;
    };
    right.run(batch_of(kSequences), values);
    const TinyLayer::Result expected = right.result();
    for (int32_t count = 1; count <= kSequences; ++count) {
      if (!wanted(count, kSequences)) continue;
      fast.run(batch_of(count), values);
      ASSERT_TRUE(fast.starts(expected)) << count << " sequences at " << position;
    }
  }
}

/// Far positions read the same few pages again and again, so that nobody has to write a hundred thousand
/// keys.
TEST_P(EverySize, PositionsNearAndFar) {
  // Pages of the past repeat; those that the step writes are its own, as in a real sequence.
  constexpr int32_t kPast = 8, kPages = kPast + 4, kHeads = 8;
  constexpr int64_t kCols = (kHeads + 2) * kHeadSize;
  const auto norm = put(random_values(kHeadSize, key_ + 40), kHeadSize);
  const auto before = put(hard_rows(kPages * kPageTokens, kCols, key_ + 41).values, kCols);
  const std::vector<float> values = hard_rows(161, kCols, key_ + 42).values;
  const auto run = [&](Ops& ops, const Batch& batch, Rows qkv, Rows out) {
    const auto cache = ops.make_cache(1, 1, kPages);
    const Vector weight = norm.of(ops, *ops_).vector();
    const Buffer memory = ops.allocate(kPages * kPageTokens * kCols * 4);
    std::vector<float> copy(static_cast<size_t>(kPages * kPageTokens * kCols));
    ops.download(copy.data(), before.of(ops, *ops_).first(1).data, kPages * kPageTokens * kCols * 4);
    ops.upload(memory.get(), copy.data(), kPages * kPageTokens * kCols * 4);
    const auto first = ops.begin(plain_batch(kPages * kPageTokens));
    ops.write_kv(*first, {static_cast<float*>(memory.get()), kPages * kPageTokens, kCols}, weight, weight,
                 1e-5F, kRope, *cache, 0);
    const auto step = ops.begin(batch);
    ops.write_kv(*step, qkv, weight, weight, 1e-5F, kRope, *cache, 0);
    ops.attention(*step, qkv, *cache, 0, out);
  };
  for (const int32_t position :
       {0, 1, 2, 33, 63, 64, 65, 127, 255, 256, 257, 511, 4095, 4097, 65535, 99999, 100000, 262143}) {
    for (const int32_t rows :
         {1, 3, 9, 40, 140, 161}) {  // the last ones attend in several parts, and in tiles
      if (brief() && (position % 5 != 0 || (position > 5000 && rows > 3))) continue;
      if (position + rows > 262144 || (position > 5000 && rows > 3 && position != 100000)) continue;
      Batch batch = plain_batch(rows);
      batch.sequences[0].position = position;
      batch.sequences[0].pages.clear();
      for (int32_t page = 0; page * kPageTokens < position + rows; ++page) {
        const int32_t written = page - position / kPageTokens;
        batch.sequences[0].pages.push_back(written < 0 ? page * 5 % kPast : kPast + written);
      }
      TestRows right_qkv(rows, kCols), right(rows, kHeads * kHeadSize);
      right_qkv.values.assign(values.begin(), values.begin() + rows * kCols);
      Output qkv(*ops_, rows, kCols), out(*ops_, rows, kHeads * kHeadSize);
      const Rows own = qkv.holding(right_qkv.values);
      run(*reference_, batch, right_qkv.view(), right.view());
      run(*ops_, batch, own, out.poisoned(rows));
      EXPECT_TRUE(out.starts(right.values)) << position << ", " << rows << " rows";
    }
  }
}

/// As the gate does at start and `tercet verify device` for a minute.
TEST_P(EverySize, RandomRounds) {
  for (uint64_t round = 0; round < (brief() ? 2 : 20); ++round) {
    for (const reference::Trial& trial : reference::trials()) {
      const uint64_t seed = key_ + 1000 * round;
      EXPECT_TRUE(reference::same(trial.run(*ops_, seed), trial.run(*reference_, seed)))
          << trial.name << ", " << seed;
    }
  }
}

}  // namespace
}  // namespace tercet::cuda
