// SPDX-License-Identifier: Apache-2.0
// A buffer that MPI messages are sent from or received into.
//
// Rule: declare a buffer before the requests that use it, so that C++ destroys the requests first.
// After a failure, MPI may still use the memory of a message that could not be cancelled. Then
// left_to_mpi() (process.hpp) returns true, and no MessageBuffer is freed until the process ends.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/communicator.hpp"
#include "comm/mpi/process.hpp"

namespace ngd::comm::mpi {

class MessageBuffer {
 public:
  MessageBuffer() = default;
  explicit MessageBuffer(std::size_t bytes) { reserve(bytes); }
  // Allocate memory that all ranks of this host can access. `local`, their group, must outlive the
  // buffer.
  MessageBuffer(Communicator& local, std::size_t bytes)
      : local_(&local), shared_(local.allocate(bytes)) {}
  ~MessageBuffer() {
    if (left_to_mpi())
      keep_for_good(own_.release());
    else if (local_ != nullptr)
      local_->release(shared_);
  }
  MessageBuffer(const MessageBuffer&) = delete;
  MessageBuffer& operator=(const MessageBuffer&) = delete;

  // Make the buffer at least `bytes` long; only for a buffer in private memory. If the buffer has
  // to grow, its contents are lost, so no request may use the buffer during this call.
  void reserve(std::size_t bytes) {
    if (bytes <= capacity_) return;
    own_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    capacity_ = bytes;
  }
  // Return the first byte; null if the buffer has no memory yet.
  std::byte* data() const noexcept {
    return local_ != nullptr ? static_cast<std::byte*>(shared_.data) : own_.get();
  }

 private:
  std::unique_ptr<std::byte[]> own_;
  std::size_t capacity_ = 0;
  Communicator* local_ = nullptr;
  SharedBlock shared_;
};

}  // namespace ngd::comm::mpi
