// SPDX-License-Identifier: Apache-2.0
// What the compiled programs that this rank holds compute, each as a number.
//
// Two programs may call the same collectives and mean other data by them. What a program computes
// may differ between ranks by right: shapes, constants, outputs, whole branches. So a peer that is
// in another computation than I is no error by itself. But where I hold its computation, too, I
// should be in that one now: then the ranks have called their programs in different orders.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace ngd::comm {

class Computations {
 public:
  void add(std::uint64_t computation) {
    const std::lock_guard lock(mutex_);
    ++held_[computation];
  }
  void remove(std::uint64_t computation) noexcept {
    const std::lock_guard lock(mutex_);
    if (const auto found = held_.find(computation); found != held_.end() && --found->second == 0)
      held_.erase(found);
  }
  bool hold(std::uint64_t computation) const {
    const std::lock_guard lock(mutex_);
    return held_.count(computation) != 0;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, int> held_;
};

// Holds one of them for as long as it lives, which may be longer than the communicator does.
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
