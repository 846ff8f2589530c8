// SPDX-License-Identifier: Apache-2.0
// Kernels that move elements and compute nothing: copy, transpose, slice, pad_slice, concat.
#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "device/team.hpp"
#include "kernels/fallback/strided_copy.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fallback {

namespace {

constexpr std::int64_t kGrainBytes = 1 << 18;

// Call body(begin, end) for shares of [0, bytes), which the threads process in parallel.
void for_bytes(std::size_t bytes, auto&& body) {
  device::for_range(static_cast<std::int64_t>(bytes), kGrainBytes, body);
}

class Copy final : public Kernel {
 public:
  explicit Copy(const KernelQuery& query) : bytes_(query.outputs[0].bytes()) {}
  void run(const KernelArgs& args) const override {
    for_bytes(bytes_, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(static_cast<std::byte*>(args.outputs[0]) + begin,
                  static_cast<const std::byte*>(args.inputs[0]) + begin,
                  static_cast<std::size_t>(end - begin));
    });
  }

 private:
  std::size_t bytes_;
};

// The kernel that makes one strided copy. It first sets bytes_to_clear bytes of the output to 0.
// For pad_slice, these are all bytes, because the copy leaves gaps. For other ops, bytes_to_clear
// is 0. Then the copy reads the input from element source_begin on, and writes the output from
// element target_begin on.
class Move final : public Kernel {
 public:
  Move(StridedCopy copy, std::size_t item, std::int64_t source_begin, std::int64_t target_begin,
       std::size_t bytes_to_clear)
      : copy_(std::move(copy)),
        source_offset_(source_begin * static_cast<std::int64_t>(item)),
        target_offset_(target_begin * static_cast<std::int64_t>(item)),
        bytes_to_clear_(bytes_to_clear) {}

  void run(const KernelArgs& args) const override {
    auto* output = static_cast<std::byte*>(args.outputs[0]);
    for_bytes(bytes_to_clear_, [&](std::int64_t begin, std::int64_t end) {
      std::memset(output + begin, 0, static_cast<std::size_t>(end - begin));
    });
    copy_.run(static_cast<const std::byte*>(args.inputs[0]) + source_offset_,
              output + target_offset_);
  }

 private:
  StridedCopy copy_;
  std::int64_t source_offset_, target_offset_;
  std::size_t bytes_to_clear_;
};

class Concat final : public Kernel {
 public:
  explicit Concat(const KernelQuery& query) {
    const auto axis = static_cast<std::size_t>(query.attrs.integer("axis"));
    const TensorType& output = query.outputs[0];
    const Shape strides = row_major_strides(output.shape);
    const std::size_t item = size_of(output.dtype);
    std::int64_t begin = 0;
    for (const TensorType& input : query.inputs) {
      offsets_.push_back(begin * strides[axis] * static_cast<std::int64_t>(item));
      copies_.emplace_back(input.shape, row_major_strides(input.shape), strides, item);
      begin += input.shape[axis];
    }
  }

  void run(const KernelArgs& args) const override {
    for (std::size_t i = 0; i < copies_.size(); ++i)
      copies_[i].run(args.inputs[i], static_cast<std::byte*>(args.outputs[0]) + offsets_[i]);
  }

 private:
  std::vector<StridedCopy> copies_;
  std::vector<std::int64_t> offsets_;  // the offset of each input in the output, in bytes
};

// Return true if `axes` contains each number from 0 to rank - 1 exactly once.
bool is_permutation(std::vector<std::int64_t> axes, std::size_t rank) {
  std::sort(axes.begin(), axes.end());
  for (std::size_t a = 0; a < axes.size(); ++a)
    if (axes[a] != static_cast<std::int64_t>(a)) return false;
  return axes.size() == rank;
}

// Return true if a selection from `tensor` has only indices in range. Along axis a, it selects the
// indices starts[a] + i * steps[a], for i < part[a]. `part` is the shape of the selection: the
// result of slice, or the input of pad_slice.
bool is_inside(const Shape& part, const Shape& tensor, const Attrs& attrs) {
  const auto& starts = attrs.integers("starts");
  const auto& steps = attrs.integers("steps");
  if (part.size() != tensor.size() || starts.size() != tensor.size() ||
      steps.size() != tensor.size())
    return false;
  if (element_count(part) == 0) return true;
  for (std::size_t a = 0; a < tensor.size(); ++a) {
    const std::int64_t last = starts[a] + (part[a] - 1) * steps[a];
    if (starts[a] < 0 || starts[a] >= tensor[a] || last < 0 || last >= tensor[a]) return false;
  }
  return true;
}

// A selection from a dense tensor: the index of its first element, and the number of elements in
// memory from one selected element to the next along each axis.
struct Window {
  std::int64_t begin = 0;
  Shape strides;
};

// Return the first element and the strides that the attributes `starts` and `steps` select in a
// dense tensor.
Window window_of(const Shape& tensor, const Attrs& attrs) {
  Window window{0, row_major_strides(tensor)};
  for (std::size_t a = 0; a < tensor.size(); ++a) {
    window.begin += attrs.integers("starts")[a] * window.strides[a];
    window.strides[a] *= attrs.integers("steps")[a];
  }
  return window;
}

}  // namespace

Offer offer_copy(const KernelQuery& query, const Machine&) {
  if (query.inputs[0].bytes() != query.outputs[0].bytes())
    return Offer::refuse("input and output differ in size");
  return {std::make_unique<Copy>(query)};
}

Offer offer_transpose(const KernelQuery& query, const Machine&) {
  const Shape& from = query.inputs[0].shape;
  const Shape& to = query.outputs[0].shape;
  const auto& permutation = query.attrs.integers("permutation");
  if (query.inputs[0].dtype != query.outputs[0].dtype) return Offer::refuse("dtypes differ");
  if (!is_permutation(permutation, from.size()) || to.size() != from.size())
    return Offer::refuse("the permutation does not name each axis of the input once");
  for (std::size_t a = 0; a < to.size(); ++a)
    if (to[a] != from[static_cast<std::size_t>(permutation[a])])
      return Offer::refuse("the output does not have the permuted shape");
  const Shape strides = row_major_strides(query.inputs[0].shape);
  Shape permuted;
  for (const std::int64_t axis : permutation)
    permuted.push_back(strides[static_cast<std::size_t>(axis)]);
  const std::size_t item = size_of(query.outputs[0].dtype);
  return {std::make_unique<Move>(StridedCopy(to, permuted, row_major_strides(to), item), item, 0, 0,
                                 0)};
}

Offer offer_slice(const KernelQuery& query, const Machine&) {
  if (query.inputs[0].dtype != query.outputs[0].dtype) return Offer::refuse("dtypes differ");
  if (!is_inside(query.outputs[0].shape, query.inputs[0].shape, query.attrs))
    return Offer::refuse("starts and steps reach past the input");
  const Window window = window_of(query.inputs[0].shape, query.attrs);
  const Shape& shape = query.outputs[0].shape;
  const std::size_t item = size_of(query.outputs[0].dtype);
  return {std::make_unique<Move>(StridedCopy(shape, window.strides, row_major_strides(shape), item),
                                 item, window.begin, 0, 0)};
}

Offer offer_pad_slice(const KernelQuery& query, const Machine&) {
  if (query.inputs[0].dtype != query.outputs[0].dtype) return Offer::refuse("dtypes differ");
  if (!is_inside(query.inputs[0].shape, query.outputs[0].shape, query.attrs))
    return Offer::refuse("starts and steps reach past the output");
  const Window window = window_of(query.outputs[0].shape, query.attrs);
  const Shape& shape = query.inputs[0].shape;
  const std::size_t item = size_of(query.outputs[0].dtype);
  return {std::make_unique<Move>(StridedCopy(shape, row_major_strides(shape), window.strides, item),
                                 item, 0, window.begin, query.outputs[0].bytes())};
}

Offer offer_concat(const KernelQuery& query, const Machine&) {
  const TensorType& output = query.outputs[0];
  const std::int64_t axis = query.attrs.integer("axis");
  if (axis < 0 || axis >= static_cast<std::int64_t>(output.shape.size()))
    return Offer::refuse("axis " + std::to_string(axis) + " is not in the output");
  Shape expected = output.shape;
  expected[static_cast<std::size_t>(axis)] = 0;
  std::int64_t total = 0;
  for (const TensorType& input : query.inputs) {
    if (input.dtype != output.dtype || input.shape.size() != expected.size())
      return Offer::refuse("an input has another dtype or rank");
    Shape rest = input.shape;
    total += std::exchange(rest[static_cast<std::size_t>(axis)], 0);
    if (rest != expected) return Offer::refuse("an input differs in another axis");
  }
  if (total != output.shape[static_cast<std::size_t>(axis)])
    return Offer::refuse("the inputs do not fill the output's axis");
  return {std::make_unique<Concat>(query)};
}

}  // namespace ngd::kernels::fallback
