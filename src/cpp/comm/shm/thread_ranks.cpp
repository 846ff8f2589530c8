// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, for tests. The segments (the shared memory) of all
// ranks are parts of one anonymous mapping.
#include <sys/mman.h>

#include "base/error.hpp"
#include "comm/shm/shm_communicator.hpp"
#include "device/threads.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::size_t kSegmentBytes = std::size_t{256} << 20;

class ThreadMemory final : public Memory {
 public:
  explicit ThreadMemory(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
  Segment segment(int rank) const noexcept override {
    return {mapping_->base() + static_cast<std::size_t>(rank) * kSegmentBytes, kSegmentBytes};
  }
  void commit(std::size_t, std::size_t) override {}  // the kernel commits anonymous memory itself

 private:
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(int size,
                                                             const std::vector<int>& nodes,
                                                             const JobRanks& job_ranks) {
  const std::size_t bytes = static_cast<std::size_t>(size) * kSegmentBytes;
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    fail(ErrorKind::OutOfMemory, "no memory for the segments of ", size, " threads");
  const auto mapping = std::make_shared<Mapping>(base, bytes);
  for (int rank = 0; rank < size; ++rank) {
    ThreadMemory memory(mapping);
    initialise_segment(memory, rank, size,
                       nodes.empty() ? kNoNode : nodes[static_cast<std::size_t>(rank)]);
  }
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(
        make_world(std::make_unique<ThreadMemory>(mapping), make_thread_liveness(),
                   Place{rank, size, size > device::available_cores(), true, job_ranks}));
  return ranks;
}

}  // namespace ngd::comm::shm
