// SPDX-License-Identifier: Apache-2.0
// matmul by ngd's GEMM (gemm/packed_gemm.hpp), for every dtype. f32, f64 and 64-bit integers are
// computed in their own dtype. Other integers and bool are computed in u32, and 16-bit floats in f32:
// their operands are cast to scratch first, and the result is cast back.
#include "kernels/gemm/casts.hpp"
#include "kernels/gemm/packed_gemm.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fallback {

namespace {

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
  explicit Matmul(const KernelQuery& query)
      : gemm_(MatmulShape(query)),
        dtype_(query.outputs[0].dtype),
        cast_in_(gemm::cast_to_computed(dtype_)),
        cast_out_(gemm::cast_to_stored(dtype_)) {
    for (const TensorType& input : query.inputs) input_counts_.push_back(input.count());
    output_count_ = query.outputs[0].count();
  }

  static std::size_t scratch_bytes(const KernelQuery& query) {
    std::int64_t elements = gemm::PackedGemm<T>(MatmulShape(query)).scratch_elements();
    if (gemm::cast_to_computed(query.outputs[0].dtype) != nullptr) {
      for (const TensorType& input : query.inputs) elements += round_up(input.count(), 64);
      elements += round_up(query.outputs[0].count(), 64);
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

}  // namespace

Verdict accept_matmul(const KernelQuery& query) {
  const MatmulShape shape(query);
  if (!shape.refusal.empty()) return Verdict::reject(shape.refusal);
  if (shape.mixed) return Verdict::reject("dtypes are mixed");
  for (const std::string& post : shape.post)
    if (post != "relu") return Verdict::reject(post + " stays an op of its own");
  if (!shape.post.empty() && !is_floating(query.outputs[0].dtype))
    return Verdict::reject("relu after a product is for floats");
  return visit_computed(query.outputs[0].dtype, [&]<class T>() {
    return Verdict::accept(Matmul<T>::scratch_bytes(query));
  });
}

std::unique_ptr<Kernel> construct_matmul(const KernelQuery& query) {
  return visit_computed(query.outputs[0].dtype, [&]<class T>() -> std::unique_ptr<Kernel> {
    return std::make_unique<Matmul<T>>(query);
  });
}

}  // namespace ngd::kernels::fallback
