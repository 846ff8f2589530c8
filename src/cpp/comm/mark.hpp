// SPDX-License-Identifier: Apache-2.0
// A marker of the processes of a job: a mapping of one page of a memfd. Other processes of the same
// user can read the name of the memfd in /proc/PID/maps. The marker needs no open file descriptor.
// The kernel removes it when the process ends or calls exec.
#pragma once

#include <string>

namespace ngd::comm {

class Mark {
 public:
  // Mark this process with `name`. If a system call fails, the process stays unmarked.
  explicit Mark(const std::string& name) noexcept;
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark();

 private:
  void* page_ = nullptr;
};

}  // namespace ngd::comm
