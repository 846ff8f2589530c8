// SPDX-License-Identifier: Apache-2.0
// grouped_matmul and grouped_weight_grad by ngd's GEMM, for all floats. 16-bit floats are widened
// to scratch memory, for one group at a time. Other operands are not copied.
#include "kernels/gemm/grouped_matmul.hpp"

#include "kernels/gemm/casts.hpp"
#include "kernels/gemm/packed_gemm.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fallback {

namespace {

// An operand or the result of a matrix product that is computed in the type T. If the array has
// another dtype (16-bit floats), its elements are converted in scratch memory.
template <class T>
class ComputedArray {
 public:
  // `max_elements`: one matrix product reads or writes at most this many elements of the array.
  ComputedArray(DType dtype, std::int64_t max_elements)
      : item_bytes_(static_cast<std::int64_t>(size_of(dtype))),
        widen_(gemm::cast_to_computed(dtype)),
        narrow_(gemm::cast_to_stored(dtype)),
        scratch_elements_(widen_ == nullptr ? 0 : round_up(max_elements, 64)) {}

  // Return the number of elements of T that read() or store() needs as scratch memory. It is 0 if
  // no elements are converted.
  std::int64_t scratch_elements() const { return scratch_elements_; }

  // Return `count` elements of an operand, from element `first` on. 16-bit floats are widened to
  // `scratch`, and other elements are not copied.
  const T* read(const void* data, std::int64_t first, std::int64_t count, T* scratch) const {
    const std::byte* from = static_cast<const std::byte*>(data) + first * item_bytes_;
    if (widen_ == nullptr) return reinterpret_cast<const T*>(from);
    gemm::cast_elements(widen_, from, static_cast<std::size_t>(item_bytes_), scratch, sizeof(T),
                        count);
    return scratch;
  }
  // Return the memory in which a product stores its result: the output from element `first` on, or
  // `scratch` if the output has 16-bit floats. In the second case, store() rounds the elements of
  // `scratch` and stores them in the output.
  T* result_memory(void* data, std::int64_t first, T* scratch) const {
    return narrow_ == nullptr ? static_cast<T*>(data) + first : scratch;
  }
  // Round `count` elements of `scratch` to 16-bit floats, and store them from element `first` on.
  // Do nothing if the output has no 16-bit floats, because the product is then in the output
  // already.
  void store(void* data, std::int64_t first, std::int64_t count, const T* scratch) const {
    if (narrow_ == nullptr) return;
    std::byte* to = static_cast<std::byte*>(data) + first * item_bytes_;
    gemm::cast_elements(narrow_, scratch, sizeof(T), to, static_cast<std::size_t>(item_bytes_),
                        count);
  }

 private:
  std::int64_t item_bytes_;
  tiles::TileFunction widen_, narrow_;
  std::int64_t scratch_elements_;
};

// The template argument `Products` of gemm/grouped_matmul.hpp: matrix products by ngd's GEMM.
template <class T>
class GemmProducts {
 public:
  GemmProducts(const MatmulShape& largest, DType dtype, const Machine& machine)
      : largest_(largest),
        machine_(machine),
        a_(dtype, largest.m * largest.k),
        b_(dtype, largest.k * largest.n),
        out_(dtype, largest.m * largest.n) {}

  std::size_t scratch_bytes() const {
    const std::int64_t num_cast_elements =
        a_.scratch_elements() + b_.scratch_elements() + out_.scratch_elements();
    return sizeof(T) *
           static_cast<std::size_t>(num_cast_elements +
                                    gemm::PackedGemm<T>::max_scratch_elements(largest_, machine_));
  }

  // Compute one product of m rows and depth k. The operands begin at elements a and b of the
  // inputs, and the result at element `out` of the output.
  void run(const KernelArgs& args, std::int64_t m, std::int64_t k, std::int64_t a, std::int64_t b,
           std::int64_t out) const {
    const MatmulShape shape(m, largest_.n, k, largest_.transpose_a, largest_.transpose_b);
    // The kernel may run in a forked child, which has only one thread. So limit the threads.
    Machine machine = machine_;
    machine.threads = std::min(machine.threads, device::thread_count());
    T* scratch_a = static_cast<T*>(args.scratch);
    T* scratch_b = scratch_a + a_.scratch_elements();
    T* scratch_out = scratch_b + b_.scratch_elements();
    const T* rows = a_.read(args.inputs[0], a, m * k, scratch_a);
    const T* columns = b_.read(args.inputs[1], b, k * shape.n, scratch_b);
    gemm::PackedGemm<T>(shape, machine)
        .run(rows, columns, nullptr, out_.result_memory(args.outputs[0], out, scratch_out),
             scratch_out + out_.scratch_elements());
    out_.store(args.outputs[0], out, m * shape.n, scratch_out);
  }

 private:
  MatmulShape largest_;
  Machine machine_;
  ComputedArray<T> a_, b_, out_;
};

// Return the kernel `Op` (GroupedMatmul or GroupedWeightGrad) with GemmProducts, or the reason for
// a refusal.
template <template <class> class Op>
Offer offer(const KernelQuery& query, const Machine& machine) {
  std::string refusal = refusal_of_grouped(query);
  if (!refusal.empty()) return Offer::refuse(std::move(refusal));
  const DType dtype = query.outputs[0].dtype;
  if (dtype == DType::F64) return {std::make_unique<Op<GemmProducts<double>>>(query, machine)};
  return {std::make_unique<Op<GemmProducts<float>>>(query, machine), {}, !is_half(dtype)};
}

}  // namespace

Offer offer_grouped_matmul(const KernelQuery& query, const Machine& machine) {
  return offer<GroupedMatmul>(query, machine);
}

Offer offer_grouped_weight_grad(const KernelQuery& query, const Machine& machine) {
  return offer<GroupedWeightGrad>(query, machine);
}

}  // namespace ngd::kernels::fallback
