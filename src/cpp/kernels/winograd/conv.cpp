// SPDX-License-Identifier: Apache-2.0
// Winograd's convolution: float32 convolutions with 3 x 3 kernels, and their gradients. It needs a
// quarter of the multiplications of a direct convolution. transforms.hpp defines the method and the
// tiles, which are parts of the images. For each channel, each tile and each 3 x 3 kernel is
// transformed to 36 values. Plane v, from 0 to 35, has value number v of all tiles or of all 3 x 3
// kernels.
//
// For each plane, the products of the transformed data and kernels are one GEMM. Its rows are the
// tiles of all images, its depth is the channels of the data, and its columns are the channels of
// the result. ngd's GEMM computes it for a block of tiles at once. A data gradient is a convolution
// of dy with rotated kernels. A weight gradient sums the products of the transformed data and the
// transformed dy over all tiles, so the depth of its GEMMs is the number of tiles.
//
// Transformed values must be used while they are in a cache. So a convolution or a data gradient is
// computed in one of two ways. If the transformed kernels fit the shared cache, and each thread has
// enough tiles, each thread computes all channels of the result for some of the tiles. Otherwise,
// the tiles are processed in phases. In a phase, the threads first transform the data of many tiles
// together. Then each thread computes some channels of the result for all tiles of the phase.
#include <algorithm>
#include <vector>

#include "base/simd.hpp"
#include "device/team.hpp"
#include "kernels/gemm/channel_groups.hpp"
#include "kernels/gemm/tile_of.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/conv_shape.hpp"
#include "kernels/winograd/transforms.hpp"

namespace ngd::kernels::winograd {

namespace {

using device::Range;
using device::share;
using gemm::ChannelGroups;
using gemm::GemmTile;
using gemm::TileWork;
using Which = ConvShape::Which;

// The number of floats in a cache line. plane_stride() uses it to make the stride from one plane to
// the next an odd number of cache lines, so that the planes do not compete for the same sets of the
// cache.
constexpr std::int64_t kLine = 16;

// In a phase of TileConv::run_by_columns(), a thread processes blocks of this number of tiles.
constexpr std::int64_t kBlock = 48;
// A phase of TileConv::run_by_columns() has at least this many tiles, unless fewer tiles are left.
constexpr std::int64_t kMinPhaseTiles = 256;
constexpr std::int64_t kMinSumTiles = 64;  // the minimum of tiles per block of a weight gradient

// Images with channels last, divided into tiles. Along each axis, a tile begins kTile positions
// after the previous one. So tiles with more positions (kInputTile) overlap.
struct Images {
  std::int64_t height, width, channels, before_rows, before_columns, tiles_high, tiles_wide;

  // Return the Tile that has this number among the tiles of all images. It begins at channel
  // `channel`. Tiles are numbered in row-major order by (image, row of tiles, column of tiles). A
  // tile has `side` positions along each of its two axes.
  template <class Element>
  Tile<Element> tile(Element* data, std::int64_t number, int side, std::int64_t channel = 0) const {
    const std::int64_t image = number / (tiles_high * tiles_wide),
                       y = number / tiles_wide % tiles_high * kTile - before_rows,
                       x = number % tiles_wide * kTile - before_columns, row = width * channels;
    const auto begin = [&](std::int64_t position) {
      return static_cast<int>(std::clamp<std::int64_t>(-position, 0, side));
    };
    const auto end = [&](std::int64_t position, std::int64_t extent) {
      return static_cast<int>(std::clamp<std::int64_t>(extent - position, 0, side));
    };
    return {data + image * height * row + channel,
            y * row + x * channels,
            row,
            channels,
            begin(y),
            end(y, height),
            begin(x),
            end(x, width)};
  }
};

// Return the number of elements from one plane to the next, for planes of `tiles` tiles with
// `channels` channels.
std::int64_t plane_stride(std::int64_t tiles, std::int64_t channels, const GemmTile<float>& tile) {
  return round_up(tiles, tile.rows) * channels + kLine;
}

// The division of the images into tiles, for a convolution, its data gradient or its weight
// gradient. `pieces` is the number of threads. The work is divided into one piece per thread.
struct Tiling {
  Images data, result;  // tiles of `data` have 6 x 6 positions, and those of `result` 4 x 4
  std::int64_t images, tiles, pieces;

  // Return the number of positions of the result in all images, without the parts of tiles that are
  // outside.
  std::int64_t num_positions() const { return images * result.height * result.width; }

  Tiling(const ConvShape& s, const Machine& machine) : images(s.batch), pieces(machine.threads) {
    const bool is_rotated = s.which == Which::DataGrad;
    const auto& result_extents = is_rotated ? s.extents : s.counts;
    const auto& data_extents = is_rotated ? s.counts : s.extents;
    const std::int64_t num_tile_rows = divide_up(result_extents[1], kTile),
                       num_tile_columns = divide_up(result_extents[2], kTile);
    const std::int64_t before[] = {is_rotated ? kKernel - 1 - s.before[1] : s.before[1],
                                   is_rotated ? kKernel - 1 - s.before[2] : s.before[2]};
    data = {data_extents[1], data_extents[2], is_rotated ? s.out : s.in, before[0],
            before[1],       num_tile_rows,   num_tile_columns};
    result = {result_extents[1], result_extents[2], is_rotated ? s.in : s.out, 0, 0,
              num_tile_rows,     num_tile_columns};
    tiles = images * num_tile_rows * num_tile_columns;
  }
};

// A convolution or a data gradient, computed by one of the two ways at the head of this file.
class TileConv {
 public:
  TileConv(const ConvShape& s, const Machine& machine)
      : tile_(gemm::tile_of<float>(machine.simd)),
        transforms_(NGD_SIMD_SELECT(machine.simd, transforms)()),
        tiling_(s, machine),
        is_rotated_(s.which == Which::DataGrad),
        depth_(tiling_.data.channels),
        columns_(tiling_.result.channels),
        tiles_per_thread_(tiling_.tiles / tiling_.pieces),
        // The threads divide either the tiles or the columns (the channels of the result). They
        // divide the tiles if the transformed kernels fit three quarters of the shared cache, and
        // one of these conditions is true:
        // - Each thread gets at least 2 * tile_.rows tiles. These are enough rows for two tiles of
        //   the GEMM.
        // - The columns fill fewer vectors than there are threads, so some threads would get no
        //   columns.
        divides_tiles_(
            kPlanes * depth_ * columns_ * 4 <= machine.shared_cache_bytes / 4 * 3 &&
            (tiles_per_thread_ >= 2 * tile_.rows || columns_ / tile_.lanes < tiling_.pieces)),
        groups_(columns_, divides_tiles_ ? 1 : tiling_.pieces, tile_) {
    const std::int64_t fit = machine.core_cache_bytes / (kPlanes * (depth_ + columns_) * 4);
    const std::int64_t min_panels = 4;
    block_ = divides_tiles_
                 ? std::max(std::min(fit, tiles_per_thread_) / tile_.rows, min_panels) * tile_.rows
                 : kBlock;
    phase_tiles_ = std::min(tiling_.tiles, std::max(kMinPhaseTiles, machine.shared_cache_bytes /
                                                                        (kPlanes * depth_ * 4)));
    for (std::int64_t g = 0; g < groups_.count; ++g) {
      kernel_offsets_.push_back(kernel_elements_);
      kernel_elements_ += kPlanes * kernels_stride(g);
      max_width_ = std::max(max_width_, groups_.width(g));
    }
  }

  // Return the number of floats of scratch memory that run() needs.
  std::int64_t scratch_elements() const {
    if (divides_tiles_)
      return kernel_elements_ + tiling_.pieces * (data_elements(block_) + sums_elements());
    return data_elements(phase_tiles_) + tiling_.pieces * (max_kernel_elements() + sums_elements());
  }

  // Compute the convolution or its data gradient. For the gradient, `data` is dy, and `out` is the
  // gradient of the data. `bias` may be null.
  void run(const float* data, const float* kernels, const float* bias, float* out,
           float* scratch) const {
    divides_tiles_ ? run_by_tiles(data, kernels, bias, out, scratch)
                   : run_by_columns(data, kernels, bias, out, scratch);
  }

 private:
  // The channels of the result are divided into groups. Return the number of elements from one
  // plane of a group's transformed kernels to the next.
  std::int64_t kernels_stride(std::int64_t group) const {
    return depth_ * groups_.width(group) + kLine;
  }
  // The channels of the result are divided into groups. Return the number of elements of the
  // transformed kernels of the widest group, in all 36 planes.
  std::int64_t max_kernel_elements() const { return kPlanes * (depth_ * max_width_ + kLine); }
  // Return the number of elements of the transformed data of `tiles` tiles, in all 36 planes.
  std::int64_t data_elements(std::int64_t tiles) const {
    return kPlanes * plane_stride(tiles, depth_, tile_);
  }
  // Return the number of the result's channels per tile in `sums`, the sums of the products.
  std::int64_t sums_width() const { return divides_tiles_ ? columns_ : max_width_; }
  // Return the number of elements of the sums (products added over channels) of a block of tiles,
  // in all 36 planes.
  std::int64_t sums_elements() const { return kPlanes * plane_stride(block_, sums_width(), tile_); }

  // Transform all kernels. Then each thread takes a contiguous range of the tiles. It computes all
  // channels of the result for `block_` of these tiles at a time.
  void run_by_tiles(const float* data, const float* kernels, const float* bias, float* out,
                    float* scratch) const {
    device::for_pieces(groups_.count, [&](std::int64_t g) {
      transform_kernels(kernels, g, scratch + kernel_offsets_[g]);
    });
    device::for_pieces(tiling_.pieces, [&](std::int64_t piece) {
      float* values =
          scratch + kernel_elements_ + piece * (data_elements(block_) + sums_elements());
      float* sums = values + data_elements(block_);
      const Range own = share(tiling_.tiles, 1, piece, tiling_.pieces);
      for (std::int64_t t = own.begin; t < own.end; t += block_) {
        const std::int64_t count = std::min(block_, own.end - t);
        transform_data(data, t, count, values, plane_stride(block_, depth_, tile_));
        for (std::int64_t v = 0; v < kPlanes; ++v)
          for (std::int64_t g = 0; g < groups_.count; ++g)
            multiply(v, g, values, plane_stride(block_, depth_, tile_), count,
                     scratch + kernel_offsets_[g], sums + groups_.begin(g));
        finish(sums, t, count, 0, columns_, bias, out);
      }
    });
  }

  // Process the tiles in phases of phase_tiles_ tiles. In a phase, the threads first transform the
  // data of these tiles together. Then each thread computes some groups of the result's channels
  // for all tiles of the phase.
  void run_by_columns(const float* data, const float* kernels, const float* bias, float* out,
                      float* scratch) const {
    float* workspaces = scratch + data_elements(phase_tiles_);
    for (std::int64_t first = 0; first < tiling_.tiles; first += phase_tiles_) {
      const std::int64_t phase_count = std::min(phase_tiles_, tiling_.tiles - first);
      device::for_range(phase_count, 1, [&](std::int64_t begin, std::int64_t end) {
        transform_data(data, first + begin, end - begin, scratch + begin * depth_,
                       plane_stride(phase_tiles_, depth_, tile_));
      });
      device::for_pieces(tiling_.pieces, [&](std::int64_t piece) {
        float* workspace = workspaces + piece * (max_kernel_elements() + sums_elements());
        const Range own = share(groups_.count, 1, piece, tiling_.pieces);
        for (std::int64_t g = own.begin; g < own.end; ++g)
          add_columns(g, first, phase_count, scratch, kernels, workspace, bias, out);
      });
    }
  }

  // Compute `phase_count` tiles of the result, from tile number `first` on, but only one group of
  // their channels. `values` has the transformed data of these tiles.
  void add_columns(std::int64_t group, std::int64_t first, std::int64_t phase_count,
                   const float* values, const float* kernels, float* workspace, const float* bias,
                   float* out) const {
    float* sums = workspace + max_kernel_elements();
    transform_kernels(kernels, group, workspace);
    for (std::int64_t t = 0; t < phase_count; t += block_) {
      const std::int64_t count = std::min(block_, phase_count - t);
      for (std::int64_t v = 0; v < kPlanes; ++v)
        multiply(v, group, values + t * depth_, plane_stride(phase_tiles_, depth_, tile_), count,
                 workspace, sums);
      finish(sums, first + t, count, groups_.begin(group), groups_.width(group), bias, out);
    }
  }

  // Transform `count` tiles of the data, from tile number `first` on. Store them in `values`, whose
  // planes are values_stride elements apart.
  void transform_data(const float* data, std::int64_t first, std::int64_t count, float* values,
                      std::int64_t values_stride) const {
    for (std::int64_t t = 0; t < count; ++t)
      transforms_.data(tiling_.data.tile(data, first + t, kInputTile), depth_, values + t * depth_,
                       values_stride);
  }

  // Transform the kernels of one group of the result's channels, and store them in `values`.
  void transform_kernels(const float* kernels, std::int64_t group, float* values) const {
    const std::int64_t column_stride = is_rotated_ ? kWeights : depth_ * kWeights,
                       depth_stride = is_rotated_ ? columns_ * kWeights : kWeights,
                       width = groups_.width(group);
    const float* from = kernels + groups_.begin(group) * column_stride;
    for (std::int64_t j = 0; j < width; j += transforms_.lanes)
      for (std::int64_t k = 0; k < depth_; ++k)
        transforms_.weights(from + j * column_stride + k * depth_stride, column_stride, is_rotated_,
                            values + k * width + j, kernels_stride(group));
  }

  // Multiply two matrices: plane v of `values` (the transformed data of `count` tiles) and plane v
  // of `kernels` (the transformed kernels of one group of the result's channels). Plane v has value
  // number v of each tile or kernel. Store the product in plane v of `sums`.
  void multiply(std::int64_t v, std::int64_t group, const float* values, std::int64_t values_stride,
                std::int64_t count, const float* kernels, float* sums) const {
    TileWork<float> work{};
    work.depth = depth_;
    work.a_panel = depth_;
    work.a_step = 1;
    work.b = kernels + v * kernels_stride(group);
    work.b_step = work.columns = groups_.width(group);
    work.c_stride = sums_width();
    for (std::int64_t i = 0; i < count; i += tile_.rows) {
      work.a = values + v * values_stride + i * depth_;
      work.c = sums + v * plane_stride(block_, sums_width(), tile_) + i * work.c_stride;
      work.rows = std::min(tile_.rows, count - i);
      tile_.multiply_strided(work);
    }
  }

  // Transform the sums of `count` tiles to the result, from tile number `first` on, and add the
  // bias. Store only the `width` channels of `out` from number `column` on.
  void finish(const float* sums, std::int64_t first, std::int64_t count, std::int64_t column,
              std::int64_t width, const float* bias, float* out) const {
    for (std::int64_t t = 0; t < count; ++t)
      transforms_.result(sums + t * sums_width(), plane_stride(block_, sums_width(), tile_), width,
                         bias == nullptr ? nullptr : bias + column,
                         tiling_.result.tile(out, first + t, kTile, column));
  }

  const GemmTile<float>& tile_;
  const Transforms& transforms_;
  Tiling tiling_;
  bool is_rotated_;
  std::int64_t depth_, columns_;  // depth_: the data's channels, columns_: the result's channels
  std::int64_t tiles_per_thread_;
  bool divides_tiles_;
  ChannelGroups groups_;  // the groups of the result's channels
  // block_: the number of tiles that a thread processes at a time. phase_tiles_: the number of
  // tiles in a phase of run_by_columns().
  std::int64_t block_, phase_tiles_;
  std::vector<std::int64_t> kernel_offsets_;
  std::int64_t kernel_elements_ = 0, max_width_ = 0;
};

// A weight gradient. The channels of the data are divided into groups, and so are the channels of
// dy. A pair is a group of the data's channels with a group of dy's channels. Each pair has its own
// sums, in 36 planes: one per transformed value.
class WeightGradient {
 public:
  WeightGradient(const ConvShape& s, const Machine& machine)
      : tile_(gemm::tile_of<float>(machine.simd)),
        transforms_(NGD_SIMD_SELECT(machine.simd, transforms)()),
        tiling_(s, machine),
        in_(s.in, 1, tile_),
        out_(s.out, 1, tile_),
        step_(s.in * kWeights),
        pairs_(in_.count * out_.count) {
    const std::int64_t per_tile = kPlanes * (s.in + s.out) * 4,
                       tiles_per_thread = tiling_.tiles / tiling_.pieces;
    // The threads divide the tiles if the sums of one thread (36 planes per pair) fit a quarter of
    // the shared cache, and each thread has at least kMinSumTiles tiles. Each thread then has sums
    // of its own, which are added at the end. Otherwise, all threads work on the same tiles, and
    // each thread computes some of the planes.
    divides_tiles_ = pairs_ * sums_elements() * 4 <= machine.shared_cache_bytes / 4 &&
                     tiles_per_thread >= kMinSumTiles;
    const std::int64_t num_sharing = divides_tiles_ ? 1 : tiling_.pieces;
    block_ =
        std::min(divides_tiles_ ? tiles_per_thread + 1 : tiling_.tiles,
                 std::max(kMinSumTiles, num_sharing * machine.core_cache_bytes * 3 / 2 / per_tile));
    phase_pairs_ = divides_tiles_ || block_ < tiling_.tiles ? pairs_ : tiling_.pieces;
  }

  // Return the number of floats of scratch memory that run() needs.
  std::int64_t scratch_elements() const {
    return (divides_tiles_ ? tiling_.pieces : 1) *
           (values_elements() + phase_pairs_ * sums_elements());
  }

  // Compute the gradient of the weights and store it in `weights`.
  void run(const float* data, const float* dy, float* weights, float* scratch) const {
    divides_tiles_ ? run_by_tiles(data, dy, weights, scratch)
                   : run_by_pairs(data, dy, weights, scratch);
  }

 private:
  // Each thread transforms some tiles of the data and of dy, multiplies them, and adds the products
  // to sums of its own. Then the sums of all threads are added, and transformed to the gradient.
  void run_by_tiles(const float* data, const float* dy, float* weights, float* scratch) const {
    float* values = scratch + tiling_.pieces * pairs_ * sums_elements();
    device::for_pieces(tiling_.pieces, [&](std::int64_t piece) {
      const auto [first, last] = share(tiling_.tiles, 1, piece, tiling_.pieces);
      float* own = values + piece * values_elements();
      for (std::int64_t t = first; t < last; t += block_) {
        const std::int64_t count = std::min(block_, last - t);
        for (std::int64_t i = 0; i < count; ++i) transform_tile(data, dy, t + i, i, own);
        for (std::int64_t i = 0; i < pairs_ * kPlanes; ++i)
          multiply(i / kPlanes, i % kPlanes, count, t > first, own,
                   scratch + (piece * pairs_ + i / kPlanes) * sums_elements());
      }
    });
    finish(0, pairs_, tiling_.pieces, scratch, weights);
  }

  // Process the tiles in blocks of block_ tiles. For each block, the threads first transform the
  // data and dy of its tiles together. Then they multiply both, and add the products to the sums,
  // in phases. A phase computes the sums of phase_pairs_ pairs. A pair is a group of the data's
  // channels with a group of dy's channels. Its sums are 36 planes, one per value of a transformed
  // tile. One thread computes a whole plane.
  void run_by_pairs(const float* data, const float* dy, float* weights, float* scratch) const {
    float* values = scratch + phase_pairs_ * sums_elements();
    for (std::int64_t t = 0; t < tiling_.tiles; t += block_) {
      const std::int64_t count = std::min(block_, tiling_.tiles - t);
      device::for_pieces(count,
                         [&](std::int64_t i) { transform_tile(data, dy, t + i, i, values); });
      for (std::int64_t pair = 0; pair < pairs_; pair += phase_pairs_) {
        const std::int64_t phase_count = std::min(phase_pairs_, pairs_ - pair);
        device::for_pieces(phase_count * kPlanes, [&](std::int64_t i) {
          multiply(pair + i / kPlanes, i % kPlanes, count, t > 0, values,
                   scratch + i / kPlanes * sums_elements());
        });
        if (t + count == tiling_.tiles) finish(pair, phase_count, 1, scratch, weights);
      }
    }
  }

  // The channels of the data and of dy are divided into groups. The transformed values of a block
  // of tiles are stored first for the groups of the data, and then for the groups of dy. Each group
  // has 36 planes: plane v has value number v of all tiles of the block. values_stride() returns
  // the number of elements from one plane of a group to the next.
  std::int64_t values_stride(const ChannelGroups& groups, std::int64_t group) const {
    return plane_stride(block_, groups.width(group), tile_);
  }
  // Return the offset, in elements, at which `values` has the transformed values of a group of the
  // data's channels (in_offset) or of dy's channels (out_offset).
  std::int64_t in_offset(std::int64_t group) const { return group_offset(in_, group); }
  std::int64_t out_offset(std::int64_t group) const {
    return in_offset(in_.count) + group_offset(out_, group);
  }
  // Return the number of elements of the transformed values of all groups before `group`.
  std::int64_t group_offset(const ChannelGroups& groups, std::int64_t group) const {
    return kPlanes * (plane_stride(block_, groups.begin(group), tile_) + (group - 1) * kLine);
  }
  // Return the number of elements of the transformed data and dy of a block of tiles.
  std::int64_t values_elements() const { return out_offset(out_.count); }
  // A pair is a group of the data's channels with a group of dy's channels. Its sums are stored in
  // 36 planes. sums_stride() returns the number of elements from one plane to the next.
  // sums_elements() returns the number of elements of all 36 planes.
  std::int64_t sums_stride() const { return tile_.columns * tile_.columns + kLine; }
  std::int64_t sums_elements() const { return kPlanes * sums_stride(); }

  // Transform one tile of the data and of dy: tile number `number` of all images. `values` has the
  // transformed values of the current block of tiles. Store the tile as tile number `i` of the
  // block.
  void transform_tile(const float* data, const float* dy, std::int64_t number, std::int64_t i,
                      float* values) const {
    for (std::int64_t g = 0; g < in_.count; ++g)
      transforms_.data(tiling_.data.tile(data, number, kInputTile, in_.begin(g)), in_.width(g),
                       values + in_offset(g) + i * in_.width(g), values_stride(in_, g));
    for (std::int64_t g = 0; g < out_.count; ++g)
      transforms_.adjoint(tiling_.result.tile(dy, number, kTile, out_.begin(g)), out_.width(g),
                          values + out_offset(g) + i * out_.width(g), values_stride(out_, g));
  }

  // Multiply value number v of the transformed data by value number v of the transformed dy, and
  // sum the products over `count` tiles. Do this for one pair: a group of the data's channels with
  // a group of dy's channels. If `add` is true, add the result to plane v of `sums`, the pair's
  // sums. Otherwise store it there.
  void multiply(std::int64_t pair, std::int64_t v, std::int64_t count, bool add,
                const float* values, float* sums) const {
    const std::int64_t in = pair / out_.count, out = pair % out_.count;
    TileWork<float> work{};
    work.depth = count;
    work.a_step = in_.width(in);
    work.b = values + out_offset(out) + v * values_stride(out_, out);
    work.b_step = work.columns = work.c_stride = out_.width(out);
    work.add = add;
    for (std::int64_t i = 0; i < in_.width(in); i += tile_.rows) {
      work.a = values + in_offset(in) + v * values_stride(in_, in) + i;
      work.c = sums + v * sums_stride() + i * work.c_stride;
      work.rows = std::min(tile_.rows, in_.width(in) - i);
      tile_.multiply(work);
    }
  }

  // Transform the sums of `phase_count` pairs to weight gradients, from pair `first` on. A pair is
  // a group of the data's channels with a group of dy's channels. If several threads have sums for
  // the same pair, the sums are added first.
  void finish(std::int64_t first, std::int64_t phase_count, std::int64_t threads, const float* sums,
              float* weights) const {
    device::for_pieces(phase_count * in_.lanes, [&](std::int64_t task) {
      const std::int64_t pair = task / in_.lanes, part = task % in_.lanes,
                         in = (first + pair) / out_.count, out = (first + pair) % out_.count,
                         columns = out_.width(out);
      const Range rows = share(in_.width(in), 1, part, in_.lanes);
      const float* from = sums + pair * sums_elements();
      float* to = weights + out_.begin(out) * step_ + in_.begin(in) * kWeights;
      for (std::int64_t j = 0; j < columns; j += transforms_.lanes)
        for (std::int64_t row = rows.begin; row < rows.end; ++row)
          transforms_.weight_adjoints(from + row * columns + j, sums_stride(), threads,
                                      pairs_ * sums_elements(), to + j * step_ + row * kWeights,
                                      step_);
    });
  }

  const GemmTile<float>& tile_;
  const Transforms& transforms_;
  Tiling tiling_;
  ChannelGroups in_, out_;
  // step_: the number of weights for each channel of dy. pairs_: the number of pairs, where a pair
  // is one group of the data's channels with one group of dy's channels.
  std::int64_t step_, pairs_;
  bool divides_tiles_;
  // block_: the number of tiles that are transformed at a time. phase_pairs_: the number of pairs
  // (one group of the data's channels with one of dy's) whose sums run_by_pairs() computes at a
  // time.
  std::int64_t block_, phase_pairs_;
};

class Conv final : public Kernel {
 public:
  Conv(const ConvShape& shape, const Machine& machine)
      : conv_(shape, machine), has_bias_(shape.bias) {}
  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(conv_.scratch_elements()) * sizeof(float);
  }
  void run(const KernelArgs& args) const override {
    conv_.run(static_cast<const float*>(args.inputs[0]), static_cast<const float*>(args.inputs[1]),
              has_bias_ ? static_cast<const float*>(args.inputs[2]) : nullptr,
              static_cast<float*>(args.outputs[0]), static_cast<float*>(args.scratch));
  }

 private:
  TileConv conv_;
  bool has_bias_;
};

class WeightGrad final : public Kernel {
 public:
  WeightGrad(const ConvShape& shape, const Machine& machine) : gradient_(shape, machine) {}
  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(gradient_.scratch_elements()) * sizeof(float);
  }
  void run(const KernelArgs& args) const override {
    gradient_.run(static_cast<const float*>(args.inputs[0]),
                  static_cast<const float*>(args.inputs[1]), static_cast<float*>(args.outputs[0]),
                  static_cast<float*>(args.scratch));
  }

 private:
  WeightGradient gradient_;
};

// Return true if Winograd's convolution is faster than the other kernels for this shape. It is
// faster if there are at least kMinTiles tiles, and at least half of the tiles' positions are in
// the images. With fewer tiles, the transform of the weights takes too much of the time.
// docs/adr/0042-winograd.md has the measurements.
bool is_fastest(const Tiling& tiling) {
  constexpr std::int64_t kMinTiles = 16;
  return tiling.tiles >= kMinTiles && 2 * tiling.num_positions() >= tiling.tiles * kTile * kTile;
}

}  // namespace

Offer offer_conv(const KernelQuery& query, const Machine& machine) {
  const ConvShape s(query);
  if (!s.refusal.empty()) return Offer::refuse(s.refusal);
  if (s.factors != DType::F32 || s.mixed) return Offer::refuse("the operands are not f32");
  if (s.axes != 2 || !s.channels_last || s.groups > 1 || !s.post.empty())
    return Offer::refuse(
        "the convolution needs two axes, channels last, one group and no post-operation");
  for (std::size_t axis = 1; axis < 3; ++axis)
    if (s.kernel[axis] != kKernel || s.strides[axis] != 1 || s.dilations[axis] != 1 ||
        s.before[axis] >= kKernel || s.after[axis] >= kKernel)
      return Offer::refuse("the kernel is not 3 x 3 with stride and dilation 1");
  if (s.in == 0 || s.out == 0) return Offer::refuse("the operands have no elements to convolve");
  if (s.in % kLine != 0 || s.out % kLine != 0)
    return Offer::refuse("the channels do not fill whole vectors");
  if (!is_fastest(Tiling(s, machine)))
    return Offer::refuse("there are few tiles, or they are mostly empty");
  if (s.which == Which::WeightGrad) return {std::make_unique<WeightGrad>(s, machine)};
  return {std::make_unique<Conv>(s, machine)};
}

}  // namespace ngd::kernels::winograd
