// SPDX-License-Identifier: Apache-2.0
// max_pool, avg_pool and avg_pool_grad: the largest element and the mean of each window over [N, C,
// spatial...], and the gradient of the mean. 16-bit floats are summed in f32, and rounded once. A
// plane is one channel of one image. The threads share the planes, and one thread computes a whole
// plane, so that additions keep their order.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "device/team.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/windows.hpp"

namespace ngd::kernels::fallback {

namespace {

constexpr std::int64_t kGrainWork = 1 << 14;  // the minimum of elements that a thread reads

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Call visitor.operator()<T>() with the C++ type T of a float dtype.
template <class Visitor>
void visit_floats(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::F16:
      return visitor.template operator()<Float16>();
    case DType::BF16:
      return visitor.template operator()<BFloat16>();
    case DType::F64:
      return visitor.template operator()<double>();
    default:
      return visitor.template operator()<float>();
  }
}

// The shapes of the data and windows of a pool. In these types, the channels precede the spatial
// axes, even if the channels are last in memory.
struct PoolShape : Windows {
  TensorType data, windows;
  std::int64_t planes = 0;
  std::string refusal;

  PoolShape(const KernelQuery& query, const TensorType& data_type, const TensorType& window_type)
      : data(data_type), windows(window_type) {
    if (query.attrs.integer("channels_last", 0) != 0)
      for (Shape* shape : {&data.shape, &windows.shape})
        if (shape->size() > 2) std::rotate(shape->begin() + 1, shape->end() - 1, shape->end());
    refusal = read(query.attrs, data.shape, windows.shape, query.attrs.integers("kernel"),
                   query.attrs.integer("ceil", 0) != 0);
    if (!refusal.empty()) return;
    if (!is_floating(data.dtype) || data.dtype != windows.dtype)
      refusal = "pooling needs data and windows of one float dtype";
    if (data.shape[0] != windows.shape[0] || data.shape[1] != windows.shape[1])
      refusal = "the operands differ in batch size or channels";
    planes = data.shape[0] * data.shape[1];
  }

  // Return the number of planes (channels of images) that are enough work for one thread.
  std::int64_t grain() const {
    return std::max<std::int64_t>(
        1, kGrainWork / std::max<std::int64_t>(1, window_count() * kernel_places()));
  }

  // The part of a window, along one axis, that is inside the data: the kernel positions from
  // `first` to last - 1. Kernel position `first` reads the data at `position`.
  struct Range {
    std::int64_t first, last, position;
  };
  // Return the part of window number `window` along an axis that is inside the data.
  Range range(std::size_t axis, std::int64_t window) const {
    const std::int64_t start = window * strides[axis] - before[axis], step = dilations[axis];
    const std::int64_t first = start < 0 ? divide_up(-start, step) : 0;
    const std::int64_t num_remaining =
        extents[axis] - start;  // positions up to the end of the data
    const std::int64_t last =
        std::min(kernel[axis], num_remaining <= 0 ? 0 : divide_up(num_remaining, step));
    return {first, last, start + first * step};
  }

  // Call handle(window, body) for each window of a plane (one channel of one image), in order.
  // `window` is the number of the window. `body` is a function: body(read) calls read(position) for
  // each position of the data in this window. Positions in the padding are skipped.
  template <class Each>
  void for_windows(Each&& handle) const {
    std::int64_t window = 0;
    for (std::int64_t i = 0; i < counts[0]; ++i)
      for (std::int64_t j = 0; j < counts[1]; ++j) {
        const Range z = range(0, i), y = range(1, j);
        for (std::int64_t k = 0; k < counts[2]; ++k, ++window) {
          const Range x = range(2, k);
          handle(window, [&](auto&& read) { visit(z, y, x, read); });
        }
      }
  }

  // Call read(position) for each position of the data that a window reads. i, j and k are the
  // numbers of the window along the three spatial axes.
  template <class Read>
  void visit(std::int64_t i, std::int64_t j, std::int64_t k, Read&& read) const {
    visit(range(0, i), range(1, j), range(2, k), read);
  }

 private:
  // Call read(position) for each position of the data that a window reads. z, y and x are the
  // window's ranges along the three axes, without padding. `position` is a flat index in the plane
  // (one channel of one image).
  template <class Read>
  void visit(const Range& z, const Range& y, const Range& x, Read&& read) const {
    std::int64_t depth = z.position;
    for (std::int64_t a = z.first; a < z.last; ++a, depth += dilations[0]) {
      std::int64_t row = y.position;
      for (std::int64_t b = y.first; b < y.last; ++b, row += dilations[1]) {
        std::int64_t position = (depth * extents[1] + row) * extents[2] + x.position;
        for (std::int64_t c = x.first; c < x.last; ++c, position += dilations[2]) read(position);
      }
    }
  }
};

// max_pool. Output 0 has the largest element of each window. Output 1 has the flat position of this
// element in its plane (one channel of one image).
class MaxPool final : public Kernel {
 public:
  explicit MaxPool(const KernelQuery& query)
      : channels_last_(query.attrs.integer("channels_last", 0) != 0),
        shape_(query, query.inputs[0], query.outputs[0]) {}

  void run(const KernelArgs& args) const override {
    visit_floats(shape_.data.dtype, [&]<class T>() {
      if (channels_last_) return run_channels_last<T>(args);
      device::for_range(shape_.planes, shape_.grain(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p)
          compute_plane(static_cast<const T*>(args.inputs[0]) + p * shape_.data_places(),
                        output_plane<T>(args.outputs[0], p),
                        output_plane<std::int64_t>(args.outputs[1], p));
      });
    });
  }

 private:
  // Return plane p (one channel of one image) of an output, or null if no instruction reads the
  // output.
  template <class T>
  T* output_plane(void* output, std::int64_t p) const {
    return output == nullptr ? nullptr : static_cast<T*>(output) + p * shape_.window_count();
  }

  // Compute max_pool with channels last. The channels of a window are computed together, kPiece at
  // a time. The threads share the rows of windows: a row is all windows along the last spatial
  // axis.
  template <class T>
  void run_channels_last(const KernelArgs& args) const {
    const PoolShape::Axes& counts = shape_.counts;
    const std::int64_t images = shape_.data.shape[0], channels = shape_.data.shape[1];
    const std::int64_t row = counts[2] * channels * shape_.kernel_places();
    device::for_range(images * counts[0] * counts[1],
                      std::max<std::int64_t>(1, kGrainWork / std::max<std::int64_t>(1, row)),
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t r = begin; r < end; ++r)
                          for (std::int64_t k = 0; k < counts[2]; ++k)
                            for (std::int64_t c = 0; c < channels; c += kPiece)
                              compute_window<T>(args, r, k, c, std::min(kPiece, channels - c));
                      });
  }

  // Compute max_pool for window number k of a row of windows, and for `count` channels from
  // `channel` on. Row numbers, from 0, continue over the images: with 8 rows per image, row 9 is
  // row 1 of image 1.
  template <class T>
  void compute_window(const KernelArgs& args, std::int64_t row, std::int64_t k,
                      std::int64_t channel, std::int64_t count) const {
    const std::int64_t channels = shape_.data.shape[1], rows = shape_.counts[0] * shape_.counts[1];
    const T* x = static_cast<const T*>(args.inputs[0]) +
                 row / rows * shape_.data_places() * channels + channel;
    Sum<T> largest[kPiece];
    std::int32_t best[kPiece];
    bool is_first = true;
    shape_.visit(row % rows / shape_.counts[1], row % shape_.counts[1], k,
                 [&](std::int64_t position) {
                   const T* from = x + position * channels;
                   const auto number = static_cast<std::int32_t>(position);
                   if (is_first)
                     for (std::int64_t c = 0; c < count; ++c) {
                       largest[c] = static_cast<Sum<T>>(from[c]);
                       best[c] = number;
                     }
                   else
                     for (std::int64_t c = 0; c < count; ++c) {
                       const auto value = static_cast<Sum<T>>(from[c]);
                       const bool is_better =
                           (value > largest[c]) | ((value != value) & (largest[c] == largest[c]));
                       largest[c] = is_better ? value : largest[c];
                       best[c] = is_better ? number : best[c];
                     }
                   is_first = false;
                 });
    const std::int64_t index = (row * shape_.counts[2] + k) * channels + channel;
    for (std::int64_t c = 0; c < count; ++c) {
      if (args.outputs[0] != nullptr)
        static_cast<T*>(args.outputs[0])[index + c] = x[best[c] * channels + c];
      if (args.outputs[1] != nullptr)
        static_cast<std::int64_t*>(args.outputs[1])[index + c] = best[c];
    }
  }

  // Choose the largest element, or the first of equal ones. NaN is the largest.
  template <class T>
  void compute_plane(const T* x, T* values, std::int64_t* positions) const {
    shape_.for_windows([&](std::int64_t window, auto&& body) {
      std::int64_t best = -1;
      Sum<T> largest = 0;
      body([&](std::int64_t position) {
        const auto value = static_cast<Sum<T>>(x[position]);
        if (best < 0 || value > largest || (std::isnan(value) && !std::isnan(largest))) {
          best = position;
          largest = value;
        }
      });
      if (values != nullptr) values[window] = x[best];
      if (positions != nullptr) positions[window] = best;
    });
  }

  static constexpr std::int64_t kPiece = 256;  // channels that are computed at once

  bool channels_last_;
  PoolShape shape_;
};

// The kernel of avg_pool and avg_pool_grad. avg_pool reads the data of each plane (a channel of an
// image), and writes the mean of each window. avg_pool_grad reads the gradients of these means, and
// writes the gradient of the data.
class AvgPool final : public Kernel {
 public:
  explicit AvgPool(const KernelQuery& query)
      : is_gradient_(query.op == "avg_pool_grad"),
        includes_pad_(query.attrs.integer("include_pad") != 0),
        shape_(query, is_gradient_ ? query.outputs[0] : query.inputs[0],
               is_gradient_ ? query.inputs[0] : query.outputs[0]) {}

  const PoolShape& shape() const { return shape_; }

  // Return the bytes of scratch memory. Only avg_pool_grad of 16-bit floats needs it, for float32
  // sums.
  std::size_t scratch_bytes() const override {
    const std::int64_t sums = is_gradient_ && is_half(shape_.data.dtype) ? shape_.data.count() : 0;
    return static_cast<std::size_t>(sums) * sizeof(float);
  }

  void run(const KernelArgs& args) const override {
    visit_floats(shape_.data.dtype, [&]<class T>() {
      device::for_range(shape_.planes, shape_.grain(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p) {
          const std::int64_t data = p * shape_.data_places(), mean = p * shape_.window_count();
          const auto* from = static_cast<const T*>(args.inputs[0]);
          auto* to = static_cast<T*>(args.outputs[0]);
          if (is_gradient_)
            distribute(from + mean, to + data, args.scratch, data);
          else
            average(from + data, to + mean);
        }
      });
    });
  }

 private:
  // Store the mean of each window of x, a plane (one channel of one image), in `means`.
  template <class T>
  void average(const T* x, T* means) const {
    shape_.for_windows([&](std::int64_t window, auto&& body) {
      Sum<T> sum = 0;
      body([&](std::int64_t position) { sum += static_cast<Sum<T>>(x[position]); });
      means[window] = T(sum / static_cast<Sum<T>>(divisor(window)));
    });
  }

  // Compute avg_pool_grad for one plane (one channel of one image), and store the result in x.
  // `means` has the gradients of the means. Each gradient, divided by divisor(), is added to the
  // elements of its window. `offset` is the index of the plane's first element.
  template <class T>
  void distribute(const T* means, T* x, void* scratch, std::int64_t offset) const {
    Sum<T>* sums = nullptr;
    if constexpr (std::is_same_v<T, Sum<T>>)
      sums = x;
    else
      sums = static_cast<Sum<T>*>(scratch) + offset;
    std::fill(sums, sums + shape_.data_places(), Sum<T>(0));
    shape_.for_windows([&](std::int64_t window, auto&& body) {
      const Sum<T> part = static_cast<Sum<T>>(means[window]) / static_cast<Sum<T>>(divisor(window));
      body([&](std::int64_t position) { sums[position] += part; });
    });
    if constexpr (!std::is_same_v<T, Sum<T>>)
      for (std::int64_t i = 0; i < shape_.data_places(); ++i) x[i] = T(sums[i]);
  }

  // Return the number of positions by which the sum of a window is divided: the window's positions
  // in the data, plus its positions in the padding if includes_pad_ is true. In ceil mode, the last
  // window may end after the padding. Positions after the padding never count.
  std::int64_t divisor(std::int64_t window) const {
    std::int64_t product = 1;
    for (std::size_t axis = 3; axis-- > 0; window /= shape_.counts[axis]) {
      const std::int64_t number = window % shape_.counts[axis];
      const std::int64_t start = number * shape_.strides[axis] - shape_.before[axis];
      const PoolShape::Range range_in_data = shape_.range(axis, number);
      product *= includes_pad_ ? std::min(shape_.kernel[axis],
                                          shape_.extents[axis] + shape_.after[axis] - start)
                               : range_in_data.last - range_in_data.first;
    }
    return product;
  }

  bool is_gradient_, includes_pad_;
  PoolShape shape_;
};

}  // namespace

Offer offer_max_pool(const KernelQuery& query, const Machine&) {
  const PoolShape shape(query, query.inputs[0], query.outputs[0]);
  if (!shape.refusal.empty()) return Offer::refuse(shape.refusal);
  const TensorType positions{DType::I64, query.outputs[0].shape};
  const bool has_int32_indices = query.attrs.integer("channels_last", 0) != 0;
  if (has_int32_indices && shape.data_places() > std::numeric_limits<std::int32_t>::max())
    return Offer::refuse("an image has more elements than an int32 can count");
  if (query.outputs.size() != 2 || query.outputs[1] != positions)
    return Offer::refuse("the positions are not i64 with one per window");
  return {std::make_unique<MaxPool>(query)};
}

Offer offer_avg_pool(const KernelQuery& query, const Machine&) {
  auto kernel = std::make_unique<AvgPool>(query);
  if (!kernel->shape().refusal.empty()) return Offer::refuse(kernel->shape().refusal);
  for (const std::int64_t dilation : query.attrs.integers("dilations"))
    if (dilation != 1) return Offer::refuse("the windows have a dilation");
  return {std::move(kernel)};
}

}  // namespace ngd::kernels::fallback
