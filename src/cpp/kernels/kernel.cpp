// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel.hpp"

namespace ngd::kernels {

const KernelRow* find(KernelTable table, const KernelQuery& query, Verdict* verdict,
                      std::string* reasons) {
  std::string refusals;
  for (const KernelRow& row : table) {
    if (row.op != query.op) continue;
    Verdict answer = row.accept(query);
    if (answer.accepted) {
      if (verdict != nullptr) *verdict = std::move(answer);
      return &row;
    }
    if (!refusals.empty()) refusals += "; ";
    refusals += std::string(row.implementation) + ": " + answer.reason;
  }
  if (reasons != nullptr)
    *reasons = refusals.empty() ? "no kernel is called " + std::string(query.op) : refusals;
  return nullptr;
}

}  // namespace ngd::kernels
