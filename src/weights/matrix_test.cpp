#include "weights/matrix.h"

#include <gtest/gtest.h>

#include <cmath>

#include "weights/test_files.h"

namespace tercet {
namespace {

using testing::error_of;
using testing::tensor_of;

constexpr uint16_t kOne = 0x3f80;  // bf16
constexpr uint16_t kNan = 0x7fc0;
constexpr uint16_t kInf = 0xff80;

class Matrix : public ::testing::Test {
 protected:
  template <class T>
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    tensors_.push_back(tensor_of<T>(name, dtype, std::move(shape), values));
  }
  void add_bf16(const std::string& name, std::vector<int64_t> shape, uint16_t value = kOne) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    add(name, DType::bf16, std::move(shape), std::vector<uint16_t>(static_cast<size_t>(count), value));
  }
  /// A consistent 4-bit matrix [2, 128] in groups of 64.
  void add_affine(const std::string& name) {
    add(name + ".weight", DType::u32, {2, 16}, std::vector<uint32_t>(32, 0x76543210));
    add_bf16(name + ".scales", {2, 2});
    add_bf16(name + ".biases", {2, 2});
  }

  Result<MatrixData> load(const std::string& name, int64_t n, int64_t k) {
    return load_matrix(*source(), name, n, k, quantization_, pool_);
  }
  std::shared_ptr<const TensorSource> source() { return make_generated_source(tensors_, "origin"); }

  std::vector<GeneratedTensor> tensors_;
  Quantization quantization_{{4, 64}, {}};
  ThreadPool pool_{2};
};

TEST_F(Matrix, Affine) {
  add("m.weight", DType::u32, {2, 16}, std::vector<uint32_t>(32, 0x76543210));
  add<uint16_t>("m.scales", DType::bf16, {2, 2}, {1, 2, 3, 4});
  add<uint16_t>("m.biases", DType::bf16, {2, 2}, {5, 6, 7, 8});
  const auto m = load("m", 2, 128);
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_TRUE(m->affine());
  EXPECT_EQ(m->n, 2);
  EXPECT_EQ(m->k, 128);
  EXPECT_EQ(m->bits, 4);
  EXPECT_EQ(m->group, 64);
  EXPECT_EQ(m->dtype, DType::bf16);
  EXPECT_EQ(m->values[127], std::byte{0x76});
  const MatrixData second = m->rows(1, 1);
  EXPECT_EQ(second.n, 1);
  EXPECT_EQ(reinterpret_cast<const uint16_t*>(second.scales)[1], 4);
  EXPECT_EQ(reinterpret_cast<const uint16_t*>(second.biases)[0], 7);
}

TEST_F(Matrix, EveryWidthAndGroup) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      tensors_.clear();
      quantization_.modules["m"] = {bits, group};
      add("m.weight", DType::u32, {1, 256 * bits / 32}, std::vector<uint32_t>(static_cast<size_t>(8 * bits)));
      add_bf16("m.scales", {1, 256 / group});
      add_bf16("m.biases", {1, 256 / group});
      const auto m = load("m", 1, 256);
      ASSERT_TRUE(m) << m.error().message;
      EXPECT_EQ(m->bits, bits);
      EXPECT_EQ(m->group, group);
      EXPECT_EQ(m->value_row_bytes(), 32 * bits);
    }
  }
}

TEST_F(Matrix, Floats) {
  add_bf16("a.weight", {3, 64});
  add("b", DType::f32, {3, 64}, std::vector<float>(192, 2.5F));
  add("c.weight", DType::f16, {3, 64}, std::vector<uint16_t>(192, 0x3c00));
  const auto a = load("a", 3, 64);
  ASSERT_TRUE(a) << a.error().message;
  EXPECT_FALSE(a->affine());
  EXPECT_EQ(a->group, 64);
  EXPECT_EQ(a->dtype, DType::bf16);
  EXPECT_EQ(a->value_row_bytes(), 128);
  const auto b = load("b", 3, 64);
  ASSERT_TRUE(b) << b.error().message;
  EXPECT_EQ(b->dtype, DType::f32);
  EXPECT_EQ(reinterpret_cast<const float*>(b->values)[191], 2.5F);
  EXPECT_EQ(load("c", 3, 64)->dtype, DType::f16);
}

TEST_F(Matrix, StackedAndApartGiveTheSame) {
  std::vector<uint16_t> values(4 * 2 * 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  add("stack.weight", DType::bf16, {4, 2, 64}, values);
  std::vector<std::string> names;
  for (int e = 0; e < 4; ++e) {
    names.push_back(fmt::format("expert.{}", e));
    add(names.back() + ".weight", DType::bf16, {2, 64},
        std::vector<uint16_t>(values.begin() + e * 128, values.begin() + (e + 1) * 128));
  }
  const std::vector<std::string> one{"stack"};
  const auto stacked = load_matrices(*source(), one, 4, 2, 64, quantization_, pool_);
  const auto apart = load_matrices(*source(), names, 4, 2, 64, quantization_, pool_);
  ASSERT_TRUE(stacked) << stacked.error().message;
  ASSERT_TRUE(apart) << apart.error().message;
  ASSERT_EQ(stacked->size(), 4);
  ASSERT_EQ(apart->size(), 4);
  for (size_t e = 0; e < 4; ++e) {
    EXPECT_EQ((*stacked)[e].n, 2);
    EXPECT_EQ(std::memcmp((*stacked)[e].values, (*apart)[e].values, 256), 0) << e;
    EXPECT_EQ(*reinterpret_cast<const uint16_t*>((*stacked)[e].values), e * 128);
  }
}

TEST_F(Matrix, StackedAffine) {
  add("s.weight", DType::u32, {2, 1, 8},
      std::vector<uint32_t>{1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2});
  add<uint16_t>("s.scales", DType::bf16, {2, 1, 1}, {3, 4});
  add<uint16_t>("s.biases", DType::bf16, {2, 1, 1}, {5, 6});
  const std::vector<std::string> one{"s"};
  const auto experts = load_matrices(*source(), one, 2, 1, 64, quantization_, pool_);
  ASSERT_TRUE(experts) << experts.error().message;
  EXPECT_EQ(*reinterpret_cast<const uint32_t*>((*experts)[1].values), 2);
  EXPECT_EQ(*reinterpret_cast<const uint16_t*>((*experts)[1].scales), 4);
  EXPECT_EQ(*reinterpret_cast<const uint16_t*>((*experts)[1].biases), 6);
}

TEST_F(Matrix, MissingParts) {
  EXPECT_EQ(error_of(load("m", 2, 128)), "tensor \"m.weight\" is missing");
  add("m.weight", DType::u32, {2, 16}, std::vector<uint32_t>(32));
  EXPECT_EQ(error_of(load("m", 2, 128)), "tensor \"m.scales\" is missing");
  add_bf16("m.scales", {2, 2});
  EXPECT_EQ(error_of(load("m", 2, 128)), "tensor \"m.biases\" is missing");
}

TEST_F(Matrix, WrongShapes) {
  add_affine("m");
  EXPECT_EQ(error_of(load("m", 3, 128)),
            "origin: tensor \"m.weight\": expected U32 [3, 16] (4 bits in groups of 64, as config.json "
            "says), found "
            "U32 [2, 16]");
  quantization_.modules["m"] = {8, 64};
  EXPECT_EQ(error_of(load("m", 2, 128)),
            "origin: tensor \"m.weight\": expected U32 [2, 32] (8 bits in groups of 64, as config.json "
            "says), found "
            "U32 [2, 16]");
  quantization_.modules["m"] = {4, 32};
  EXPECT_EQ(error_of(load("m", 2, 128)),
            "origin: tensor \"m.scales\": expected shape [2, 4] (4 bits in groups of 32, as config.json "
            "says), found "
            "BF16 [2, 2]");
  quantization_.modules["m"] = {4, 128};
  EXPECT_EQ(
      error_of(load("m", 2, 64)),
      "origin: tensor \"m.weight\": 4 bits in groups of 128, as config.json says: rows of 64 are no multiple "
      "of it");
  quantization_.modules["m"] = {};
  EXPECT_EQ(
      error_of(load("m", 2, 128)),
      "origin: tensor \"m.weight\": is quantised (U32 [2, 16]), but config.json gives no bits for \"m\"");

  add_bf16("f.weight", {3, 64});
  EXPECT_EQ(error_of(load("f", 64, 3)),
            "origin: tensor \"f.weight\": expected shape [64, 3], found BF16 [3, 64]");
  add_bf16("g.weight", {3, 96});
  EXPECT_EQ(error_of(load("g", 3, 96)),
            "origin: tensor \"g.weight\": expected rows of a multiple of 64, found BF16 [3, 96]");
  quantization_.modules["f"] = {8, 64};
  EXPECT_EQ(error_of(load("f", 3, 64)),
            "origin: tensor \"f.weight\": expected 8 bits, as config.json says of \"f\", found BF16 [3, 64] "
            "without "
            "scales");
}

TEST_F(Matrix, WrongTypes) {
  add("i.weight", DType::i32, {1, 64}, std::vector<int32_t>(64));
  EXPECT_EQ(error_of(load("i", 1, 64)),
            "origin: tensor \"i.weight\": expected BF16, F16 or F32, found I32 [1, 64]");
  add("m.weight", DType::u32, {1, 8}, std::vector<uint32_t>(8));
  add("m.scales", DType::u8, {1, 1}, std::vector<uint8_t>(1));
  add("m.biases", DType::f16, {1, 1}, std::vector<uint16_t>(1));
  EXPECT_EQ(error_of(load("m", 1, 64)),
            "origin: tensor \"m.scales\": expected BF16, F16 or F32, found U8 [1, 1]");
  tensors_[2] = tensor_of<uint16_t>("m.scales", DType::bf16, {1, 1}, {0});
  EXPECT_EQ(error_of(load("m", 1, 64)),
            "origin: tensor \"m.biases\": expected BF16, as the scales, found F16 [1, 1]");
}

TEST_F(Matrix, ValuesMustBeFinite) {
  add_affine("s");
  tensors_[1] = tensor_of<uint16_t>("s.scales", DType::bf16, {2, 2}, {kOne, kOne, kOne, kNan});
  EXPECT_EQ(error_of(load("s", 2, 128)),
            "origin: tensor \"s.scales\": expected finite values, found nan at [1, 1]");
  add_affine("b");
  tensors_[5] = tensor_of<uint16_t>("b.biases", DType::bf16, {2, 2}, {kOne, kOne, kInf, kNan});
  EXPECT_EQ(error_of(load("b", 2, 128)),
            "origin: tensor \"b.biases\": expected finite values, found -inf at [1, 0]");
  std::vector<float> floats(128, 0x1.fffffep58F);
  floats[127] = INFINITY;
  add("f.weight", DType::f32, {2, 64}, floats);
  EXPECT_EQ(error_of(load("f", 2, 64)),
            "origin: tensor \"f.weight\": expected finite values below 2^59, found inf at [1, 63]");
  floats[127] = -0x1p59F;  // a norm of such values would have no exponent
  add("g.weight", DType::f32, {2, 64}, floats);
  EXPECT_EQ(
      error_of(load("g", 2, 64)),
      "origin: tensor \"g.weight\": expected finite values below 2^59, found -5.7646075e+17 at [1, 63]");
  std::vector<uint16_t> halves(128, 0x7bff);
  halves[64] = 0x7c01;
  add("h.weight", DType::f16, {2, 64}, halves);
  EXPECT_EQ(error_of(load("h", 2, 64)),
            "origin: tensor \"h.weight\": expected finite values below 2^59, found nan at [1, 0]");
}

TEST_F(Matrix, TheFirstOfManyIsNamedWhateverTheThreads) {
  std::vector<uint16_t> values(size_t{1} << 23, kOne);
  for (const size_t i : {5'000'000, 3'000'001, 8'000'000}) values[i] = kNan;
  add("m.weight", DType::bf16, {1 << 17, 64}, values);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of(load("m", 1 << 17, 64)),
              "origin: tensor \"m.weight\": expected finite values below 2^59, found nan at [46875, 1]");
  }
}

TEST_F(Matrix, Vectors) {
  add<uint16_t>("bf16", DType::bf16, {3}, {kOne, 0xc040, 0});
  add<uint16_t>("f16", DType::f16, {2}, {0x3c00, 0x0001});
  add<float>("f32", DType::f32, {1}, {0.1F});
  EXPECT_EQ(*load_vector(*source(), "bf16", 3), (std::vector<float>{1, -3, 0}));
  EXPECT_EQ(*load_vector(*source(), "f16", 2), (std::vector<float>{1, 0x1p-24F}));
  EXPECT_EQ(*load_vector(*source(), "f32", 1), std::vector<float>{0.1F});

  add<int32_t>("i32", DType::i32, {1}, {1});
  add<uint16_t>("bad", DType::bf16, {2}, {kOne, kInf});
  EXPECT_EQ(error_of(load_vector(*source(), "none", 1)), "tensor \"none\" is missing");
  EXPECT_EQ(error_of(load_vector(*source(), "bf16", 4)),
            "origin: tensor \"bf16\": expected shape [4], found BF16 [3]");
  EXPECT_EQ(error_of(load_vector(*source(), "i32", 1)),
            "origin: tensor \"i32\": expected BF16, F16 or F32, found I32 [1]");
  EXPECT_EQ(error_of(load_vector(*source(), "bad", 2)),
            "origin: tensor \"bad\": expected finite values, found -inf at [1]");
}

TEST_F(Matrix, AViewOutlivesTheSource) {
  add_affine("m");
  MatrixData matrix;
  {
    const auto loaded = load("m", 2, 128);
    ASSERT_TRUE(loaded);
    matrix = loaded->rows(1, 1);
  }
  tensors_.clear();
  EXPECT_EQ(matrix.values[0], std::byte{0x10});
  EXPECT_EQ(*reinterpret_cast<const uint16_t*>(matrix.scales), kOne);
}

}  // namespace
}  // namespace tercet
