// SPDX-License-Identifier: Apache-2.0
// The kernel of all elementwise ops, and of all kernel bodies (lists of elementwise statements)
// without a reduction or matrix product. It runs the loops of a plan for one tile after the other.
// elementwise_plan.hpp defines plans, loops and tiles.
#include "device/team.hpp"
#include "kernels/fused/elementwise_walk.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fused {

namespace {

class Elementwise final : public Kernel {
 public:
  explicit Elementwise(const KernelQuery& query) : plan_(query) {}

  std::vector<InPlace> in_place() const override { return plan_.in_place; }

  void run(const KernelArgs& args) const override {
    device::for_range(plan_.tiles, plan_.grain, [&](std::int64_t begin, std::int64_t end) {
      TileWalk walk(plan_, args);
      for (std::int64_t number = begin; number < end; ++number) walk.tile(number);
    });
  }

 private:
  Plan plan_;
};

}  // namespace

Offer offer_elementwise(const KernelQuery& query, const Machine&) {
  try {
    return {std::make_unique<Elementwise>(query)};
  } catch (const Refusal& refusal) {
    return Offer::refuse(refusal.what());
  }
}

}  // namespace ngd::kernels::fused
