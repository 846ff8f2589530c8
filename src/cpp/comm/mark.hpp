// SPDX-License-Identifier: Apache-2.0
// A mark that a process bears while it has a place in a job. Processes of the same user read it in
// /proc/PID/maps; it takes no descriptor, and ends with the process, or with exec.
#pragma once

#include <string>

namespace ngd::comm {

class Mark {
 public:
  explicit Mark(const std::string& name) noexcept;  // where the kernel refuses, there is no mark
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark();

 private:
  void* page_ = nullptr;
};

}  // namespace ngd::comm
