// SPDX-License-Identifier: Apache-2.0
// Replaces the folder shm/ in builds without shared memory.
#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace ngd::comm {

std::unique_ptr<Communicator> make_shm_communicator(const std::string&, int, int, double,
                                                    const std::function<bool()>&,
                                                    const std::vector<int>&) {
  fail(ErrorKind::Unsupported,
       "this build has no shared memory communicator (NGD_DISTRIBUTED_ENABLE=OFF): install with "
       "--config-settings=cmake.define.NGD_DISTRIBUTED_ENABLE=MLSL");
}

}  // namespace ngd::comm
