// SPDX-License-Identifier: Apache-2.0
// Convolutions and their gradients as matrix products, for every float. The places that one weight
// meets are a row of a matrix of columns [groups, in * kernel, places], made for some places of one
// image at a time, so that it stays small:
//
//   result chunk  = weights * columns of the data
//   data gradient = sum of the columns (weights transposed * result chunk), each where it was read
//   weight gradient = sum over images and chunks of result chunk * columns transposed
//
// f32 and f64 are computed as they are, two-byte floats as f32: their operands are cast to scratch
// first and the result is cast back.
#include "device/team.hpp"
#include "kernels/gemm/casts.hpp"
#include "kernels/gemm/packed_gemm.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/conv_shape.hpp"

namespace ngd::kernels::fallback {

namespace {

using Which = ConvShape::Which;

constexpr std::int64_t kColumnElements = 1 << 20;  // of a chunk's columns
constexpr std::int64_t kGrainElements = 1 << 14;   // elements moved that are worth a thread
constexpr std::int64_t kLeastPlaces = 64;          // of a chunk

std::int64_t grain_of(std::int64_t elements) {
  return std::max<std::int64_t>(1, kGrainElements / std::max<std::int64_t>(elements, 1));
}

// The product of one chunk of `places`.
MatmulShape product_of(const ConvShape& s, std::int64_t places) {
  const std::int64_t depth = s.in * s.kernel_places(), g = s.groups;
  const TensorType weights{DType::F32, {g, s.out, depth}}, columns{DType::F32, {g, depth, places}},
      result{DType::F32, {g, s.out, places}};
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

// How the places of an image are cut, and where things lie in scratch, in elements.
struct Chunks {
  explicit Chunks(const ConvShape& s) : places(s.window_count()) {
    const std::int64_t rows = std::max<std::int64_t>(s.groups * s.in * s.kernel_places(), 1);
    chunk =
        std::clamp<std::int64_t>(kColumnElements / rows, std::min(kLeastPlaces, places), places);
    rest = places % chunk;
    columns = round_up(rows * chunk, 64);
    part = chunk == places ? 0 : round_up(s.groups * s.out * chunk, 64);
    product = s.which == Which::WeightGrad ? round_up(s.weights.count(), 64) : 0;
  }
  std::int64_t elements() const { return columns + part + product; }

  std::int64_t places, chunk = 1, rest = 0;
  std::int64_t columns, part, product;
};

// All that one of the three ops does in the dtype that it computes in.
template <class T>
class Columns {
 public:
  Columns(const ConvShape& shape, const Machine& machine)
      : s_(shape),
        chunks_(shape),
        whole_(product_of(shape, chunks_.chunk), machine),
        rest_(product_of(shape, std::max<std::int64_t>(chunks_.rest, 1)), machine) {}

  std::int64_t scratch_elements() const {
    return chunks_.elements() + std::max(whole_.scratch_elements(), rest_.scratch_elements());
  }

  // Operands and output as the op has them.
  void run(const T* first, const T* second, T* output, T* scratch) const {
    T* columns = scratch;
    T* part = columns + chunks_.columns;
    T* product = part + chunks_.part;
    T* rest = product + chunks_.product;
    const std::int64_t image = s_.groups * s_.in * s_.data_places(),
                       results = s_.groups * s_.out * chunks_.places;
    if (s_.which != Which::Forward)
      std::fill(output, output + (s_.which == Which::DataGrad ? s_.data : s_.weights).count(),
                T(0));
    for (std::int64_t n = 0; n < s_.batch; ++n)
      for (std::int64_t begin = 0; begin < chunks_.places; begin += chunks_.chunk) {
        const std::int64_t places = std::min(chunks_.chunk, chunks_.places - begin);
        const gemm::PackedGemm<T>& gemm = places == chunks_.chunk ? whole_ : rest_;
        switch (s_.which) {
          case Which::Forward: {
            T* result = output + n * results;
            T* made = chunks_.part == 0 ? result : part;
            collect(first + n * image, begin, places, columns);
            gemm.run(second, columns, nullptr, made, rest);
            if (made == part) copy_rows(part, places, places, result + begin, chunks_.places);
            break;
          }
          case Which::DataGrad:
            gemm.run(second, chunk_of(first + n * results, begin, places, part), nullptr, columns,
                     rest);
            give_back(columns, begin, places, output + n * image);
            break;
          case Which::WeightGrad:
            collect(first + n * image, begin, places, columns);
            gemm.run(chunk_of(second + n * results, begin, places, part), columns, nullptr, product,
                     rest);
            add(product, output, s_.weights.count());
            break;
        }
      }
  }

 private:
  // Rows of so many places, from one row length to another.
  void copy_rows(const T* from, std::int64_t places, std::int64_t from_row, T* to,
                 std::int64_t to_row) const {
    device::for_range(
        s_.groups * s_.out, grain_of(places), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row)
            std::copy(from + row * from_row, from + row * from_row + places, to + row * to_row);
        });
  }

  // Some places of all channels of an image's result, as a matrix.
  const T* chunk_of(const T* result, std::int64_t begin, std::int64_t places, T* part) const {
    if (chunks_.part == 0) return result;
    copy_rows(result + begin, places, chunks_.places, part, places);
    return part;
  }

  static void add(const T* addend, T* sum, std::int64_t count) {
    device::for_range(count, kGrainElements, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) sum[i] += addend[i];
    });
  }

  void collect(const T* image, std::int64_t begin, std::int64_t places, T* columns) const {
    const std::int64_t kernel = s_.kernel_places();
    device::for_range(
        s_.groups * s_.in * kernel, grain_of(places), [&](std::int64_t first, std::int64_t last) {
          for (std::int64_t row = first; row < last; ++row) {
            const T* plane = image + row / kernel * s_.data_places();
            T* to = columns + row * places;
            for_runs(row % kernel, begin, places,
                     [&](std::int64_t line, std::int64_t x, std::int64_t run) {
                       const std::int64_t width = s_.extents[2], step = s_.strides[2];
                       for (std::int64_t i = 0; i < run; ++i, x += step)
                         to[i] = line >= 0 && x >= 0 && x < width ? plane[line + x] : T(0);
                       to += run;
                     });
          }
        });
  }

  // A channel belongs to one thread, so that the order of the additions is always the same.
  void give_back(const T* columns, std::int64_t begin, std::int64_t places, T* image) const {
    const std::int64_t kernel = s_.kernel_places();
    device::for_range(s_.groups * s_.in, grain_of(places * kernel),
                      [&](std::int64_t first, std::int64_t last) {
                        for (std::int64_t row = first * kernel; row < last * kernel; ++row) {
                          T* plane = image + row / kernel * s_.data_places();
                          const T* from = columns + row * places;
                          for_runs(row % kernel, begin, places,
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

  // Calls body(line, x, run) for each run of places along the last axis: what a weight reads there
  // is the data's line that begins at `line` (-1: none), from x on, a stride apart.
  template <class Body>
  void for_runs(std::int64_t weight, std::int64_t begin, std::int64_t places, Body&& body) const {
    const auto& [depth, height, width] = s_.extents;
    const std::int64_t last = weight % s_.kernel[2], middle = weight / s_.kernel[2] % s_.kernel[1],
                       first = weight / s_.kernel[2] / s_.kernel[1];
    for (std::int64_t place = begin; place < begin + places;) {
      const std::int64_t column = place % s_.counts[2], row = place / s_.counts[2];
      const std::int64_t run = std::min(s_.counts[2] - column, begin + places - place);
      const std::int64_t z = read(0, row / s_.counts[1], first),
                         y = read(1, row % s_.counts[1], middle);
      const bool inside = z >= 0 && z < depth && y >= 0 && y < height;
      body(inside ? (z * height + y) * width : -1, read(2, column, last), run);
      place += run;
    }
  }

  // The place that a window reads with one of its weights.
  std::int64_t read(std::size_t axis, std::int64_t window, std::int64_t weight) const {
    return window * s_.strides[axis] - s_.before[axis] + weight * s_.dilations[axis];
  }

  ConvShape s_;
  Chunks chunks_;
  gemm::PackedGemm<T> whole_, rest_;
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
  if (!is_floating(query.outputs[0].dtype)) return Offer::refuse("convolutions are of floats");
  const ConvShape shape(query);
  if (!shape.refusal.empty()) return Offer::refuse(shape.refusal);
  if (shape.bias || !shape.post.empty())
    return Offer::refuse("what follows stays an op of its own");
  if (shape.mixed) return Offer::refuse("dtypes are mixed");
  if (shape.channels_last) return Offer::refuse("the channels come first here");
  if (shape.factors == DType::F64) return {std::make_unique<Conv<double>>(query, shape, machine)};
  return {std::make_unique<Conv<float>>(query, shape, machine), {}, !is_half(shape.factors)};
}

}  // namespace ngd::kernels::fallback
