// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/teardown.hpp"

#include <chrono>
#include <exception>
#include <string>
#include <thread>

#include "comm/mpi/process.hpp"

namespace ngd::comm::mpi {

void Teardown::mark() noexcept {
  if (!is_marked_) mark_failed();
  is_marked_ = true;
}

void Teardown::send_failure(const Failure& failure, std::uint64_t sequence) noexcept {
  mark();
  try {
    Header header;
    header.sequence = sequence;
    const std::string packed = failure.pack(header);
    mailbox_.post(header, packed.data(), packed.size());
  } catch (const std::exception&) {
    // The peers could not be notified. They get a timeout error at their own deadlines.
  }
}

bool Teardown::has_sent_failure(bool moves_data) {
  mailbox_.progress();
  if (!mailbox_.everything_sent()) return false;
  if (!moves_data) return true;
  // If long messages are pending, MPI may report that the short message with the failure was sent
  // before MPI sends it. So do not rely on MPI: wait until every peer has sent Failed or Left. A
  // peer that has received the failure sends one of them.
  for (int peer = 0; peer < group_.size(); ++peer)
    if (peer != group_.rank() && !mailbox_.ended(peer)) return false;
  return true;
}

void Teardown::leave(bool has_failed, std::uint64_t sequence) noexcept {
  try {
    Header header;
    header.topic = Topic::Left;
    header.sequence = sequence;
    mailbox_.post(header, nullptr, 0);
  } catch (const std::exception&) {
    mark();
  }
  await_peers(has_failed ? group_.family->seconds_to_leave() : kQuickLeaveSeconds);
}

void Teardown::await_peers(double seconds) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + std::chrono::duration<double>(seconds);
  try {
    while (Clock::now() < limit) {
      mailbox_.progress();
      bool is_finished = mailbox_.everything_sent();
      for (int peer = 0; peer < group_.size(); ++peer)
        is_finished = is_finished && (peer == group_.rank() || mailbox_.has_left(peer));
      if (is_finished) return;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  } catch (const std::exception&) {
    // A message that could not be sent stays in the mailbox. finish() does not free the memory of
    // this message, because MPI may still use it.
  }
}

void Teardown::finish() noexcept {
  if (!mailbox_.close()) {
    group_.family->abandon();
  } else if (is_marked_) {
    unmark_failed();
  }
}

}  // namespace ngd::comm::mpi
