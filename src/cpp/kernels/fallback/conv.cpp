// SPDX-License-Identifier: Apache-2.0
// Convolutions and their gradients as GEMMs (im2col), for all floats.
//
// The column matrix of an image has the shape [groups, in * kernel, positions]: `in` is the number
// of input channels per group, `kernel` is the number of kernel positions (9 for a 3 x 3 kernel),
// and `positions` is the number of output positions. Each column belongs to one output position. It
// has the elements of the data that the kernel covers at this output position, one row per input
// channel and kernel position. Elements in the padding are 0. The output positions of an image are
// divided into chunks, so that the column matrix of a chunk is small. dy is the gradient of the
// result:
//
//   result chunk    = weights @ columns of the data
//   data gradient   : columns = weights transposed @ dy chunk. Each element of the columns is then
//                     added to the gradient of the element of the data that it was copied from.
//   weight gradient = sum over images and chunks of dy chunk @ transposed columns of the data
//
// f32 and f64 are computed in their own dtype, and 16-bit floats in f32: their operands are cast to
// scratch memory first, and the result is cast back.
#include "device/team.hpp"
#include "kernels/gemm/casts.hpp"
#include "kernels/gemm/packed_gemm.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/conv_shape.hpp"

namespace ngd::kernels::fallback {

namespace {

using Which = ConvShape::Which;

constexpr std::int64_t kColumnElements = 1 << 20;  // the most elements of a chunk's column matrix
constexpr std::int64_t kGrainElements = 1 << 14;   // the minimum of copied elements per thread
constexpr std::int64_t kMinPositions = 64;         // the fewest output positions of a chunk

std::int64_t grain_of(std::int64_t elements) {
  return std::max<std::int64_t>(1, kGrainElements / std::max<std::int64_t>(elements, 1));
}

// Return the shape of the GEMM for a chunk of `positions` output positions.
MatmulShape product_of(const ConvShape& s, std::int64_t positions) {
  const std::int64_t depth = s.in * s.kernel_places(), g = s.groups;
  const TensorType weights{DType::F32, {g, s.out, depth}},
      columns{DType::F32, {g, depth, positions}}, result{DType::F32, {g, s.out, positions}};
  Attrs attrs;
  attrs.set("transpose_a", std::int64_t{s.which == Which::DataGrad});
  attrs.set("transpose_b", std::int64_t{s.which == Which::WeightGrad});
  switch (s.which) {
    case Which::Forward:
      return MatmulShape({"matmul", {weights, columns}, {result}, attrs});
    case Which::DataGrad:
      return MatmulShape({"matmul", {weights, result}, {columns}, attrs});
    default:
      return MatmulShape({"matmul", {result, columns}, {weights}, attrs});
  }
}

// The division of the output positions of an image into chunks. A chunk has at least kMinPositions
// positions (or all of the image), even if its column matrix (one column per position, see above)
// then exceeds kColumnElements. The last members are the numbers of elements of three scratch
// arrays:
//   columns  the column matrix of a chunk
//   part     a chunk of the result or of its gradient; 0 if one chunk has all positions
//   product  the weight gradient of one chunk; 0 for other ops
struct Chunks {
  explicit Chunks(const ConvShape& s) : positions(s.window_count()) {
    const std::int64_t rows = std::max<std::int64_t>(s.groups * s.in * s.kernel_places(), 1);
    chunk = std::clamp<std::int64_t>(kColumnElements / rows, std::min(kMinPositions, positions),
                                     positions);
    rest = positions % chunk;
    columns = round_up(rows * chunk, 64);
    part = chunk == positions ? 0 : round_up(s.groups * s.out * chunk, 64);
    product = s.which == Which::WeightGrad ? round_up(s.weights.count(), 64) : 0;
  }
  // Return the number of elements of the three scratch arrays.
  std::int64_t elements() const { return columns + part + product; }

  std::int64_t positions, chunk = 1, rest = 0;
  std::int64_t columns, part, product;
};

// The computation of a convolution, a data gradient or a weight gradient, in the dtype T.
template <class T>
class Columns {
 public:
  Columns(const ConvShape& shape, const Machine& machine)
      : s_(shape),
        chunks_(shape),
        chunk_gemm_(product_of(shape, chunks_.chunk), machine),
        last_gemm_(product_of(shape, std::max<std::int64_t>(chunks_.rest, 1)), machine) {}

  // Return the number of elements of T of scratch memory that run() needs.
  std::int64_t scratch_elements() const {
    return chunks_.elements() +
           std::max(chunk_gemm_.scratch_elements(), last_gemm_.scratch_elements());
  }

  // Compute the op. `first` and `second` are its operands, and `output` is its result.
  void run(const T* first, const T* second, T* output, T* scratch) const {
    T* columns = scratch;
    T* part = columns + chunks_.columns;
    T* product = part + chunks_.part;
    T* gemm_scratch = product + chunks_.product;
    const std::int64_t image = s_.groups * s_.in * s_.data_places(),
                       results = s_.groups * s_.out * chunks_.positions;
    if (s_.which != Which::Forward)
      std::fill(output, output + (s_.which == Which::DataGrad ? s_.data : s_.weights).count(),
                T(0));
    for (std::int64_t n = 0; n < s_.batch; ++n)
      for (std::int64_t begin = 0; begin < chunks_.positions; begin += chunks_.chunk) {
        const std::int64_t positions = std::min(chunks_.chunk, chunks_.positions - begin);
        const gemm::PackedGemm<T>& gemm = positions == chunks_.chunk ? chunk_gemm_ : last_gemm_;
        switch (s_.which) {
          case Which::Forward: {
            T* result = output + n * results;
            T* chunk_result = chunks_.part == 0 ? result : part;
            gather_columns(first + n * image, begin, positions, columns);
            gemm.run(second, columns, nullptr, chunk_result, gemm_scratch);
            if (chunk_result == part)
              copy_rows(part, positions, positions, result + begin, chunks_.positions);
            break;
          }
          case Which::DataGrad:
            gemm.run(second, chunk_of(first + n * results, begin, positions, part), nullptr,
                     columns, gemm_scratch);
            scatter_columns(columns, begin, positions, output + n * image);
            break;
          case Which::WeightGrad:
            gather_columns(first + n * image, begin, positions, columns);
            gemm.run(chunk_of(second + n * results, begin, positions, part), columns, nullptr,
                     product, gemm_scratch);
            add(product, output, s_.weights.count());
            break;
        }
      }
  }

 private:
  // Copy `positions` elements for each channel of the result. from_row and to_row are the numbers
  // of elements from one channel to the next, in `from` and in `to`.
  void copy_rows(const T* from, std::int64_t positions, std::int64_t from_row, T* to,
                 std::int64_t to_row) const {
    device::for_range(
        s_.groups * s_.out, grain_of(positions), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row)
            std::copy(from + row * from_row, from + row * from_row + positions, to + row * to_row);
        });
  }

  // Return the values of one image's result at `positions` output positions, from number `begin`
  // on, as a dense matrix with one row per channel. If a chunk has all output positions, the matrix
  // is `result` itself, and otherwise a copy in `part`.
  const T* chunk_of(const T* result, std::int64_t begin, std::int64_t positions, T* part) const {
    if (chunks_.part == 0) return result;
    copy_rows(result + begin, positions, chunks_.positions, part, positions);
    return part;
  }

  // Add `count` elements of `addend` to those of `sum`. The threads share the elements.
  static void add(const T* addend, T* sum, std::int64_t count) {
    device::for_range(count, kGrainElements, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) sum[i] += addend[i];
    });
  }

  // Store a column matrix: for each of `positions` output positions of an image, from output
  // position number `begin` on, one column with the elements that the kernel covers there.
  void gather_columns(const T* image, std::int64_t begin, std::int64_t positions,
                      T* columns) const {
    const std::int64_t kernel = s_.kernel_places();
    device::for_range(s_.groups * s_.in * kernel, grain_of(positions),
                      [&](std::int64_t first, std::int64_t last) {
                        for (std::int64_t row = first; row < last; ++row) {
                          const T* plane = image + row / kernel * s_.data_places();
                          T* to = columns + row * positions;
                          for_runs(row % kernel, begin, positions,
                                   [&](std::int64_t line, std::int64_t x, std::int64_t run) {
                                     const std::int64_t width = s_.extents[2], step = s_.strides[2];
                                     for (std::int64_t i = 0; i < run; ++i, x += step)
                                       to[i] = line >= 0 && x >= 0 && x < width ? plane[line + x]
                                                                                : T(0);
                                     to += run;
                                   });
                        }
                      });
  }

  // Add each element of a column matrix to the element of `image` from which gather_columns() would
  // copy it. A channel belongs to one thread, so that the order of the additions is always the
  // same.
  void scatter_columns(const T* columns, std::int64_t begin, std::int64_t positions,
                       T* image) const {
    const std::int64_t kernel = s_.kernel_places();
    device::for_range(s_.groups * s_.in, grain_of(positions * kernel),
                      [&](std::int64_t first, std::int64_t last) {
                        for (std::int64_t row = first * kernel; row < last * kernel; ++row) {
                          T* plane = image + row / kernel * s_.data_places();
                          const T* from = columns + row * positions;
                          for_runs(row % kernel, begin, positions,
                                   [&](std::int64_t line, std::int64_t x, std::int64_t run) {
                                     const std::int64_t width = s_.extents[2], step = s_.strides[2];
                                     for (std::int64_t i = 0; i < run; ++i, x += step)
                                       if (line >= 0 && x >= 0 && x < width)
                                         plane[line + x] += from[i];
                                     from += run;
                                   });
                        }
                      });
  }

  // Find the elements of the data that one kernel position, number `weight`, covers at `positions`
  // output positions, from output position number `begin` on. Divide these output positions into
  // runs of neighbours along the last axis, and call body(line, x, run) for each run of `run`
  // positions. Output position i of the run covers position x + i * step of a line of the data.
  // `step` is the stride of the convolution along the last axis. `line` is the index of the first
  // element of the line, or -1 if the line is padding. A position before or after the line is
  // padding.
  template <class Body>
  void for_runs(std::int64_t weight, std::int64_t begin, std::int64_t positions,
                Body&& body) const {
    const auto& [depth, height, width] = s_.extents;
    const std::int64_t last = weight % s_.kernel[2], middle = weight / s_.kernel[2] % s_.kernel[1],
                       first = weight / s_.kernel[2] / s_.kernel[1];
    for (std::int64_t position = begin; position < begin + positions;) {
      const std::int64_t column = position % s_.counts[2], row = position / s_.counts[2];
      const std::int64_t run = std::min(s_.counts[2] - column, begin + positions - position);
      const std::int64_t z = data_position(0, row / s_.counts[1], first),
                         y = data_position(1, row % s_.counts[1], middle);
      const bool is_inside = z >= 0 && z < depth && y >= 0 && y < height;
      body(is_inside ? (z * height + y) * width : -1, data_position(2, column, last), run);
      position += run;
    }
  }

  // Return the position, along an axis of the data, that the kernel position `weight` reads for the
  // output position `window`. Both are numbers along this axis. The result may be outside of the
  // data, in the padding.
  std::int64_t data_position(std::size_t axis, std::int64_t window, std::int64_t weight) const {
    return window * s_.strides[axis] - s_.before[axis] + weight * s_.dilations[axis];
  }

  ConvShape s_;
  Chunks chunks_;
  gemm::PackedGemm<T> chunk_gemm_, last_gemm_;
};

template <class T>
class Conv final : public Kernel {
 public:
  Conv(const KernelQuery& query, const ConvShape& shape, const Machine& machine)
      : columns_(shape, machine),
        dtype_(query.outputs[0].dtype),
        counts_{query.inputs[0].count(), query.inputs[1].count()},
        output_count_(query.outputs[0].count()) {}

  std::size_t scratch_bytes() const override {
    std::int64_t elements = columns_.scratch_elements();
    if (gemm::cast_to_computed(dtype_) != nullptr)
      elements += round_up(counts_[0], 64) + round_up(counts_[1], 64) + round_up(output_count_, 64);
    return static_cast<std::size_t>(elements) * sizeof(T);
  }

  void run(const KernelArgs& args) const override {
    T* scratch = static_cast<T*>(args.scratch);
    if (gemm::cast_to_computed(dtype_) == nullptr) {
      columns_.run(static_cast<const T*>(args.inputs[0]), static_cast<const T*>(args.inputs[1]),
                   static_cast<T*>(args.outputs[0]), scratch);
      return;
    }
    T* operands[2];
    for (int i = 0; i < 2; ++i) {
      operands[i] = scratch;
      scratch += round_up(counts_[i], 64);
      gemm::cast_elements(gemm::cast_to_computed(dtype_), args.inputs[i], size_of(dtype_),
                          operands[i], sizeof(T), counts_[i]);
    }
    T* out = scratch;
    columns_.run(operands[0], operands[1], out, scratch + round_up(output_count_, 64));
    gemm::cast_elements(gemm::cast_to_stored(dtype_), out, sizeof(T), args.outputs[0],
                        size_of(dtype_), output_count_);
  }

 private:
  Columns<T> columns_;
  DType dtype_;
  std::int64_t counts_[2], output_count_;
};

}  // namespace

Offer offer_conv(const KernelQuery& query, const Machine& machine) {
  if (!is_floating(query.outputs[0].dtype))
    return Offer::refuse("convolutions support only float dtypes");
  const ConvShape shape(query);
  if (!shape.refusal.empty()) return Offer::refuse(shape.refusal);
  if (shape.bias || !shape.post.empty())
    return Offer::refuse("a post-operation other than relu is a separate op here");
  if (shape.mixed) return Offer::refuse("dtypes are mixed");
  if (shape.channels_last) return Offer::refuse("this kernel needs channels first");
  if (shape.factors == DType::F64) return {std::make_unique<Conv<double>>(query, shape, machine)};
  return {std::make_unique<Conv<float>>(query, shape, machine), {}, !is_half(shape.factors)};
}

}  // namespace ngd::kernels::fallback
