// SPDX-License-Identifier: Apache-2.0
// An elementwise program some of whose inputs are matrix products, which lie in no memory: a block
// of each is computed and handed to the program while it is in the second-level cache. So a gradient
// goes into the update of its weights without being written and read again.
//
// The kernel's inputs are the products' factors, a and b in turn, then what else the program reads.
// `products` says which of the program's inputs are products; `product_shape` is theirs, and as many
// elements as an output has. They have one shape and depth.
#include <algorithm>

#include "base/simd.hpp"
#include "kernels/fused/elementwise_walk.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fused {

namespace {

// Of more, oneDNN multiplies faster, which outweighs what is saved; and all of B is packed at once.
// passes/fusion/matmuls.py has the same number.
constexpr std::int64_t kMostDepth = 256;
constexpr std::size_t kMostProducts = 4;

const std::vector<std::int64_t>& products_of(const KernelQuery& query) {
  return query.attrs.integers("products");
}
std::size_t factors_of(const KernelQuery& query) { return 2 * products_of(query).size(); }

// A line of memory for this core alone. The compiler's own prefetch shares it, where it is told no
// CPU; each x86 of 64 bits has the instruction, or takes it for none.
void prefetch_to_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

KernelQuery matmul_of(const KernelQuery& query, std::size_t i) {
  KernelQuery made{"matmul", {query.inputs[2 * i], query.inputs[2 * i + 1]}, {}, query.attrs};
  made.outputs.push_back({query.inputs[0].dtype, query.attrs.integers("product_shape")});
  return made;
}

KernelQuery elementwise_of(const KernelQuery& query) {
  KernelQuery made{"elementwise", {}, query.outputs, query.attrs};
  made.inputs.assign(query.inputs.begin() + static_cast<std::ptrdiff_t>(factors_of(query)),
                     query.inputs.end());
  for (const std::int64_t i : products_of(query))
    made.inputs.insert(made.inputs.begin() + static_cast<std::ptrdiff_t>(i),
                       {query.inputs[0].dtype, query.outputs[0].shape});
  return made;
}

// A thread's way through the blocks.
template <class T>
class Taker {
 public:
  using Range = typename gemm::Gemm<T>::Range;

  Taker(const Plan& plan, std::int64_t width, const KernelArgs& args)
      : plan_(plan), width_(width), args_(args), walk_(plan, args) {}

  // What the program reads beside a tile comes while the tile is computed; what it writes there, to
  // be written: another rank's core may have it, too.
  void fetch(Range rows, Range columns) const {
    for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
      const InputPlan& input = plan_.inputs[i];
      if (input.reading != Reading::InPlace) continue;
      const auto item = static_cast<std::int64_t>(input.item);
      const auto* from = static_cast<const std::byte*>(args_.inputs[i]);
      const auto* outputs = args_.outputs;
      const bool written = std::find(outputs, outputs + plan_.outputs.size(), args_.inputs[i]) !=
                           outputs + plan_.outputs.size();
      for (std::int64_t row = rows.begin; row < rows.end; ++row)
        fetch_row(from + (row * width_ + columns.begin) * item,
                  (columns.end - columns.begin) * item, written);
    }
  }

  void take(Range rows, Range columns, const T* values, std::int64_t apart) {
    apart *= static_cast<std::int64_t>(sizeof(T));
    const std::int64_t wide = columns.end - columns.begin;
    if (wide == width_)
      return run(rows.begin * width_, (rows.end - rows.begin) * width_, values, apart);
    for (std::int64_t row = rows.begin; row < rows.end; ++row, values += wide)
      run(row * width_ + columns.begin, wide, values, apart);
  }

 private:
  static void fetch_row(const std::byte* from, std::int64_t bytes, bool written) {
    constexpr std::int64_t kLine = 64;
    constexpr int kRead = 0, kSecondLevel = 2;
    for (std::int64_t at = 0; at < bytes; at += kLine)
      if (written)
        prefetch_to_write(from + at);
      else
        __builtin_prefetch(from + at, kRead, kSecondLevel);
  }

  // Elements that lie side by side, a tile at a time and none beyond a row of the plan's.
  void run(std::int64_t begin, std::int64_t count, const T* values, std::int64_t apart) {
    while (count > 0) {
      const std::int64_t n =
          std::min({count, plan_.tile_length, plan_.inner - begin % plan_.inner});
      walk_.elements(begin, n, values, apart);
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
        gemm_(MatmulShape(matmul_of(query, 0)),
              static_cast<std::int64_t>(products_of(query).size())),
        factors_(factors_of(query)),
        width_(query.attrs.integers("product_shape").back()) {
    std::size_t next = factors_;
    for (std::size_t i = 0; i < plan_.inputs.size(); ++i)
      places_.push_back(plan_.inputs[i].reading == Reading::Given ? 0 : next++);
  }

  Verdict verdict() const {
    std::vector<InPlace> pairs;
    for (const auto& [output, input] : plan_.in_place)
      pairs.push_back({output, static_cast<int>(places_[static_cast<std::size_t>(input)])});
    return Verdict::accept(static_cast<std::size_t>(gemm_.scratch_elements()) * sizeof(T),
                           std::move(pairs));
  }

  void run(const KernelArgs& args) const override {
    const void* inputs[kMaxSlots];  // of the program
    for (std::size_t i = 0; i < places_.size(); ++i) inputs[i] = args.inputs[places_[i]];
    const KernelArgs of_program{inputs, args.outputs, nullptr, args.queue};
    gemm_.run_and_hand_on(args.inputs, static_cast<T*>(args.scratch),
                          [&] { return Taker<T>(plan_, width_, of_program); });
  }

 private:
  Plan plan_;
  gemm::Gemm<T> gemm_;
  std::size_t factors_;
  std::int64_t width_;
  std::vector<std::size_t>
      places_;  // of the program's inputs among the kernel's; a product has none
};

std::string refusal_of(const KernelQuery& query) {
  const std::size_t products = products_of(query).size();
  if (products == 0 || products > kMostProducts) return "1 to 4 products are expected";
  if (query.outputs.empty() || query.inputs.size() < 2 * products) return "operands are missing";
  const auto inputs = static_cast<std::int64_t>(query.inputs.size() - products);
  std::int64_t before = -1;
  for (const std::int64_t i : products_of(query)) {
    if (i <= before || i >= inputs) return "the products are not in order";
    before = i;
  }
  const DType dtype = query.inputs[0].dtype;
  if (dtype != DType::F32 && dtype != DType::F64) return "products of f32 and f64 alone";
  const Shape& whole = query.attrs.integers("product_shape");
  if (whole.size() != 2) return "products of two axes alone";
  if (query.outputs[0].count() == 0 || element_count(whole) != query.outputs[0].count())
    return "the outputs have not the products' elements";
  const MatmulShape first(matmul_of(query, 0));
  for (std::size_t i = 0; i < products; ++i) {
    const MatmulShape shape(matmul_of(query, i));
    if (!shape.refusal.empty()) return shape.refusal;
    if (shape.k != first.k) return "the products have different depths";
  }
  if (first.k == 0) return "nothing to multiply";
  if (first.k > kMostDepth) return "too much to add up";
  return {};
}

}  // namespace

Verdict accept_elementwise_product(const KernelQuery& query) try {
  if (const std::string why = refusal_of(query); !why.empty()) return Verdict::reject(why);
  if (query.inputs[0].dtype == DType::F32) return ElementwiseProduct<float>(query).verdict();
  return ElementwiseProduct<double>(query).verdict();
} catch (const Refusal& refusal) {
  return Verdict::reject(refusal.what());
}

std::unique_ptr<Kernel> construct_elementwise_product(const KernelQuery& query) {
  if (query.inputs[0].dtype == DType::F32)
    return std::make_unique<ElementwiseProduct<float>>(query);
  return std::make_unique<ElementwiseProduct<double>>(query);
}

}  // namespace ngd::kernels::fused
