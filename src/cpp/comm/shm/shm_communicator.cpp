// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/shm_communicator.hpp"

#include <algorithm>
#include <cstdio>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/step.hpp"
#include "comm/messages.hpp"
#include "comm/shm/guarded.hpp"

namespace ngd::comm::shm {

namespace {

// awaited_by() ignores a rank that note_awaited() has written longer ago than this.
constexpr std::uint64_t kOldNs = 1'000'000'000;

// Return the membership of this rank. All ranks of a group are on this host, so the local rank and
// size are the rank and size.
Membership membership_of(const std::vector<Group::Rank>& ranks, int rank) {
  const auto size = static_cast<int>(ranks.size());
  return {"shm", rank, size, rank, size};
}

}  // namespace

ShmCommunicator::ShmCommunicator(std::shared_ptr<Family> family, std::vector<Group::Rank> ranks,
                                 int rank, std::uint64_t id)
    : Communicator(membership_of(ranks, rank)),
      family_(std::move(family)),
      group_(std::move(ranks), rank, id, family_->moves(), family_->checked(), *computations()),
      statistics_(group_.size()),
      letters_(*family_, group_, statistics_),
      texts_(family_->heap(), group_, *computations()),
      queue_(group_, texts_, family_->checked()),
      scheduler_(group_, queue_, statistics_),
      works_(group_, queue_, letters_),
      waiter_(*this, *family_, group_, works_, statistics_, [this] { return is_interrupted(); }),
      split_timeout_(config::timeout_seconds()) {
  family_->join(*this);
}

ShmCommunicator::~ShmCommunicator() { close(); }

// Throw GroupClosed in a forked child. Every call checks this first: the lock that all groups of
// this rank share may stay locked forever in the child, because the thread that would release it
// exists only in the parent.
void ShmCommunicator::check_not_child() const {
  if (family_->in_child()) [[unlikely]]
    fail(ErrorKind::GroupClosed, kForkedChild);
}

// ---- works

std::optional<Work> ShmCommunicator::try_submit(const Collective& collective) {
  check_not_child();
  const Inside inside(family_->monitor());
  if (!inside) [[unlikely]]
    return std::nullopt;
  check_usable([&] { return describe_call(collective); });
  validate(collective, group_.rank(), group_.size());
  return submit_inside(collective);
}

// Describe a call that is refused, for the error message. The peer of a send or a receive is given
// by its number in the job, which may differ from its rank in this group.
std::string ShmCommunicator::describe_call(Collective collective) const {
  const bool has_peer = between_two(collective.kind) && collective.root >= 0;
  if (has_peer && collective.root < group_.size())
    collective.root = group_.job_rank(collective.root);
  return describe(collective);
}

Work ShmCommunicator::submit_inside(const Collective& collective) {
  return guarded(*family_, [&] {
    if (between_two(collective.kind)) return letters_.submit(collective);
    if (queue_.may_lack_slot()) [[unlikely]]
      progress();
    return Work{queue_.submit(collective, statistics_.entry_of(collective))};
  });
}

void ShmCommunicator::progress() {
  letters_.progress();
  scheduler_.advance_all();
  while (queue_.has_backlog()) [[unlikely]] {
    const int started = queue_.start_from_backlog();
    if (started == 0) return;
    family_->moves() += static_cast<std::uint64_t>(started);
    scheduler_.advance_all();
  }
}

bool ShmCommunicator::wait_inside(Work work, const WaitLimits& limits) {
  return guarded(*family_, [&] { return waiter_.wait(work, limits); });
}

Progress ShmCommunicator::try_wait(Work work, const WaitLimits& limits) {
  check_not_child();
  const Inside inside(family_->monitor());
  if (!inside) [[unlikely]]
    return Progress::Busy;
  check_usable([&] { return works_.describe(work); });
  const bool is_done = limits.patience_seconds <= 0
                           ? guarded(*family_, [&] { return waiter_.poll(work); })
                           : wait_inside(work, limits);
  return is_done ? Progress::Done : Progress::NotYet;
}

std::optional<std::unique_ptr<Communicator>> ShmCommunicator::try_split(int color, int key) {
  check_not_child();
  const Inside inside(family_->monitor());
  if (!inside) return std::nullopt;
  check_usable([] { return std::string("split"); });
  return split_inside(color, key);
}

std::vector<int> ShmCommunicator::missing(Work work) const {
  if (family_->in_child()) return {};
  const Locked locked(family_->monitor(), family_->record());
  if (group_.is_closed() || family_->failed() || works_.is_complete(work)) return {};
  works_.check_known(work);
  return group_.missing(works_.need_of(work));
}

void ShmCommunicator::note_awaited(int awaited) noexcept {
  if (family_->in_child()) return;
  RankRecord& mine = family_->record();
  mine.awaited.store(awaited, std::memory_order_relaxed);
  mine.awaited_ns.store(awaited < 0 ? 0 : now_ns(), std::memory_order_release);
}

int ShmCommunicator::awaited_by(int rank) const noexcept {
  const RankRecord& theirs = group_.record(rank);
  const std::uint64_t noted_ns = theirs.awaited_ns.load(std::memory_order_acquire);
  const bool is_new = noted_ns != 0 && now_ns() - std::min(noted_ns, now_ns()) < kOldNs;
  return is_new ? theirs.awaited.load(std::memory_order_relaxed) : -1;
}

std::vector<CallStats> ShmCommunicator::stats() const {
  if (family_->in_child()) return {};
  const Locked locked(family_->monitor(), family_->record());
  return statistics_.report();
}

// ---- failing and leaving

void ShmCommunicator::check_peers() const {
  for (int r = 0; r < group_.size(); ++r) family_->check_rank(group_.world(r));
}

void ShmCommunicator::give_up(ErrorKind kind, std::string_view why,
                              std::span<const int> ranks) noexcept {
  if (family_->in_child()) return;
  const Locked locked(family_->monitor(), family_->record());
  if (group_.is_closed()) return;
  // A RemoteRank failure with `ranks` is the failure of another rank. Its text names that rank
  // already, so the text is passed on unchanged. If this rank has failed by itself,
  // report_failure() writes "rank N failed: ", with the number of this rank, before the text.
  const bool is_remote = kind == ErrorKind::RemoteRank && !ranks.empty();
  if (is_between_ranks(kind) || is_remote)
    family_->fail_with(kind, why, ranks);
  else
    report_failure(why);
}

void ShmCommunicator::report_failure(std::string_view why) noexcept {
  char text[kErrorBytes];
  const std::string_view excerpt = tail_of(without_end(why), sizeof text - 64);
  const int length =
      std::snprintf(text, sizeof text, "rank %d failed: %.*s", family_->job_rank(family_->rank()),
                    static_cast<int>(excerpt.size()), excerpt.data());
  family_->fail_with(ErrorKind::RemoteRank, {text, static_cast<std::size_t>(length)});
}

void ShmCommunicator::close() noexcept {
  if (family_->in_child()) return;
  const Locked locked(family_->monitor(), family_->record());
  if (group_.is_closed()) return;
  group_.close();
  if (group_.id() == 0) family_->close();
  family_->leave(*this);
  protocol_step();
  group_.control(group_.rank()).left.store(1);
  protocol_step();
  group_.wake_all();
  if (group_.id() == 0) return;
  for (int r = 0; r < group_.size(); ++r) {
    group_.control(r).departed.fetch_add(1);
    protocol_step();
  }
  retired_.front() = {&group_.control(group_.rank()).departed, group_.mine().control_offset(),
                      group_.size(), letters_.take_blocks(), texts_.take_blocks()};
  family_->retire(std::move(retired_));
}

bool ShmCommunicator::is_over() const noexcept {
  if (family_->in_child()) return true;
  const Locked locked(family_->monitor(), family_->record());
  return group_.is_closed() || family_->closed() || family_->failed();
}

// ---- memory

SharedBlock ShmCommunicator::allocate(std::size_t bytes) {
  check_not_child();
  const Locked locked(family_->monitor(), family_->record());
  return {group_.mine().at(family_->heap().allocate(bytes)), bytes};
}

void ShmCommunicator::release(SharedBlock block) noexcept {
  if (block.data == nullptr || family_->in_child()) return;
  const Locked locked(family_->monitor(), family_->record());
  family_->heap().release(
      static_cast<std::uint64_t>(static_cast<std::byte*>(block.data) - group_.mine().base()));
}

std::uint64_t ShmCommunicator::make_common(std::size_t bytes) {
  check_not_child();
  const Locked locked(family_->monitor(), family_->record());
  check_usable([] { return std::string("a collective"); });
  return family_->new_common(bytes);
}

std::shared_ptr<void> ShmCommunicator::open_common(int maker, std::uint64_t number) {
  check_not_child();
  Common& common = *reinterpret_cast<Common*>(group_.segment(maker).at(number));
  // give_back() ends the use of the memory on this rank. On the rank that has allocated the memory,
  // give_back() also passes a list entry to Family::retire(), which releases the memory when no
  // rank uses it any more. The entry is allocated here, because give_back() must not allocate
  // memory.
  const auto retired = std::make_shared<std::list<Family::Retired>>();
  if (maker == group_.rank()) retired->push_back({&common.departed, number, group_.size()});
  const auto give_back = [family = family_, &common, retired](void*) {
    if (family->in_child()) return;
    const Locked locked(family->monitor(), family->record());
    common.departed.fetch_add(1);
    family->retire(std::move(*retired));
  };
  return {&common + 1, give_back};
}

std::unique_ptr<CopyOnWriteMapping> ShmCommunicator::map_common(int maker, std::uint64_t number,
                                                                std::size_t bytes) {
  check_not_child();
  const int fd = family_->memory().descriptor(group_.world(maker));
  if (fd < 0)
    fail(ErrorKind::Unsupported, "expected the descriptor of the shared memory of rank ",
         group_.job_rank(maker),
         ", which this process has had since ngd.init(); got a closed one. Do not close "
         "descriptors that your program has not opened");
  return std::make_unique<CopyOnWriteMapping>(fd, number + sizeof(Common), bytes);
}

std::unique_ptr<ShmCommunicator> make_world(std::unique_ptr<Memory> memory,
                                            std::unique_ptr<Liveness> liveness, Place place) {
  const auto family = std::make_shared<Family>(std::move(memory), std::move(liveness), place);
  std::vector<Group::Rank> ranks;
  for (int r = 0; r < place.size; ++r)
    ranks.push_back({family->segment(r), r, family->job_rank(r)});
  return std::make_unique<ShmCommunicator>(family, std::move(ranks), place.rank, 0);
}

}  // namespace ngd::comm::shm
