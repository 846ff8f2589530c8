// SPDX-License-Identifier: Apache-2.0
// cumsum: for each element, the sum of this element and all elements before it along an axis. With
// the attribute `reverse`, the sum of this element and all elements after it.
#include <algorithm>
#include <type_traits>

#include "device/team.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/indices.hpp"

namespace ngd::kernels::fallback {

namespace {

constexpr std::int64_t kGrainWork = 1 << 14;  // the minimum of elements per thread
constexpr std::int64_t kLines = 64;           // neighbouring lines along the axis, in one pass

// The type of the sums: f64 for f32, f32 for 16-bit floats, and the elements' own type for others.
// Each result is rounded once.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, float>, double, SumType<T>>;

class CumSum final : public Kernel {
 public:
  explicit CumSum(const KernelQuery& query)
      : dtype_(query.inputs[0].dtype), is_reverse_(query.attrs.integer("reverse") != 0) {
    const Shape& shape = query.inputs[0].shape;
    const auto axis = static_cast<std::size_t>(query.attrs.integer("axis"));
    length_ = shape[axis];
    for (std::size_t a = 0; a < axis; ++a) outer_ *= shape[a];
    for (std::size_t a = axis + 1; a < shape.size(); ++a) inner_ *= shape[a];
  }

  std::vector<InPlace> in_place() const override { return {{0, 0}}; }

  void run(const KernelArgs& args) const override {
    const std::int64_t blocks = divide_up(inner_, kLines);
    const std::int64_t work = std::max<std::int64_t>(1, length_ * std::min(inner_, kLines));
    visit_dtype(dtype_, [&]<class T>() {
      device::for_range(outer_ * blocks, std::max<std::int64_t>(1, kGrainWork / work),
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t block = begin; block < end; ++block) {
                            const std::int64_t first = block % blocks * kLines;
                            const std::int64_t offset = block / blocks * length_ * inner_ + first;
                            sum_lines(static_cast<const T*>(args.inputs[0]) + offset,
                                      static_cast<T*>(args.outputs[0]) + offset,
                                      std::min(kLines, inner_ - first));
                          }
                        });
    });
  }

 private:
  // Compute the cumulative sums of `lines` neighbouring lines (at most kLines). A line is the
  // elements along the axis, at one index of the other axes. `x` and `sums` may be the same array.
  template <class T>
  void sum_lines(const T* x, T* sums, std::int64_t lines) const {
    Accumulator<T> accumulators[kLines] = {};
    for (std::int64_t row = 0; row < length_; ++row) {
      const std::int64_t row_offset = (is_reverse_ ? length_ - 1 - row : row) * inner_;
      for (std::int64_t line = 0; line < lines; ++line) {
        accumulators[line] =
            wrapping_sum(accumulators[line], static_cast<Accumulator<T>>(x[row_offset + line]));
        sums[row_offset + line] = static_cast<T>(accumulators[line]);
      }
    }
  }

  DType dtype_;
  bool is_reverse_;
  std::int64_t length_ = 1, outer_ = 1, inner_ = 1;
};

}  // namespace

Offer offer_cumsum(const KernelQuery& query, const Machine&) {
  const TensorType& input = query.inputs[0];
  const std::int64_t axis = query.attrs.integer("axis");
  if (axis < 0 || axis >= static_cast<std::int64_t>(input.shape.size()))
    return Offer::refuse("axis " + std::to_string(axis) + " is not in the input");
  if (input != query.outputs[0]) return Offer::refuse("the output differs from the input in type");
  if (input.dtype == DType::Bool) return Offer::refuse("cumsum does not support bool");
  return {std::make_unique<CumSum>(query)};
}

}  // namespace ngd::kernels::fallback
