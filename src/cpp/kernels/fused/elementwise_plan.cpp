// SPDX-License-Identifier: Apache-2.0
#include "kernels/fused/elementwise_plan.hpp"

#include <algorithm>

#include "kernels/fused/plan_parts.hpp"

namespace ngd::kernels::fused {

namespace {

// The minimum work per thread. Work is the number of elements times the number of loops. With
// less work per thread, a second thread costs more time than it saves.
constexpr std::int64_t kMinWorkPerThread = 1 << 16;

}  // namespace

Plan::Plan(const KernelQuery& query) {
  const Body body(query);
  std::size_t item_bytes = 1;
  for (const Statement& statement : body.statements)
    item_bytes = std::max({item_bytes, tile_item(statement.dtype), tile_item(statement.result)});
  plan_geometry(*this, body, query, static_cast<std::int64_t>(item_bytes));
  const Pairs pairs(body);
  plan_loops(*this, body, pairs, query);
  plan_in_place(*this, body, pairs);
  const auto work = tile_length * static_cast<std::int64_t>(loops.size());
  grain = std::max<std::int64_t>(1, kMinWorkPerThread / std::max<std::int64_t>(1, work));
}

}  // namespace ngd::kernels::fused
