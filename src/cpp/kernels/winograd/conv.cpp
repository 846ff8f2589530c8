// SPDX-License-Identifier: Apache-2.0
// Convolutions of f32 by kernels of 3 x 3, and their gradients, with a quarter of the
// multiplications: transforms.hpp has the method. ngd's GEMM tiles multiply the transformed values.
//
// A gradient of data is a convolution of dy by kernels that are turned; one of weights sums products of
// the values of data and of dy over all tiles. What a transform makes is used soon: a thread makes it
// of some tiles where the values of all kernels fit a cache, else of some kernels.
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
using gemm::TileWork;
using Which = ConvShape::Which;

constexpr std::int64_t kLine = 16;  // elements: values are an odd number of lines apart

constexpr std::int64_t kBlock = 48;           // transformed tiles that are multiplied at once
constexpr std::int64_t kMinPhaseTiles = 256;  // tiles that are transformed before a multiplication
constexpr std::int64_t kMinSumTiles = 64;     // tiles whose products are summed at once

const Transforms& transforms() { return NGD_SIMD_SELECT(transforms)(); }

// Images whose channels come last, cut in tiles of which each begins kTile places behind the other.
struct Images {
  std::int64_t height, width, channels, before_rows, before_columns, tiles_high, tiles_wide;

  // Of so many places a side, from so many channels on.
  template <class Element>
  Tile<Element> tile(Element* data, std::int64_t number, int side, std::int64_t channel = 0) const {
    const std::int64_t image = number / (tiles_high * tiles_wide),
                       y = number / tiles_wide % tiles_high * kTile - before_rows,
                       x = number % tiles_wide * kTile - before_columns, row = width * channels;
    const auto begin = [&](std::int64_t place) {
      return static_cast<int>(std::clamp<std::int64_t>(-place, 0, side));
    };
    const auto end = [&](std::int64_t place, std::int64_t extent) {
      return static_cast<int>(std::clamp<std::int64_t>(extent - place, 0, side));
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

// How far apart values of a tile lie: of so many tiles, each of so many channels.
std::int64_t apart(std::int64_t tiles, std::int64_t channels) {
  return round_up(tiles, gemm::tile_of<float>().rows) * channels + kLine;
}

// What both kinds share: the cut into tiles, and the threads.
struct Cut {
  Images data, result;  // data: what is read in tiles of 6 x 6
  std::int64_t images, tiles, pieces;

  std::int64_t places() const { return images * result.height * result.width; }

  Cut(const ConvShape& s, const Machine& machine) : images(s.batch), pieces(machine.threads) {
    const bool turned = s.which == Which::DataGrad;
    const auto& made = turned ? s.extents : s.counts;
    const auto& read = turned ? s.counts : s.extents;
    const std::int64_t high = divide_up(made[1], kTile), wide = divide_up(made[2], kTile);
    const std::int64_t before[] = {turned ? kKernel - 1 - s.before[1] : s.before[1],
                                   turned ? kKernel - 1 - s.before[2] : s.before[2]};
    data = {read[1], read[2], turned ? s.out : s.in, before[0], before[1], high, wide};
    result = {made[1], made[2], turned ? s.in : s.out, 0, 0, high, wide};
    tiles = images * high * wide;
  }
};

// A convolution, or a gradient of its data.
class Product {
 public:
  Product(const ConvShape& s, const Machine& machine)
      : cut_(s, machine),
        turned_(s.which == Which::DataGrad),
        depth_(cut_.data.channels),
        columns_(cut_.result.channels),
        each_(cut_.tiles / cut_.pieces),
        // The transformed kernels fit in the shared cache, together with those of some tiles.
        by_tiles_(kPlanes * depth_ * columns_ * 4 <= machine.shared_cache_bytes / 4 * 3 &&
                  (each_ >= 2 * tile_.rows || columns_ / tile_.lanes < cut_.pieces)),
        groups_(columns_, by_tiles_ ? 1 : cut_.pieces) {
    const std::int64_t fit = machine.core_cache_bytes / (kPlanes * (depth_ + columns_) * 4);
    const std::int64_t fewest = 4;
    block_ = by_tiles_ ? std::max(std::min(fit, each_) / tile_.rows, fewest) * tile_.rows : kBlock;
    together_ = std::min(
        cut_.tiles, std::max(kMinPhaseTiles, machine.shared_cache_bytes / (kPlanes * depth_ * 4)));
    for (std::int64_t g = 0; g < groups_.count; ++g) {
      kernels_at_.push_back(kernels_);
      kernels_ += kPlanes * kernels_apart(g);
      widest_ = std::max(widest_, groups_.width(g));
    }
  }

  std::int64_t scratch_elements() const {
    if (by_tiles_) return kernels_ + cut_.pieces * (data_elements(block_) + sums_elements());
    return data_elements(together_) + cut_.pieces * (widest_kernels() + sums_elements());
  }

  void run(const float* data, const float* kernels, const float* bias, float* out,
           float* scratch) const {
    by_tiles_ ? run_by_tiles(data, kernels, bias, out, scratch)
              : run_by_columns(data, kernels, bias, out, scratch);
  }

 private:
  std::int64_t kernels_apart(std::int64_t group) const {
    return depth_ * groups_.width(group) + kLine;
  }
  std::int64_t widest_kernels() const { return kPlanes * (depth_ * widest_ + kLine); }
  std::int64_t data_elements(std::int64_t tiles) const { return kPlanes * apart(tiles, depth_); }
  std::int64_t sums_width() const { return by_tiles_ ? columns_ : widest_; }
  std::int64_t sums_elements() const { return kPlanes * apart(block_, sums_width()); }

  // All kernels' values are made, then each thread has some tiles.
  void run_by_tiles(const float* data, const float* kernels, const float* bias, float* out,
                    float* scratch) const {
    device::for_pieces(groups_.count,
                       [&](std::int64_t g) { take_kernels(kernels, g, scratch + kernels_at_[g]); });
    device::for_pieces(cut_.pieces, [&](std::int64_t piece) {
      float* values = scratch + kernels_ + piece * (data_elements(block_) + sums_elements());
      float* sums = values + data_elements(block_);
      const Range own = share(cut_.tiles, 1, piece, cut_.pieces);
      for (std::int64_t t = own.begin; t < own.end; t += block_) {
        const std::int64_t count = std::min(block_, own.end - t);
        take_data(data, t, count, values, apart(block_, depth_));
        for (std::int64_t v = 0; v < kPlanes; ++v)
          for (std::int64_t g = 0; g < groups_.count; ++g)
            multiply(v, g, values, apart(block_, depth_), count, scratch + kernels_at_[g],
                     sums + groups_.begin(g));
        finish(sums, t, count, 0, columns_, bias, out);
      }
    });
  }

  // Many tiles' values are made, then each thread has some groups of columns.
  void run_by_columns(const float* data, const float* kernels, const float* bias, float* out,
                      float* scratch) const {
    float* of_pieces = scratch + data_elements(together_);
    for (std::int64_t first = 0; first < cut_.tiles; first += together_) {
      const std::int64_t some = std::min(together_, cut_.tiles - first);
      device::for_range(some, 1, [&](std::int64_t begin, std::int64_t end) {
        take_data(data, first + begin, end - begin, scratch + begin * depth_,
                  apart(together_, depth_));
      });
      device::for_pieces(cut_.pieces, [&](std::int64_t piece) {
        float* taken = of_pieces + piece * (widest_kernels() + sums_elements());
        const Range own = share(groups_.count, 1, piece, cut_.pieces);
        for (std::int64_t g = own.begin; g < own.end; ++g)
          add_columns(g, first, some, scratch, kernels, taken, bias, out);
      });
    }
  }

  // Those of a group, of some tiles, whose values are there.
  void add_columns(std::int64_t group, std::int64_t first, std::int64_t some, const float* values,
                   const float* kernels, float* taken, const float* bias, float* out) const {
    float* sums = taken + widest_kernels();
    take_kernels(kernels, group, taken);
    for (std::int64_t t = 0; t < some; t += block_) {
      const std::int64_t count = std::min(block_, some - t);
      for (std::int64_t v = 0; v < kPlanes; ++v)
        multiply(v, group, values + t * depth_, apart(together_, depth_), count, taken, sums);
      finish(sums, first + t, count, groups_.begin(group), groups_.width(group), bias, out);
    }
  }

  void take_data(const float* data, std::int64_t first, std::int64_t count, float* values,
                 std::int64_t values_apart) const {
    for (std::int64_t t = 0; t < count; ++t)
      transforms_.data(cut_.data.tile(data, first + t, kInputTile), depth_, values + t * depth_,
                       values_apart);
  }

  void take_kernels(const float* kernels, std::int64_t group, float* values) const {
    const std::int64_t of_column = turned_ ? kWeights : depth_ * kWeights,
                       of_depth = turned_ ? columns_ * kWeights : kWeights,
                       width = groups_.width(group);
    const float* from = kernels + groups_.begin(group) * of_column;
    for (std::int64_t j = 0; j < width; j += transforms_.lanes)
      for (std::int64_t k = 0; k < depth_; ++k)
        transforms_.weights(from + j * of_column + k * of_depth, of_column, turned_,
                            values + k * width + j, kernels_apart(group));
  }

  // Value number v of some tiles by that of a group of kernels.
  void multiply(std::int64_t v, std::int64_t group, const float* values, std::int64_t values_apart,
                std::int64_t count, const float* kernels, float* sums) const {
    TileWork<float> work{};
    work.depth = depth_;
    work.a_panel = depth_;
    work.a_step = 1;
    work.b = kernels + v * kernels_apart(group);
    work.b_step = work.columns = groups_.width(group);
    work.c_stride = sums_width();
    for (std::int64_t i = 0; i < count; i += tile_.rows) {
      work.a = values + v * values_apart + i * depth_;
      work.c = sums + v * apart(block_, sums_width()) + i * work.c_stride;
      work.rows = std::min(tile_.rows, count - i);
      tile_.multiply_strided(work);
    }
  }

  void finish(const float* sums, std::int64_t first, std::int64_t count, std::int64_t column,
              std::int64_t width, const float* bias, float* out) const {
    for (std::int64_t t = 0; t < count; ++t)
      transforms_.result(sums + t * sums_width(), apart(block_, sums_width()), width,
                         bias == nullptr ? nullptr : bias + column,
                         cut_.result.tile(out, first + t, kTile, column));
  }

  const gemm::GemmTile<float>& tile_ = gemm::tile_of<float>();
  const Transforms& transforms_ = transforms();
  Cut cut_;
  bool turned_;
  std::int64_t depth_, columns_;  // channels that are summed over, and those of the result
  std::int64_t each_;             // tiles of a thread
  bool by_tiles_;
  ChannelGroups groups_;           // of columns
  std::int64_t block_, together_;  // tiles
  std::vector<std::int64_t> kernels_at_;
  std::int64_t kernels_ = 0, widest_ = 0;
};

// A gradient of weights. Sums of products lie in pairs of groups, of data's channels and dy's.
class WeightGradient {
 public:
  WeightGradient(const ConvShape& s, const Machine& machine)
      : cut_(s, machine),
        in_(s.in, 1),
        out_(s.out, 1),
        step_(s.in * kWeights),
        pairs_(in_.count * out_.count) {
    const std::int64_t per_tile = kPlanes * (s.in + s.out) * 4, each = cut_.tiles / cut_.pieces;
    // Each thread has all sums, and adds them to those of the other threads at the end.
    by_tiles_ =
        pairs_ * sums_elements() * 4 <= machine.shared_cache_bytes / 4 && each >= kMinSumTiles;
    const std::int64_t sharing = by_tiles_ ? 1 : cut_.pieces;
    block_ =
        std::min(by_tiles_ ? each + 1 : cut_.tiles,
                 std::max(kMinSumTiles, sharing * machine.core_cache_bytes * 3 / 2 / per_tile));
    together_ = by_tiles_ || block_ < cut_.tiles ? pairs_ : cut_.pieces;
  }

  std::int64_t scratch_elements() const {
    return (by_tiles_ ? cut_.pieces : 1) * (values_elements() + together_ * sums_elements());
  }

  void run(const float* data, const float* dy, float* weights, float* scratch) const {
    by_tiles_ ? run_by_tiles(data, dy, weights, scratch) : run_by_pairs(data, dy, weights, scratch);
  }

 private:
  // Each thread has some tiles and sums of its own.
  void run_by_tiles(const float* data, const float* dy, float* weights, float* scratch) const {
    float* values = scratch + cut_.pieces * pairs_ * sums_elements();
    device::for_pieces(cut_.pieces, [&](std::int64_t piece) {
      const auto [first, last] = share(cut_.tiles, 1, piece, cut_.pieces);
      float* own = values + piece * values_elements();
      for (std::int64_t t = first; t < last; t += block_) {
        const std::int64_t count = std::min(block_, last - t);
        for (std::int64_t i = 0; i < count; ++i) take(data, dy, t + i, i, own);
        for (std::int64_t i = 0; i < pairs_ * kPlanes; ++i)
          multiply(i / kPlanes, i % kPlanes, count, t > first, own,
                   scratch + (piece * pairs_ + i / kPlanes) * sums_elements());
      }
    });
    finish(0, pairs_, cut_.pieces, scratch, weights);
  }

  // All threads have the same tiles, and each some pairs: of those that are summed at once.
  void run_by_pairs(const float* data, const float* dy, float* weights, float* scratch) const {
    float* values = scratch + together_ * sums_elements();
    for (std::int64_t t = 0; t < cut_.tiles; t += block_) {
      const std::int64_t count = std::min(block_, cut_.tiles - t);
      device::for_pieces(count, [&](std::int64_t i) { take(data, dy, t + i, i, values); });
      for (std::int64_t pair = 0; pair < pairs_; pair += together_) {
        const std::int64_t some = std::min(together_, pairs_ - pair);
        device::for_pieces(some * kPlanes, [&](std::int64_t i) {
          multiply(pair + i / kPlanes, i % kPlanes, count, t > 0, values,
                   scratch + i / kPlanes * sums_elements());
        });
        if (t + count == cut_.tiles) finish(pair, some, 1, scratch, weights);
      }
    }
  }

  // Where the values of a block of tiles lie, of data's channels or dy's: group after group.
  std::int64_t values_apart(const ChannelGroups& groups, std::int64_t group) const {
    return apart(block_, groups.width(group));
  }
  std::int64_t in_at(std::int64_t group) const { return behind(in_, group); }
  std::int64_t out_at(std::int64_t group) const { return in_at(in_.count) + behind(out_, group); }
  std::int64_t behind(const ChannelGroups& groups, std::int64_t group) const {
    return kPlanes * (apart(block_, groups.begin(group)) + (group - 1) * kLine);
  }
  std::int64_t values_elements() const { return out_at(out_.count); }
  // Of a pair.
  std::int64_t sums_apart() const { return tile_.columns * tile_.columns + kLine; }
  std::int64_t sums_elements() const { return kPlanes * sums_apart(); }

  // The values of a tile, as number `i` of the block.
  void take(const float* data, const float* dy, std::int64_t number, std::int64_t i,
            float* values) const {
    for (std::int64_t g = 0; g < in_.count; ++g)
      transforms_.data(cut_.data.tile(data, number, kInputTile, in_.begin(g)), in_.width(g),
                       values + in_at(g) + i * in_.width(g), values_apart(in_, g));
    for (std::int64_t g = 0; g < out_.count; ++g)
      transforms_.adjoint(cut_.result.tile(dy, number, kTile, out_.begin(g)), out_.width(g),
                          values + out_at(g) + i * out_.width(g), values_apart(out_, g));
  }

  // Adds value number v of so many tiles to a pair's sums.
  void multiply(std::int64_t pair, std::int64_t v, std::int64_t count, bool add,
                const float* values, float* sums) const {
    const std::int64_t in = pair / out_.count, out = pair % out_.count;
    TileWork<float> work{};
    work.depth = count;
    work.a_step = in_.width(in);
    work.b = values + out_at(out) + v * values_apart(out_, out);
    work.b_step = work.columns = work.c_stride = out_.width(out);
    work.add = add;
    for (std::int64_t i = 0; i < in_.width(in); i += tile_.rows) {
      work.a = values + in_at(in) + v * values_apart(in_, in) + i;
      work.c = sums + v * sums_apart() + i * work.c_stride;
      work.rows = std::min(tile_.rows, in_.width(in) - i);
      tile_.multiply(work);
    }
  }

  // Makes weights of the sums of some pairs, of so many threads, each `pairs_` pairs behind the last.
  void finish(std::int64_t first, std::int64_t some, std::int64_t threads, const float* sums,
              float* weights) const {
    device::for_pieces(some * in_.lanes, [&](std::int64_t task) {
      const std::int64_t pair = task / in_.lanes, part = task % in_.lanes,
                         in = (first + pair) / out_.count, out = (first + pair) % out_.count,
                         columns = out_.width(out);
      const Range rows = share(in_.width(in), 1, part, in_.lanes);
      const float* from = sums + pair * sums_elements();
      float* to = weights + out_.begin(out) * step_ + in_.begin(in) * kWeights;
      for (std::int64_t j = 0; j < columns; j += transforms_.lanes)
        for (std::int64_t row = rows.begin; row < rows.end; ++row)
          transforms_.weight_adjoints(from + row * columns + j, sums_apart(), threads,
                                      pairs_ * sums_elements(), to + j * step_ + row * kWeights,
                                      step_);
    });
  }

  const gemm::GemmTile<float>& tile_ = gemm::tile_of<float>();
  const Transforms& transforms_ = transforms();
  Cut cut_;
  ChannelGroups in_, out_;
  std::int64_t step_, pairs_;  // elements between kernels; all pairs
  bool by_tiles_;
  std::int64_t block_, together_;  // tiles; pairs
};

class Conv final : public Kernel {
 public:
  Conv(const ConvShape& shape, const Machine& machine)
      : product_(shape, machine), bias_(shape.bias) {}
  std::size_t scratch_bytes() const override {
    return static_cast<std::size_t>(product_.scratch_elements()) * sizeof(float);
  }
  void run(const KernelArgs& args) const override {
    product_.run(static_cast<const float*>(args.inputs[0]),
                 static_cast<const float*>(args.inputs[1]),
                 bias_ ? static_cast<const float*>(args.inputs[2]) : nullptr,
                 static_cast<float*>(args.outputs[0]), static_cast<float*>(args.scratch));
  }

 private:
  Product product_;
  bool bias_;
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

// Return whether this is the fastest kernel: enough tiles use the transformed kernels, and the tiles
// are not mostly empty. ADR 42 has the measurements.
bool is_fastest(const Cut& cut) {
  constexpr std::int64_t kMinTiles = 16;
  return cut.tiles >= kMinTiles && 2 * cut.places() >= cut.tiles * kTile * kTile;
}

}  // namespace

Offer offer_conv(const KernelQuery& query, const Machine& machine) {
  const ConvShape s(query);
  if (!s.refusal.empty()) return Offer::refuse(s.refusal);
  if (s.factors != DType::F32 || s.mixed) return Offer::refuse("not of f32");
  if (s.axes != 2 || !s.channels_last || s.groups > 1 || !s.post.empty())
    return Offer::refuse("not of two axes, channels last, one group, nothing behind");
  for (std::size_t axis = 1; axis < 3; ++axis)
    if (s.kernel[axis] != kKernel || s.strides[axis] != 1 || s.dilations[axis] != 1 ||
        s.before[axis] >= kKernel || s.after[axis] >= kKernel)
      return Offer::refuse("not of 3 x 3 places side by side");
  if (s.in == 0 || s.out == 0) return Offer::refuse("nothing to convolve");
  if (s.in % kLine != 0 || s.out % kLine != 0) return Offer::refuse("not of whole vectors");
  if (!is_fastest(Cut(s, machine)))
    return Offer::refuse("few tiles, or tiles that are mostly empty");
  if (s.which == Which::WeightGrad) return {std::make_unique<WeightGrad>(s, machine)};
  return {std::make_unique<Conv>(s, machine)};
}

}  // namespace ngd::kernels::winograd
