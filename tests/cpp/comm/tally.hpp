// SPDX-License-Identifier: Apache-2.0
// A synchronisation of the ranks of one mpirun outside of the communicator that is tested, so that
// no test must guess how long another rank takes.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/error.hpp"

namespace ngd::comm {

// Counts the ranks that have reached a point. All ranks create the same tallies in the same order,
// and one rank waits.
class Tally {
 public:
  Tally() {
    static int made = 0;
    folder_ =
        std::filesystem::temp_directory_path() / concat("ngd-tally-", ::getppid(), "-", ++made);
  }

  void report(int rank) const {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / std::to_string(rank)) << rank;
  }

  // Wait until `count` ranks have reported. Return false after a minute.
  bool await(int ranks) const {
    for (int look = 0; look < 6000; ++look) {
      std::error_code none;
      int found = 0;
      for (std::filesystem::directory_iterator each(folder_, none), end; each != end; ++each)
        ++found;
      if (found >= ranks) {
        std::filesystem::remove_all(folder_);
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace ngd::comm
