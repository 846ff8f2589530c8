// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/headers.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <string_view>
#include <thread>

#include "comm/messages.hpp"
#include "comm/mpi/details.hpp"

namespace ngd::comm::mpi {

// Compare the headers before checking for failures of other ranks. A rank whose call does not match
// often fails for that reason, and CollectiveMismatch describes the cause better than that failure.
bool Headers::collect(PendingCollective& work) {
  bool is_complete = true;
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank()) continue;
    if (mailbox_.from(peer).empty()) {
      is_complete = false;
      work.last_missing = peer;
    } else if (const Header& theirs = mailbox_.from(peer).front().header;
               !agree(work.header.call, theirs.call, held_)) {
      fail_of(group_.worlds({group_.rank(), peer}), ErrorKind::CollectiveMismatch,
              describe_mismatch(work, peer, theirs));
    }
  }
  if (!is_complete) return false;
  work.received.resize(static_cast<std::size_t>(group_.size()));
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank()) continue;
    work.received[static_cast<std::size_t>(peer)] = mailbox_.take(peer);
    check_counts(work, peer);
  }
  return true;
}

// In an all_to_all with counts, check that the number of elements that a peer sends is the number
// that this rank expects from it. The comparison of the headers does not check this, because each
// pair of ranks has its own counts.
void Headers::check_counts(const PendingCollective& work, int peer) const {
  if (work.receive_counts.empty()) return;
  const Message& message = work.received[static_cast<std::size_t>(peer)];
  std::vector<std::uint64_t> theirs(message.payload.size() / sizeof(std::uint64_t));
  check(theirs.size() == work.counts.size(), "an all_to_all with ", theirs.size(), " numbers");
  std::memcpy(theirs.data(), message.payload.data(), message.payload.size());
  const int me = group_.rank();
  const std::uint64_t sent = theirs[static_cast<std::size_t>(me)];
  const std::uint64_t expected = work.receive_counts[static_cast<std::size_t>(peer)];
  if (sent != expected)
    fail_of(group_.worlds({peer, me}), ErrorKind::CollectiveMismatch,
            mismatch_of_counts("", {group_.world(peer), describe(message.header.call)}, sent,
                               {group_.world(me), describe(work.header.call)}, expected));
}

std::string Headers::describe_mismatch(const PendingCollective& mine, int peer,
                                       const Header& theirs) {
  const Identity &my_identity = mine.header.call.identity, &their_identity = theirs.call.identity;
  const bool has_programs = mine.header.has_program_text && theirs.has_program_text;
  std::optional<std::string> details;
  if (has_programs || my_identity.layout_hash != their_identity.layout_hash)
    details = exchange_details(mine, peer);
  const DecodedDetails my_details(mine.header, mine.details), their_details(theirs, details);
  return difference("", group_.size(), my_details.of(group_.world(group_.rank())),
                    their_details.of(group_.world(peer)));
}

// Send the details of this rank's collective to all ranks, and return those of `peer`. Both ranks
// of a mismatch call this. Returns nothing if the details of the peer do not arrive in time.
std::optional<std::string> Headers::exchange_details(const PendingCollective& mine, int peer) {
  Header header = mine.header;
  header.topic = Topic::Details;
  const std::string_view shown = head_of(mine.details, kMaxPayloadBytes);
  mailbox_.post(header, shown.data(), shown.size());
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + std::chrono::duration<double>(kLeaveSeconds);
  while (!mailbox_.details(peer)) {
    if (Clock::now() > limit) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    mailbox_.progress();
  }
  return mailbox_.details(peer);
}

std::vector<int> Headers::missing() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < group_.size(); ++peer)
    if (peer != group_.rank() && mailbox_.from(peer).empty()) ranks.push_back(group_.world(peer));
  return ranks;
}

std::vector<std::string> Headers::calls_of(const std::vector<int>& world_ranks) {
  std::vector<std::string> facts;
  for (int peer = 0; peer < group_.size(); ++peer) {
    const int world = group_.world(peer);
    if (peer == group_.rank() ||
        std::find(world_ranks.begin(), world_ranks.end(), world) == world_ranks.end())
      continue;
    const std::deque<Message>& arrived = mailbox_.from(peer);
    const std::deque<Message>& messages = arrived.empty() ? mailbox_.sent_by(peer) : arrived;
    if (!messages.empty())
      facts.push_back(
          concat("rank ", world, " called ", describe(messages.front().header.call), "."));
  }
  return facts;
}

}  // namespace ngd::comm::mpi
