// SPDX-License-Identifier: Apache-2.0
#include "kernels/fallback/strided_copy.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "device/team.hpp"

namespace ngd::kernels::fallback {

namespace {

constexpr std::int64_t kLine = 64;            // bytes of a side of a transposed block
constexpr std::int64_t kGrainWork = 1 << 15;  // the minimum of elements per thread

// Call visitor.operator()<T>() with the unsigned integer T of `item` bytes.
template <class Visitor>
void visit_item(std::int64_t item, Visitor&& visitor) {
  switch (item) {
    case 1:
      return visitor.template operator()<std::uint8_t>();
    case 2:
      return visitor.template operator()<std::uint16_t>();
    case 4:
      return visitor.template operator()<std::uint32_t>();
    default:
      return visitor.template operator()<std::uint64_t>();
  }
}

// Copy `count` elements along one axis. Strides are in elements.
template <class T>
void copy_run(const T* source, std::int64_t source_stride, T* target, std::int64_t target_stride,
              std::int64_t count) {
  if (source_stride == 1 && target_stride == 1)
    std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(T));
  else
    for (std::int64_t i = 0; i < count; ++i) target[i * target_stride] = source[i * source_stride];
}

// Transpose a block whose sides are at most a cache line long. The block is copied via a buffer, so
// that each cache line is read or written as a whole. Without the buffer, if strides are powers of
// two, the cache lines of a block evict each other from the cache.
template <class T>
void transpose_block(const T* source, std::int64_t source_stride, T* target,
                     std::int64_t target_stride, std::int64_t dense, std::int64_t strided) {
  constexpr std::int64_t kSide = kLine / static_cast<std::int64_t>(sizeof(T));
  T lines[kSide][kSide];
  if (dense >= kSide && strided >= kSide) {
    for (std::int64_t i = 0; i < kSide; ++i)
      std::memcpy(lines[i], source + i * source_stride, kLine);
    for (std::int64_t m = 0; m < kSide; ++m)
      for (std::int64_t i = 0; i < kSide; ++i) target[m * target_stride + i] = lines[i][m];
    return;
  }
  for (std::int64_t m = 0; m < std::min(kSide, dense); ++m)
    copy_run(source + m, source_stride, target + m * target_stride, 1, std::min(kSide, strided));
}

}  // namespace

StridedCopy::StridedCopy(const Shape& shape, const Shape& source_strides,
                         const Shape& target_strides, std::size_t item)
    : item_(static_cast<std::int64_t>(item)) {
  merge_axes(shape, source_strides, target_strides);
  if (!outer_.empty()) {
    inner_ = outer_.back();
    outer_.pop_back();
  }
  // The copy is a transpose if the inner (last) axis is dense in the target, and another axis is
  // dense in the source. That axis is then the middle axis. Other copies have no middle axis.
  const auto dense =
      std::find_if(outer_.begin(), outer_.end(), [](const Axis& a) { return a.source == 1; });
  if (dense != outer_.end() && inner_.target == 1 && std::abs(inner_.source) > 1) {
    middle_ = *dense;
    outer_.erase(dense);
    is_transpose_ = true;
  }
  for (const Axis& axis : outer_) outer_count_ *= axis.length;
}

// Drop axes of length 1. Merge neighbouring axes if both the source and the target can step over
// them with one stride.
void StridedCopy::merge_axes(const Shape& shape, const Shape& source_strides,
                             const Shape& target_strides) {
  for (std::size_t a = 0; a < shape.size(); ++a) {
    if (shape[a] == 1) continue;
    const Axis axis{shape[a], source_strides[a], target_strides[a]};
    if (!outer_.empty() && outer_.back().source == axis.source * axis.length &&
        outer_.back().target == axis.target * axis.length)
      outer_.back() = {outer_.back().length * axis.length, axis.source, axis.target};
    else
      outer_.push_back(axis);
  }
}

void StridedCopy::run(const void* source, void* target) const {
  if (outer_count_ == 0 || middle_.length == 0 || inner_.length == 0) return;
  // The threads share the copy in units called bands. For each index of the outer axes, a transpose
  // copies one matrix. Its rows are the middle axis (dense in the source), and its columns are the
  // inner axis (dense in the target). A transpose's band is `side` rows of a matrix. Other copies
  // copy one line, the inner axis, per index of the outer axes, and a line is a band. If there is
  // only one line, it is divided into bands of at most kGrainWork elements.
  const std::int64_t side = kLine / item_;
  const std::int64_t bands = is_transpose_       ? divide_up(middle_.length, side)
                             : outer_count_ == 1 ? divide_up(inner_.length, kGrainWork)
                                                 : 1;
  const std::int64_t work = std::max<std::int64_t>(1, middle_.length * inner_.length / bands);
  device::for_range(outer_count_ * bands, std::max<std::int64_t>(1, kGrainWork / work),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t task = begin; task < end; ++task) {
                        std::int64_t index = task / bands, from = 0, to = 0;
                        for (std::size_t a = outer_.size(); a-- > 0; index /= outer_[a].length) {
                          from += index % outer_[a].length * outer_[a].source;
                          to += index % outer_[a].length * outer_[a].target;
                        }
                        copy_band(static_cast<const std::byte*>(source) + from * item_,
                                  static_cast<std::byte*>(target) + to * item_, task % bands,
                                  bands);
                      }
                    });
}

void StridedCopy::copy_band(const std::byte* source, std::byte* target, std::int64_t band,
                            std::int64_t bands) const {
  visit_item(item_, [&]<class T>() {
    const auto* from = reinterpret_cast<const T*>(source);
    auto* to = reinterpret_cast<T*>(target);
    if (!is_transpose_) {
      const auto [begin, end] = device::share(inner_.length, 1, band, bands);
      copy_run(from + begin * inner_.source, inner_.source, to + begin * inner_.target,
               inner_.target, end - begin);
      return;
    }
    const std::int64_t m = band * (kLine / item_);
    for (std::int64_t i = 0; i < inner_.length; i += kLine / item_)
      transpose_block(from + m + i * inner_.source, inner_.source, to + m * middle_.target + i,
                      middle_.target, middle_.length - m, inner_.length - i);
  });
}

}  // namespace ngd::kernels::fallback
