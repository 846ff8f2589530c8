// SPDX-License-Identifier: Apache-2.0
// Weight gradients of float32 convolutions with channels last, as GEMMs over the output positions.
//
// For each position in the kernel, the gradient is a matrix. Its element (o, i) is the sum, over
// the output positions, of channel o of dy times channel i of the data that this kernel position
// reads. So the depth of these GEMMs is the number of output positions. The sums are computed in
// blocks of output positions. A block of dy stays in the core's L2 cache, while the matching blocks
// of the data are packed one after the other: one for each kernel position and group of channels.
// GEMM tiles read dy in place if its number of channels is a multiple of the tile's rows.
// Otherwise, dy is packed.
//
// The threads divide the output positions if the sums of one thread fit a quarter of the shared L3
// cache, and there are enough output positions. Each thread then has sums of its own, which are
// added at the end. Otherwise, each thread computes the sums for some of dy's channels over all
// output positions.
#include <algorithm>
#include <cstring>

#include "device/team.hpp"
#include "kernels/gemm/channel_groups.hpp"
#include "kernels/gemm/tile_of.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/conv_shape.hpp"

namespace ngd::kernels::weight_grad {

namespace {

using device::Range;
using device::share;
using gemm::ChannelGroups;
using gemm::TileWork;

constexpr std::int64_t kCopyChannels = 4;  // channels that are copied at once
constexpr std::int64_t kVector = 16;       // channels per vector of the widest SIMD level
constexpr std::int64_t kBlock = 128;       // the maximum of output positions per block

class WeightGradient final : public Kernel {
 public:
  WeightGradient(const ConvShape& s, const Machine& machine)
      : tile_(gemm::tile_of<float>(machine.simd)),
        s_(s),
        pieces_(machine.threads),
        positions_(s.batch * s.window_count()),
        in_(s.in, 1, tile_),
        packs_dy_(s.out % tile_.rows != 0) {
    // Choose the number of output positions per block so that a block of dy fills half of the
    // core's L2 cache. The number is at least kBlock / 2 and at most kBlock.
    block_ = std::clamp<std::int64_t>(machine.core_cache_bytes / 2 / 4 / s.out, kBlock / 2, kBlock);
    // The threads divide the output positions if the sums of one thread fit a quarter of the shared
    // cache, and each thread has at least two blocks of output positions.
    divides_positions_ =
        sums() * 4 <= machine.shared_cache_bytes / 4 && positions_ >= 2 * block_ * pieces_;
    piece_elements_ = block_ * (tile_.columns + (packs_dy_ ? padded_out() : 0)) + kVector;
  }

  std::size_t scratch_bytes() const override {
    const std::int64_t elements =
        pieces_ * piece_elements_ + (divides_positions_ ? pieces_ : 1) * sums();
    return static_cast<std::size_t>(elements) * sizeof(float);
  }

  void run(const KernelArgs& args) const override {
    const auto* data = static_cast<const float*>(args.inputs[0]);
    const auto* dy = static_cast<const float*>(args.inputs[1]);
    auto* packed = static_cast<float*>(args.scratch);
    float* thread_sums = packed + pieces_ * piece_elements_;
    device::for_pieces(pieces_, [&](std::int64_t piece) {
      const Range positions = divides_positions_ ? share(positions_, 1, piece, pieces_)
                                                 : Range{0, positions_},
                  rows = divides_positions_ ? Range{0, s_.out}
                                            : share(s_.out, tile_.rows, piece, pieces_);
      if (rows.begin < rows.end)
        add(data, dy, positions, rows, packed + piece * piece_elements_,
            thread_sums + (divides_positions_ ? piece * sums() : 0));
    });
    finish(thread_sums, static_cast<float*>(args.outputs[0]));
  }

 private:
  // Return the number of dy's channels, rounded up to whole tiles of the GEMM.
  std::int64_t padded_out() const { return round_up(s_.out, tile_.rows); }
  // Return the number of elements in one set of sums. A set is one matrix for each pair of a kernel
  // position and a group of the data's channels. The matrix has one row per channel of dy, and one
  // column per channel of the group. If the threads divide the output positions, each thread has a
  // set of its own, and scratch_bytes() counts all of them. Otherwise, all threads share one set.
  std::int64_t sums() const { return s_.kernel_places() * s_.out * s_.in; }
  // Return the offset in elements of the matrix for kernel position k and a group of the data's
  // channels, from the start of a set of sums (see sums()).
  std::int64_t sums_offset(std::int64_t k, std::int64_t group) const {
    return s_.out * (k * s_.in + in_.begin(group));
  }

  // For the channels `rows` of dy, sum the products of dy and the data over `positions`, a range of
  // the output positions. Overwrite `sums` with these sums.
  void add(const float* data, const float* dy, Range positions, Range rows, float* packed,
           float* sums) const {
    float* packed_dy = packed + block_ * tile_.columns;
    for (std::int64_t p = positions.begin; p < positions.end; p += block_) {
      const std::int64_t count = std::min(block_, positions.end - p), next = p + count;
      const float* from = dy + p * s_.out;
      if (packs_dy_) tile_.pack({from, 1, s_.out}, s_.out, count, tile_.rows, packed_dy);
      for (std::int64_t k = 0; k < s_.kernel_places(); ++k)
        for (std::int64_t group = 0; group < in_.count; ++group) {
          pack(data, p, count, k, group, packed);
          const bool needs_prefetch = k == 0 && group == 0 && next < positions.end;
          multiply(packs_dy_ ? packed_dy : from, rows, packed, in_.width(group), count,
                   p > positions.begin, needs_prefetch ? dy + next * s_.out : nullptr,
                   sums + sums_offset(k, group));
        }
    }
  }

  // Copy the data that kernel position k reads for `count` output positions, from number `first`
  // on. Copy only the channels of one group. `to` gets one row per output position. Values outside
  // of the image are 0.
  void pack(const float* data, std::int64_t first, std::int64_t count, std::int64_t k,
            std::int64_t group, float* to) const {
    const std::int64_t width = in_.width(group), num_columns = s_.counts[2],
                       row = k / s_.kernel[2] * s_.dilations[1] - s_.before[1],
                       column = k % s_.kernel[2] * s_.dilations[2] - s_.before[2];
    std::int64_t column_index = first % num_columns, line = first / num_columns % s_.counts[1],
                 image = first / num_columns / s_.counts[1];
    for (const float* end = to + count * width; to < end; to += width) {
      const std::int64_t y = line * s_.strides[1] + row, x = column_index * s_.strides[2] + column;
      const bool is_inside = y >= 0 && y < s_.extents[1] && x >= 0 && x < s_.extents[2];
      const float* from =
          data + ((image * s_.extents[1] + y) * s_.extents[2] + x) * s_.in + in_.begin(group);
      for (std::int64_t j = 0; j < width; j += kCopyChannels)
        is_inside ? std::memcpy(to + j, from + j, kCopyChannels * sizeof(float))
                  : std::memset(to + j, 0, kCopyChannels * sizeof(float));
      if (++column_index < num_columns) continue;
      column_index = 0;
      if (++line < s_.counts[1]) continue;
      line = 0;
      ++image;
    }
  }

  // Multiply one block of dy by one packed block of the data, tile by tile. If `add` is true, add
  // the products to `sums`. Otherwise, overwrite `sums` with the products. `next` is the block of
  // dy to prefetch, which is read after this one, or null to prefetch nothing.
  void multiply(const float* dy, Range rows, const float* b, std::int64_t columns,
                std::int64_t count, bool add, const float* next, float* sums) const {
    TileWork<float> work{};
    work.depth = count;
    work.a_step = packs_dy_ ? tile_.rows : s_.out;
    work.b = b;
    work.b_step = work.columns = work.c_stride = columns;
    work.add = add;
    for (std::int64_t i = rows.begin; i < rows.end; i += tile_.rows) {
      const std::int64_t line = rows.begin + (i - rows.begin) / tile_.rows * kVector;
      work.prefetch = next != nullptr && line < rows.end
                          ? reinterpret_cast<const std::byte*>(next + line)
                          : nullptr;
      work.prefetch_stride =
          work.prefetch == nullptr ? 0 : s_.out * static_cast<std::int64_t>(sizeof(float));
      work.a = dy + (packs_dy_ ? i * count : i);
      work.c = sums + i * columns;
      work.rows = std::min(tile_.rows, rows.end - i);
      tile_.multiply(work);
    }
  }

  // Add the sums of the threads in order, and store them in the layout of the weights.
  void finish(float* thread_sums, float* weights) const {
    const std::int64_t kernel = s_.kernel_places(), threads = divides_positions_ ? pieces_ : 1;
    device::for_pieces(s_.out, [&](std::int64_t row) {
      for (std::int64_t k = 0; k < kernel; ++k)
        for (std::int64_t group = 0; group < in_.count; ++group) {
          const std::int64_t width = in_.width(group);
          float* own_sums = thread_sums + sums_offset(k, group) + row * width;
          for (std::int64_t other = 1; other < threads; ++other)
            for (std::int64_t j = 0; j < width; ++j) own_sums[j] += own_sums[other * sums() + j];
          float* to = weights + (row * s_.in + in_.begin(group)) * kernel + k;
          for (std::int64_t j = 0; j < width; ++j) to[j * kernel] = own_sums[j];
        }
    });
  }

  const gemm::GemmTile<float>& tile_;
  ConvShape s_;
  std::int64_t pieces_, positions_;
  ChannelGroups in_;
  bool packs_dy_;  // dy is packed, because its channels do not fill whole tiles of the GEMM
  std::int64_t block_;
  bool divides_positions_;
  std::int64_t piece_elements_;
};

// Return true if this is the fastest kernel for the shape.
// docs/adr/0043-convolution-weight-gradients.md has the measurements. There are three cases:
//   - The kernel has several positions, the strides are at least 2 on both axes, the data and dy
//     have at least 128 channels each, and there are at least two blocks of output positions.
//   - The kernel is 1 x 1, and the data have at least 1024 channels.
//   - The kernel is 1 x 1, the data have at most 128 channels, dy has at least 4 times as many
//     channels, and dy does not fit in the shared cache.
bool is_fastest(const ConvShape& s, const Machine& machine) {
  constexpr std::int64_t kManyChannels = 1024, kSomeChannels = 128;
  const std::int64_t positions = s.batch * s.window_count();
  if (s.kernel_places() > 1)
    return s.strides[1] > 1 && s.strides[2] > 1 && s.in >= kSomeChannels &&
           s.out >= kSomeChannels && positions >= 2 * kBlock;
  return s.in >= kManyChannels || (s.in <= kSomeChannels && s.out >= 4 * s.in &&
                                   positions * s.out * 4 >= machine.shared_cache_bytes);
}

}  // namespace

Offer offer_conv(const KernelQuery& query, const Machine& machine) {
  const ConvShape s(query);
  if (!s.refusal.empty()) return Offer::refuse(s.refusal);
  if (s.factors != DType::F32 || s.mixed) return Offer::refuse("the operands are not f32");
  if (s.axes != 2 || !s.channels_last || s.groups > 1)
    return Offer::refuse("the convolution needs two axes, channels last and one group");
  if (s.in % kVector != 0 || s.out % kVector != 0 || s.data.count() == 0 || s.result.count() == 0)
    return Offer::refuse("the channels do not fill whole vectors");
  if (!is_fastest(s, machine)) return Offer::refuse("oneDNN is faster, or nearly so");
  return {std::make_unique<WeightGradient>(s, machine)};
}

}  // namespace ngd::kernels::weight_grad
