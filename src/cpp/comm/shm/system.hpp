// SPDX-License-Identifier: Apache-2.0
// Classes that own file descriptors and mappings, and close or unmap them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace ngd::comm::shm {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// A descriptor that is kept for the life of a group. The user's program may close this descriptor,
// and the kernel may then give its number to another file. So this class checks that the number is
// still the same file before it uses or closes the descriptor. The check compares device and inode.
// Before Linux 6.9, pidfds and eventfds have the same inode, so it does not notice if an eventfd
// has got the number of a pidfd.
class KeptDescriptor {
 public:
  KeptDescriptor() = default;
  explicit KeptDescriptor(Descriptor fd) noexcept;
  KeptDescriptor(KeptDescriptor&&) noexcept = default;
  KeptDescriptor& operator=(KeptDescriptor&&) = delete;
  ~KeptDescriptor();
  int get() const noexcept;  // -1: no descriptor, or its number now refers to another file

 private:
  Descriptor fd_;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

class Mapping {
 public:
  Mapping() = default;
  Mapping(void* base, std::size_t bytes) noexcept : base_(base), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();
  std::byte* base() const noexcept { return static_cast<std::byte*>(base_); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void* base_ = nullptr;
  std::size_t bytes_ = 0;
};

std::uint64_t now_ns() noexcept;    // the time of CLOCK_MONOTONIC in nanoseconds
std::string error_text(int error);  // strerror(), and how to fix the error, for messages

}  // namespace ngd::comm::shm
