// SPDX-License-Identifier: Apache-2.0
// A group of its own lives in the segments of the world: each of its ranks takes a control block
// from its heap, and one all_gather tells all of them where the others' lie.
#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "comm/shm/guarded.hpp"
#include "comm/shm/shm_communicator.hpp"

namespace ngd::comm::shm {

// The others may have come through, and then wait for me in the new group.
void ShmCommunicator::leave_unborn(std::uint64_t control) const noexcept {
  if (control == kPrivate) return;
  Segment(group_.mine().base(), group_.mine().bytes(), control).control().left.store(1);
  group_.wake_all();
}

std::unique_ptr<Communicator> ShmCommunicator::split(int color, int key) {
  check_not_child();
  const Inside inside(family_->monitor());
  check_usable([] { return std::string("split"); });
  std::vector<Ticket> tickets(static_cast<std::size_t>(group_.size()));
  const std::uint64_t id =
      mix(mix(group_.id(), ++splits_), static_cast<std::uint64_t>(color) + 1) | 1;
  Ticket mine{color, key, kPrivate};
  std::exception_ptr refusal;
  try {
    if (color >= 0) mine.control = family_->new_control(id);
  } catch (const std::exception&) {  // said by all when all know
    refusal = std::current_exception();
  }
  Collective gather;
  gather.kind = Kind::AllGather;
  gather.count = sizeof(Ticket);
  gather.source = &mine;
  gather.destination = tickets.data();
  gather.site = "split()";
  try {
    wait_inside(submit_inside(gather), {split_timeout_});
  } catch (const std::exception&) {
    leave_unborn(mine.control);
    throw;
  }
  // All fail alike, whatever their color: so all may split again.
  for (int r = 0; r < group_.size(); ++r) {
    const Ticket& each = tickets[static_cast<std::size_t>(r)];
    if (each.color < 0 || each.control != kPrivate) continue;
    if (mine.control != kPrivate) family_->heap().release(mine.control);
    if (r == group_.rank()) std::rethrow_exception(refusal);
    fail(ErrorKind::OutOfMemory, "split(): rank ", group_.world(r), " has no memory for a group");
  }
  if (color < 0) return nullptr;
  return guarded(*family_, [&] { return made_of(tickets, color, id); });
}

// From here on the others have the group: where I cannot have it, they must hear of it.
std::unique_ptr<Communicator> ShmCommunicator::made_of(const std::vector<Ticket>& tickets,
                                                       int color, std::uint64_t id) {
  std::vector<int> ranks;  // of this group
  for (int r = 0; r < group_.size(); ++r)
    if (tickets[static_cast<std::size_t>(r)].color == color) ranks.push_back(r);
  std::sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    const auto key = [&](int r) { return std::pair(tickets[static_cast<std::size_t>(r)].key, r); };
    return key(a) < key(b);
  });
  std::vector<Group::Member> members;
  int my_rank = 0;
  for (const int r : ranks) {
    if (r == group_.rank()) my_rank = static_cast<int>(members.size());
    const int world = group_.world(r);
    const Segment segment = family_->segment(world);
    const std::uint64_t control = tickets[static_cast<std::size_t>(r)].control;
    members.push_back({Segment(segment.base(), segment.bytes(), control), world});
  }
  return std::make_unique<ShmCommunicator>(family_, std::move(members), my_rank, id);
}

}  // namespace ngd::comm::shm
