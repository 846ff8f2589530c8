// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/fused/plan_parts.hpp"

namespace ngd::kernels::fused {

// Find the outputs that may use the memory of an input. The input must have the strides and the
// element size of the output. No loop of a tile may read the input after a loop of this tile has
// written the output. A 16-bit input always fulfils this last condition: the first loops of a tile
// widen such inputs to float32 buffers, and all other loops read the buffers.
void plan_in_place(Plan& plan, const Body& body, const Pairs& pairs) {
  // For each input: the last statement whose loop reads the input's memory, or -1 if no loop does.
  std::vector<std::int64_t> last_read(plan.inputs.size(), -1);
  for (std::size_t t = 0; t < body.statements.size(); ++t)
    for (const Operand& operand : body.statements[t].operands) {
      if (operand.kind != Operand::Kind::Input || is_half(operand.dtype)) continue;
      std::int64_t& last = last_read[static_cast<std::size_t>(operand.index)];
      last = std::max<std::int64_t>(last, pairs.loop_of(static_cast<int>(t)));
    }
  for (std::size_t k = 0; k < plan.outputs.size(); ++k)
    for (std::size_t i = 0; i < plan.inputs.size(); ++i)
      if (plan.inputs[i].reading == Reading::InPlace &&
          plan.inputs[i].item == plan.outputs[k].item && last_read[i] <= body.results[k])
        plan.in_place.push_back({static_cast<int>(k), static_cast<int>(i)});
}

}  // namespace ngd::kernels::fused
