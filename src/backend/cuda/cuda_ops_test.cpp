// The cases that all backends share, on the GPU; skipped, with the reason, where there is none.
#include "backend/cuda/cuda_ops.h"

#include <gmock/gmock.h>

#include "backend/cuda/test_host_ops.h"
#include "backend/reference/reference_ops.h"
#include "backend/reference/test_pair.h"

namespace tercet::backend_test {

std::vector<Backend> backends_under_test() {
  const auto make = [](bool plain) {
    return [plain](int) -> Result<std::unique_ptr<Ops>> {
      TERCET_TRY(auto ops, make_cuda_ops({.plain = plain, .untried = true}));
      return std::make_unique<cuda::HostOps>(std::move(ops));
    };
  };
  return {{"plain", make(true)}, {"fast", make(false)}};
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

/// Such a matrix goes to the device in several pieces.
TEST(CudaPacking, LargeMatricesArriveWhole) {
  auto device = make_cuda_ops({.untried = true});
  if (!device) GTEST_SKIP() << device.error().message;
  cuda::HostOps ops(std::move(*device));
  constexpr int64_t kN = 35000, kK = 2048;  // 40 MB
  const backend_test::TestMatrix w(kN, kK, 4, 64, 120);
  const auto reference = make_reference_ops(1);
  backend_test::TestRows h = backend_test::hard_rows(1, kK, 121), expected(1, kN), y(1, kN);
  const auto reference_step = reference->begin(backend_test::plain_batch(1));
  const auto step = ops.begin(backend_test::plain_batch(1));
  reference->linear(*reference_step, h.view(), *reference->pack_linear({&w.data, 1}), expected.view());
  ops.linear(*step, h.view(), *ops.pack_linear({&w.data, 1}), y.view());
  EXPECT_TRUE(y == expected);
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
