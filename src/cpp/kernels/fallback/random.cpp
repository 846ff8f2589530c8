// SPDX-License-Identifier: Apache-2.0
// random_bits, random_uniform and random_normal. This is their definition, which every device
// follows.
//
// Input 0 has two 64-bit integers (i64 or u64, the same bits): the seed and the stream offset.
// Word w of block b is word w of Philox 4x32-10 (philox.hpp) with
//   key     = low word of the seed, high word of the seed
//   counter = low word of b, high word of b, low word of the offset, high word of the offset.
//
// random_bits      dtypes of up to 32 bits: element i is word i % 4 of block i / 4, or its low bits
//                  if the dtype is narrower. bool is its lowest bit.
//                  64-bit integers: element i is two words of block i / 2. With j = i % 2, its
//                  low half is word 2 j, and its high half is word 2 j + 1.
// random_uniform   f32: (random bits u32 >> 8) * 2^-24; f16: (u32 >> 21) * 2^-11;
//                  bf16: (u32 >> 24) * 2^-8; f64: (random bits u64 >> 11) * 2^-53.
//                  All in [0, 1), all exact.
// random_normal    G. Box and M. Muller, "A note on the generation of random normal deviates"
//                  (Ann. Math. Stat. 29, 1958). `uniform` is the result of random_uniform, in
//                  f64 for f64 and in f32 for other dtypes. The elements are computed in pairs in
//                  float64: with u1 = 1 - uniform[2 k], u2 = uniform[2 k + 1] and
//                  r = sqrt(-2 log(u1)), element 2 k is r cos(2 pi u2) and element 2 k + 1 is
//                  r sin(2 pi u2). Here, 2 pi u2 is the product of u2 and the float64 that is
//                  nearest to 2 pi. The element is then rounded, to f16 and bf16 via f32. If the
//                  number of elements is odd, only the first element of the last pair is used.
#include <cmath>
#include <numbers>

#include "base/simd.hpp"
#include "device/team.hpp"
#include "kernels/fallback/philox.hpp"
#include "kernels/rows.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::fallback {

namespace {

constexpr std::int64_t kPiece = 1024;  // elements that are computed at once
constexpr std::int64_t kGrainPieces = 4;

enum class Distribution { Bits, Uniform, Normal };

class Random final : public Kernel {
 public:
  Random(const KernelQuery& query, const Machine& machine)
      : philox_(NGD_SIMD_SELECT(machine.simd, philox)),
        distribution_(query.op == "random_bits"      ? Distribution::Bits
                      : query.op == "random_uniform" ? Distribution::Uniform
                                                     : Distribution::Normal),
        dtype_(query.outputs[0].dtype),
        count_(query.outputs[0].count()) {}

  void run(const KernelArgs& args) const override {
    const auto* state = static_cast<const std::uint64_t*>(args.inputs[0]);
    const std::int64_t pieces = divide_up(count_, kPiece);
    device::for_range(pieces, kGrainPieces, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece)
        fill(state[0], state[1], piece * kPiece, static_cast<std::byte*>(args.outputs[0]));
    });
  }

 private:
  // Compute up to kPiece elements, from element `first` on. `out` is the whole output.
  void fill(std::uint64_t seed, std::uint64_t offset, std::int64_t first, std::byte* out) const {
    const std::int64_t count = count_ - first < kPiece ? count_ - first : kPiece;
    const std::int64_t per_block = size_of(dtype_) == 8 ? 2 : 4;
    // Normal numbers are computed in pairs, so for an odd count, one more is computed than stored.
    std::uint32_t words[2 * kPiece + 4];
    philox_(seed, offset, static_cast<std::uint64_t>(first / per_block),
            divide_up(count, per_block), words);
    out += first * static_cast<std::int64_t>(size_of(dtype_));
    switch (distribution_) {
      case Distribution::Bits:
        return bits(words, count, out);
      case Distribution::Uniform:
        return uniform(words, count, out);
      case Distribution::Normal:
        return normal(words, count, out);
    }
  }

  // Return random 64-bit integer number i: two words, the low one first.
  static std::uint64_t word64(const std::uint32_t* words, std::int64_t i) {
    return std::uint64_t{words[2 * i + 1]} << 32 | words[2 * i];
  }
  // uniform64() and uniform32() return element number i of random_uniform, for f64 and for f32.
  static double uniform64(const std::uint32_t* words, std::int64_t i) {
    return static_cast<double>(word64(words, i) >> 11) * 0x1p-53;
  }
  static float uniform32(const std::uint32_t* words, std::int64_t i) {
    return static_cast<float>(static_cast<std::int32_t>(words[i] >> 8)) * 0x1p-24f;
  }

  // bits(), uniform() and normal() compute `count` elements from the random words, and store them
  // in `out`.
  void bits(const std::uint32_t* words, std::int64_t count, std::byte* out) const {
    visit_dtype(dtype_, [&]<class T>() {
      auto* to = reinterpret_cast<T*>(out);
      for (std::int64_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<T, bool>)
          to[i] = (words[i] & 1) != 0;
        else if constexpr (std::is_integral_v<T> && sizeof(T) == 8)
          to[i] = static_cast<T>(word64(words, i));
        else if constexpr (std::is_integral_v<T>)
          to[i] = static_cast<T>(words[i]);
      }
    });
  }

  void uniform(const std::uint32_t* words, std::int64_t count, std::byte* out) const {
    visit_dtype(dtype_, [&]<class T>() {
      auto* to = reinterpret_cast<T*>(out);
      for (std::int64_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<T, double>)
          to[i] = uniform64(words, i);
        else if constexpr (std::is_same_v<T, float>)
          to[i] = uniform32(words, i);
        else if constexpr (std::is_same_v<T, Float16>)
          to[i] = T(static_cast<float>(words[i] >> 21) * 0x1p-11f);
        else if constexpr (std::is_same_v<T, BFloat16>)
          to[i] = T(static_cast<float>(words[i] >> 24) * 0x1p-8f);
      }
    });
  }

  void normal(const std::uint32_t* words, std::int64_t count, std::byte* out) const {
    double values[kPiece + 1];
    for (std::int64_t i = 0; i < count; i += 2) {
      const bool is_float64 = dtype_ == DType::F64;
      const double u1 = 1.0 - (is_float64 ? uniform64(words, i) : uniform32(words, i));
      const double u2 = is_float64 ? uniform64(words, i + 1) : uniform32(words, i + 1);
      const double radius = std::sqrt(-2.0 * std::log(u1));
      const double angle = (2.0 * std::numbers::pi) * u2;
      values[i] = radius * std::cos(angle);
      values[i + 1] = radius * std::sin(angle);
    }
    const tiles::TileTable& table = tiles::tile_table();
    const auto& from_f64 = table.casts[static_cast<int>(DType::F64)];
    if (!is_half(dtype_))
      return from_f64[static_cast<int>(dtype_)](values, nullptr, nullptr, out, count);
    float narrow[kPiece];
    from_f64[static_cast<int>(DType::F32)](values, nullptr, nullptr, narrow, count);
    (dtype_ == DType::F16 ? table.narrow_f16 : table.narrow_bf16)(narrow, nullptr, nullptr, out,
                                                                  count);
  }

  PhiloxFunction philox_;
  Distribution distribution_;
  DType dtype_;
  std::int64_t count_;
};

}  // namespace

Offer offer_random(const KernelQuery& query, const Machine& machine) {
  const TensorType& state = query.inputs[0];
  if ((state.dtype != DType::I64 && state.dtype != DType::U64) || state.count() != 2)
    return Offer::refuse("input 0 is not two 64-bit integers: seed and stream offset");
  const DType dtype = query.outputs[0].dtype;
  if (query.op == "random_bits" ? is_floating(dtype) : !is_floating(dtype))
    return Offer::refuse(std::string(query.op) + " does not make " +
                         std::string(short_name_of(dtype)));
  return {std::make_unique<Random>(query, machine)};
}

}  // namespace ngd::kernels::fallback
