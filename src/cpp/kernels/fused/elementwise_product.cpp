// SPDX-License-Identifier: Apache-2.0
// An elementwise program one of whose inputs is a matrix product, which lies in no memory: a block
// of it is computed and handed to the program while it is in the second-level cache. So a gradient
// goes into the update of its weights without being written and read again.
#include <algorithm>

#include "base/simd.hpp"
#include "kernels/fused/elementwise_walk.hpp"
#include "kernels/portable/product.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fused {

namespace {

// The product's own operands stand in front.
constexpr std::size_t kFactors = 2;

// oneDNN multiplies faster where there is more to add up than this, which outweighs what is saved.
constexpr std::int64_t kMostDepth = 256;

std::size_t product_of(const KernelQuery& query) {
  return static_cast<std::size_t>(query.attrs.integer("product"));
}

KernelQuery matmul_of(const KernelQuery& query) {
  KernelQuery made{"matmul", {}, {}, query.attrs};
  made.inputs.assign(query.inputs.begin(), query.inputs.begin() + kFactors);
  made.outputs.push_back({query.inputs[0].dtype, query.outputs[0].shape});
  return made;
}

KernelQuery elementwise_of(const KernelQuery& query) {
  KernelQuery made{"elementwise", {}, query.outputs, query.attrs};
  made.inputs.assign(query.inputs.begin() + kFactors, query.inputs.end());
  made.inputs.insert(made.inputs.begin() + static_cast<std::ptrdiff_t>(product_of(query)),
                     {query.inputs[0].dtype, query.outputs[0].shape});
  return made;
}

// A thread's way through the blocks.
template <class T>
class Taker {
 public:
  using Range = typename portable::Gemm<T>::Range;

  Taker(const Plan& plan, std::int64_t width, const KernelArgs& args)
      : plan_(plan), width_(width), args_(args), walk_(plan, args) {}

  // What the program reads beside a tile comes while the tile is computed.
  void fetch(Range rows, Range columns) const {
    constexpr std::int64_t kLine = 64;
    constexpr int kRead = 0, kSecondLevel = 2;
    for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
      const InputPlan& input = plan_.inputs[i];
      if (input.reading != Reading::InPlace) continue;
      const auto item = static_cast<std::int64_t>(input.item);
      const auto* from = static_cast<const std::byte*>(args_.inputs[i]);
      for (std::int64_t row = rows.begin; row < rows.end; ++row)
        for (std::int64_t at = (row * width_ + columns.begin) * item,
                          end = (row * width_ + columns.end) * item;
             at < end; at += kLine)
          __builtin_prefetch(from + at, kRead, kSecondLevel);
    }
  }

  void take(Range rows, Range columns, const T* values) {
    const std::int64_t wide = columns.end - columns.begin;
    if (wide == width_) return run(rows.begin * width_, (rows.end - rows.begin) * width_, values);
    for (std::int64_t row = rows.begin; row < rows.end; ++row, values += wide)
      run(row * width_ + columns.begin, wide, values);
  }

 private:
  // Elements that lie side by side, a tile at a time and none beyond a row of the plan's.
  void run(std::int64_t begin, std::int64_t count, const T* values) {
    while (count > 0) {
      const std::int64_t n =
          std::min({count, plan_.tile_length, plan_.inner - begin % plan_.inner});
      walk_.elements(begin, n, values);
      begin += n, values += n, count -= n;
    }
  }

  const Plan& plan_;
  std::int64_t width_;
  const KernelArgs& args_;
  TileWalk walk_;
};

template <class T>
class ElementwiseProduct final : public Kernel {
 public:
  explicit ElementwiseProduct(const KernelQuery& query)
      : plan_(elementwise_of(query)),
        gemm_(MatmulShape(matmul_of(query)), true),
        product_(product_of(query)),
        width_(query.outputs[0].shape.back()) {}

  std::size_t scratch_bytes() const {
    return static_cast<std::size_t>(gemm_.scratch_elements()) * sizeof(T);
  }
  const std::vector<InPlace>& in_place() const { return plan_.in_place; }

  void run(const KernelArgs& args) const override {
    // The program's inputs, the product among them, of which there is no pointer.
    const void* inputs[kMaxSlots];
    const std::size_t count = plan_.inputs.size();
    for (std::size_t i = 0; i < count; ++i)
      inputs[i] = i == product_ ? nullptr : args.inputs[kFactors + i - (i > product_)];
    const KernelArgs of_program{inputs, args.outputs, nullptr, args.queue};
    gemm_.run_and_hand_on(
        static_cast<const T*>(args.inputs[0]), static_cast<const T*>(args.inputs[1]),
        static_cast<T*>(args.scratch), [&] { return Taker<T>(plan_, width_, of_program); });
  }

 private:
  Plan plan_;
  portable::Gemm<T> gemm_;
  std::size_t product_;
  std::int64_t width_;
};

std::string refusal_of(const KernelQuery& query) {
  if (query.inputs.size() < kFactors || query.outputs.empty()) return "no product";
  if (product_of(query) > query.inputs.size() - kFactors) return "no such product";
  const DType dtype = query.inputs[0].dtype;
  if (dtype != DType::F32 && dtype != DType::F64) return "products of f32 and f64 alone";
  if (query.outputs[0].shape.size() != 2) return "one product alone";
  if (query.outputs[0].count() == 0) return "nothing to compute";
  const MatmulShape shape(matmul_of(query));
  if (!shape.refusal.empty()) return shape.refusal;
  if (!shape.post.empty()) return "the program has what follows the product";
  if (shape.k == 0) return "nothing to multiply";
  if (dtype == DType::F32 && (shape.k > kMostDepth || simd_level() != SimdLevel::Avx512))
    return "oneDNN multiplies faster";
  return {};
}

}  // namespace

Verdict accept_elementwise_product(const KernelQuery& query) try {
  if (const std::string why = refusal_of(query); !why.empty()) return Verdict::reject(why);
  const auto answer = [&]<class T>() {
    const ElementwiseProduct<T> made(query);
    std::vector<InPlace> pairs;
    const int product = static_cast<int>(product_of(query));
    for (const auto& [output, input] : made.in_place())
      pairs.push_back({output, input + static_cast<int>(kFactors) - (input > product)});
    return Verdict::accept(made.scratch_bytes(), std::move(pairs));
  };
  return query.inputs[0].dtype == DType::F32 ? answer.template operator()<float>()
                                             : answer.template operator()<double>();
} catch (const Refusal& refusal) {
  return Verdict::reject(refusal.what());
}

std::unique_ptr<Kernel> construct_elementwise_product(const KernelQuery& query) {
  if (query.inputs[0].dtype == DType::F32)
    return std::make_unique<ElementwiseProduct<float>>(query);
  return std::make_unique<ElementwiseProduct<double>>(query);
}

}  // namespace ngd::kernels::fused
