// SPDX-License-Identifier: Apache-2.0
// The transforms of transforms.hpp. A tile is a grid of positions. To transform a tile, each row of
// the grid is transformed, and then each column. A line is a row or a column, and each struct below
// has the transform of one line. An element of a line is a vector: one position of several
// channels.
#include "kernels/winograd/transforms.hpp"

#include "base/simd_loops.hpp"

namespace ngd::kernels::winograd::NGD_SIMD_LEVEL {

namespace {

using Vector = VectorOf<float, NGD_REGISTER_BYTES>::type;
using Stored = VectorOf<float, NGD_REGISTER_BYTES>::stored;
constexpr int kLanes = NGD_REGISTER_BYTES / 4;
// The interpolation points are 0, +-kRoot / 2, +-kRoot and infinity.
constexpr float kRoot = 1.41421356237309505F;

NGD_INLINE Vector load(const float* from) { return *reinterpret_cast<const Stored*>(from); }
NGD_INLINE void store(Vector value, float* to) { *reinterpret_cast<Stored*>(to) = value; }

// Return true if all side * side positions of the tile are in the image.
template <class Element>
NGD_INLINE bool is_inside_image(const Tile<Element>& t, int side) {
  return t.top == 0 && t.left == 0 && t.bottom == side && t.right == side;
}
// Return true if position (i, j) of the tile is in the image.
template <class Element>
NGD_INLINE bool contains(const Tile<Element>& t, int i, int j) {
  return i >= t.top && i < t.bottom && j >= t.left && j < t.right;
}
// Return the address of position (i, j) of the tile, which may be outside of the image.
template <class Element>
NGD_INLINE Element* address(const Tile<Element>& t, int i, int j) {
  return t.image + (t.at + i * t.row + j * t.column);
}

// The transform of a tile of the data. line() multiplies one row or one column of the tile by the
// matrix that Lavin and Gray (transforms.hpp) call B^T.
struct DataTransform {
  static constexpr int from = kInputTile, to = kInputTile;
  NGD_INLINE void line(const Vector* d, Vector* v) {
    const Vector even = d[4] - 2 * d[2], odd = kRoot / 2 * (d[3] - 2 * d[1]);
    const Vector even2 = d[4] - 0.5F * d[2], odd2 = kRoot * (d[3] - 0.5F * d[1]);
    v[0] = d[0] + (d[4] - 2.5F * d[2]);
    v[1] = even + odd;
    v[2] = even - odd;
    v[3] = even2 + odd2;
    v[4] = even2 - odd2;
    v[5] = d[1] + (d[5] - 2.5F * d[3]);
  }
};

// The transform of 36 sums to a tile of the result. Each sum adds products of transformed data and
// transformed kernels over the channels. Lavin and Gray (transforms.hpp) call the matrix A^T.
struct ResultTransform {
  static constexpr int from = kInputTile, to = kTile;
  NGD_INLINE void line(const Vector* m, Vector* y) {
    const Vector sum = m[1] + m[2], difference = kRoot / 2 * (m[1] - m[2]);
    const Vector sum2 = m[3] + m[4], difference2 = kRoot * (m[3] - m[4]);
    y[0] = m[0] + sum + sum2;
    y[1] = difference + difference2;
    y[2] = 0.5F * sum + 2 * sum2;
    y[3] = m[5] + 0.5F * difference + 2 * difference2;
  }
};

// The transform of a tile of dy, the gradient of the result. Its matrix is the transpose of the
// matrix of ResultTransform.
struct AdjointTransform {
  static constexpr int from = kTile, to = kInputTile;
  NGD_INLINE void line(const Vector* y, Vector* z) {
    const Vector even = y[0] + 0.5F * y[2], odd = kRoot / 2 * (y[1] + 0.5F * y[3]);
    const Vector even2 = y[0] + 2 * y[2], odd2 = kRoot * (y[1] + 2 * y[3]);
    z[0] = y[0];
    z[1] = even + odd;
    z[2] = even - odd;
    z[3] = even2 + odd2;
    z[4] = even2 - odd2;
    z[5] = y[3];
  }
};

// The transform of a 3 x 3 kernel. Lavin and Gray (transforms.hpp) call its matrix G.
struct WeightTransform {
  static constexpr int from = kKernel, to = kInputTile;
  NGD_INLINE void line(const Vector* g, Vector* u) {
    const Vector even = g[0] + 0.5F * g[2], odd = kRoot / 2 * g[1];
    const Vector even2 = g[0] + 2 * g[2], odd2 = kRoot * g[1];
    u[0] = g[0];
    u[1] = -2.0F / 3 * (even + odd);
    u[2] = -2.0F / 3 * (even - odd);
    u[3] = 1.0F / 6 * (even2 + odd2);
    u[4] = 1.0F / 6 * (even2 - odd2);
    u[5] = g[2];
  }
};

// The transform of 36 sums to the gradient of a 3 x 3 kernel. Each sum adds products of transformed
// data and transformed dy over all tiles. The matrix is the transpose of that of WeightTransform.
struct WeightAdjointTransform {
  static constexpr int from = kInputTile, to = kKernel;
  NGD_INLINE void line(const Vector* u, Vector* g) {
    const Vector sum = -2.0F / 3 * (u[1] + u[2]), difference = -2.0F / 3 * (u[1] - u[2]);
    const Vector sum2 = 1.0F / 6 * (u[3] + u[4]), difference2 = 1.0F / 6 * (u[3] - u[4]);
    g[0] = u[0] + sum + sum2;
    g[1] = kRoot / 2 * difference + kRoot * difference2;
    g[2] = 0.5F * sum + 2 * sum2 + u[5];
  }
};

// Transform a grid of vectors along its rows and then along its columns.
template <class Transform>
NGD_INLINE void transform(const Vector (&in)[Transform::from][Transform::from],
                          Vector (&out)[Transform::to][Transform::to]) {
  Vector rows_transformed[Transform::from][Transform::to];
  NGD_UNROLL
  for (int i = 0; i < Transform::from; ++i) Transform::line(in[i], rows_transformed[i]);
  NGD_UNROLL
  for (int j = 0; j < Transform::to; ++j) {
    Vector column[Transform::from], transformed[Transform::to];
    NGD_UNROLL
    for (int i = 0; i < Transform::from; ++i) column[i] = rows_transformed[i][j];
    Transform::line(column, transformed);
    NGD_UNROLL
    for (int i = 0; i < Transform::to; ++i) out[i][j] = transformed[i];
  }
}

// Load side * side vectors. The vector to[i][j] is at from + (i * side + j) * plane_stride.
template <int side>
NGD_INLINE void load_grid(const float* from, std::int64_t plane_stride, Vector (&to)[side][side]) {
  NGD_UNROLL
  for (int i = 0; i < side; ++i) {
    NGD_UNROLL
    for (int j = 0; j < side; ++j) to[i][j] = load(from + (i * side + j) * plane_stride);
  }
}

// Store side * side vectors. The vector from[i][j] is stored at to + (i * side + j) * plane_stride.
template <int side>
NGD_INLINE void store_grid(const Vector (&from)[side][side], float* to, std::int64_t plane_stride) {
  NGD_UNROLL
  for (int i = 0; i < side; ++i) {
    NGD_UNROLL
    for (int j = 0; j < side; ++j) store(from[i][j], to + (i * side + j) * plane_stride);
  }
}

// Transform a tile of an image. is_inside: the whole tile is in the image.
template <class Transform, bool is_inside>
void transform_tile(const Tile<const float>& tile, std::int64_t channels, float* to,
                    std::int64_t plane_stride) {
  for (std::int64_t c = 0; c < channels; c += kLanes) {
    Vector in[Transform::from][Transform::from], out[Transform::to][Transform::to];
    NGD_UNROLL
    for (int i = 0; i < Transform::from; ++i) {
      NGD_UNROLL
      for (int j = Transform::from - kTile; j < Transform::from; ++j)
        __builtin_prefetch(address(tile, i, j + kTile) + c, 0, 2);
      NGD_UNROLL
      for (int j = 0; j < Transform::from; ++j)
        in[i][j] = is_inside || contains(tile, i, j) ? load(address(tile, i, j) + c) : Vector{};
    }
    transform<Transform>(in, out);
    store_grid<Transform::to>(out, to + c, plane_stride);
  }
}

// Implement Transforms::data and Transforms::adjoint of transforms.hpp.
template <class Transform>
void transform_any_tile(const Tile<const float>& from, std::int64_t channels, float* to,
                        std::int64_t plane_stride) {
  is_inside_image(from, Transform::from)
      ? transform_tile<Transform, true>(from, channels, to, plane_stride)
      : transform_tile<Transform, false>(from, channels, to, plane_stride);
}

// transform_result() for a tile that is wholly in the image (is_inside), or for any tile.
template <bool is_inside>
void transform_results(const float* from, std::int64_t plane_stride, std::int64_t channels,
                       const float* bias, const Tile<float>& to) {
  for (std::int64_t c = 0; c < channels; c += kLanes) {
    Vector in[kInputTile][kInputTile], out[kTile][kTile];
    load_grid<kInputTile>(from + c, plane_stride, in);
    transform<ResultTransform>(in, out);
    const Vector bias_vector = bias == nullptr ? Vector{} : load(bias + c);
    NGD_UNROLL
    for (int i = 0; i < kTile; ++i) {
      NGD_UNROLL
      for (int j = 0; j < kTile; ++j)
        if (is_inside || contains(to, i, j)) store(out[i][j] + bias_vector, address(to, i, j) + c);
    }
  }
}

// Implement Transforms::result of transforms.hpp.
void transform_result(const float* from, std::int64_t plane_stride, std::int64_t channels,
                      const float* bias, const Tile<float>& to) {
  is_inside_image(to, kTile) ? transform_results<true>(from, plane_stride, channels, bias, to)
                             : transform_results<false>(from, plane_stride, channels, bias, to);
}

// Implement Transforms::weights of transforms.hpp.
void transform_weights(const float* kernels, std::int64_t step, bool rotated, float* to,
                       std::int64_t plane_stride) {
  float lines[kWeights][kLanes];
  for (int k = 0; k < kLanes; ++k) {
    NGD_UNROLL
    for (int i = 0; i < kWeights; ++i) lines[i][k] = kernels[k * step + i];
  }
  Vector in[kKernel][kKernel], out[kInputTile][kInputTile];
  for (int i = 0; i < kWeights; ++i)
    in[i / kKernel][i % kKernel] = load(lines[rotated ? kWeights - 1 - i : i]);
  transform<WeightTransform>(in, out);
  store_grid<kInputTile>(out, to, plane_stride);
}

// Implement Transforms::weight_adjoints of transforms.hpp.
void transform_weight_adjoints(const float* from, std::int64_t plane_stride, std::int64_t parts,
                               std::int64_t part_stride, float* kernels, std::int64_t step) {
  Vector in[kInputTile][kInputTile], out[kKernel][kKernel];
  load_grid<kInputTile>(from, plane_stride, in);
  for (std::int64_t part = 1; part < parts; ++part) {
    Vector other_part[kInputTile][kInputTile];
    load_grid<kInputTile>(from + part * part_stride, plane_stride, other_part);
    NGD_UNROLL
    for (int i = 0; i < kInputTile; ++i) {
      NGD_UNROLL
      for (int j = 0; j < kInputTile; ++j) in[i][j] += other_part[i][j];
    }
  }
  transform<WeightAdjointTransform>(in, out);
  float lines[kWeights][kLanes];
  store_grid<kKernel>(out, lines[0], kLanes);
  for (int k = 0; k < kLanes; ++k) {
    NGD_UNROLL
    for (int i = 0; i < kWeights; ++i) kernels[k * step + i] = lines[i][k];
  }
}

constexpr Transforms kTransforms = {kLanes,
                                    &transform_any_tile<DataTransform>,
                                    &transform_any_tile<AdjointTransform>,
                                    &transform_result,
                                    &transform_weights,
                                    &transform_weight_adjoints};

}  // namespace

const Transforms& transforms() { return kTransforms; }

}  // namespace ngd::kernels::winograd::NGD_SIMD_LEVEL
