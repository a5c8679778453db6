#include "ops/profiled_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace tercet {
namespace {

using testing::_;
using testing::NiceMock;

class FakeOps : public Ops {
 public:
  MOCK_METHOD(Buffer, allocate, (int64_t), (override));
  MOCK_METHOD(void, upload, (void*, const void*, int64_t), (override));
  MOCK_METHOD(int64_t, allocated, (), (const, override));
  MOCK_METHOD(bool, mark, (), (override));
  MOCK_METHOD(std::vector<Lap>, laps, (), (override));
  MOCK_METHOD(std::unique_ptr<Linear>, pack_linear, (std::span<const MatrixData>), (override));
  MOCK_METHOD(std::unique_ptr<Table>, pack_table, (const MatrixData&), (override));
  MOCK_METHOD(std::unique_ptr<Experts>, pack_experts,
              (std::span<const MatrixData>, std::span<const MatrixData>, std::span<const MatrixData>),
              (override));
  MOCK_METHOD(std::unique_ptr<KvCache>, make_cache, (int32_t, int32_t, int32_t), (override));
  MOCK_METHOD(std::unique_ptr<Step>, begin, (const Batch&), (override));
  MOCK_METHOD(void, copy_pages, (KvCache&, std::span<const PageCopy>), (override));
  MOCK_METHOD(std::vector<uint8_t>, failed, (Step&), (override));
  MOCK_METHOD(void, embed, (Step&, std::span<const int32_t>, const Table&, Rows), (override));
  MOCK_METHOD(void, norm, (Step&, Rows, Vector, float, Rows), (override));
  MOCK_METHOD(void, add_norm, (Step&, Rows, Rows, Vector, float, Rows), (override));
  MOCK_METHOD(void, linear, (Step&, Rows, const Linear&, Rows), (override));
  MOCK_METHOD(void, linear_of, (Step&, Rows, std::span<const int32_t>, const Linear&, Rows), (override));
  MOCK_METHOD(void, write_kv, (Step&, Rows, Vector, Vector, float, RopeParams, KvCache&, int32_t),
              (override));
  MOCK_METHOD(void, attention, (Step&, Rows, const KvCache&, int32_t, Rows), (override));
  MOCK_METHOD(void, gate_up, (Step&, Rows, const Linear&, Rows), (override));
  MOCK_METHOD(void, route, (Step&, Rows, const Linear&, Vector, RouterParams, Routes), (override));
  MOCK_METHOD(void, experts_gate_up, (Step&, Rows, const Routes&, const Experts&, Rows), (override));
  MOCK_METHOD(void, experts_down, (Step&, Rows, const Routes&, const Experts&, Rows, Rows), (override));
  MOCK_METHOD(void, mtp_input,
              (Step&, std::span<const int32_t>, const Table&, Rows, Vector, Vector, float, Rows), (override));
  MOCK_METHOD(std::vector<RowResult>, evaluate, (Step&, Rows, std::span<const RowOutput>), (override));

  void download(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
};

class ProfiledOpsTest : public testing::Test {
 protected:
  Profile profile_{.what = Profiling::work, .parts = {}};
  NiceMock<FakeOps>* inner_ = new NiceMock<FakeOps>;  // owned by ops_
  std::unique_ptr<Ops> ops_ = make_profiled_ops(std::unique_ptr<Ops>(inner_), profile_);
  Step step_;

  static Linear linear(int64_t n, int64_t k, int64_t bytes) {
    Linear l;
    l.n = n;
    l.k = k;
    l.bytes = bytes;
    return l;
  }
};

TEST_F(ProfiledOpsTest, TellsTheProductsOfALayerApart) {
  const Linear qkv = linear(10, 4, 1), out = linear(4, 6, 2), up = linear(8, 4, 3), down = linear(4, 4, 4),
               router = linear(16, 4, 5);
  KvCache cache;
  cache.heads = 1;
  const Rows h{nullptr, 2, 4};
  for (const bool dense : {true, false}) {
    ops_->linear(step_, h, qkv, h);
    ops_->write_kv(step_, h, {}, {}, 0, {}, cache, 0);
    ops_->attention(step_, h, cache, 0, h);
    ops_->linear(step_, h, out, h);
    ops_->add_norm(step_, h, h, {nullptr, 4}, 0, h);
    if (!dense) ops_->route(step_, h, router, {}, {}, {});
    ops_->gate_up(step_, h, up, h);
    ops_->linear(step_, h, down, h);
  }
  EXPECT_EQ(profile_.of(ModelPart::qkv).calls, 2);
  EXPECT_EQ(profile_.of(ModelPart::qkv).products, 2 * 2 * 40);
  EXPECT_EQ(profile_.of(ModelPart::attention_out).bytes, 2 * 2);
  EXPECT_EQ(profile_.of(ModelPart::dense_gate_up).products, 2 * 32);
  EXPECT_EQ(profile_.of(ModelPart::dense_down).bytes, 4);
  EXPECT_EQ(profile_.of(ModelPart::router).bytes, 5);
  EXPECT_EQ(profile_.of(ModelPart::shared_gate_up).calls, 1);
  EXPECT_EQ(profile_.of(ModelPart::shared_down).products, 2 * 16);
  EXPECT_EQ(profile_.of(ModelPart::norms).bytes, 2 * 16);
  EXPECT_EQ(profile_.total().calls, 2 * 7 + 1);
  EXPECT_EQ(profile_.total().bytes, 2 * 1 + 2 * 2 + 2 * 3 + 2 * 4 + 5 + 2 * 16);
}

TEST_F(ProfiledOpsTest, CountsEachChosenExpertsBytesOnce) {
  std::vector<int32_t> chosen = {1, 3, 1, 7, 3, 7};  // three rows, three experts
  const Routes routes{chosen.data(), nullptr, 3, 2};
  Experts experts;
  experts.count = 8;
  experts.hidden = experts.out = 4;
  experts.inter = experts.down_k = 2;
  experts.bytes = 8 * 30;
  const Rows rows{nullptr, 3, 4};
  ops_->route(step_, rows, linear(8, 4, 0), {}, {}, routes);
  ops_->experts_gate_up(step_, rows, routes, experts, rows);
  ops_->experts_down(step_, rows, routes, experts, {}, rows);
  EXPECT_EQ(profile_.of(ModelPart::experts_gate_up).bytes, 3 * 20);
  EXPECT_EQ(profile_.of(ModelPart::experts_down).bytes, 3 * 10);
  EXPECT_EQ(profile_.of(ModelPart::experts_gate_up).products, 3 * 2 * 16);
  EXPECT_EQ(profile_.of(ModelPart::experts_down).products, 3 * 2 * 8);
  EXPECT_EQ(chosen[0], 1) << "the routes themselves stay";
}

TEST_F(ProfiledOpsTest, CountsTheCacheThatASequenceSees) {
  KvCache cache;
  cache.heads = 2;
  step_.batch.tokens = {0, 0, 0};
  step_.batch.sequences = {{.first_row = 0, .rows = 2, .position = 10, .pages = {}},
                           {.first_row = 2, .rows = 1, .position = 0, .pages = {}}};
  const Rows out{nullptr, 3, 4 * kHeadSize};
  ops_->attention(step_, out, cache, 0, out);
  EXPECT_EQ(profile_.of(ModelPart::attention).bytes, (12 + 1) * 2 * 2 * 257);
  EXPECT_EQ(profile_.of(ModelPart::attention).products, (11 + 12 + 1) * 4 * 2 * 128);
}

TEST_F(ProfiledOpsTest, CallsThroughWhereItIsOff) {
  profile_.what = Profiling::none;
  EXPECT_CALL(*inner_, evaluate(_, _, _)).WillOnce([] { return std::vector<RowResult>(3); });
  EXPECT_EQ(ops_->evaluate(step_, {}, {}).size(), 3U);
  EXPECT_CALL(*inner_, norm(_, _, _, 0.5F, _));
  ops_->norm(step_, {}, {}, 0.5F, {});
  EXPECT_EQ(profile_.total().calls, 0);
}

TEST_F(ProfiledOpsTest, TimesTheCall) {
  profile_.what = Profiling::time;
  EXPECT_CALL(*inner_, evaluate(_, _, _)).WillOnce([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return std::vector<RowResult>();
  });
  ops_->evaluate(step_, {}, {});
  EXPECT_GE(profile_.of(ModelPart::draw).seconds, 0.005);
  EXPECT_EQ(profile_.of(ModelPart::draw).calls, 0);
  EXPECT_EQ(part_name(ModelPart::draw), "draw");
  EXPECT_EQ(part_name(ModelPart::embedding), "embedding");
}

TEST_F(ProfiledOpsTest, TakesADevicesTimesFromItsMarks) {
  profile_.what = Profiling::time;
  EXPECT_CALL(*inner_, mark()).Times(4).WillRepeatedly(testing::Return(true));
  EXPECT_CALL(*inner_, laps()).WillOnce([] { return std::vector<Lap>{{0.5, 2}, {0.25, 1}, {1, 3}}; });
  ops_->begin({});
  ops_->norm(step_, {}, {}, 0.5F, {});
  ops_->linear(step_, {}, linear(4, 4, 1), {});
  ops_->norm(step_, {}, {}, 0.5F, {});
  ops_->failed(step_);
  EXPECT_EQ(profile_.of(ModelPart::norms).seconds, 1.5);
  EXPECT_EQ(profile_.of(ModelPart::norms).kernels, 5);
  EXPECT_EQ(profile_.of(ModelPart::qkv).seconds, 0.25);
  EXPECT_EQ(profile_.total().kernels, 6);
}

}  // namespace
}  // namespace tercet
