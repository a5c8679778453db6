// The cases that all backends share, on the GPU; skipped, with the reason, where there is none.
#include "backend/cuda/cuda_ops.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "backend/cuda/test_host_ops.h"
#include "backend/reference/reference_ops.h"
#include "backend/reference/test_pair.h"

namespace tercet::backend_test {

std::vector<Backend> backends_under_test() {
  const auto make = [](bool plain, bool common) {
    return [plain, common](int) -> Result<std::unique_ptr<Ops>> {
      TERCET_TRY(auto ops, make_cuda_ops({.plain = plain, .untried = true, .common = common}));
      return std::make_unique<cuda::HostOps>(std::move(ops));
    };
  };
  return {{"plain", make(true, false)}, {"fast", make(false, false)}, {"common", make(false, true)}};
}

}  // namespace tercet::backend_test

namespace tercet {
namespace {

TEST(CudaDevice, IsThereOrNamesWhatIsMissing) {
  const Result<CudaDevice> device = cuda_device();
  if (device) {
    EXPECT_GT(device->memory, 0);
    EXPECT_GE(device->driver, 13000);
  } else {
    EXPECT_THAT(device.error().message,
                testing::AnyOf(testing::HasSubstr("driver"), testing::HasSubstr("CUDA")));
    const auto ops = make_cuda_ops();
    ASSERT_FALSE(ops);
    EXPECT_EQ(ops.error().message, device.error().message);
  }
}

TEST(CudaDevice, OfANumberThatDoesNotExistIsRefused) {
  const Result<CudaDevice> device = cuda_device(999);
  ASSERT_FALSE(device);
  EXPECT_FALSE(cuda_read_bandwidth(999));
}

/// Such matrices go to the device in several pieces.
TEST(CudaPacking, LargeMatricesArriveWhole) {
  auto device = make_cuda_ops({.untried = true});
  if (!device) GTEST_SKIP() << device.error().message;
  cuda::HostOps ops(std::move(*device));
  for (const int bits : {4, 0}) {
    const int64_t n = bits == 4 ? 35000 : 9000, k = 2048;  // some 40 MB
    const backend_test::TestMatrix w(n, k, bits, 64, 120);
    const auto reference = make_reference_ops(1);
    backend_test::TestRows h = backend_test::hard_rows(1, k, 121), expected(1, n), y(1, n);
    const auto reference_step = reference->begin(backend_test::plain_batch(1));
    const auto step = ops.begin(backend_test::plain_batch(1));
    reference->linear(*reference_step, h.view(), *reference->pack_linear({&w.data, 1}), expected.view());
    ops.linear(*step, h.view(), *ops.pack_linear({&w.data, 1}), y.view());
    EXPECT_TRUE(y == expected) << bits;
  }
}

/// A step that has more programs than are remembered, each for a result of its own.
TEST(CudaPrograms, ManyInOneStep) {
  auto device = make_cuda_ops({.untried = true});
  if (!device) GTEST_SKIP() << device.error().message;
  cuda::HostOps ops(std::move(*device));
  constexpr int64_t kN = 32, kK = 128, kPrograms = 1100;
  const backend_test::TestMatrix w(kN, kK, 4, 64, 123);
  backend_test::TestRows h = backend_test::hard_rows(1, kK, 124), expected(1, kN);
  const auto reference = make_reference_ops(1);
  reference->linear(*reference->begin(backend_test::plain_batch(1)), h.view(),
                    *reference->pack_linear({&w.data, 1}), expected.view());
  const auto on_device = ops.pack_linear({&w.data, 1});
  const Buffer row = ops.allocate(kK * 4), results = ops.allocate((kPrograms + 1) * kN * 4);
  ops.upload(row.get(), h.values.data(), kK * 4);
  const Rows x{static_cast<float*>(row.get()), 1, kK};
  auto* const y = static_cast<float*>(results.get());
  const std::vector<int32_t> ids = {0};
  const auto step = ops.begin(backend_test::plain_batch(1));
  for (int64_t i = 0; i < kPrograms; ++i) {
    ops.device().linear(*step, x, *on_device, {y + i * kN, 1, kN});
    ops.device().linear_of(*step, x, ids, *on_device, {y + kPrograms * kN, 1, kN});  // by kernels of its own
  }
  std::vector<float> found((kPrograms + 1) * kN);
  ops.download(found.data(), y, static_cast<int64_t>(found.size()) * 4);
  for (int64_t i = 0; i <= kPrograms; ++i) {
    const std::vector<float> its(found.begin() + i * kN, found.begin() + (i + 1) * kN);
    ASSERT_EQ(its, expected.values) << i;
  }
}

/// Steps of one to four products by one of two matrices each: some are the beginnings of others, some differ
/// in the last product alone. Each comes again.
TEST(CudaPrograms, AreFoundAgainByAllThatIsAskedFor) {
  auto device = make_cuda_ops({.untried = true});
  if (!device) GTEST_SKIP() << device.error().message;
  cuda::HostOps ops(std::move(*device));
  constexpr int64_t kN = 32, kK = 128;
  constexpr size_t kMost = 4;
  backend_test::TestRows h = backend_test::hard_rows(1, kK, 125);
  const auto reference = make_reference_ops(1);
  const backend_test::TestMatrix matrices[] = {{kN, kK, 4, 64, 126}, {kN, kK, 4, 64, 127}};
  std::vector<std::vector<float>> expected;
  std::vector<std::unique_ptr<Linear>> weights;
  for (const backend_test::TestMatrix& w : matrices) {
    backend_test::TestRows y(1, kN);
    reference->linear(*reference->begin(backend_test::plain_batch(1)), h.view(),
                      *reference->pack_linear({&w.data, 1}), y.view());
    expected.push_back(y.values);
    weights.push_back(ops.pack_linear({&w.data, 1}));
  }
  ASSERT_NE(expected[0], expected[1]);
  const Buffer row = ops.allocate(kK * 4), results = ops.allocate(kMost * kN * 4);
  ops.upload(row.get(), h.values.data(), kK * 4);
  const Rows x{static_cast<float*>(row.get()), 1, kK};
  auto* const y = static_cast<float*>(results.get());
  const std::vector<float> nothing(kMost * kN, -1.0F);
  for (const bool longest_first : {false, true, false}) {
    for (size_t i = 1; i <= kMost; ++i) {
      const size_t count = longest_first ? kMost + 1 - i : i;
      for (uint32_t which = 0; which < 1U << count; ++which) {
        ops.upload(y, nothing.data(), static_cast<int64_t>(nothing.size()) * 4);
        const auto step = ops.begin(backend_test::plain_batch(1));
        for (size_t j = 0; j < count; ++j) {
          ops.device().linear(*step, x, *weights[which >> j & 1U], {y + j * kN, 1, kN});
        }
        std::vector<float> found(kMost * kN), wanted = nothing;
        ops.download(found.data(), y, static_cast<int64_t>(found.size()) * 4);
        for (size_t j = 0; j < count; ++j) {
          std::copy_n(expected[which >> j & 1U].begin(), kN, wanted.begin() + static_cast<ptrdiff_t>(j * kN));
        }
        ASSERT_EQ(found, wanted) << count << ", " << which;
      }
    }
  }
}

TEST(CudaPacking, GoesOnAfterTheCallsAndLetsOwnersGo) {
  auto device = make_cuda_ops({.threads = 3, .untried = true});
  if (!device) GTEST_SKIP() << device.error().message;
  cuda::HostOps ops(std::move(*device));
  constexpr int64_t kN = 2000, kK = 2048;  // 2.3 MB, or floats of 8 MB
  const auto reference = make_reference_ops(1);
  backend_test::TestRows h = backend_test::hard_rows(1, kK, 122);
  std::vector<backend_test::TestRows> expected;
  std::vector<std::unique_ptr<Linear>> packed;
  std::vector<std::weak_ptr<const void>> owners;
  const int64_t before = ops.allocated();
  for (uint64_t i = 0; i < 40; ++i) {
    const auto w = std::make_shared<backend_test::TestMatrix>(kN, kK, i % 8 == 7 ? 0 : 4, 64, 130 + i);
    const auto step = reference->begin(backend_test::plain_batch(1));
    reference->linear(*step, h.view(), *reference->pack_linear({&w->data, 1}),
                      expected.emplace_back(1, kN).view());
    MatrixData data = w->data;
    data.owner = w;
    owners.emplace_back(w);
    packed.push_back(ops.pack_linear({&data, 1}));
    ops.pack_linear({&data, 1});  // whom nobody wants any more
  }
  ops.wait();
  for (const auto& owner : owners) EXPECT_TRUE(owner.expired());
  int64_t bytes = 0;
  for (const auto& weights : packed) bytes += weights->bytes;
  EXPECT_LT(ops.allocated() - before, bytes + (int64_t{128} << 20)) << "what nobody wants is freed";
  const auto step = ops.begin(backend_test::plain_batch(1));
  for (size_t i = 0; i < packed.size(); ++i) {
    backend_test::TestRows y(1, kN);
    ops.linear(*step, h.view(), *packed[i], y.view());
    EXPECT_TRUE(y == expected[i]) << i;
  }
}

TEST(CudaGate, PassesHere) {
  const auto plain = make_cuda_ops({.plain = true});
  if (!plain) GTEST_SKIP() << plain.error().message;
  const auto fast = make_cuda_ops({.untried = true});
  ASSERT_TRUE(fast);
  EXPECT_EQ(failing_cuda_kernels(**plain, **fast), std::vector<std::string>{});
}

}  // namespace
}  // namespace tercet
