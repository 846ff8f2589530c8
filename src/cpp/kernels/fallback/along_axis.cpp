// SPDX-License-Identifier: Apache-2.0
// take_along_axis and its adjoint, add_along_axis. Unlike in gather, each line along the axis has
// its own indices.
#include <algorithm>
#include <type_traits>

#include "device/team.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/indices.hpp"

namespace ngd::kernels::fallback {

namespace {

constexpr std::int64_t kGrainWork = 1 << 14;  // the minimum of elements per thread

// take_along_axis copies the selected elements of a tensor, and add_along_axis adds values to the
// selected elements of a tensor of zeros. The tensor is seen as [outer, length, inner], and the
// indices and the selected elements as [outer, count, inner]. The indices select along the middle
// axis. A line is all elements along the middle axis for one outer index and one inner index.
class AlongAxis final : public Kernel {
 public:
  explicit AlongAxis(const KernelQuery& query)
      : is_add_(query.op == "add_along_axis"),
        dtype_(query.outputs[0].dtype),
        index_dtype_(query.inputs[1].dtype),
        length_((is_add_ ? query.outputs : query.inputs)[0]
                    .shape[static_cast<std::size_t>(query.attrs.integer("axis"))]),
        range_(query, 1, length_) {
    const Shape &tensor = (is_add_ ? query.outputs : query.inputs)[0].shape,
                &selection = query.inputs[1].shape;
    const auto axis = static_cast<std::size_t>(query.attrs.integer("axis"));
    count_ = selection[axis];
    for (std::size_t a = 0; a < axis; ++a) outer_ *= tensor[a];
    for (std::size_t a = axis + 1; a < tensor.size(); ++a) inner_ *= tensor[a];
  }

  // Return the bytes of scratch memory. Only add_along_axis of 16-bit floats needs it, for float32
  // sums.
  std::size_t scratch_bytes() const override {
    const std::int64_t sums = is_add_ && is_half(dtype_) ? outer_ * length_ * inner_ : 0;
    return static_cast<std::size_t>(sums) * sizeof(float);
  }

  void run(const KernelArgs& args) const override {
    range_.check(args.inputs[1]);
    const std::int64_t work =
        std::max<std::int64_t>(1, is_add_ ? std::max(length_, count_) : count_);
    device::for_range(outer_ * inner_, std::max<std::int64_t>(1, kGrainWork / work),
                      [&](std::int64_t begin, std::int64_t end) {
                        visit_dtype(dtype_, [&]<class T>() {
                          for (std::int64_t line = begin; line < end;) {
                            const std::int64_t outer = line / inner_, first = line % inner_;
                            const std::int64_t last = std::min(inner_, first + end - line);
                            if (is_add_)
                              add<T>(args, outer, first, last);
                            else
                              take<T>(args, outer, first, last);
                            line += last - first;
                          }
                        });
                      });
  }

 private:
  // Return index number i as a number >= 0. As in NumPy, a negative index counts from the end of
  // the axis.
  std::int64_t index(const KernelArgs& args, std::int64_t i) const {
    const std::int64_t index = index_at(index_dtype_, args.inputs[1], i);
    return index < 0 ? index + length_ : index;
  }

  // Compute take_along_axis for outer index `outer`, and for inner indices in [first, last).
  template <class T>
  void take(const KernelArgs& args, std::int64_t outer, std::int64_t first,
            std::int64_t last) const {
    const T* from = static_cast<const T*>(args.inputs[0]) + outer * length_ * inner_;
    for (std::int64_t row = outer * count_; row < (outer + 1) * count_; ++row)
      for (std::int64_t j = first; j < last; ++j) {
        const std::int64_t i = row * inner_ + j;
        static_cast<T*>(args.outputs[0])[i] = from[index(args, i) * inner_ + j];
      }
  }

  // Compute add_along_axis for outer index `outer`, and for inner indices from `first` to last - 1.
  // Begin with sums of 0. Then add each value of input 0, in order, to the sum that its index
  // selects.
  template <class T>
  void add(const KernelArgs& args, std::int64_t outer, std::int64_t first,
           std::int64_t last) const {
    using Sum = SumType<T>;
    const std::int64_t begin = outer * length_ * inner_;
    T* output = static_cast<T*>(args.outputs[0]) + begin;
    Sum* sums = nullptr;
    if constexpr (std::is_same_v<Sum, T>)
      sums = output;
    else
      sums = static_cast<Sum*>(args.scratch) + begin;
    for (std::int64_t row = 0; row < length_; ++row)
      std::fill(sums + row * inner_ + first, sums + row * inner_ + last, Sum(0));
    for (std::int64_t row = outer * count_; row < (outer + 1) * count_; ++row)
      for (std::int64_t j = first; j < last; ++j) {
        const std::int64_t i = row * inner_ + j;
        Sum& sum = sums[index(args, i) * inner_ + j];
        sum = wrapping_sum(sum, static_cast<Sum>(static_cast<const T*>(args.inputs[0])[i]));
      }
    if constexpr (!std::is_same_v<Sum, T>)
      for (std::int64_t row = 0; row < length_; ++row)
        for (std::int64_t j = first; j < last; ++j)
          output[row * inner_ + j] = T(sums[row * inner_ + j]);
  }

  bool is_add_;
  DType dtype_, index_dtype_;
  std::int64_t length_, count_ = 0, outer_ = 1, inner_ = 1;
  IndexCheck range_;
};

}  // namespace

Offer offer_along_axis(const KernelQuery& query, const Machine&) {
  const bool add = query.op == "add_along_axis";
  const TensorType &tensor = (add ? query.outputs : query.inputs)[0],
                   &selection = (add ? query.inputs : query.outputs)[0];
  const std::int64_t axis = query.attrs.integer("axis");
  if (axis < 0 || axis >= static_cast<std::int64_t>(tensor.shape.size()))
    return Offer::refuse("axis " + std::to_string(axis) + " is not in the tensor");
  if (!is_index(query.inputs[1].dtype)) return Offer::refuse("the indices are not i32 or i64");
  if (tensor.dtype != selection.dtype) return Offer::refuse("dtypes differ");
  if (selection.shape != query.inputs[1].shape || selection.shape.size() != tensor.shape.size())
    return Offer::refuse("the indices do not have one element per element of the part");
  for (std::size_t a = 0; a < tensor.shape.size(); ++a)
    if (static_cast<std::int64_t>(a) != axis && selection.shape[a] != tensor.shape[a])
      return Offer::refuse("the shapes differ in another axis");
  return {std::make_unique<AlongAxis>(query)};
}

}  // namespace ngd::kernels::fallback
