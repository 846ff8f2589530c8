// SPDX-License-Identifier: Apache-2.0
// A group of its own lives in the segments of the world: each of its ranks takes a control block
// from its heap, and one all_gather tells all of them where the others' lie.
#include <algorithm>
#include <vector>

#include "comm/shm/guarded.hpp"
#include "comm/shm/shm_communicator.hpp"

namespace ngd::comm::shm {

namespace {

struct Ticket {
  std::int64_t color;
  std::int64_t key;
  std::uint64_t control;  // its offset, or kPrivate
};

}  // namespace

// The others may have come through, and then wait for me in the new group.
void ShmCommunicator::leave_unborn(std::uint64_t control) const noexcept {
  if (control == kPrivate) return;
  Segment(group_.mine().base(), group_.mine().bytes(), control).control().left.store(1);
  group_.wake_all();
}

std::unique_ptr<Communicator> ShmCommunicator::split(int color, int key) {
  check_not_child();
  const Inside inside(family_->monitor());
  check_usable();
  const std::uint64_t id =
      mix(mix(group_.id(), ++splits_), static_cast<std::uint64_t>(color) + 1) | 1;
  Ticket mine{color, key, kPrivate};
  std::string refusal;
  try {
    if (color >= 0) mine.control = family_->new_control(id);
  } catch (const Error& error) {  // said by all when all know
    refusal = error.what();
  }
  std::vector<Ticket> tickets(static_cast<std::size_t>(group_.size()));
  Collective gather;
  gather.kind = Kind::AllGather;
  gather.count = sizeof(Ticket);
  gather.source = &mine;
  gather.destination = tickets.data();
  gather.site = "split()";
  try {
    wait_inside(submit_inside(gather), {split_timeout_});
  } catch (const Error&) {
    leave_unborn(mine.control);
    throw;
  }
  if (color < 0) return nullptr;

  std::vector<int> ranks;  // of this group
  for (int r = 0; r < group_.size(); ++r)
    if (tickets[static_cast<std::size_t>(r)].color == color) ranks.push_back(r);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return tickets[static_cast<std::size_t>(a)].key < tickets[static_cast<std::size_t>(b)].key;
  });
  std::vector<Group::Member> members;
  int my_rank = 0;
  for (const int r : ranks) {
    const std::uint64_t control = tickets[static_cast<std::size_t>(r)].control;
    const int world = group_.world(r);
    if (control == kPrivate) {
      if (mine.control != kPrivate) family_->heap().release(mine.control);
      fail(ErrorKind::OutOfMemory, "split(): rank ", world, " has no memory for a group",
           r == group_.rank() ? ": " + refusal : "");
    }
    if (r == group_.rank()) my_rank = static_cast<int>(members.size());
    const Segment segment = family_->segment(world);
    members.push_back({Segment(segment.base(), segment.bytes(), control), world});
  }
  return std::make_unique<ShmCommunicator>(family_, std::move(members), my_rank, id);
}

}  // namespace ngd::comm::shm
