// SPDX-License-Identifier: Apache-2.0
// Memory that several programs use in turn, for example the programs that one step function was
// compiled to, one per shape of its arguments. Only one of them runs at a time, so together they
// need as much memory as the largest one.
//
// Kernels have pointers to the memory, so it must keep its address when a larger program is added.
// The arena therefore reserves as many addresses as the machine has bytes of memory. Reserved
// addresses use no memory. The arena makes only the first ones usable, as many as the largest
// program so far needs.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.hpp"

namespace ngd::runtime {

// A block of shared memory that a program borrows from a communicator. The destructor gives it
// back.
class Lent {
 public:
  Lent(comm::Communicator& owner, std::size_t bytes)
      : owner_(owner), block_(owner.allocate(bytes)) {}
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() { owner_.release(block_); }
  void* data() const noexcept { return block_.data; }
  // Return true if this block comes from `owner` and has at least `bytes` bytes.
  bool fits(const comm::Communicator& owner, std::size_t bytes) const noexcept {
    return &owner_ == &owner && block_.bytes >= bytes;
  }

 private:
  comm::Communicator& owner_;
  comm::SharedBlock block_;
};

// An arena: memory that several programs use in turn. Any thread may call its functions at any
// time.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Return host memory of at least `bytes` bytes. All calls return the same address, and a larger
  // call keeps the contents. Return null if the process's address space is limited (RLIMIT_AS), if
  // the addresses cannot be reserved, or if `bytes` is more than the memory of the machine. Throws
  // OutOfMemory if the addresses are reserved but the memory cannot be made usable.
  void* reserve(std::size_t bytes);

  // Return a block of at least `bytes` bytes of the shared memory of `owner`. If a block that
  // another program of this arena has is large enough, return that block. Otherwise allocate a new
  // one.
  std::shared_ptr<Lent> lend(comm::Communicator& owner, std::size_t bytes);

  // Return a flag that is true while one of the programs that use this arena runs.
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
