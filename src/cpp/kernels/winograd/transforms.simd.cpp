// SPDX-License-Identifier: Apache-2.0
// The transforms of transforms.hpp. A transform is applied along the rows and then along the columns
// of a grid. Each struct has the transform of one line of vectors. A vector has one position of
// several channels.
#include "kernels/winograd/transforms.hpp"

#include "base/simd_loops.hpp"

namespace ngd::kernels::winograd::NGD_SIMD_LEVEL {

namespace {

using Vector = VectorOf<float, NGD_REGISTER_BYTES>::type;
using Stored = VectorOf<float, NGD_REGISTER_BYTES>::stored;
constexpr int kLanes = NGD_REGISTER_BYTES / 4;
constexpr float kRoot = 1.41421356237309505F;  // the points are +-kRoot and half of that

NGD_INLINE Vector load(const float* from) { return *reinterpret_cast<const Stored*>(from); }
NGD_INLINE void store(Vector value, float* to) { *reinterpret_cast<Stored*>(to) = value; }

// Return true if the whole tile is in the image; if one position is; the address of a position.
template <class Element>
NGD_INLINE bool is_whole(const Tile<Element>& t, int side) {
  return t.top == 0 && t.left == 0 && t.bottom == side && t.right == side;
}
template <class Element>
NGD_INLINE bool has(const Tile<Element>& t, int i, int j) {
  return i >= t.top && i < t.bottom && j >= t.left && j < t.right;
}
template <class Element>
NGD_INLINE Element* address(const Tile<Element>& t, int i, int j) {
  return t.image + (t.at + i * t.row + j * t.column);
}

struct OfData {
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

struct OfResult {
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

struct OfAdjoint {  // the transpose of OfResult
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

struct OfWeights {
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

struct OfWeightAdjoints {  // the transpose of OfWeights
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
template <class Of>
NGD_INLINE void transform(const Vector (&in)[Of::from][Of::from], Vector (&out)[Of::to][Of::to]) {
  Vector half[Of::from][Of::to];
  NGD_UNROLL
  for (int i = 0; i < Of::from; ++i) Of::line(in[i], half[i]);
  NGD_UNROLL
  for (int j = 0; j < Of::to; ++j) {
    Vector column[Of::from], made[Of::to];
    NGD_UNROLL
    for (int i = 0; i < Of::from; ++i) column[i] = half[i][j];
    Of::line(column, made);
    NGD_UNROLL
    for (int i = 0; i < Of::to; ++i) out[i][j] = made[i];
  }
}

template <int side>
NGD_INLINE void load_grid(const float* from, std::int64_t plane_stride, Vector (&to)[side][side]) {
  NGD_UNROLL
  for (int i = 0; i < side; ++i) {
    NGD_UNROLL
    for (int j = 0; j < side; ++j) to[i][j] = load(from + (i * side + j) * plane_stride);
  }
}

template <int side>
NGD_INLINE void store_grid(const Vector (&from)[side][side], float* to, std::int64_t plane_stride) {
  NGD_UNROLL
  for (int i = 0; i < side; ++i) {
    NGD_UNROLL
    for (int j = 0; j < side; ++j) store(from[i][j], to + (i * side + j) * plane_stride);
  }
}

template <class Of, bool whole>
void values(const Tile<const float>& tile, std::int64_t channels, float* to,
            std::int64_t plane_stride) {
  for (std::int64_t c = 0; c < channels; c += kLanes) {
    Vector in[Of::from][Of::from], out[Of::to][Of::to];
    NGD_UNROLL
    for (int i = 0; i < Of::from; ++i) {
      NGD_UNROLL
      for (int j = Of::from - kTile; j < Of::from; ++j)
        __builtin_prefetch(address(tile, i, j + kTile) + c, 0, 2);
      NGD_UNROLL
      for (int j = 0; j < Of::from; ++j)
        in[i][j] = whole || has(tile, i, j) ? load(address(tile, i, j) + c) : Vector{};
    }
    transform<Of>(in, out);
    store_grid<Of::to>(out, to + c, plane_stride);
  }
}

template <class Of>
void values_of(const Tile<const float>& from, std::int64_t channels, float* to,
               std::int64_t plane_stride) {
  is_whole(from, Of::from) ? values<Of, true>(from, channels, to, plane_stride)
                           : values<Of, false>(from, channels, to, plane_stride);
}

template <bool whole>
void results(const float* from, std::int64_t plane_stride, std::int64_t channels, const float* bias,
             const Tile<float>& to) {
  for (std::int64_t c = 0; c < channels; c += kLanes) {
    Vector in[kInputTile][kInputTile], out[kTile][kTile];
    load_grid<kInputTile>(from + c, plane_stride, in);
    transform<OfResult>(in, out);
    const Vector added = bias == nullptr ? Vector{} : load(bias + c);
    NGD_UNROLL
    for (int i = 0; i < kTile; ++i) {
      NGD_UNROLL
      for (int j = 0; j < kTile; ++j)
        if (whole || has(to, i, j)) store(out[i][j] + added, address(to, i, j) + c);
    }
  }
}

void result(const float* from, std::int64_t plane_stride, std::int64_t channels, const float* bias,
            const Tile<float>& to) {
  is_whole(to, kTile) ? results<true>(from, plane_stride, channels, bias, to)
                      : results<false>(from, plane_stride, channels, bias, to);
}

void weights(const float* kernels, std::int64_t step, bool rotated, float* to,
             std::int64_t plane_stride) {
  float lines[kWeights][kLanes];
  for (int k = 0; k < kLanes; ++k) {
    NGD_UNROLL
    for (int i = 0; i < kWeights; ++i) lines[i][k] = kernels[k * step + i];
  }
  Vector in[kKernel][kKernel], out[kInputTile][kInputTile];
  for (int i = 0; i < kWeights; ++i)
    in[i / kKernel][i % kKernel] = load(lines[rotated ? kWeights - 1 - i : i]);
  transform<OfWeights>(in, out);
  store_grid<kInputTile>(out, to, plane_stride);
}

void weight_adjoints(const float* from, std::int64_t plane_stride, std::int64_t parts,
                     std::int64_t part_stride, float* kernels, std::int64_t step) {
  Vector in[kInputTile][kInputTile], out[kKernel][kKernel];
  load_grid<kInputTile>(from, plane_stride, in);
  for (std::int64_t part = 1; part < parts; ++part) {
    Vector more[kInputTile][kInputTile];
    load_grid<kInputTile>(from + part * part_stride, plane_stride, more);
    NGD_UNROLL
    for (int i = 0; i < kInputTile; ++i) {
      NGD_UNROLL
      for (int j = 0; j < kInputTile; ++j) in[i][j] += more[i][j];
    }
  }
  transform<OfWeightAdjoints>(in, out);
  float lines[kWeights][kLanes];
  store_grid<kKernel>(out, lines[0], kLanes);
  for (int k = 0; k < kLanes; ++k) {
    NGD_UNROLL
    for (int i = 0; i < kWeights; ++i) kernels[k * step + i] = lines[i][k];
  }
}

constexpr Transforms kTransforms = {kLanes,  &values_of<OfData>, &values_of<OfAdjoint>,
                                    &result, &weights,           &weight_adjoints};

}  // namespace

const Transforms& transforms() { return kTransforms; }

}  // namespace ngd::kernels::winograd::NGD_SIMD_LEVEL
