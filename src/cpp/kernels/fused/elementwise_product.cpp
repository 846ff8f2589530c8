// SPDX-License-Identifier: Apache-2.0
// The kernel of a body (a list of elementwise statements) that has matrix products as inputs. The
// products are not stored. The kernel computes a block of each product (gemm/streaming_gemm.hpp),
// and then the body for this block, which is still in the second-level cache. For example, the
// update of a weight uses the gradient without writing it to memory.
//
// The inputs of the kernel are the operands of the products (a and b of the first product, a and b
// of the second one, and so on), and then the other inputs of the body. The attribute `products`
// lists the inputs of the body that are products. `product_shape` is the shape of each product.
// Each output has as many elements as a product, but may have another shape. All products have the
// same depth.
#include <algorithm>

#include "base/simd.hpp"
#include "kernels/fused/elementwise_walk.hpp"
#include "kernels/gemm/streaming_gemm.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fused {

namespace {

// The maximum depth of the matrix products. The depth is the length of the axis that a product sums
// over. For greater depths, a separate matmul by oneDNN saves more time than the fusion. The
// scratch memory also grows with the depth, because B is packed for the whole depth.
// passes/fusion/matmuls.py has the same number.
constexpr std::int64_t kMaxDepth = 256;
constexpr std::size_t kMaxProducts = 4;

// Return the numbers of the body's inputs that are matrix products.
const std::vector<std::int64_t>& products_of(const KernelQuery& query) {
  return query.attrs.integers("products");
}
// Return the number of operands of all matrix products. They are the first inputs of the kernel.
std::size_t num_operands(const KernelQuery& query) { return 2 * products_of(query).size(); }

// Fetch a cache line for writing. This removes the line from the caches of the other cores now, so
// that a later write does not have to wait for the removal. Without the compiler flag -mprfchw,
// __builtin_prefetch fetches the line for reading only, so the function uses assembly. This is safe
// on all x86-64 CPUs: those that do not support prefetchw ignore it.
void prefetch_for_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Return the query for a matmul kernel that computes only matrix product number i.
KernelQuery matmul_of(const KernelQuery& query, std::size_t i) {
  KernelQuery result_query{
      "matmul", {query.inputs[2 * i], query.inputs[2 * i + 1]}, {}, query.attrs};
  result_query.outputs.push_back({query.inputs[0].dtype, query.attrs.integers("product_shape")});
  return result_query;
}

// Return the query for a kernel that computes only the body (the elementwise statements). This
// kernel reads the results of the matrix products, not the operands of these products.
KernelQuery elementwise_of(const KernelQuery& query) {
  KernelQuery result_query{"elementwise", {}, query.outputs, query.attrs};
  result_query.inputs.assign(
      query.inputs.begin() + static_cast<std::ptrdiff_t>(num_operands(query)), query.inputs.end());
  for (const std::int64_t i : products_of(query))
    result_query.inputs.insert(result_query.inputs.begin() + static_cast<std::ptrdiff_t>(i),
                               {query.inputs[0].dtype, query.outputs[0].shape});
  return result_query;
}

// Receives the blocks of the matrix products that one thread computes (gemm/streaming_gemm.hpp),
// and computes the kernel body, the elementwise statements, for the elements of each block.
template <class T>
class BodySink {
 public:
  BodySink(const Plan& plan, std::int64_t width, const KernelArgs& args)
      : plan_(plan), width_(width), args_(args), walk_(plan, args) {}

  // Prefetch this tile's elements of the dense inputs in memory (Reading::InPlace), while the
  // matrix products are computed. An input that is also an output is fetched for writing. If ranks
  // share its memory, a cache line of it may be in the cache of another rank's core, and a later
  // write would wait for the line.
  void prefetch_tile(gemm::Range rows, gemm::Range columns) const {
    for (std::size_t i = 0; i < plan_.inputs.size(); ++i) {
      const InputPlan& input = plan_.inputs[i];
      if (input.reading != Reading::InPlace) continue;
      const auto item = static_cast<std::int64_t>(input.item);
      const auto* from = static_cast<const std::byte*>(args_.inputs[i]);
      const auto* outputs = args_.outputs;
      const bool is_written = std::find(outputs, outputs + plan_.outputs.size(), args_.inputs[i]) !=
                              outputs + plan_.outputs.size();
      for (std::int64_t row = rows.begin; row < rows.end; ++row)
        prefetch_row(from + (row * width_ + columns.begin) * item, columns.size() * item,
                     is_written);
    }
  }

  // Compute the kernel body (the elementwise statements) for one block of all matrix products.
  // streaming_gemm.hpp explains the arguments.
  void write_block(gemm::Range rows, gemm::Range columns, const T* values,
                   std::int64_t product_stride) {
    const std::int64_t stride_bytes = product_stride * static_cast<std::int64_t>(sizeof(T)),
                       block_width = columns.size();
    if (block_width == width_)
      return compute(rows.begin * width_, rows.size() * width_, values, stride_bytes);
    for (std::int64_t row = rows.begin; row < rows.end; ++row, values += block_width)
      compute(row * width_ + columns.begin, block_width, values, stride_bytes);
  }

 private:
  static void prefetch_row(const std::byte* from, std::int64_t bytes, bool is_written) {
    constexpr std::int64_t kLine = 64;
    constexpr int kRead = 0, kSecondLevel = 2;
    for (std::int64_t offset = 0; offset < bytes; offset += kLine)
      if (is_written)
        prefetch_for_write(from + offset);
      else
        __builtin_prefetch(from + offset, kRead, kSecondLevel);
  }

  // Compute the statements of the body for `count` elements, from number `begin` in row-major order
  // on. `values` has these elements of the first matrix product. Those of each next product begin
  // `stride_bytes` later. The elements are computed in tiles, and no tile crosses the end of a row
  // of plan_.inner elements.
  void compute(std::int64_t begin, std::int64_t count, const T* values, std::int64_t stride_bytes) {
    while (count > 0) {
      const std::int64_t n =
          std::min({count, plan_.tile_length, plan_.inner - begin % plan_.inner});
      walk_.elements(begin, n, values, stride_bytes);
      begin += n, values += n, count -= n;
    }
  }

  const Plan& plan_;
  std::int64_t width_;  // columns of each matrix product
  const KernelArgs& args_;
  TileWalk walk_;
};

template <class T>
class ElementwiseProduct final : public Kernel {
 public:
  ElementwiseProduct(const KernelQuery& query, const Machine& machine)
      : plan_(elementwise_of(query)),
        gemm_(MatmulShape(matmul_of(query, 0)),
              static_cast<std::int64_t>(products_of(query).size()), machine),
        width_(query.attrs.integers("product_shape").back()) {
    std::size_t next = num_operands(query);
    for (const InputPlan& input : plan_.inputs)
      kernel_inputs_.push_back(input.reading == Reading::Given ? 0 : next++);
  }

  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(gemm_.scratch_elements()) * sizeof(T);
  }
  std::vector<InPlace> in_place() const override {
    std::vector<InPlace> pairs;
    for (const auto& [output, input] : plan_.in_place)
      pairs.push_back({output, static_cast<int>(kernel_inputs_[static_cast<std::size_t>(input)])});
    return pairs;
  }

  void run(const KernelArgs& args) const override {
    const void* inputs[kMaxSlots];
    for (std::size_t i = 0; i < kernel_inputs_.size(); ++i)
      inputs[i] = args.inputs[kernel_inputs_[i]];
    const KernelArgs body_args{inputs, args.outputs, nullptr, args.queue};
    gemm_.run_into([&] { return BodySink<T>(plan_, width_, body_args); }, args.inputs,
                   static_cast<T*>(args.scratch));
  }

 private:
  Plan plan_;
  gemm::StreamingGemm<T> gemm_;
  std::int64_t width_;  // columns of each matrix product
  // kernel_inputs_[i] is the number of the kernel's input that is input i of the body. If input i
  // of the body is a matrix product, kernel_inputs_[i] is 0 and not used.
  std::vector<std::size_t> kernel_inputs_;
};

// Return the reason why the kernel cannot compute a query, or an empty text if it can. A body that
// is not supported throws Refusal later, in the constructor of Plan.
std::string refusal_of(const KernelQuery& query) {
  const std::size_t products = products_of(query).size();
  if (products == 0 || products > kMaxProducts) return "1 to 4 products are expected";
  if (query.outputs.empty() || query.inputs.size() < 2 * products) return "operands are missing";
  const auto inputs = static_cast<std::int64_t>(query.inputs.size() - products);
  std::int64_t previous = -1;
  for (const std::int64_t i : products_of(query)) {
    if (i <= previous || i >= inputs) return "the products are not in order";
    previous = i;
  }
  const DType dtype = query.inputs[0].dtype;
  if (dtype != DType::F32 && dtype != DType::F64)
    return "only products of f32 and f64 are supported";
  const Shape& product_shape = query.attrs.integers("product_shape");
  if (product_shape.size() != 2) return "only products of two axes are supported";
  if (query.outputs[0].count() == 0 || element_count(product_shape) != query.outputs[0].count())
    return "the outputs differ from the products in the number of elements";
  const MatmulShape first(matmul_of(query, 0));
  for (std::size_t i = 0; i < products; ++i) {
    const MatmulShape shape(matmul_of(query, i));
    if (!shape.refusal.empty()) return shape.refusal;
    if (shape.k != first.k) return "the products have different depths";
  }
  if (first.k == 0) return "the inputs have no elements to multiply";
  if (first.k > kMaxDepth) return "the inner length is too large";
  return {};
}

}  // namespace

Offer offer_elementwise_product(const KernelQuery& query, const Machine& machine) try {
  if (std::string reason = refusal_of(query); !reason.empty())
    return Offer::refuse(std::move(reason));
  if (query.inputs[0].dtype == DType::F32)
    return {std::make_unique<ElementwiseProduct<float>>(query, machine)};
  return {std::make_unique<ElementwiseProduct<double>>(query, machine)};
} catch (const Refusal& refusal) {
  return Offer::refuse(refusal.what());
}

}  // namespace ngd::kernels::fused
