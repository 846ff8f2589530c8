// SPDX-License-Identifier: Apache-2.0
// matmul by ngd's GEMM (gemm/packed_gemm.hpp), for every dtype. f32, f64 and 64-bit integers are
// computed in their own dtype. Other integers and bool are computed in u32, and 16-bit floats in
// f32: their operands are cast to scratch memory first, and the result is cast back.
//
// kernels/table.inc has two rows for this kernel, one above the row of oneDNN's matmul and one
// below. The first row that offers a kernel for a matmul is used. The upper row offers this kernel
// only for the shapes that it multiplies faster than oneDNN (is_fastest). The lower row offers it
// for all shapes.
#include <algorithm>
#include <bit>

#include "kernels/gemm/casts.hpp"
#include "kernels/gemm/packed_gemm.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fallback {

namespace {

// Return the dtype in which the GEMM computes a matmul of this dtype (see the head of this file).
DType computed_dtype(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return DType::F64;
    case DType::I64:
    case DType::U64:
      return DType::U64;
    case DType::F16:
    case DType::BF16:
    case DType::F32:
      return DType::F32;
    default:
      return DType::U32;
  }
}

// Call visitor.operator()<T>() with the C++ type T of computed_dtype(dtype), and return its result.
template <class Visitor>
decltype(auto) visit_computed(DType dtype, Visitor&& visitor) {
  switch (computed_dtype(dtype)) {
    case DType::F32:
      return visitor.template operator()<float>();
    case DType::F64:
      return visitor.template operator()<double>();
    case DType::U64:
      return visitor.template operator()<std::uint64_t>();
    default:
      return visitor.template operator()<std::uint32_t>();
  }
}

template <class T>
class Matmul final : public Kernel {
 public:
  Matmul(const KernelQuery& query, const Machine& machine)
      : gemm_(MatmulShape(query), machine),
        dtype_(query.outputs[0].dtype),
        cast_in_(gemm::cast_to_computed(dtype_)),
        cast_out_(gemm::cast_to_stored(dtype_)) {
    for (const TensorType& input : query.inputs) input_counts_.push_back(input.count());
    output_count_ = query.outputs[0].count();
  }

  std::size_t scratch_bytes() const override {
    std::int64_t elements = gemm_.scratch_elements();
    if (cast_in_ != nullptr) {
      for (const std::int64_t count : input_counts_) elements += round_up(count, 64);
      elements += round_up(output_count_, 64);
    }
    return static_cast<std::size_t>(elements) * sizeof(T);
  }

  void run(const KernelArgs& args) const override {
    if (output_count_ == 0) return;
    T* scratch = static_cast<T*>(args.scratch);
    const T* operands[3] = {};
    for (std::size_t i = 0; i < input_counts_.size(); ++i) {
      operands[i] = static_cast<const T*>(args.inputs[i]);
      if (cast_in_ == nullptr) continue;
      gemm::cast_elements(cast_in_, args.inputs[i], size_of(dtype_), scratch, sizeof(T),
                          input_counts_[i]);
      operands[i] = scratch;
      scratch += round_up(input_counts_[i], 64);
    }
    T* out = static_cast<T*>(args.outputs[0]);
    if (cast_out_ != nullptr) {
      out = scratch;
      scratch += round_up(output_count_, 64);
    }
    gemm_.run(operands[0], operands[1], operands[2], out, scratch);
    if (cast_out_ != nullptr)
      gemm::cast_elements(cast_out_, out, sizeof(T), args.outputs[0], size_of(dtype_),
                          output_count_);
  }

 private:
  gemm::PackedGemm<T> gemm_;
  DType dtype_;
  tiles::TileFunction cast_in_, cast_out_;
  std::vector<std::int64_t> input_counts_;
  std::int64_t output_count_ = 0;
};

// Return true if oneDNN multiplies many zeros, so that ngd's GEMM is faster. oneDNN multiplies
// vectors of 16 columns of B, and fills the last vector with columns of zeros. The result is true
// if these are at least 4 columns, and at least a tenth of all columns that oneDNN multiplies. B
// must also have at least kMinColumns columns and kLanes rows. ngd's time divided by oneDNN's time
// on Zen 4, for n columns:
//
//   128 x 784 by 784 x n                       n = 100: 0.93, n = 50: 0.85, n = 33: 0.81
//   784 x 128 by 128 x n, with A transposed    n = 100: 0.89, n = 68: 0.90, n = 50: 0.77
//
// For the second matmul with n = 200, less than a tenth of the columns are zeros, and the quotient
// is 0.99.
bool has_mostly_empty_vector(const MatmulShape& shape) {
  constexpr std::int64_t kLanes = 16, kMaxUsed = 12, kMinColumns = 20;
  const std::int64_t used = shape.n % kLanes, empty = used > 0 ? kLanes - used : 0;
  return empty >= kLanes - kMaxUsed && shape.n >= kMinColumns && 10 * empty >= shape.n + empty &&
         shape.k >= kLanes;
}

// Return true if A is not transposed and has at most kMaxRows (128) rows, and the number of columns
// of B is a power of two. B must also have at least kMinColumns columns and kMinDepth rows. oneDNN
// is slow for such a B: oneDNN copies B, and the rows of B compete for few sets of the caches. On
// one core of an EPYC (Zen 5), ngd's GEMM takes 0.7 to 0.9 times as long as oneDNN for these
// shapes. With 192 rows of A, ngd's GEMM takes 0.92 times as long. For 128 x 768 by 768 x 3072,
// both take the same time: 3072 is not a power of two.
//
// is_fastest() also requires that A has at least kMinRows rows. With fewer rows, ngd's GEMM is not
// faster if B must be read from memory. If B is in a cache, ngd's GEMM takes up to 1.9 times as
// long as oneDNN, because it packs the whole matrix B.
bool has_conflicting_rows(const MatmulShape& shape) {
  constexpr std::int64_t kMaxRows = 128, kMinColumns = 512, kMinDepth = 128;
  return !shape.transpose_a && shape.m <= kMaxRows && shape.n >= kMinColumns &&
         shape.k >= kMinDepth && std::has_single_bit(static_cast<std::uint64_t>(shape.n));
}

// Return true if A is transposed and the depth, the length of the summed axis, is small. The
// gradient of a weight is such a matmul if a step has few samples: the depth is the number of
// samples. If the compiler fuses the gradient with the ops that use it, the fused kernel
// (fused/elementwise_product.cpp) computes it with ngd's GEMM. So the gradient is computed with
// ngd's GEMM even if it is not fused: fusion then does not change its bits. With AVX-512, ngd's
// GEMM also takes only 0.94 to 0.98 times as long as oneDNN.
bool is_shallow_gradient(const MatmulShape& shape) {
  constexpr std::int64_t kMaxDepth = 256;
  return shape.transpose_a && shape.k <= kMaxDepth &&
         shape.m * shape.n >= shape.k * (shape.m + shape.n);
}

// Return true if ngd's GEMM is chosen instead of oneDNN. This needs float32 without batch axes, B
// not transposed, and no fused op other than relu. Also, is_shallow_gradient(),
// has_mostly_empty_vector() or has_conflicting_rows() must return true. The last two were measured
// only with AVX-512. So they count only with AVX-512, and only if A has at least kMinRows rows.
bool is_fastest(const KernelQuery& query, const MatmulShape& shape, const Machine& machine) {
  constexpr std::int64_t kMinRows = 32;
  if (query.outputs[0].dtype != DType::F32 || shape.mixed || shape.transpose_b ||
      element_count(shape.batch) != 1 ||
      std::any_of(shape.post.begin(), shape.post.end(),
                  [](const std::string& post) { return post != "relu"; }))
    return false;
  if (is_shallow_gradient(shape)) return true;
  return machine.simd >= SimdLevel::Avx512 && shape.m >= kMinRows &&
         (has_mostly_empty_vector(shape) || has_conflicting_rows(shape));
}

// Return the kernel for a matmul without post-operations other than relu, or the reason for a
// refusal.
Offer offer(const KernelQuery& query, const MatmulShape& shape, const Machine& machine) {
  if (!shape.refusal.empty()) return Offer::refuse(shape.refusal);
  if (shape.mixed) return Offer::refuse("dtypes are mixed");
  for (const std::string& post : shape.post)
    if (post != "relu") return Offer::refuse(post + " is a separate op here");
  const DType dtype = query.outputs[0].dtype;
  if (!shape.post.empty() && !is_floating(dtype))
    return Offer::refuse("relu after a matmul supports only float dtypes");
  return visit_computed(dtype, [&]<class T>() -> Offer {
    return {std::make_unique<Matmul<T>>(query, machine), {}, !is_half(dtype)};
  });
}

}  // namespace

Offer offer_fast_matmul(const KernelQuery& query, const Machine& machine) {
  const MatmulShape shape(query);
  if (!shape.refusal.empty() || !is_fastest(query, shape, machine)) return {};
  return offer(query, shape, machine);
}

Offer offer_matmul(const KernelQuery& query, const Machine& machine) {
  return offer(query, MatmulShape(query), machine);
}

}  // namespace ngd::kernels::fallback
