// SPDX-License-Identifier: Apache-2.0
// How ranks of one mpirun wait for one another beside the communicator that is tested: no test has
// to guess how long another rank takes.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/error.hpp"

namespace ngd::comm {

// Counts the ranks that have come to a point. All ranks make the same ones in the same order, and
// one of them waits.
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

  // Until so many have reported. Whether they have within a minute.
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
