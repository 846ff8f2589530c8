// SPDX-License-Identifier: Apache-2.0
// A marker of the processes of a job: a mapping of one page, whose name other processes of the same
// user can read in /proc/PID/maps. It needs no file descriptor. It ends with the process, and at
// exec.
#pragma once

#include <string>

namespace ngd::comm {

class Mark {
 public:
  explicit Mark(const std::string& name) noexcept;  // makes no marker if the kernel refuses it
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark();

 private:
  void* page_ = nullptr;
};

}  // namespace ngd::comm
