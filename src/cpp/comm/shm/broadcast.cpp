// SPDX-License-Identifier: Apache-2.0
// Broadcast. Where the root's source lies in the shared lane the others copy from it, and the root
// waits until they have. Else the data pass through the root's staging area in chunks, double
// buffered: the root is at most two chunks ahead of the slowest.
#include <algorithm>
#include <cstring>

#include "comm/shm/algorithms.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::size_t kChunkBytes = 512 << 10;
static_assert(2 * kChunkBytes <= kStagingBytes);

// At the root a step is a chunk that can be read; at the others, one that has been.
class Broadcast {
 public:
  Broadcast(Group& group, Task& task)
      : group_(group),
        task_(task),
        bytes_(task.bytes()),
        chunk_bytes_(task.staged ? kChunkBytes : bytes_),
        chunks_(bytes_ == 0 ? 0 : (bytes_ + chunk_bytes_ - 1) / chunk_bytes_) {}

  bool advance() { return task_.root == group_.rank() ? send() : receive(); }

 private:
  std::size_t begin() const { return task_.chunk * chunk_bytes_; }
  std::size_t count() const { return std::min(chunk_bytes_, bytes_ - begin()); }
  const std::byte* shared(const Segment& root) const {
    if (task_.staged) return root.staging() + task_.chunk % 2 * kChunkBytes;
    return root.at(root.slot(task_.sequence).source_offset);
  }

  bool send() {
    while (group_.met(task_)) {
      if (task_.chunk > chunks_) return true;
      if (task_.chunk == chunks_) {
        if (task_.destination != nullptr && task_.destination != task_.source)
          std::memcpy(task_.destination, task_.source, bytes_);
        task_.need = group_.all(Need::Flag::Step, chunks_);
      } else {
        if (task_.staged)
          std::memcpy(group_.mine().staging() + task_.chunk % 2 * kChunkBytes,
                      task_.source + begin(), count());
        group_.raise_step(task_, task_.chunk + 1);
        if (task_.chunk >= 1) task_.need = group_.all(Need::Flag::Step, task_.chunk);
      }
      ++task_.chunk;
    }
    return false;
  }

  bool receive() {
    while (task_.chunk < chunks_) {
      if (task_.staged) task_.need = group_.one(task_.root, task_.chunk + 1);
      if (!group_.met(task_)) return false;
      std::memcpy(task_.destination + begin(), shared(group_.segment(task_.root)), count());
      ++task_.chunk;
      group_.raise_step(task_, task_.chunk);
    }
    return true;
  }

  Group& group_;
  Task& task_;
  std::size_t bytes_;
  std::size_t chunk_bytes_;
  std::uint64_t chunks_;
};

}  // namespace

bool advance_broadcast(Group& group, Task& task) { return Broadcast(group, task).advance(); }

}  // namespace ngd::comm::shm
