// SPDX-License-Identifier: Apache-2.0
// The computations of the compiled steps that this rank has loaded. A computation is a hash of
// everything that a step computes.
//
// Two steps may call equal collectives on different data, so the ranks compare their computations
// too. The same step may have different computations on two ranks, because shapes, constants,
// outputs or whole branches may differ. So a different computation of a peer is no error if this
// rank has not loaded it: it may be the peer's version of the same step. If this rank has loaded it
// too, it is another step, and the difference is an error. Example: both ranks have loaded the
// steps A and B. In equal collectives, one rank is in A and the other in B, so the ranks have
// called their steps in different orders.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace ngd::comm {

// The computations of the loaded compiled steps that use one group. A computation is a hash of
// everything that a step computes. Each computation has a count of its HeldComputation objects. Any
// thread may call the functions.
class Computations {
 public:
  // Count a loaded step. `computation` is the hash that identifies the step's computation. remove()
  // undoes one add().
  void add(std::uint64_t computation) {
    const std::lock_guard lock(mutex_);
    ++num_holders_[computation];
  }
  void remove(std::uint64_t computation) noexcept {
    const std::lock_guard lock(mutex_);
    if (const auto entry = num_holders_.find(computation);
        entry != num_holders_.end() && --entry->second == 0)
      num_holders_.erase(entry);
  }
  // Return true if `computation` is the hash of at least one loaded step.
  bool hold(std::uint64_t computation) const {
    const std::lock_guard lock(mutex_);
    return num_holders_.count(computation) != 0;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, int> num_holders_;
};

// A guard that keeps a computation (the hash of everything that a compiled step computes) in the
// set of a group while the guard exists. The guard shares the ownership of the set, so it may
// outlive the group.
class HeldComputation {
 public:
  HeldComputation(std::shared_ptr<Computations> all, std::uint64_t computation)
      : all_(std::move(all)), computation_(computation) {
    all_->add(computation_);
  }
  HeldComputation(HeldComputation&&) noexcept = default;
  HeldComputation& operator=(HeldComputation&&) = delete;
  ~HeldComputation() {
    if (all_) all_->remove(computation_);
  }

 private:
  std::shared_ptr<Computations> all_;
  std::uint64_t computation_;
};

}  // namespace ngd::comm
