// SPDX-License-Identifier: Apache-2.0
// split(): make a new group of the ranks that pass the same color, in the order of their keys. A
// rank with a negative color gets no group. Each rank of the new group allocates a control block,
// its data for the group, in its own shared memory (the heap of its segment, segment.hpp). One
// all_gather over the old group distributes the color, the key and the offset of the control block
// of each rank.
#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "comm/shm/guarded.hpp"
#include "comm/shm/shm_communicator.hpp"

namespace ngd::comm::shm {

// Called if split() fails on this rank. Mark in the control block, this rank's data for the new
// group, that this rank has left the group, and wake the peers: peers that have made the group may
// already wait for this rank.
void ShmCommunicator::mark_left(std::uint64_t control) const noexcept {
  if (control == kPrivate) return;
  Segment(group_.mine().base(), group_.mine().bytes(), control).control().left.store(1);
  group_.wake_all();
}

void ShmCommunicator::exchange_tickets(const Ticket& mine, std::vector<Ticket>& tickets) {
  Collective gather;
  gather.kind = Kind::AllGather;
  gather.count = sizeof(Ticket);
  gather.source = &mine;
  gather.destination = tickets.data();
  gather.site = "split()";
  try {
    wait_inside(submit_inside(gather), {split_timeout_});
  } catch (const std::exception&) {
    mark_left(mine.control);
    throw;
  }
}

std::unique_ptr<Communicator> ShmCommunicator::split_inside(int color, int key) {
  std::vector<Ticket> tickets(static_cast<std::size_t>(group_.size()));
  const std::uint64_t id =
      mix(mix(group_.id(), ++splits_), static_cast<std::uint64_t>(color) + 1) | 1;
  Ticket mine{color, key, kPrivate};
  std::exception_ptr refusal;
  try {
    if (color >= 0) mine.control = family_->new_control(id);
  } catch (const std::exception&) {  // rethrown below, when all ranks know of this failure
    refusal = std::current_exception();
  }
  exchange_tickets(mine, tickets);
  // If one rank has no memory for its control block, throw on all ranks of the old group, even on
  // those with another color. So split() has the same outcome on all ranks, and the ranks may call
  // it again.
  for (int r = 0; r < group_.size(); ++r) {
    const Ticket& each = tickets[static_cast<std::size_t>(r)];
    if (each.color < 0 || each.control != kPrivate) continue;
    if (mine.control != kPrivate) family_->heap().release(mine.control);
    if (r == group_.rank()) std::rethrow_exception(refusal);
    fail(ErrorKind::OutOfMemory, "split(): rank ", group_.job_rank(r),
         " has no memory for a group");
  }
  if (color < 0) return nullptr;
  // The peers can use the new group from now on, and wait for this rank in it. If this rank cannot
  // make the group, guarded() reports the failure to the peers.
  return guarded(*family_, [&] { return make_group(tickets, color, id); });
}

std::unique_ptr<Communicator> ShmCommunicator::make_group(const std::vector<Ticket>& tickets,
                                                          int color, std::uint64_t id) {
  std::vector<int> ranks;  // the ranks of the new group, with their numbers in the old group
  for (int r = 0; r < group_.size(); ++r)
    if (tickets[static_cast<std::size_t>(r)].color == color) ranks.push_back(r);
  std::sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    const auto key = [&](int r) { return std::pair(tickets[static_cast<std::size_t>(r)].key, r); };
    return key(a) < key(b);
  });
  std::vector<Group::Rank> members;
  int my_rank = 0;
  for (const int r : ranks) {
    if (r == group_.rank()) my_rank = static_cast<int>(members.size());
    const int world = group_.world(r);
    const Segment segment = family_->segment(world);
    const std::uint64_t control = tickets[static_cast<std::size_t>(r)].control;
    members.push_back(
        {Segment(segment.base(), segment.bytes(), control), world, family_->job_rank(world)});
  }
  return std::make_unique<ShmCommunicator>(family_, std::move(members), my_rank, id);
}

}  // namespace ngd::comm::shm
