// SPDX-License-Identifier: Apache-2.0
// The tile loops, compiled once per SIMD level. See tiles.hpp and opcodes.inc.
#include "kernels/tiles/tiles.hpp"

#include "base/float16_loops.hpp"
#include "kernels/tiles/vector_math.hpp"

namespace ngd::kernels::tiles::NGD_SIMD_LEVEL {

using namespace ngd::NGD_SIMD_LEVEL;

namespace {

enum class Domain { Floats, Numbers, Wrapping, All, Bits, Integers, Whole };
enum class Result { Same, Truth };

// The element type of a tile of the dtype; bool is a byte.
template <int dtype>
using TileType = std::conditional_t<
    dtype == int(DType::Bool), std::uint8_t,
    typename StorageOf<dtype == int(DType::Bool) ? DType::U8 : static_cast<DType>(dtype)>::type>;

// The element type of the loop for T. If the result has the same bits for signed and unsigned
// integers (ignores_sign), the loop for unsigned integers also serves signed ones.
template <class T, bool ignores_sign>
using LoopType = typename std::conditional_t<
    ignores_sign && std::is_integral_v<T>,
    std::make_unsigned<std::conditional_t<std::is_integral_v<T>, T, int>>,
    std::type_identity<T>>::type;

// Return true if tiles can have the dtype, and the domain (a set of dtypes) contains it. Return
// false for 16-bit floats, because tiles hold them as float32.
constexpr bool contains_dtype(Domain domain, int dtype) {
  const auto d = static_cast<DType>(dtype);
  if (d == DType::F16 || d == DType::BF16) return false;
  if (d == DType::Bool)
    return domain == Domain::All || domain == Domain::Bits || domain == Domain::Whole;
  if (d == DType::F32 || d == DType::F64)
    return domain != Domain::Integers && domain != Domain::Whole;
  return domain != Domain::Floats;
}

// Define a type for each opcode. apply<T>(a, b, c) computes the opcode. The constants are the
// columns "operands", "domain" and "result" of the opcode's line in opcodes.inc.
#define NGD_OP(name, operands_, domain_, result_, expression)                                 \
  struct Op_##name {                                                                          \
    static constexpr int operands = operands_;                                                \
    static constexpr Domain domain = Domain::domain_;                                         \
    static constexpr Result result = Result::result_;                                         \
    template <class T, class A>                                                               \
    NGD_INLINE auto apply([[maybe_unused]] A a, [[maybe_unused]] T b, [[maybe_unused]] T c) { \
      using U [[maybe_unused]] = WrappingType<T>;                                             \
      return expression;                                                                      \
    }                                                                                         \
  };
#include "kernels/tiles/opcodes.inc"
#undef NGD_OP

// For sin and cos of float32: if the magnitude of an argument exceeds kTrigonometricLimit, compute
// all elements by libm and return true. This is rare. If no magnitude exceeds the limit, or for
// another op or dtype, compute nothing and return false.
template <class Op, class T>
bool compute_by_libm(const T* a, T* out, std::int64_t count) {
  if constexpr (std::is_same_v<T, float> &&
                (std::is_same_v<Op, Op_sin> || std::is_same_v<Op, Op_cos>)) {
    int has_large_argument = 0;
    for (std::int64_t i = 0; i < count; ++i)
      has_large_argument |= __builtin_fabsf(a[i]) > kTrigonometricLimit;
    if (has_large_argument == 0) return false;
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = std::is_same_v<Op, Op_sin> ? __builtin_sinf(a[i]) : __builtin_cosf(a[i]);
    return true;
  }
  return false;
}

// Compute an opcode for `count` elements of T, with the signature of a TileFunction. If the result
// is a truth value, it is stored as a byte, 0 or 1.
template <class Op, class T>
void loop(const void* a_, const void* b_, const void* c_, void* out_, std::int64_t count) {
  using R = std::conditional_t<Op::result == Result::Truth, std::uint8_t, T>;
  auto* out = static_cast<R*>(out_);
  if constexpr (Op::operands == 1) {
    const auto* a = static_cast<const T*>(a_);
    if constexpr (std::is_same_v<R, T>) {
      if (compute_by_libm<Op, T>(a, out, count)) return;
    }
    NGD_INDEPENDENT for (std::int64_t i = 0; i < count; ++i) out[i] =
        static_cast<R>(Op::template apply<T, T>(a[i], T(), T()));
  } else if constexpr (Op::operands == 2) {
    const auto* a = static_cast<const T*>(a_);
    const auto* b = static_cast<const T*>(b_);
    NGD_INDEPENDENT for (std::int64_t i = 0; i < count; ++i) out[i] =
        static_cast<R>(Op::template apply<T, T>(a[i], b[i], T()));
  } else {
    const auto* a = static_cast<const std::uint8_t*>(a_);
    const auto* b = static_cast<const T*>(b_);
    const auto* c = static_cast<const T*>(c_);
    NGD_INDEPENDENT for (std::int64_t i = 0; i < count; ++i) out[i] =
        static_cast<R>(Op::template apply<T, std::uint8_t>(a[i], b[i], c[i]));
  }
}

// Cast `count` elements, with the signature of a TileFunction. If to_bool is true, each element
// other than 0 becomes 1.
template <class From, class To, bool to_bool>
void cast_loop(const void* in_, const void*, const void*, void* out_, std::int64_t count) {
  const auto* in = static_cast<const From*>(in_);
  auto* out = static_cast<To*>(out_);
  NGD_INDEPENDENT for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (to_bool) {
      out[i] = static_cast<To>(in[i] != From(0));
    } else {
      out[i] = convert<To>(in[i]);
    }
  }
}

// Convert `count` 16-bit floats (Half) to float32, with the signature of a TileFunction.
template <class Half>
void widen(const void* in, const void*, const void*, void* out, std::int64_t count) {
  widen_elements(static_cast<const Half*>(in), static_cast<float*>(out), count);
}

// Round `count` float32 numbers to 16-bit floats (Half), with the signature of a TileFunction.
template <class Half>
void narrow(const void* in, const void*, const void*, void* out, std::int64_t count) {
  narrow_elements(static_cast<const float*>(in), static_cast<Half*>(out), count);
}

// Round `count` float32 numbers to values of Half, but store them as float32. The signature is that
// of a TileFunction.
template <class Half>
void round(const void* in, const void*, const void*, void* out, std::int64_t count) {
  round_elements<Half>(static_cast<const float*>(in), static_cast<float*>(out), count);
}

// Return the value of the first statement of a pair, two statements that one loop computes.
template <First first, class T>
NGD_INLINE T apply_first(T a, T b) {
  if constexpr (first == First::Add) return a + b;
  if constexpr (first == First::Subtract) return a - b;
  return a * b;
}

// Return the value of the second statement of a pair, two statements that one loop computes. x is
// the value of the first one. Relu does not use c.
template <Second second, class T>
NGD_INLINE T apply_second(T x, T c) {
  if constexpr (second == Second::Add) return x + c;
  if constexpr (second == Second::Subtract) return x - c;
  if constexpr (second == Second::SubtractFrom) return c - x;
  if constexpr (second == Second::Multiply) return x * c;
  return x <= T(0) ? T(0) : x;
}

// Compute two statements in one loop: store second(first(a[i], b[i]), c[i]) in out[i]. The
// signature is that of a TileFunction.
template <First first, Second second, class T>
void pair_loop(const void* a_, const void* b_, const void* c_, void* out_, std::int64_t count) {
  const auto *a = static_cast<const T*>(a_), *b = static_cast<const T*>(b_);
  auto* out = static_cast<T*>(out_);
  if constexpr (second == Second::Relu) {
    NGD_INDEPENDENT for (std::int64_t i = 0; i < count; ++i) out[i] =
        apply_second<second, T>(apply_first<first, T>(a[i], b[i]), T());
  } else {
    const auto* c = static_cast<const T*>(c_);
    NGD_INDEPENDENT for (std::int64_t i = 0; i < count; ++i) out[i] =
        apply_second<second, T>(apply_first<first, T>(a[i], b[i]), c[i]);
  }
}

// Store a[i] > b[i] ? c[i] : 0 in out[i], with the signature of a TileFunction.
template <class T>
void where_greater(const void* a_, const void* b_, const void* c_, void* out_, std::int64_t count) {
  const auto *a = static_cast<const T*>(a_), *b = static_cast<const T*>(b_),
             *c = static_cast<const T*>(c_);
  auto* out = static_cast<T*>(out_);
  NGD_INDEPENDENT for (std::int64_t i = 0; i < count; ++i) out[i] = a[i] > b[i] ? c[i] : T(0);
}

// For each operation s of Second, set row[s] to the loops for f32 and f64 that compute `first` and
// then s.
template <int first, int... seconds>
constexpr void fill_pairs(TileFunction (*row)[2], std::integer_sequence<int, seconds...>) {
  ((row[seconds][0] = &pair_loop<First(first), Second(seconds), float>,
    row[seconds][1] = &pair_loop<First(first), Second(seconds), double>),
   ...);
}

// Return the loop of an opcode for a dtype, or null if the opcode is not defined for it.
template <class Op, int dtype>
constexpr TileFunction operation_entry() {
  if constexpr (contains_dtype(Op::domain, dtype)) {
    constexpr Domain d = Op::domain;
    constexpr bool ignores_sign =
        d == Domain::Wrapping || d == Domain::Bits || d == Domain::Integers || d == Domain::Whole;
    return &loop<Op, LoopType<TileType<dtype>, ignores_sign>>;
  } else {
    return nullptr;
  }
}

// Return the loop of the cast from dtype `from` to dtype `to`, or null if one is a 16-bit float.
template <int from, int to>
constexpr TileFunction cast_entry() {
  if constexpr (contains_dtype(Domain::All, from) && contains_dtype(Domain::All, to)) {
    using From = TileType<from>;
    using To = LoopType<TileType<to>, std::is_integral_v<From>>;
    return &cast_loop<From, To, to == int(DType::Bool)>;
  } else {
    return nullptr;
  }
}

// For each dtype d, set row[d] to the loop of an opcode, or to null if it is not defined for d.
template <class Op, int... dtypes>
constexpr void fill_operation(TileFunction* row, std::integer_sequence<int, dtypes...>) {
  ((row[dtypes] = operation_entry<Op, dtypes>()), ...);
}

// For each dtype d, set row[d] to the loop of the cast from `from` to d, or to null if `from` or d
// is a 16-bit float.
template <int from, int... to>
constexpr void fill_casts(TileFunction* row, std::integer_sequence<int, to...>) {
  ((row[to] = cast_entry<from, to>()), ...);
}

// Return the table of all loops of this SIMD level. `all` is the sequence of the dtypes' numbers.
template <int... dtypes>
constexpr TileTable make_table(std::integer_sequence<int, dtypes...> all) {
  TileTable table{};
#define NGD_OP(name, operands, domain, result, expression) \
  fill_operation<Op_##name>(table.operations[static_cast<int>(Opcode::name)], all);
#include "kernels/tiles/opcodes.inc"
#undef NGD_OP
  (fill_casts<dtypes>(table.casts[dtypes], all), ...);
  constexpr auto seconds = std::make_integer_sequence<int, kSeconds>();
  fill_pairs<int(First::Add)>(table.pairs[int(First::Add)], seconds);
  fill_pairs<int(First::Subtract)>(table.pairs[int(First::Subtract)], seconds);
  fill_pairs<int(First::Multiply)>(table.pairs[int(First::Multiply)], seconds);
  table.where_greater[0] = &where_greater<float>;
  table.where_greater[1] = &where_greater<double>;
  table.widen_f16 = &widen<Float16>;
  table.widen_bf16 = &widen<BFloat16>;
  table.narrow_f16 = &narrow<Float16>;
  table.narrow_bf16 = &narrow<BFloat16>;
  table.round_f16 = &round<Float16>;
  table.round_bf16 = &round<BFloat16>;
  return table;
}

constexpr TileTable kTable = make_table(std::make_integer_sequence<int, kDTypeCount>());

}  // namespace

const TileTable& tile_table() { return kTable; }

}  // namespace ngd::kernels::tiles::NGD_SIMD_LEVEL
