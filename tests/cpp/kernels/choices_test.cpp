// SPDX-License-Identifier: Apache-2.0
// Tests which kernel serves a query, and its scratch, on machines other than this one.
// The kernels are built and do not run.
#include <optional>

#include "harness.hpp"

namespace ngd::kernels::test {

namespace {

constexpr Machine kBaseline{.threads = 1, .simd = SimdLevel::Baseline};
#if defined(NGD_HAVE_X86_LEVELS)
constexpr Machine kAvx2{.threads = 2, .simd = SimdLevel::Avx2};
constexpr Machine kAvx512{.threads = 16, .simd = SimdLevel::Avx512};
#endif

struct Choice {
  std::string_view implementation;
  std::optional<std::size_t> scratch_bytes;  // none for oneDNN, because they depend on its version

  bool operator==(const Choice&) const = default;
  friend void PrintTo(const Choice& choice, std::ostream* out) {
    *out << choice.implementation << ' ' << choice.scratch_bytes.value_or(0);
  }
};

Choice choose(const KernelQuery& query, const Machine& machine) {
  const Found found = find(cpu_table(), query, machine);
  if (found.row == nullptr) return {"none", {}};
  if (found.row->implementation == "onednn") return {"onednn", {}};
  return {found.row->implementation, found.offer.kernel->scratch_bytes()};
}

KernelQuery matmul(std::int64_t m, std::int64_t k, std::int64_t n, bool transpose_a = false) {
  const Shape a = transpose_a ? Shape{k, m} : Shape{m, k};
  return {"matmul",
          {{DType::F32, a}, {DType::F32, {k, n}}},
          {{DType::F32, {m, n}}},
          attrs_of({{"transpose_a", std::int64_t{transpose_a}}})};
}

// A convolution of square images with the channels last, or the gradient of its weights.
KernelQuery conv(const char* op, std::int64_t images, std::int64_t side, std::int64_t in,
                 std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  const std::int64_t pad = kernel / 2, end = (side + 2 * pad - kernel) / stride + 1;
  const TensorType data{DType::F32, {images, side, side, in}},
      weights{DType::F32, {out, in, kernel, kernel}}, result{DType::F32, {images, end, end, out}};
  const Attrs attrs = attrs_of({{"strides", Integers{stride, stride}},
                                {"dilations", Integers{1, 1}},
                                {"padding", Integers(4, pad)},
                                {"groups", std::int64_t{1}},
                                {"channels_last", std::int64_t{1}}});
  if (std::string_view(op) == "conv_weight_grad") return {op, {data, result}, {weights}, attrs};
  return {op, {data, weights}, {result}, attrs};
}

#if defined(NGD_HAVE_X86_LEVELS) && defined(NGD_HAVE_ONEDNN)
TEST(Choices, OurGemmServesSomeMatmulsIfTheMachineHasAvx512) {
  const KernelQuery power_of_two = matmul(128, 128, 1024), partly_filled = matmul(128, 128, 100);
  EXPECT_EQ(choose(power_of_two, kBaseline), (Choice{"onednn", {}}));
  EXPECT_EQ(choose(power_of_two, kAvx2), (Choice{"onednn", {}}));
  EXPECT_EQ(choose(power_of_two, kAvx512), (Choice{"fallback", 1441792}));
  EXPECT_EQ(choose(partly_filled, kAvx2), (Choice{"onednn", {}}));
  EXPECT_EQ(choose(partly_filled, kAvx512), (Choice{"fallback", 221184}));
  EXPECT_EQ(choose(matmul(31, 128, 1024), kAvx512), (Choice{"onednn", {}}));
  EXPECT_EQ(choose(matmul(129, 128, 1024), kAvx512), (Choice{"onednn", {}}));
}
#endif

TEST(Choices, OurGemmServesShallowGradientsOnEachMachine) {
  const KernelQuery gradient = matmul(1024, 128, 1024, true);
  EXPECT_EQ(choose(gradient, kBaseline), (Choice{"fallback", 241664}));
#if defined(NGD_HAVE_X86_LEVELS)
  EXPECT_EQ(choose(gradient, kAvx2), (Choice{"fallback", 495616}));
  EXPECT_EQ(choose(gradient, kAvx512), (Choice{"fallback", 4194304}));
#endif
}

TEST(Choices, ScratchFollowsTheThreadsAndTheSimdLevel) {
  const KernelQuery forward = conv("conv", 8, 28, 64, 64, 3, 1),
                    gradient = conv("conv_weight_grad", 32, 28, 128, 128, 3, 2);
  EXPECT_EQ(choose(forward, kBaseline), (Choice{"winograd", 1645056}));
  EXPECT_EQ(choose(gradient, kBaseline), (Choice{"weight_grad", 593984}));
#if defined(NGD_HAVE_X86_LEVELS)
  EXPECT_EQ(choose(forward, kAvx2), (Choice{"winograd", 2598912}));
  EXPECT_EQ(choose(forward, kAvx512), (Choice{"winograd", 10105344}));
  EXPECT_EQ(choose(gradient, kAvx2), (Choice{"weight_grad", 1331328}));
#endif
  const KernelQuery top_k{
      "top_k", {{DType::F32, {64, 4096}}}, {{DType::F32, {64, 4}}, {DType::I64, {64, 4}}}, {}};
  EXPECT_EQ(choose(top_k, {.threads = 1}), (Choice{"fallback", 4096 * 8}));
  EXPECT_EQ(choose(top_k, {.threads = 7}), (Choice{"fallback", 7 * 4096 * 8}));
  EXPECT_EQ(choose(top_k, {.threads = 64}), (Choice{"fallback", 16 * 4096 * 8}));
}

TEST(Choices, ALargeCacheLeavesTheGradientOfPointwiseKernelsToOneDnn) {
  const KernelQuery gradient = conv("conv_weight_grad", 32, 56, 64, 256, 1, 1);
  Machine machine = kBaseline;
  EXPECT_EQ(choose(gradient, machine), (Choice{"weight_grad", 69696}));
  machine.shared_cache_bytes = 256 << 20;
#if defined(NGD_HAVE_ONEDNN)
  EXPECT_EQ(choose(gradient, machine), (Choice{"onednn", {}}));
#else
  EXPECT_EQ(choose(gradient, machine), (Choice{"none", {}}));
#endif
}

TEST(Choices, KernelsThatWidenOperandsAreNotNative) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    const TensorType square{dtype, {8, 8}};
    const KernelQuery query{"matmul", {square, square}, {square}, {}};
    EXPECT_EQ(offer_of(query, "fallback").is_native, !is_half(dtype)) << short_name_of(dtype);
  }
}

}  // namespace
}  // namespace ngd::kernels::test
