// SPDX-License-Identifier: Apache-2.0
// The mean and the variance over any axes.
//
// The elements are divided into chunks (reduce/geometry.hpp), which fit in a cache. Each chunk is
// read twice: first from memory, and then from the cache. The first time, its mean is computed, and
// rounded to the type of the elements. This rounded mean is the shift. The second time, the
// differences of the chunk's elements from the shift, and the squares of these differences, are
// summed. The shift is close to the mean, so a large mean does not make these two sums inaccurate.
// The mean of the chunk, and the sum of squares around the mean, are computed from the two sums.
// Chunks are combined in order, by T. Chan, G. Golub and R. LeVeque, "Updating formulae and a
// pairwise algorithm for computing sample variances" (1979), equation 2.1. 16-bit floats are
// widened to float32 in a small buffer, piece by piece, and the results are float32.
#include "kernels/fallback/moments.hpp"

#include <algorithm>

#include "base/simd.hpp"
#include "kernels/reduce/geometry.hpp"
#include "kernels/reduce/loops.hpp"
#include "kernels/rows.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::fallback {

using reduce::for_segments;
using reduce::Geometry;
using reduce::kMaxColumns;
using reduce::kRowBlock;
using reduce::make_geometry;
using reduce::ReduceLoops;
using reduce::Reduction;
using reduce::run_tasks;

namespace {

// The moments of some elements of one column: their number, their mean, and the sum of the squares
// of the differences from the mean.
struct Moments {
  double count = 0, mean = 0, squares = 0;

  // Add the moments of other elements of the column (equation 2.1 of the paper at the head of this
  // file).
  void add(const Moments& other) {
    const double total_count = count + other.count, difference = other.mean - mean;
    mean += difference * (other.count / total_count);
    squares += other.squares + difference * difference * (count * other.count / total_count);
    count = total_count;
  }
};

// The kernel for elements of T, or for 16-bit floats, which are widened to T.
template <class T>
class MomentsKernel final : public Kernel {
 public:
  MomentsKernel(const KernelQuery& query, const Machine& machine)
      : item_(size_of(query.inputs[0].dtype)),
        widen_(tiles::widening(query.inputs[0].dtype)),
        geometry_(make_geometry(query.inputs[0].shape, query.attrs.integers("axes"))),
        loops_(NGD_SIMD_SELECT(machine.simd, moment_table)()[sizeof(T) == 8]),
        sums_(reduce::reduce_table()[static_cast<int>(Reduction::Sum)]
                                    [static_cast<int>(sizeof(T) == 8 ? DType::F64 : DType::F32)]) {}

  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(geometry_.cells()) * sizeof(Moments);
  }

  void run(const KernelArgs& args) const override {
    run_tasks(
        geometry_, [&](std::int64_t task) { run_task(task, args); },
        [&](std::int64_t result) { combine_chunks(result, args); });
  }

 private:
  // Compute the moments of each column of one chunk, a part of the elements that are reduced to a
  // result. If the result has no other chunk, store the result. Otherwise, leave the moments in
  // scratch memory for combine_chunks().
  void run_task(std::int64_t task, const KernelArgs& args) const {
    const Geometry& g = geometry_;
    const std::int64_t result = task / g.chunks, columns = g.columns_of(result);
    double sums[kMaxColumns] = {}, squares[kMaxColumns] = {};
    T shifts[kMaxColumns];
    std::int64_t count = 0;
    for_pieces(task, args, [&](const T* x, std::int64_t length, std::int64_t stride) {
      count += length;
      if (g.by_rows)
        sums_.row(x, length, sums);
      else
        sums_.columns(x, length, stride, columns, sums);
    });
    const auto n = static_cast<double>(count);
    for (std::int64_t j = 0; j < columns; ++j) {
      shifts[j] = static_cast<T>(sums[j] / n);
      sums[j] = 0;
    }
    for_pieces(task, args, [&](const T* x, std::int64_t length, std::int64_t stride) {
      if (g.by_rows)
        loops_.row(x, length, shifts, sums, squares);
      else
        loops_.columns(x, length, stride, columns, shifts, sums, squares);
    });
    Moments own_moments[kMaxColumns];
    Moments* moments = g.chunks == 1 ? own_moments : cells(args, task);
    for (std::int64_t j = 0; j < columns; ++j) {
      const double square_sum = squares[j] - sums[j] * sums[j] / n;
      moments[j] = {n, static_cast<double>(shifts[j]) + sums[j] / n,
                    square_sum < 0 ? 0 : square_sum};
    }
    if (g.chunks == 1) store(result, moments, columns, args);
  }

  // Call visit(elements, count, stride) for each segment of the elements that task number `task`
  // reduces (reduce/geometry.hpp). If the last axis is reduced (by_rows), a segment is a piece of a
  // dense row, and `count` is its number of elements. Otherwise, a segment is a block of rows,
  // `count` is its number of rows, and `stride` is the number of elements from one row to the next.
  // Segments of 16-bit floats are widened to a buffer. A segment that is larger than the buffer is
  // widened part by part, with one call of `visit` per part.
  template <class Visit>
  void for_pieces(std::int64_t task, const KernelArgs& args, const Visit& visit) const {
    const Geometry& g = geometry_;
    const auto* x = static_cast<const std::byte*>(args.inputs[0]);
    const std::int64_t columns = g.by_rows ? 1 : g.columns_of(task / g.chunks);
    // The size of the buffer in elements. The loops sum the elements block by block (moments.hpp).
    // The buffer has space for one or more whole blocks, so that no block is divided.
    constexpr std::int64_t kBuffer = kRowBlock * kMaxColumns;
    alignas(64) T widened[kBuffer];
    const std::int64_t max_length = g.by_rows ? kBuffer : kRowBlock;
    for_segments(g, task, [&](std::int64_t offset, std::int64_t length) {
      if (widen_ == nullptr) {
        visit(reinterpret_cast<const T*>(x) + offset, length, g.along.stride);
        return;
      }
      for (std::int64_t i = 0; i < length; i += max_length) {
        const std::int64_t n = std::min(max_length, length - i);
        const std::byte* from =
            x + (offset + i * g.along.stride) * static_cast<std::int64_t>(item_);
        if (g.by_rows) {
          widen_(from, nullptr, nullptr, widened, n);
        } else {
          for (std::int64_t r = 0; r < n; ++r)
            widen_(from + r * g.along.stride * static_cast<std::int64_t>(item_), nullptr, nullptr,
                   widened + r * columns, columns);
        }
        visit(widened, n, columns);
      }
    });
  }

  // Combine the moments of all chunks of a result, in order, and store the result.
  void combine_chunks(std::int64_t result, const KernelArgs& args) const {
    const Geometry& g = geometry_;
    const std::int64_t columns = g.columns_of(result);
    Moments* first = cells(args, result * g.chunks);
    for (std::int64_t chunk = 1; chunk < g.chunks; ++chunk) {
      const Moments* other = cells(args, result * g.chunks + chunk);
      for (std::int64_t j = 0; j < columns; ++j) first[j].add(other[j]);
    }
    store(result, first, columns, args);
  }

  // Store the three outputs: the rounded mean, the float64 mean minus the rounded mean, and the
  // variance, which is divided by the number of elements.
  void store(std::int64_t result, const Moments* moments, std::int64_t columns,
             const KernelArgs& args) const {
    const std::int64_t first_index = geometry_.first_of(result);
    for (std::int64_t j = 0; j < columns; ++j) {
      const T mean = static_cast<T>(moments[j].mean);
      const double values[] = {moments[j].mean, moments[j].mean - static_cast<double>(mean),
                               moments[j].squares / moments[j].count};
      for (std::size_t o = 0; o < 3; ++o)
        if (args.outputs[o] != nullptr)
          static_cast<T*>(args.outputs[o])[first_index + j] = static_cast<T>(values[o]);
    }
  }

  // Return the scratch memory of a task (the reduction of one chunk): one Moments per column.
  Moments* cells(const KernelArgs& args, std::int64_t task) const {
    return static_cast<Moments*>(args.scratch) + task * geometry_.columns;
  }

  std::size_t item_;
  tiles::TileFunction widen_;  // widens 16-bit floats to T; null if the elements are T
  Geometry geometry_;
  const MomentLoops& loops_;
  const ReduceLoops& sums_;
};

}  // namespace

Offer offer_moments(const KernelQuery& query, const Machine& machine) {
  const TensorType& x = query.inputs[0];
  if (!is_floating(x.dtype)) return Offer::refuse("moments support only float dtypes");
  for (const std::int64_t axis : query.attrs.integers("axes"))
    if (axis < 0 || axis >= static_cast<std::int64_t>(x.shape.size()))
      return Offer::refuse("axis " + std::to_string(axis) + " is not in the input");
  const Geometry g = make_geometry(x.shape, query.attrs.integers("axes"));
  for (const TensorType& output : query.outputs)
    if (output.dtype != (is_half(x.dtype) ? DType::F32 : x.dtype) ||
        output.count() != g.kept_count * g.width)
      return Offer::refuse("an output does not have the input's widened dtype and the kept axes");
  if (g.total == 0) return Offer::refuse("moments of no elements");
  if (x.dtype == DType::F64) return {std::make_unique<MomentsKernel<double>>(query, machine)};
  return {std::make_unique<MomentsKernel<float>>(query, machine)};
}

}  // namespace ngd::kernels::fallback
