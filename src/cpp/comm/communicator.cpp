// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.hpp"

#include "comm/messages.hpp"

namespace ngd::comm {

void Peers::abort(std::string_view traceback) noexcept {
  give_up(ErrorKind::RemoteRank, without_end(traceback), {});
}

bool Communicator::wait_for(Work work, double seconds) {
  const Progress progress = try_wait(work, WaitLimits::patience(seconds));
  if (progress == Progress::Busy) throw_busy();
  return progress == Progress::Done;
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  std::optional<std::unique_ptr<Communicator>> group = try_split(color, key);
  if (!group) throw_busy();
  return std::move(*group);
}

void throw_busy() {
  fail(ErrorKind::Busy, "a collective while another thread is in a collective of the same group");
}

CommonMemory& common_memory_of(Communicator& communicator) {
  CommonMemory* memory = communicator.common_memory();
  if (memory == nullptr)
    fail(ErrorKind::Unsupported, "the ranks of this group do not map each other's memory");
  return *memory;
}

}  // namespace ngd::comm
