// SPDX-License-Identifier: Apache-2.0
// The implementation of reducer.hpp.
#include "kernels/reduce/reducer.hpp"

#include <cstring>
#include <optional>
#include <type_traits>

#include "base/simd.hpp"

namespace ngd::kernels::reduce {

namespace {

// Return the reduction that computes an op: Sum for "mean". Return nullopt for an unknown op.
std::optional<Reduction> reduction_named(const std::string& name) {
  if (name == "sum" || name == "mean") return Reduction::Sum;
  if (name == "prod") return Reduction::Prod;
  if (name == "max") return Reduction::Max;
  if (name == "min") return Reduction::Min;
  return std::nullopt;
}

// Return the loops for a dtype; for 16-bit floats, those of f32. The function pointers are null if
// the dtype is not supported.
const ReduceLoops& loops_of(Reduction reduction, DType dtype) {
  const DType computed = is_half(dtype) ? DType::F32 : dtype;
  return reduce_table()[static_cast<int>(reduction)][static_cast<int>(computed)];
}

}  // namespace

Reducer::Reducer(const std::string& op, DType dtype_, std::int64_t total)
    : dtype(dtype_),
      loops(loops_of(*reduction_named(op), dtype_)),
      divisor(op == "mean" ? static_cast<double>(total) : 1.0) {}

std::string Reducer::refusal(const std::string& op, DType dtype) {
  const auto reduction = reduction_named(op);
  if (!reduction) return "there is no reduction " + op;
  if (op == "mean" && !is_floating(dtype)) return "mean supports only float dtypes";
  if (loops_of(*reduction, dtype).row == nullptr) return op + " does not support bool";
  return {};
}

std::byte* Reducer::combine(const Geometry& g, std::int64_t result, std::byte* cells) const {
  const auto chunk = [&](std::int64_t c) {
    return cells + (result * g.chunks + c) * g.columns * kCell;
  };
  for (std::int64_t distance = 1; distance < g.chunks; distance *= 2)
    for (std::int64_t c = 0; c + distance < g.chunks; c += 2 * distance)
      loops.merge(chunk(c), chunk(c + distance), g.columns_of(result));
  return chunk(0);
}

void Reducer::finish(const Geometry& g, std::int64_t result, std::byte* cells, void* output) const {
  store(g, result, combine(g, result, cells), output);
}

void Reducer::store(const Geometry& g, std::int64_t result, const std::byte* cells,
                    void* output) const {
  const std::int64_t first = g.first_of(result), columns = g.columns_of(result);
  if (!is_floating(dtype)) {
    const auto item = static_cast<std::int64_t>(size_of(dtype));
    std::memcpy(static_cast<std::byte*>(output) + first * item, cells,
                static_cast<std::size_t>(columns * item));
    return;
  }
  const auto* values = reinterpret_cast<const double*>(cells);
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, double>)
      for (std::int64_t j = 0; j < columns; ++j)
        static_cast<T*>(output)[first + j] = values[j] / divisor;
    else if constexpr (!std::is_integral_v<T>)
      for (std::int64_t j = 0; j < columns; ++j)
        static_cast<T*>(output)[first + j] = T(static_cast<float>(values[j] / divisor));
  });
}

}  // namespace ngd::kernels::reduce
