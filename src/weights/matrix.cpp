#include "weights/matrix.h"

#include <atomic>
#include <limits>
#include <optional>

#include "base/check.h"

namespace tercet {
namespace {

using Shape = std::vector<int64_t>;

constexpr int kFloatGroup = 64;  // docs/exactness.md, rule 2

std::string described(const TensorInfo& tensor) {
  return fmt::format("{} [{}]", dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "));
}

tl::unexpected<Error> tensor_failure(const TensorSource& source, const TensorInfo& tensor,
                                     std::string_view what) {
  return fail("{}: tensor \"{}\": {}", source.origin(tensor), tensor.name, what);
}

bool is_float(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32; }

Result<const TensorInfo*> require(const TensorSource& source, const std::string& name) {
  const TensorInfo* tensor = source.find(name);
  if (tensor == nullptr) return fail("tensor \"{}\" is missing", name);
  return tensor;
}

Result<void> check_shape(const TensorSource& source, const TensorInfo& tensor, const Shape& expected) {
  if (tensor.shape == expected) return {};
  return tensor_failure(
      source, tensor,
      fmt::format("expected shape [{}], found {}", fmt::join(expected, ", "), described(tensor)));
}

Result<void> check_float(const TensorSource& source, const TensorInfo& tensor) {
  if (is_float(tensor.dtype)) return {};
  return tensor_failure(source, tensor,
                        fmt::format("expected BF16, F16 or F32, found {}", described(tensor)));
}

/// Whether the size of a value among [begin, end) is `least` or more, as bits without sign.
template <class Word>
bool any_from(const Word* words, int64_t begin, int64_t end, Word least) {
  constexpr auto kMagnitude = static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
  Word any = 0;
  for (int64_t i = begin; i < end; ++i) any |= static_cast<Word>((words[i] & kMagnitude) >= least);
  return any != 0;
}

/// What values may be.
enum class Range {
  finite,
  packable,  // below 2^59, so that no norm of 64 of them has an exponent above 63 (docs/exactness.md, rule 0)
};

bool any_outside(const std::byte* data, DType dtype, Range range, int64_t begin, int64_t end) {
  const bool packable = range == Range::packable;
  switch (dtype) {
    case DType::bf16:
      return any_from<uint16_t>(reinterpret_cast<const uint16_t*>(data), begin, end,
                                packable ? 0x5d00 : 0x7f80);
    case DType::f16:
      return any_from<uint16_t>(reinterpret_cast<const uint16_t*>(data), begin, end, 0x7c00);
    default:
      TERCET_CHECK(dtype == DType::f32);
      return any_from<uint32_t>(reinterpret_cast<const uint32_t*>(data), begin, end,
                                packable ? 0x5d000000 : 0x7f800000);
  }
}

float value_at(const std::byte* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::bf16:
      return bf16_to_float(reinterpret_cast<const uint16_t*>(data)[i]);
    case DType::f16:
      return f16_to_float(reinterpret_cast<const uint16_t*>(data)[i]);
    default:
      TERCET_CHECK(dtype == DType::f32);
      return reinterpret_cast<const float*>(data)[i];
  }
}

/// The place of element `i`, as "[3, 17]".
std::string place(const Shape& shape, int64_t i) {
  Shape index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0; i /= shape[axis]) index[axis] = i % shape[axis];
  return fmt::format("[{}]", fmt::join(index, ", "));
}

Result<TensorBytes> read_checked(const TensorSource& source, const TensorInfo& tensor, Range range,
                                 ThreadPool* pool) {
  TERCET_TRY(TensorBytes bytes, source.read(tensor));
  const std::byte* data = bytes.bytes.data();
  const int64_t count = tensor.elements();
  std::atomic<int64_t> first{std::numeric_limits<int64_t>::max()};
  const auto scan = [&](int64_t begin, int64_t end) {
    if (!any_outside(data, tensor.dtype, range, begin, end)) return;
    while (!any_outside(data, tensor.dtype, range, begin, begin + 1)) ++begin;
    int64_t known = first.load();
    while (begin < known && !first.compare_exchange_weak(known, begin)) {
    }
  };
  if (pool != nullptr) {
    pool->parallel_for(count, 1 << 16, scan);
  } else {
    scan(0, count);
  }
  if (const int64_t found = first.load(); found < count) {
    return tensor_failure(
        source, tensor,
        fmt::format("expected finite values{}, found {} at {}", range == Range::packable ? " below 2^59" : "",
                    value_at(data, tensor.dtype, found), place(tensor.shape, found)));
  }
  return bytes;
}

/// A matrix with leading extents (none, or the number of stacked matrices); MatrixData::n counts all rows.
struct Request {
  std::string name;
  Shape leading;
  int64_t n, k;

  Shape shape(int64_t last) const {
    Shape result = leading;
    result.push_back(n);
    result.push_back(last);
    return result;
  }
  int64_t rows() const { return leading.empty() ? n : leading[0] * n; }
};

Result<MatrixData> load_floats(const TensorSource& source, const Request& request, const TensorInfo& weight,
                               const Quantization& quantization, ThreadPool* pool) {
  const auto own = quantization.modules.find(request.name);
  if (own != quantization.modules.end() && own->second.bits != 0) {
    return tensor_failure(
        source, weight,
        fmt::format("expected {} bits, as config.json says of \"{}\", found {} without scales",
                    own->second.bits, request.name, described(weight)));
  }
  TERCET_TRY_VOID(check_float(source, weight));
  TERCET_TRY_VOID(check_shape(source, weight, request.shape(request.k)));
  if (request.k % kFloatGroup != 0) {
    return tensor_failure(
        source, weight,
        fmt::format("expected rows of a multiple of {}, found {}", kFloatGroup, described(weight)));
  }
  TERCET_TRY(TensorBytes bytes, read_checked(source, weight, Range::packable, pool));
  MatrixData matrix;
  matrix.n = request.rows();
  matrix.k = request.k;
  matrix.group = kFloatGroup;
  matrix.dtype = weight.dtype;
  matrix.values = bytes.bytes.data();
  matrix.owner = std::move(bytes.owner);
  return matrix;
}

Result<void> check_affine(const TensorSource& source, const Request& request, const QuantizationEntry& entry,
                          const TensorInfo& weight, const TensorInfo& scales, const TensorInfo& biases) {
  if (entry.bits == 0) {
    return tensor_failure(source, weight,
                          fmt::format("is quantised ({}), but config.json gives no bits for \"{}\"",
                                      described(weight), request.name));
  }
  const std::string format =
      fmt::format("{} bits in groups of {}, as config.json says", entry.bits, entry.group);
  if (request.k % entry.group != 0) {
    return tensor_failure(source, weight,
                          fmt::format("{}: rows of {} are no multiple of it", format, request.k));
  }
  if (weight.dtype != DType::u32 || weight.shape != request.shape(request.k * entry.bits / 32)) {
    return tensor_failure(
        source, weight,
        fmt::format("expected U32 [{}] ({}), found {}",
                    fmt::join(request.shape(request.k * entry.bits / 32), ", "), format, described(weight)));
  }
  for (const TensorInfo* part : {&scales, &biases}) {
    TERCET_TRY_VOID(check_float(source, *part));
    if (part->shape != request.shape(request.k / entry.group)) {
      return tensor_failure(
          source, *part,
          fmt::format("expected shape [{}] ({}), found {}",
                      fmt::join(request.shape(request.k / entry.group), ", "), format, described(*part)));
    }
  }
  if (scales.dtype != biases.dtype) {
    return tensor_failure(
        source, biases,
        fmt::format("expected {}, as the scales, found {}", dtype_name(scales.dtype), described(biases)));
  }
  return {};
}

Result<MatrixData> load_affine(const TensorSource& source, const Request& request, const TensorInfo& weight,
                               const TensorInfo& scales, const Quantization& quantization, ThreadPool* pool) {
  TERCET_TRY(const TensorInfo* biases, require(source, request.name + ".biases"));
  const QuantizationEntry& entry = quantization.of(request.name);
  TERCET_TRY_VOID(check_affine(source, request, entry, weight, scales, *biases));
  auto owner = std::make_shared<std::array<TensorBytes, 3>>();
  auto& [weight_bytes, scale_bytes, bias_bytes] = *owner;
  TERCET_TRY(weight_bytes, source.read(weight));
  TERCET_TRY(scale_bytes, read_checked(source, scales, Range::finite, pool));
  TERCET_TRY(bias_bytes, read_checked(source, *biases, Range::finite, pool));
  MatrixData matrix;
  matrix.n = request.rows();
  matrix.k = request.k;
  matrix.bits = entry.bits;
  matrix.group = entry.group;
  matrix.dtype = scales.dtype;
  matrix.values = weight_bytes.bytes.data();
  matrix.scales = scale_bytes.bytes.data();
  matrix.biases = bias_bytes.bytes.data();
  matrix.owner = std::move(owner);
  return matrix;
}

/// `pool`: null where the caller is one of many threads.
Result<MatrixData> load(const TensorSource& source, const Request& request, const Quantization& quantization,
                        ThreadPool* pool) {
  const TensorInfo* weight = source.find(request.name + ".weight");
  if (weight == nullptr) weight = source.find(request.name);
  if (weight == nullptr) return fail("tensor \"{}.weight\" is missing", request.name);
  const TensorInfo* scales = source.find(request.name + ".scales");
  if (scales != nullptr) return load_affine(source, request, *weight, *scales, quantization, pool);
  if (weight->dtype == DType::u32) return fail("tensor \"{}.scales\" is missing", request.name);
  return load_floats(source, request, *weight, quantization, pool);
}

}  // namespace

Result<MatrixData> load_matrix(const TensorSource& source, const std::string& name, int64_t n, int64_t k,
                               const Quantization& quantization, ThreadPool& pool) {
  return load(source, {name, {}, n, k}, quantization, &pool);
}

Result<std::vector<MatrixData>> load_matrices(const TensorSource& source, std::span<const std::string> names,
                                              int64_t count, int64_t n, int64_t k,
                                              const Quantization& quantization, ThreadPool& pool) {
  std::vector<MatrixData> matrices;
  if (names.size() == 1) {
    TERCET_TRY(const MatrixData stack, load(source, {names[0], {count}, n, k}, quantization, &pool));
    for (int64_t i = 0; i < count; ++i) matrices.push_back(stack.rows(i * n, n));
    return matrices;
  }
  TERCET_CHECK_EQ(static_cast<int64_t>(names.size()), count);
  std::vector<Result<MatrixData>> loaded(names.size());
  pool.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      loaded[at] = load(source, {names[at], {}, n, k}, quantization, nullptr);
    }
  });
  for (Result<MatrixData>& matrix : loaded) {
    if (!matrix) return tl::unexpected(matrix.error());
    matrices.push_back(std::move(*matrix));
  }
  return matrices;
}

Result<std::vector<float>> load_vector(const TensorSource& source, const std::string& name, int64_t n) {
  TERCET_TRY(const TensorInfo* tensor, require(source, name));
  TERCET_TRY_VOID(check_float(source, *tensor));
  TERCET_TRY_VOID(check_shape(source, *tensor, {n}));
  TERCET_TRY(const TensorBytes bytes, read_checked(source, *tensor, Range::finite, nullptr));
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    values[static_cast<size_t>(i)] = value_at(bytes.bytes.data(), tensor->dtype, i);
  return values;
}

}  // namespace tercet
