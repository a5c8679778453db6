#include "backend/cuda/cuda_ops.h"

namespace tercet {
namespace {

tl::unexpected<Error> absent() { return fail("this program was built without CUDA"); }

}  // namespace

Result<CudaDevice> cuda_device(int) { return absent(); }
std::vector<std::string> failing_cuda_kernels(Ops&, Ops&) { return {}; }
Result<std::unique_ptr<Ops>> make_cuda_ops(const CudaOptions&) { return absent(); }
Result<double> cuda_read_bandwidth(int) { return absent(); }

}  // namespace tercet
