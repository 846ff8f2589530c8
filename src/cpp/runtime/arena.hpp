// SPDX-License-Identifier: Apache-2.0
// Memory that several programs use in turn, for example those of one step for several shapes. One
// of them runs at a time, so together they need as much as the largest.
//
// Kernels hold pointers into the memory, so it must stay where it is when a larger program comes.
// The arena therefore reserves addresses for all memory of the machine, and makes those usable that
// the largest program needs.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.hpp"

namespace ngd::runtime {

// Shared memory that a communicator lends. The destructor gives it back.
class Lent {
 public:
  Lent(comm::Communicator& owner, std::size_t bytes)
      : owner_(owner), block_(owner.allocate(bytes)) {}
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() { owner_.release(block_); }
  void* data() const noexcept { return block_.data; }
  bool fits(const comm::Communicator& owner, std::size_t bytes) const noexcept {
    return &owner_ == &owner && block_.bytes >= bytes;
  }

 private:
  comm::Communicator& owner_;
  comm::SharedBlock block_;
};

// Any thread may call these at any time.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Host memory of at least `bytes`, at one address in all calls. Null where the addresses
  // cannot be reserved: under a limit of the address space, or for more than the machine has.
  // Throws OutOfMemory.
  void* reserve(std::size_t bytes);

  // A block of the communicator, which is that of another program if it is large enough.
  std::shared_ptr<Lent> lend(comm::Communicator& owner, std::size_t bytes);

  // True while one of the programs runs.
  std::atomic<bool>& running() noexcept { return running_; }

 private:
  std::mutex mutex_;
  std::byte* base_ = nullptr;
  std::size_t reserved_ = 0, usable_ = 0;
  bool has_tried_ = false;
  std::vector<std::weak_ptr<Lent>> lent_;
  std::atomic<bool> running_{false};
};

}  // namespace ngd::runtime
