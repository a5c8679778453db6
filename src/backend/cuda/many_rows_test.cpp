// The kernels of many rows against the plain ones, at every size where they change; skipped where there is no
// GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/test_host_ops.h"
#include "backend/reference/test_pair.h"

namespace tercet::cuda {
namespace {

using namespace backend_test;  // NOLINT: its rows and matrices

/// By the device's own kernels, or by those that all generations have.
class ManyRows : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    auto plain = make_cuda_ops({.plain = true});
    if (!plain) GTEST_SKIP() << plain.error().message;
    plain_ = std::make_unique<HostOps>(std::move(*plain));
    fast_ = std::make_unique<HostOps>(std::move(*make_cuda_ops({.untried = true, .common = GetParam()})));
  }

  /// Both backends' rows of `call`, which must be equal, and as many failed flags.
  template <class Call>
  void expect_same(int64_t rows, int64_t out_rows, int64_t cols, const Call& call, const std::string& what) {
    TestRows expected(out_rows, cols), y(out_rows, cols);
    const auto plain_step = plain_->begin(plain_batch(rows));
    const auto step = fast_->begin(plain_batch(rows));
    call(*plain_, *plain_step, expected.view());
    call(*fast_, *step, y.view());
    EXPECT_TRUE(y == expected) << what;
    EXPECT_EQ(fast_->failed(*step), plain_->failed(*plain_step)) << what;
  }

  std::unique_ptr<Ops> plain_, fast_;
};

INSTANTIATE_TEST_SUITE_P(Kernels, ManyRows, testing::Bool(),
                         [](const auto& common) { return common.param ? "common" : "own"; });

constexpr int64_t kRowCounts[] = {8,  9,  15, 16, 17, 31,  32,  33,  47,  48,
                                  49, 63, 64, 65, 96, 127, 128, 129, 320, 513};

TEST_P(ManyRows, ProductsOfEveryNumberOfLeaves) {
  for (const int bits : {4, 8, 6, 0}) {  // 0: bf16
    for (const int64_t k : {64, 768, 1536, 2048, 4096}) {
      for (const int64_t n : {1, 250, 272, 530}) {
        const TestMatrix w(n, k, bits, 64, 90);
        const auto on_plain = plain_->pack_linear({&w.data, 1});
        const auto on_fast = fast_->pack_linear({&w.data, 1});
        TestRows h = hard_rows(513, k, 91);
        for (const int64_t rows : kRowCounts) {
          if (n != 272 && rows != 9 && rows != 17 && rows != 48 && rows != 129) continue;
          if (brief() && (n != 272 || k % 1024 != 0 || rows % 8 != 1 || rows > 129)) continue;
          const auto call = [&](Ops& ops, Step& step, Rows y) {
            ops.linear(step, h.first(rows), &ops == plain_.get() ? *on_plain : *on_fast, y);
          };
          expect_same(rows, rows, n, call, fmt::format("{} bits, {}x{}, {} rows", bits, n, k, rows));
        }
      }
    }
  }
}

/// Work enough that a block has all leaves of its outputs.
TEST_P(ManyRows, LeavesOneAfterAnother) {
  constexpr int64_t kN = 2500;
  for (const int64_t k : {1024, 4096}) {
    const TestMatrix w(kN, k, 4, 64, 88);
    const auto on_plain = plain_->pack_linear({&w.data, 1});
    const auto on_fast = fast_->pack_linear({&w.data, 1});
    TestRows h = hard_rows(1025, k, 89);
    for (const int64_t rows : {449, 1025}) {
      if (brief() && rows > 449) continue;
      const auto call = [&](Ops& ops, Step& step, Rows y) {
        ops.linear(step, h.first(rows), &ops == plain_.get() ? *on_plain : *on_fast, y);
      };
      expect_same(rows, rows, kN, call, fmt::format("{} numbers, {} rows", k, rows));
    }
  }
}

TEST_P(ManyRows, GateAndUp) {
  for (const auto& [inter, bits] : {std::pair{16, 4}, {64, 4}, {144, 4}, {400, 4}, {144, 0}}) {
    for (const int64_t k : {768, 2048, 4096}) {
      const TestMatrix gate(inter, k, bits, 64, 92), up(inter, k, bits, 64, 93);
      const MatrixData parts[] = {gate.data, up.data};
      const auto on_plain = plain_->pack_linear(parts);
      const auto on_fast = fast_->pack_linear(parts);
      for (const int64_t rows : {4, 5, 8, 9, 17, 32, 33, 48, 64, 65, 128, 129, 200}) {
        if (k == 4096 && bits != 0) continue;  // eight leaves
        if (brief() && (inter != 144 || rows % 8 != 1)) continue;
        TestRows h = hard_rows(rows, k, 94);
        h.values[static_cast<size_t>(rows / 2 * k + 3)] = std::numeric_limits<float>::infinity();
        const auto call = [&](Ops& ops, Step& step, Rows a) {
          ops.gate_up(step, h.view(), &ops == plain_.get() ? *on_plain : *on_fast, a);
        };
        expect_same(rows, rows, inter, call, fmt::format("{} bits, {}x{}, {} rows", bits, inter, k, rows));
      }
    }
  }
}

/// After a norm, which leaves rounded rows behind, and for some of its rows.
TEST_P(ManyRows, RowsThatANormRounded) {
  constexpr int64_t kK = 512, kN = 300;
  const TestMatrix w(kN, kK, 4, 64, 95);
  const auto on_plain = plain_->pack_linear({&w.data, 1});
  const auto on_fast = fast_->pack_linear({&w.data, 1});
  const std::vector<float> weight = random_values(kK, 96);
  for (const int64_t rows : {4, 5, 8, 9, 48, 128, 130}) {
    if (brief() && rows != 5 && rows != 9 && rows != 130) continue;
    TestRows x = hard_rows(rows, kK, 97);
    x.values[static_cast<size_t>(3 * kK + 1)] = std::numeric_limits<float>::quiet_NaN();
    std::vector<int32_t> few = {3, 0, static_cast<int32_t>(rows - 1)}, most;
    for (int32_t i = 0; i < rows; i += 1) most.push_back(static_cast<int32_t>(rows - 1 - i));
    for (const auto* ids : {&few, &most}) {
      const auto call = [&](Ops& ops, Step& step, Rows y) {
        const Buffer memory = ops.allocate(2 * rows * kK * 4);
        auto& host = static_cast<HostOps&>(ops);
        const Rows h{static_cast<float*>(memory.get()), rows, kK};
        const Rows own{h.data + rows * kK, rows, kK};
        ops.upload(own.data, x.values.data(), rows * kK * 4);
        const Buffer weights = ops.allocate(kK * 4), out = ops.allocate(y.rows * kN * 4);
        ops.upload(weights.get(), weight.data(), kK * 4);
        Ops& device = host.device();
        device.norm(step, own, {static_cast<const float*>(weights.get()), kK}, 1e-5F, h);
        const Rows result{static_cast<float*>(out.get()), y.rows, kN};
        device.linear_of(step, h, *ids, &ops == plain_.get() ? *on_plain : *on_fast, result);
        ops.download(y.data, result.data, y.rows * kN * 4);
      };
      expect_same(rows, static_cast<int64_t>(ids->size()), kN, call,
                  fmt::format("{} of {} rows", ids->size(), rows));
    }
  }
}

/// Scales of a size at which scaled sums could leave float32's range.
TEST_P(ManyRows, WeightsOfWildSizes) {
  for (const float size : {0x1p-100F, 0x1p-65F, 0x1p33F, 0x1p60F}) {
    TestMatrix w(64, 1024, 4, 64, 98);
    const uint16_t bits = float_to_bf16(size);
    std::memcpy(&w.scales[26], &bits, 2);
    const auto on_plain = plain_->pack_linear({&w.data, 1});
    const auto on_fast = fast_->pack_linear({&w.data, 1});
    TestRows h = hard_rows(70, 1024, 99);
    const auto call = [&](Ops& ops, Step& step, Rows y) {
      ops.linear(step, h.view(), &ops == plain_.get() ? *on_plain : *on_fast, y);
    };
    expect_same(70, 70, 64, call, fmt::format("{}", size));
  }
}

TEST_P(ManyRows, ExpertsOfUnlikeLoads) {
  for (const int bits : {4, 0}) {
    constexpr int64_t kHidden = 1024, kInter = 192, kCount = 24, kChosen = 4;
    std::vector<std::unique_ptr<TestMatrix>> memory;
    std::vector<MatrixData> gate, up, down;
    const auto add = [&](std::vector<MatrixData>& to, int64_t n, int64_t k) {
      memory.push_back(std::make_unique<TestMatrix>(n, k, bits, 64, 200 + memory.size()));
      to.push_back(memory.back()->data);
    };
    for (int64_t e = 0; e < kCount; ++e) {
      add(gate, kInter, kHidden);
      add(up, kInter, kHidden);
      add(down, kHidden, kInter);
    }
    const auto on_plain = plain_->pack_experts(gate, up, down);
    const auto on_fast = fast_->pack_experts(gate, up, down);
    for (const int64_t rows : {1, 4, 5, 16, 17, 36, 71, 72, 73, 79, 200, 513}) {
      for (const bool even : {true, false}) {
        if (brief() && (even || (rows != 17 && rows != 73))) continue;
        std::vector<int32_t> experts;
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t first = even ? r * 5 % (kCount - kChosen + 1) : r % 17 == 0 ? kCount - kChosen : 0;
          for (int64_t j = 0; j < kChosen; ++j) experts.push_back(static_cast<int32_t>(first + j));
        }
        std::vector<float> weights = random_values(rows * kChosen, 100);
        const Routes routes{experts.data(), weights.data(), rows, kChosen};
        TestRows h = hard_rows(rows, kHidden, 101), a = hard_rows(rows * kChosen, kInter, 102);
        TestRows shared = hard_rows(rows, kHidden, 103);
        a.values[5] = std::numeric_limits<float>::quiet_NaN();
        const auto what = fmt::format("{} bits, {} rows, even: {}", bits, rows, even);
        const auto inner = [&](Ops& ops, Step& step, Rows y) {
          ops.experts_gate_up(step, h.view(), routes, &ops == plain_.get() ? *on_plain : *on_fast, y);
        };
        expect_same(rows, rows * kChosen, kInter, inner, what);
        const auto outer = [&](Ops& ops, Step& step, Rows z) {
          ops.experts_down(step, a.view(), routes, &ops == plain_.get() ? *on_plain : *on_fast, shared.view(),
                           z);
        };
        expect_same(rows, rows, kHidden, outer, what);
      }
    }
  }
}

TEST_P(ManyRows, TheRouter) {
  for (const auto& [count, bits] : {std::pair{128, 8}, {192, 8}, {192, 0}}) {
    const TestMatrix w(count, 2048, bits, 64, 104);
    const auto on_plain = plain_->pack_linear({&w.data, 1});
    const auto on_fast = fast_->pack_linear({&w.data, 1});
    const std::vector<float> bias = random_values(count, 105);
    for (const int64_t rows : {4, 5, 8, 9, 17, 64, 65, 200}) {
      if (brief() && (count != 192 || rows % 8 != 1)) continue;
      TestRows h = hard_rows(rows, 2048, 106);
      for (float& x : h.values) x *= 0.05F;
      std::vector<int32_t> expected(static_cast<size_t>(rows * 8)), experts(expected.size());
      std::vector<float> expected_weights(expected.size()), weights(expected.size());
      const auto plain_step = plain_->begin(plain_batch(rows));
      const auto step = fast_->begin(plain_batch(rows));
      plain_->route(*plain_step, h.view(), *on_plain, view(bias), {8, 2.826F, true},
                    {expected.data(), expected_weights.data(), rows, 8});
      fast_->route(*step, h.view(), *on_fast, view(bias), {8, 2.826F, true},
                   {experts.data(), weights.data(), rows, 8});
      EXPECT_EQ(experts, expected) << bits << " bits, " << count << " experts, " << rows << " rows";
      EXPECT_EQ(std::memcmp(weights.data(), expected_weights.data(), weights.size() * 4), 0);
    }
  }
}

/// Whose rows the norm has rounded for it, one of which fails.
TEST_P(ManyRows, TheRouterAfterANorm) {
  constexpr int64_t kK = 2048, kCount = 192, kChosen = 8;
  const TestMatrix w(kCount, kK, 8, 64, 107);
  const auto on_plain = plain_->pack_linear({&w.data, 1});
  const auto on_fast = fast_->pack_linear({&w.data, 1});
  const std::vector<float> vectors = random_values(kK + kCount, 108);  // the norm's, and the bias
  for (const int64_t rows : {4, 5, 8, 9, 64, 128, 129}) {
    if (brief() && rows % 8 != 1) continue;
    TestRows x = hard_rows(2 * rows, kK, 109);  // and what is added
    x.values[static_cast<size_t>(3 * kK + 1)] = std::numeric_limits<float>::quiet_NaN();
    const auto call = [&](Ops& ops, Step& step, Rows routes) {
      const int64_t chosen = rows * kChosen;
      const Buffer memory = ops.allocate(3 * rows * kK * 4), out = ops.allocate(2 * chosen * 4);
      const Buffer of_vectors = ops.allocate((kK + kCount) * 4);
      ops.upload(memory.get(), x.values.data(), 2 * rows * kK * 4);
      ops.upload(of_vectors.get(), vectors.data(), (kK + kCount) * 4);
      const Rows sum{static_cast<float*>(memory.get()), rows, kK};
      const Rows z{sum.data + rows * kK, rows, kK}, h{z.data + rows * kK, rows, kK};
      const auto* const norm = static_cast<const float*>(of_vectors.get());
      auto* const weights = static_cast<float*>(out.get());
      Ops& device = static_cast<HostOps&>(ops).device();
      device.add_norm(step, sum, z, {norm, kK}, 1e-5F, h);
      device.route(step, h, &ops == plain_.get() ? *on_plain : *on_fast, {norm + kK, kCount},
                   {kChosen, 2.826F, true},
                   {reinterpret_cast<int32_t*>(weights + chosen), weights, rows, kChosen});
      ops.download(routes.data, out.get(), 2 * chosen * 4);
    };
    expect_same(rows, 2 * rows, kChosen, call, fmt::format("{} rows", rows));
  }
}

/// A layer in the device's own memory, where operations leave rounded rows and sums to those that follow; the
/// second time as a graph.
TEST_P(ManyRows, OperationsOfALayerInTurn) {
  constexpr int64_t kHidden = 512, kInter = 128, kCount = 16, kChosen = 4, kHeads = 8, kKvHeads = 2;
  constexpr int64_t kOther = 192;  // of a shared expert that is no more like the others
  const TestMatrix qkv((kHeads + 2 * kKvHeads) * kHeadSize, kHidden, 4, 64, 300);
  const TestMatrix o(kHidden, kHeads * kHeadSize, 4, 64, 301), router(kCount, kHidden, 8, 64, 302);
  std::vector<std::unique_ptr<TestMatrix>> memory;
  std::vector<MatrixData> gate, up, down;  // the last one's is the shared expert
  for (int64_t e = 0; e <= kCount; ++e) {
    for (auto* const to : {&gate, &up, &down}) {
      const bool outer = to == &down;
      memory.push_back(std::make_unique<TestMatrix>(outer ? kHidden : kInter, outer ? kInter : kHidden, 4, 64,
                                                    303 + memory.size()));
      to->push_back(memory.back()->data);
    }
  }
  const TestMatrix wide_gate(kOther, kHidden, 4, 64, 500), wide_up(kOther, kHidden, 4, 64, 501);
  const TestMatrix wide_down(kHidden, kOther, 4, 64, 502);
  const MatrixData shared[] = {gate.back(), up.back()}, wide[] = {wide_gate.data, wide_up.data};
  const std::span<const MatrixData> gates(gate.data(), kCount), ups(up.data(), kCount);
  const std::span<const MatrixData> downs(down.data(), kCount);
  // `fails`: row 2 does, which then is left out. `alike`: the shared expert has the others' form.
  const auto layer = [&](Ops& ops, int32_t rows, int32_t position, bool fails, bool alike) {
    const int32_t pages = (position + 60) / kPageTokens + 1;
    std::vector<Buffer> buffers;
    const auto room = [&](int64_t count, int64_t cols) {
      buffers.push_back(ops.allocate(count * cols * 4));
      return Rows{static_cast<float*>(buffers.back().get()), count, cols};
    };
    const auto vector_of = [&](int64_t size, uint64_t key) {
      const std::vector<float> values = random_values(size, key);
      const Rows out = room(1, size);
      ops.upload(out.data, values.data(), size * 4);
      return Vector{out.data, size};
    };
    Batch batch;
    batch.tokens.resize(static_cast<size_t>(rows));
    for (int32_t r = 0; r < rows; ++r) {
      SequenceRows sequence{.first_row = r, .rows = 1, .position = position + r % 60, .pages = {}};
      for (int32_t page = 0; page < pages; ++page) sequence.pages.push_back(r * pages + page);
      batch.sequences.push_back(sequence);
    }
    const auto w_qkv = ops.pack_linear({&qkv.data, 1}), w_o = ops.pack_linear({&o.data, 1});
    const auto w_router = ops.pack_linear({&router.data, 1}),
               w_inner = ops.pack_linear(alike ? shared : wide);
    const auto w_outer = ops.pack_linear({alike ? &down.back() : &wide_down.data, 1});
    const auto experts = ops.pack_experts(gates, ups, downs);
    const auto cache = ops.make_cache(1, kKvHeads, rows * pages);
    const Vector norm = vector_of(kHidden, 400), head_norm = vector_of(kHeadSize, 401);
    const Vector bias = vector_of(kCount, 402);
    const Rows x = room(rows, kHidden), h = room(rows, kHidden), z = room(rows, kHidden);
    const Rows q = room(rows, qkv.data.n), attended = room(rows, kHeads * kHeadSize);
    const Rows a = room(rows, alike ? kInter : kOther), own = room(rows, kHidden),
               inner = room(rows * kChosen, kInter);
    const Rows weights = room(rows, kChosen), chosen = room(rows, kChosen);
    const Routes routes{reinterpret_cast<int32_t*>(chosen.data), weights.data, rows, kChosen};
    std::vector<float> results;
    for (int time = 0; time < 2; ++time) {
      std::vector<float> values = random_values(rows * kHidden, 403);
      if (fails) values[2 * kHidden + 70] = std::numeric_limits<float>::infinity();
      ops.upload(x.data, values.data(), rows * kHidden * 4);
      const auto step = ops.begin(batch);
      ops.norm(*step, x, norm, 1e-5F, h);
      ops.linear(*step, h, *w_qkv, q);
      ops.write_kv(*step, q, head_norm, head_norm, 1e-5F, {11158840.0}, *cache, 0);
      ops.attention(*step, q, *cache, 0, attended);
      ops.linear(*step, attended, *w_o, z);
      ops.add_norm(*step, x, z, norm, 1e-5F, h);
      ops.route(*step, h, *w_router, bias, {kChosen, 2.826F, true}, routes);
      ops.gate_up(*step, h, *w_inner, a);
      ops.linear(*step, a, *w_outer, own);
      ops.experts_gate_up(*step, h, routes, *experts, inner);
      ops.experts_down(*step, inner, routes, *experts, own, z);
      ops.add_norm(*step, x, z, norm, 1e-5F, h);
      // What follows the experts need not be a norm.
      ops.experts_down(*step, inner, routes, *experts, {}, own);
      ops.linear(*step, own, *w_qkv, q);
      ops.experts_down(*step, inner, routes, *experts, {}, own);
      ops.add_norm(*step, x, own, {}, 1e-5F, h);
      for (const Rows& part : {x, h, z, own, q, attended, weights, a, inner}) {
        const size_t before = results.size();
        results.resize(before + static_cast<size_t>(part.rows * part.cols));
        ops.download(results.data() + before, part.data, part.rows * part.cols * 4);
        const int64_t row = part.rows / rows * part.cols;
        if (fails) std::fill_n(results.data() + before + 2 * row, row, 0.0F);
      }
      std::vector<uint8_t> expected(static_cast<size_t>(rows), 0);
      if (fails) expected[2] = 1;
      EXPECT_EQ(ops.failed(*step), expected);
    }
    return results;
  };
  const std::pair<int32_t, int32_t> cases[] = {
      {3, 640},  {4, 640},  {1, 16639}, {1, 16640}, {3, 12600}, {5, 640},   {8, 640},   {9, 640},  {9, 12600},
      {17, 640}, {48, 640}, {49, 640},  {63, 640},  {64, 640},  {127, 640}, {128, 640}, {129, 640}};
  for (const auto& [rows, position] : cases) {
    if (brief() && rows != 3 && rows != 9 && rows != 64) continue;
    for (const auto& [fails, alike] : {std::pair{false, true}, {true, true}, {false, false}}) {
      if (position != 640 && (fails || !alike)) continue;
      const auto run = [&, rows = rows, position = position, fails = fails, alike = alike](Ops& ops) {
        return layer(static_cast<HostOps&>(ops).device(), rows, position, fails, alike);
      };
      const std::vector<float> expected = run(*plain_), found = run(*fast_);
      const std::string what =
          fmt::format("{} rows at {}, fails: {}, alike: {}", rows, position, fails, alike);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * 4), 0) << what;
      EXPECT_EQ(std::memcmp(found.data(), found.data() + found.size() / 2, found.size() * 2), 0) << what;
    }
  }
}

/// Sequences of a row each.
std::vector<std::pair<int32_t, int32_t>> alone(std::initializer_list<int32_t> positions) {
  std::vector<std::pair<int32_t, int32_t>> out;
  for (const int32_t position : positions) out.emplace_back(position, 1);
  return out;
}

/// Sequences of many rows and of few in one step, from an empty cache and after others.
TEST_P(ManyRows, Attention) {
  struct Case {
    int32_t heads, kv_heads;
    std::vector<std::pair<int32_t, int32_t>> sequences;  // position, rows
  };
  const std::vector<Case> cases = {{32, 4, {{0, 39}}},
                                   {32, 4, {{0, 40}}},
                                   {32, 4, {{0, 41}}},
                                   {32, 4, {{0, 48}}},
                                   {32, 4, {{0, 49}}},
                                   {32, 4, {{1000, 130}}},
                                   {32, 4, {{0, 321}}},
                                   {32, 4, {{60, 45}, {5, 3}, {700, 47}, {300, 1}}},
                                   {64, 8, {{63, 65}, {0, 1}}},
                                   {24, 8, {{127, 70}}},
                                   {6, 2, {{255, 257}}},
                                   {4, 4, {{200, 200}}},
                                   {14, 2, {{511, 90}, {2, 81}}},
                                   {8, 1, {{4090, 170}}},
                                   {8, 1, {{33000, 1}, {32767, 1}, {5, 1}, {32768, 1}, {7, 1}}},
                                   {8, 1, {{33000, 1}, {32768, 1}, {5, 1}, {0, 170}}},
                                   {8, 1, {{250, 3}, {33000, 70}, {9, 1}}},  // more than attend at a time
                                   {14, 2, {{255, 1}, {256, 1}, {700, 1}, {8191, 2}}},
                                   {64, 8, alone({0, 63, 9, 64, 255, 256, 4095, 4096, 511, 512})},
                                   {16, 2, alone({12287, 12288, 0, 40, 128, 1023, 1024, 8191, 300})}};
  for (const Case& c : cases) {
    if (brief() && (c.heads >= 32 || c.kv_heads == 1)) continue;
    Batch batch;
    int32_t pages = 0;
    for (const auto& [position, rows] : c.sequences) {
      SequenceRows sequence{.first_row = batch.rows(), .rows = rows, .position = position, .pages = {}};
      const int32_t count = (position + rows + 63) / 64;
      for (int32_t b = 0; b < count; ++b) sequence.pages.push_back(pages + count - 1 - b);
      pages += count;
      batch.sequences.push_back(sequence);
      batch.tokens.resize(batch.tokens.size() + static_cast<size_t>(rows));
    }
    const int64_t cols = (c.heads + 2 * c.kv_heads) * kHeadSize;
    std::vector<float> norm = random_values(kHeadSize, 110);
    TestRows results[2] = {{batch.rows(), c.heads * kHeadSize}, {batch.rows(), c.heads * kHeadSize}};
    std::vector<uint8_t> failed[2];
    for (Ops* const ops : {plain_.get(), fast_.get()}) {
      const size_t which = ops == plain_.get() ? 0 : 1;
      const auto cache = ops->make_cache(1, c.kv_heads, pages);
      const auto write = [&](const Batch& some, uint64_t key, bool attend) {
        const auto step = ops->begin(some);
        TestRows qkv = hard_rows(some.rows(), cols, key);
        if (attend) qkv.values[static_cast<size_t>(2 * cols + 1)] = std::numeric_limits<float>::infinity();
        ops->write_kv(*step, qkv.view(), view(norm), view(norm), 1e-5F, {11158840.0}, *cache, 0);
        if (!attend) return;
        ops->attention(*step, qkv.view(), *cache, 0, results[which].view());
        failed[which] = ops->failed(*step);
      };
      Batch earlier;
      for (SequenceRows sequence : batch.sequences) {
        if (sequence.position == 0) continue;
        sequence.first_row = earlier.rows();
        sequence.rows = std::exchange(sequence.position, 0);
        earlier.tokens.resize(earlier.tokens.size() + static_cast<size_t>(sequence.rows));
        earlier.sequences.push_back(sequence);
      }
      if (earlier.rows() > 0) write(earlier, 111, false);
      write(batch, 112, true);
    }
    for (int64_t r = 0; r < batch.rows(); ++r) {
      const auto size = static_cast<size_t>(results[0].cols);
      const float* const expected = results[0].values.data() + static_cast<size_t>(r) * size;
      const float* const found = results[1].values.data() + static_cast<size_t>(r) * size;
      if (r == 2) continue;  // the one that failed
      ASSERT_EQ(std::memcmp(expected, found, size * 4), 0) << c.heads << "/" << c.kv_heads << ", row " << r;
    }
    EXPECT_EQ(failed[1], failed[0]);
  }
}

}  // namespace
}  // namespace tercet::cuda
