// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/system.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace ngd::comm::shm {

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

KeptDescriptor::KeptDescriptor(Descriptor fd) noexcept {
  struct stat status{};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  fd_ = std::move(fd);
}

KeptDescriptor::~KeptDescriptor() {
  if (get() < 0) fd_.release();
}

int KeptDescriptor::get() const noexcept {
  struct stat status{};
  const bool is_same_file = fd_.valid() && ::fstat(fd_.get(), &status) == 0 &&
                            status.st_dev == device_ && status.st_ino == inode_;
  return is_same_file ? fd_.get() : -1;
}

Mapping::~Mapping() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

std::uint64_t now_ns() noexcept {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(time.tv_nsec);
}

std::string error_text(int error) {
  const std::string text = std::system_category().message(error);
  return error == EMFILE ? text + ": raise RLIMIT_NOFILE (ulimit -n)" : text;
}

}  // namespace ngd::comm::shm
