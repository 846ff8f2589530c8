// SPDX-License-Identifier: Apache-2.0
// The loops of attention.hpp.
//
// The matrix products read blocks that are in a cache, so nothing is packed. As in
// gemm/tile.simd.cpp, a tile of the result stays in registers. For each index of the summed axis,
// the loop reads one element from each row of the left matrix, and whole vectors from a row of the
// right matrix. A panel is a range of columns of the result, as wide as one tile.
#include "kernels/fused/attention.hpp"

#include "kernels/tiles/transpose.hpp"
#include "kernels/tiles/vector_math.hpp"

namespace ngd::kernels::fused::NGD_SIMD_LEVEL {

using namespace tiles::NGD_SIMD_LEVEL;

namespace {

constexpr int kVectorBytes = NGD_REGISTER_BYTES, kVectors = kVectorBytes == 64 ? 4 : 2;
constexpr int kTileRows = 6;

template <class T>
struct Loops {
  using Vector = typename VectorOf<T, kVectorBytes>::type;
  using Stored = typename VectorOf<T, kVectorBytes>::stored;
  static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

  // Load a vector. If is_full is false, load only the first `used` lanes, and set the others to 0.
  template <bool is_full>
  NGD_INLINE Vector load(const T* from, std::int64_t used) {
    if constexpr (is_full) return *reinterpret_cast<const Stored*>(from);
    T lanes[kLanes] = {};
    for (std::int64_t l = 0; l < used; ++l) lanes[l] = from[l];
    return *reinterpret_cast<const Stored*>(lanes);
  }
  // Store a vector. If is_full is false, store only the first `used` lanes.
  template <bool is_full>
  NGD_INLINE void store(Vector vector, T* to, std::int64_t used) {
    if constexpr (is_full) {
      *reinterpret_cast<Stored*>(to) = vector;
    } else {
      T lanes[kLanes];
      *reinterpret_cast<Stored*>(lanes) = vector;
      for (std::int64_t l = 0; l < used; ++l) to[l] = lanes[l];
    }
  }

  // Compute a tile of `rows` rows and `vectors` vectors of columns. If is_full is false, `vectors`
  // is 1, and only the first `used` lanes of the vector are loaded and stored.
  template <int rows, int vectors, bool is_full>
  static void multiply_tile(Factor<T> a, Dense<const T> b, Dense<T> c, std::int64_t depth, bool add,
                            std::int64_t used) {
    Vector sums[rows][vectors];
    NGD_UNROLL
    for (int i = 0; i < rows; ++i) {
      NGD_UNROLL
      for (int v = 0; v < vectors; ++v) sums[i][v] = Vector{};
    }
    const T *left = a.data, *right = b.data;
    for (std::int64_t p = 0; p < depth; ++p, left += a.column, right += b.stride) {
      Vector row[vectors];
      NGD_UNROLL
      for (int v = 0; v < vectors; ++v) row[v] = load<is_full>(right + v * kLanes, used);
      NGD_UNROLL
      for (int i = 0; i < rows; ++i) {
        const Vector factor = left[i * a.row] - Vector{};
        NGD_UNROLL
        for (int v = 0; v < vectors; ++v) sums[i][v] += factor * row[v];
      }
    }
    NGD_UNROLL
    for (int i = 0; i < rows; ++i) {
      NGD_UNROLL
      for (int v = 0; v < vectors; ++v) {
        T* to = c.data + i * c.stride + v * kLanes;
        store<is_full>(add ? load<is_full>(to, used) + sums[i][v] : sums[i][v], to, used);
      }
    }
  }

  // Compute all rows of a panel of columns, in tiles of kTileRows rows, and the remaining rows in
  // tiles of 4, 2 and 1 rows.
  template <int vectors, bool is_full>
  static void multiply_panel(Factor<T> a, Dense<const T> b, Dense<T> c, std::int64_t rows,
                             std::int64_t depth, bool add, std::int64_t used) {
    const auto tiles = [&]<int tile_rows>() {
      for (; rows >= tile_rows; rows -= tile_rows) {
        multiply_tile<tile_rows, vectors, is_full>(a, b, c, depth, add, used);
        a.data += tile_rows * a.row;
        c.data += tile_rows * c.stride;
      }
    };
    tiles.template operator()<kTileRows>();
    tiles.template operator()<4>();
    tiles.template operator()<2>();
    tiles.template operator()<1>();
  }

  static void multiply(Factor<T> a, Dense<const T> b, Dense<T> c, Extents extents, bool add) {
    std::int64_t columns = extents.columns;
    const auto panels = [&]<int vectors, bool is_full>() {
      const std::int64_t width = is_full ? vectors * kLanes : columns;
      for (; columns >= width && columns > 0; columns -= width) {
        multiply_panel<vectors, is_full>(a, b, c, extents.rows, extents.depth, add, width);
        b.data += width;
        c.data += width;
      }
    };
    panels.template operator()<kVectors, true>();
    if constexpr (kVectors > 2) panels.template operator()<2, true>();
    panels.template operator()<1, true>();
    panels.template operator()<1, false>();
  }

  static void transpose(Dense<const T> rows, std::int64_t count, std::int64_t width, T scale,
                        T* out) {
    for (std::int64_t i = 0; i < kQueries; i += kLanes)
      for (std::int64_t p = 0; p < width; p += kLanes) {
        const std::int64_t used = width - p < kLanes ? width - p : kLanes;
        const bool is_full = used == kLanes && i + kLanes <= count;
        Vector square[kLanes];
        const T* from = rows.data + i * rows.stride + p;
        if (is_full) {
          NGD_UNROLL
          for (int r = 0; r < kLanes; ++r)
            square[r] = load<true>(from + r * rows.stride, used) * scale;
        } else {
          for (int r = 0; r < kLanes; ++r)
            square[r] =
                i + r < count ? load<false>(from + r * rows.stride, used) * scale : Vector{};
        }
        tiles::NGD_SIMD_LEVEL::transpose(square);
        T* to = out + p * kQueries + i;
        if (is_full) {
          NGD_UNROLL
          for (int r = 0; r < kLanes; ++r) store<true>(square[r], to + r * kQueries, kLanes);
        } else {
          for (std::int64_t r = 0; r < used; ++r) store<true>(square[r], to + r * kQueries, kLanes);
        }
      }
  }

  static void dot(Dense<const T> a, Dense<const T> b, std::int64_t count, std::int64_t width,
                  T* dots) {
    for (std::int64_t i = 0; i < kQueries; i += kLanes) {
      Vector square[kLanes] = {};  // for each row, one sum per lane
      for (std::int64_t r = 0; r < kLanes && i + r < count; ++r) {
        const T *left = a.data + (i + r) * a.stride, *right = b.data + (i + r) * b.stride;
        std::int64_t p = 0;
        for (; p + kLanes <= width; p += kLanes)
          square[r] += load<true>(left + p, kLanes) * load<true>(right + p, kLanes);
        if (p < width)
          square[r] += load<false>(left + p, width - p) * load<false>(right + p, width - p);
      }
      tiles::NGD_SIMD_LEVEL::transpose(square);
      Vector sums{};
      for (const Vector& part : square) sums += part;
      store<true>(sums, dots + i, kLanes);
    }
  }

  static void add_mask(const T* mask, std::int64_t keys, std::int64_t columns, T* scores) {
    constexpr T kHidden = -std::numeric_limits<T>::infinity();
    for (std::int64_t p = 0; p < keys; ++p, mask += kQueries, scores += kQueries) {
      NGD_INDEPENDENT
      for (std::int64_t i = 0; i < columns; ++i) {
        const T sum = scores[i] + mask[i];
        scores[i] = mask[i] == kHidden ? kHidden : sum;
      }
    }
  }

  // Return e^x. For double, libm computes the result. For float, it is computed as in
  // vector_math.hpp, with two differences. For x < -87, the result is 0, so no result is subnormal.
  // For x > 88.5, the result is infinite.
  NGD_INLINE Vector exponential_or_zero(Vector x) {
    if constexpr (std::is_same_v<T, float>) {
      using Bits = typename VectorOf<std::int32_t, kVectorBytes>::type;
      constexpr float kShift = 12582912.0f, kLog2E = 1.44269504088896341f;
      const Vector shifted = x * kLog2E + kShift, n = shifted - kShift;
      const Vector r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
      const Vector fraction = (exponential_tail(r) * (r * r) + r) + 1.0f;
      const Bits bits =
          __builtin_bit_cast(Bits, fraction) + (__builtin_bit_cast(Bits, shifted) << 23);
      const Vector result = x < -87.0f ? Vector{} : __builtin_bit_cast(Vector, bits);
      const Vector saturated = x > 88.5f ? Vector{} + kInfinity : result;
      return x != x ? x : saturated;
    } else {
      for (int l = 0; l < kLanes; ++l) x[l] = exponential(x[l]);
      return x;
    }
  }

  // Call body<vectors>(column) for all columns: four vectors at a time, and then one vector at a
  // time for the rest.
  template <class Body>
  NGD_INLINE void for_columns(std::int64_t columns, Body&& body) {
    std::int64_t i = 0;
    for (; i + 4 * kLanes <= columns; i += 4 * kLanes) body.template operator()<4>(i);
    for (; i < columns; i += kLanes) body.template operator()<1>(i);
  }

  // Do the work of exponentials() for `vectors` vectors of columns.
  template <int vectors>
  static void exponentials_of(T* scores, std::int64_t keys, T* maxima, T* sums, T* factors) {
    constexpr T kHidden = -std::numeric_limits<T>::infinity();
    Vector maximum[vectors], total[vectors];
    NGD_UNROLL
    for (int v = 0; v < vectors; ++v) maximum[v] = load<true>(maxima + v * kLanes, kLanes);
    for (std::int64_t p = 0; p < keys; ++p) {
      NGD_UNROLL
      for (int v = 0; v < vectors; ++v) {
        const Vector score = load<true>(scores + p * kQueries + v * kLanes, kLanes);
        // A NaN score does not change the maximum. Below, it makes the sum NaN.
        maximum[v] = score > maximum[v] ? score : maximum[v];
      }
    }
    NGD_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const Vector previous = load<true>(maxima + v * kLanes, kLanes);
      store<true>(maximum[v], maxima + v * kLanes, kLanes);
      maximum[v] = maximum[v] == kHidden ? Vector{} : maximum[v];
      store<true>(exponential_or_zero(previous - maximum[v]), factors + v * kLanes, kLanes);
      total[v] = load<true>(sums + v * kLanes, kLanes) * exponential_or_zero(previous - maximum[v]);
    }
    for (std::int64_t p = 0; p < keys; ++p) {
      NGD_UNROLL
      for (int v = 0; v < vectors; ++v) {
        T* address = scores + p * kQueries + v * kLanes;
        const Vector exponential_value =
            exponential_or_zero(load<true>(address, kLanes) - maximum[v]);
        store<true>(exponential_value, address, kLanes);
        total[v] += exponential_value;
      }
    }
    NGD_UNROLL
    for (int v = 0; v < vectors; ++v) store<true>(total[v], sums + v * kLanes, kLanes);
  }

  static void exponentials(T* scores, std::int64_t keys, std::int64_t columns, T* maxima, T* sums,
                           T* factors) {
    for_columns(columns, [&]<int vectors>(std::int64_t i) {
      exponentials_of<vectors>(scores + i, keys, maxima + i, sums + i, factors + i);
    });
  }

  static void weights(T* scores, std::int64_t keys, std::int64_t columns, const T* logsums) {
    for (std::int64_t p = 0; p < keys; ++p)
      for (std::int64_t i = 0; i < columns; i += kLanes) {
        T* address = scores + p * kQueries + i;
        const Vector score = load<true>(address, kLanes), logsum = load<true>(logsums + i, kLanes);
        store<true>(exponential_or_zero(score - logsum), address, kLanes);
      }
  }

  static void slopes(const T* weights, std::int64_t keys, std::int64_t columns, const T* deltas,
                     T scale, T* adjoints) {
    for (std::int64_t p = 0; p < keys; ++p) {
      const T* __restrict weight = weights + p * kQueries;
      T* __restrict row = adjoints + p * kQueries;
      NGD_INDEPENDENT
      for (std::int64_t i = 0; i < columns; ++i) row[i] = weight[i] * (row[i] - deltas[i]) * scale;
    }
  }

  static void scale(T* row, std::int64_t width, T factor) {
    for (std::int64_t p = 0; p < width; ++p) row[p] *= factor;
  }
};

template <class T>
constexpr AttentionLoops<T> loops() {
  using L = Loops<T>;
  return {L::kLanes,        &L::multiply, &L::transpose, &L::dot,  &L::add_mask,
          &L::exponentials, &L::weights,  &L::slopes,    &L::scale};
}

constexpr AttentionTable kTable = {loops<float>(), loops<double>()};

}  // namespace

const AttentionTable& attention_table() { return kTable; }

}  // namespace ngd::kernels::fused::NGD_SIMD_LEVEL
