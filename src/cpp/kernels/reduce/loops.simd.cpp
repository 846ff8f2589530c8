// SPDX-License-Identifier: Apache-2.0
// The implementation of loops.hpp, compiled once per SIMD level.
#include "kernels/reduce/loops.hpp"

#include <limits>
#include <type_traits>
#include <utility>

#include "base/simd_loops.hpp"
#include "kernels/tiles/lane_tree.hpp"

namespace ngd::kernels::reduce::NGD_SIMD_LEVEL {

namespace {

// Return the value of a reduction of no elements, such as 0 for a sum.
template <Reduction reduction, class T>
constexpr T identity() {
  using Limits = std::numeric_limits<T>;
  if constexpr (reduction == Reduction::Sum) return T(0);
  if constexpr (reduction == Reduction::Prod) return T(1);
  if constexpr (reduction == Reduction::Max)
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return Limits::has_infinity ? Limits::infinity() : Limits::max();
}

// Combine two scalars, or two vectors lane by lane. Max and min propagate NaN.
template <Reduction reduction, class V>
NGD_INLINE V combine(V a, V b) {
  if constexpr (reduction == Reduction::Sum) return static_cast<V>(a + b);
  if constexpr (reduction == Reduction::Prod && std::is_same_v<V, std::uint16_t>)
    return static_cast<V>(static_cast<std::uint32_t>(a) * b);
  else if constexpr (reduction == Reduction::Prod)
    return static_cast<V>(a * b);
  if constexpr (reduction == Reduction::Max) return ((a >= b) | (a != a)) ? a : b;
  if constexpr (reduction == Reduction::Min) return ((a <= b) | (a != a)) ? a : b;
}

// The loops of integers: the functions of ReduceLoops (loops.hpp) for one reduction. The result of
// an integer reduction does not depend on the order, so the compiler may choose the order.
template <Reduction reduction, class T>
struct IntegerLoops {
  using Accumulator = T;

  static void row(const void* elements, std::int64_t count, void* accumulator) {
    const T* x = static_cast<const T*>(elements);
    T total = *static_cast<T*>(accumulator);
    for (std::int64_t i = 0; i < count; ++i) total = combine<reduction>(total, x[i]);
    *static_cast<T*>(accumulator) = total;
  }

  static void columns(const void* elements, std::int64_t rows, std::int64_t stride,
                      std::int64_t width, void* accumulators_) {
    auto* __restrict accumulators = static_cast<T*>(accumulators_);
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* x = static_cast<const T*>(elements) + r * stride;
      for (std::int64_t j = 0; j < width; ++j)
        accumulators[j] = combine<reduction>(accumulators[j], x[j]);
    }
  }

  static void add_rows(const void* elements, std::int64_t rows, std::int64_t stride,
                       std::int64_t width, void* partials) {
    columns(elements, rows, stride, width, partials);
  }
};

// The loops of floats. They combine elements in the order that loops.hpp describes.
template <Reduction reduction, class T>
struct FloatLoops {
  struct Op {
    template <class V>
    NGD_INLINE V combine(V a, V b) {
      return kernels::reduce::NGD_SIMD_LEVEL::combine<reduction>(a, b);
    }
  };
  using Tree = tiles::NGD_SIMD_LEVEL::LaneTree<Op, T>;
  using Accumulator = double;
  static constexpr std::int64_t kLanes = Tree::kLanes;
  static constexpr std::int64_t kBlock = kBlockBytes / sizeof(T);
  using Register = typename VectorOf<T, NGD_REGISTER_BYTES>::type;
  using Stored = typename VectorOf<T, NGD_REGISTER_BYTES>::stored;
  static constexpr std::int64_t kColumns = NGD_REGISTER_BYTES / sizeof(T);

  // Return the result of reducing `count` elements of a row, at least one and at most one block.
  static T reduce_block(const T* x, std::int64_t count) {
    if (count < kLanes) {
      T result = x[0];
      for (std::int64_t i = 1; i < count; ++i) result = combine<reduction>(result, x[i]);
      return result;
    }
    typename Tree::Accumulators v;
    Tree::fill(v, identity<reduction, T>());
    T lanes[kLanes];
    std::int64_t i = Tree::combine_vectors(v, x, 0, count, lanes);
    for (std::int64_t l = 0; i < count; ++i, ++l) lanes[l] = combine<reduction>(lanes[l], x[i]);
    return Tree::combine_lanes(lanes);
  }

  static void row(const void* elements, std::int64_t count, void* accumulator) {
    const T* x = static_cast<const T*>(elements);
    Accumulator total = *static_cast<Accumulator*>(accumulator);
    for (std::int64_t i = 0; i < count; i += kBlock) {
      const T block = reduce_block(x + i, count - i < kBlock ? count - i : kBlock);
      total = combine<reduction>(total, static_cast<Accumulator>(block));
    }
    *static_cast<Accumulator*>(accumulator) = total;
  }

  // Combine accumulators[j] with partial[j], for j < width.
  NGD_INLINE void flush(const T* partial, std::int64_t width, Accumulator* accumulators) {
    for (std::int64_t j = 0; j < width; ++j)
      accumulators[j] = combine<reduction>(accumulators[j], static_cast<Accumulator>(partial[j]));
  }

  // Combine each of `rows` rows with `partial`, which has one partial result per column. A row has
  // `vectors` whole vectors of columns. The partial results stay in registers.
  template <int vectors>
  NGD_INLINE void stripe(const T* x, std::int64_t rows, std::int64_t stride, T* partial) {
    Register v[vectors];
    NGD_UNROLL
    for (int k = 0; k < vectors; ++k)
      v[k] = *reinterpret_cast<const Stored*>(partial + k * kColumns);
    for (std::int64_t r = 0; r < rows; ++r) {
      NGD_UNROLL
      for (int k = 0; k < vectors; ++k) {
        const Register a = *reinterpret_cast<const Stored*>(x + r * stride + k * kColumns);
        v[k] = combine<reduction>(v[k], a);
      }
    }
    NGD_UNROLL
    for (int k = 0; k < vectors; ++k) *reinterpret_cast<Stored*>(partial + k * kColumns) = v[k];
  }

  // Combine `rows` rows with the partial results, as stripe() does, for `width` columns that are
  // fewer than the lanes of a vector. The vector of a row also loads elements after the row's
  // columns, and these lanes are ignored. If the vector of a row would end after the last element
  // of the last row, where the memory may end, the row is read one element at a time.
  NGD_INLINE void narrow_stripe(const T* x, std::int64_t rows, std::int64_t stride,
                                std::int64_t width, T* partial) {
    const std::int64_t readable = (rows - 1) * stride + width;
    std::int64_t num_vector_rows = rows;
    while (num_vector_rows > 0 && (num_vector_rows - 1) * stride + kColumns > readable)
      --num_vector_rows;
    T lanes[kColumns];
    for (std::int64_t j = 0; j < kColumns; ++j) lanes[j] = j < width ? partial[j] : T(0);
    stripe<1>(x, num_vector_rows, stride, lanes);
    for (std::int64_t r = num_vector_rows; r < rows; ++r)
      for (std::int64_t j = 0; j < width; ++j)
        lanes[j] = combine<reduction>(lanes[j], x[r * stride + j]);
    for (std::int64_t j = 0; j < width; ++j) partial[j] = lanes[j];
  }

  static void columns(const void* elements, std::int64_t rows, std::int64_t stride,
                      std::int64_t width, void* accumulators_) {
    for (std::int64_t begin = 0; begin < rows; begin += kRowBlock) {
      const T* x = static_cast<const T*>(elements) + begin * stride;
      auto* accumulators = static_cast<Accumulator*>(accumulators_);
      const std::int64_t block = rows - begin < kRowBlock ? rows - begin : kRowBlock;
      for (std::int64_t j = 0; j < width; j += 4 * kColumns) {
        T partial[4 * kColumns];
        const std::int64_t part = width - j < 4 * kColumns ? width - j : 4 * kColumns;
        for (T& each : partial) each = identity<reduction, T>();
        add_rows(x + j, block, stride, part, partial);
        flush(partial, part, accumulators + j);
      }
    }
  }

  static void add_rows(const void* elements, std::int64_t rows, std::int64_t stride,
                       std::int64_t width, void* partials_) {
    const T* x = static_cast<const T*>(elements);
    T* partials = static_cast<T*>(partials_);
    std::int64_t j = 0;
    for (; j + 4 * kColumns <= width; j += 4 * kColumns)
      stripe<4>(x + j, rows, stride, partials + j);
    for (; j + kColumns <= width; j += kColumns) stripe<1>(x + j, rows, stride, partials + j);
    if (j < width) narrow_stripe(x + j, rows, stride, width - j, partials + j);
  }
};

// The functions of ReduceLoops (loops.hpp) for one reduction and one type of elements.
template <Reduction reduction, class T>
struct Loops : std::conditional_t<std::is_integral_v<T>, IntegerLoops<reduction, T>,
                                  FloatLoops<reduction, T>> {
  using Accumulator = std::conditional_t<std::is_integral_v<T>, T, double>;

  static void clear(void* accumulators, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      static_cast<Accumulator*>(accumulators)[i] = identity<reduction, Accumulator>();
  }

  static void begin_rows(void* partials, std::int64_t width) {
    for (std::int64_t j = 0; j < width; ++j)
      static_cast<T*>(partials)[j] = identity<reduction, T>();
  }

  static void end_rows(const void* partials, std::int64_t width, void* accumulators_) {
    auto* accumulators = static_cast<Accumulator*>(accumulators_);
    for (std::int64_t j = 0; j < width; ++j)
      accumulators[j] = combine<reduction>(
          accumulators[j], static_cast<Accumulator>(static_cast<const T*>(partials)[j]));
  }

  static void merge(void* accumulators_, const void* more_, std::int64_t count) {
    auto* accumulators = static_cast<Accumulator*>(accumulators_);
    const auto* more = static_cast<const Accumulator*>(more_);
    for (std::int64_t i = 0; i < count; ++i)
      accumulators[i] = combine<reduction>(accumulators[i], more[i]);
  }
};

// Return the loops for a reduction and dtype. Sums and products of integers wrap, so unsigned types
// serve signed ones, too.
template <Reduction reduction, int dtype>
constexpr ReduceLoops entry() {
  constexpr auto d = static_cast<DType>(dtype);
  constexpr bool is_ordered = reduction == Reduction::Max || reduction == Reduction::Min;
  if constexpr (d == DType::F16 || d == DType::BF16 || (d == DType::Bool && !is_ordered)) {
    return {};
  } else {
    using Stored = typename StorageOf<d == DType::Bool ? DType::U8 : d>::type;
    using T = typename std::conditional_t<
        std::is_integral_v<Stored> && !is_ordered,
        std::make_unsigned<std::conditional_t<std::is_integral_v<Stored>, Stored, int>>,
        std::type_identity<Stored>>::type;
    using L = Loops<reduction, T>;
    return {&L::clear, &L::row, &L::columns, &L::begin_rows, &L::add_rows, &L::end_rows, &L::merge};
  }
}

struct Table {
  ReduceTable loops;
};

template <int... dtypes>
constexpr Table make_table(std::integer_sequence<int, dtypes...>) {
  return {{{entry<Reduction::Sum, dtypes>()...},
           {entry<Reduction::Prod, dtypes>()...},
           {entry<Reduction::Max, dtypes>()...},
           {entry<Reduction::Min, dtypes>()...}}};
}

constexpr Table kTable = make_table(std::make_integer_sequence<int, kDTypeCount>());

}  // namespace

const ReduceTable& reduce_table() { return kTable.loops; }

}  // namespace ngd::kernels::reduce::NGD_SIMD_LEVEL
