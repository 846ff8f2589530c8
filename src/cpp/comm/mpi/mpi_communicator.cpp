// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_communicator.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <thread>
#include <tuple>

#include "base/config.hpp"
#include "comm/messages.hpp"
#include "comm/mpi/backoff.hpp"
#include "comm/mpi/small.hpp"

namespace ngd::comm {
namespace mpi {
namespace {

constexpr double kLastWordsSeconds = 0.2;  // that a peer's take to come
constexpr int kLooksBeforeData = 4;
constexpr std::size_t kAlignment = 64;
constexpr double kForEver = std::numeric_limits<double>::infinity();

std::uint64_t nanoseconds(std::chrono::steady_clock::duration time) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(time).count());
}

// A layout as it travels, and what it says there.
std::string bytes_of(const Layout& layout) {
  std::string bytes(1, static_cast<char>(layout.of));
  if (layout.known > 0)
    bytes.append(reinterpret_cast<const char*>(layout.numbers),
                 layout.known * sizeof *layout.numbers);
  return bytes;
}

// The details of a rank's collective, from its header and the payload of its Details, if that has
// come: the text of a program, or a layout.
class ShownDetails {
 public:
  ShownDetails(const Header& header, std::optional<std::string> payload)
      : header_(header), payload_(std::move(payload)) {
    if (!payload_ || header.has_program_text || payload_->empty()) return;
    layout_.of = static_cast<Layout::Of>(payload_->front());
    numbers_.resize((payload_->size() - 1) / sizeof numbers_.front());
    if (!numbers_.empty())
      std::memcpy(numbers_.data(), payload_->data() + 1, numbers_.size() * sizeof numbers_.front());
    layout_.entries = layout_.known = numbers_.size();
    layout_.numbers = numbers_.data();
  }
  CallDetails of(int world_rank) const {
    CallDetails details{world_rank, header_.call, {}, {}};
    if (payload_) details.layout = layout_;
    if (payload_ && header_.has_program_text) details.program_text = *payload_;
    return details;
  }

 private:
  const Header& header_;
  std::optional<std::string> payload_;
  std::vector<std::uint64_t> numbers_;
  Layout layout_;
};

MpiCommunicator& over_mpi(Communicator& world) {
  auto* found = dynamic_cast<MpiCommunicator*>(&world);
  check(found != nullptr, "a group of members of ", world.name(), ", which is not over MPI");
  return *found;
}

RankSet everybody(const Endpoint& endpoint) {
  RankSet channel{endpoint.comm, std::vector<int>(static_cast<std::size_t>(endpoint.size)),
                  endpoint.rank, 0};
  std::iota(channel.members.begin(), channel.members.end(), 0);
  return channel;
}

}  // namespace

MpiCommunicator::MpiCommunicator(std::shared_ptr<Family> family)
    : MpiCommunicator(family, everybody(family->endpoint())) {}

MpiCommunicator::MpiCommunicator(std::shared_ptr<Family> family, RankSet channel)
    : family_(std::move(family)),
      channel_(std::move(channel)),
      preferred_(preferred_algorithm()),
      mailbox_(channel_),
      statistics_(channel_.size()),
      pairs_(channel_, statistics_) {
  const std::lock_guard lock(family_->mutex());
  family_->add(*this);
}

void MpiCommunicator::use(std::unique_ptr<HostLayer> shortcut) {
  const std::lock_guard lock(family_->mutex());
  shortcut_ = std::move(shortcut);
}

std::string_view MpiCommunicator::name() const noexcept {
  return shortcut_ ? shortcut_->name() : "mpi";
}

int MpiCommunicator::local_rank() const noexcept {
  return shortcut_ ? shortcut_->local().rank() : family_->endpoint().local_rank;
}

int MpiCommunicator::local_size() const noexcept {
  return shortcut_ ? shortcut_->local().size() : family_->endpoint().local_size;
}

// ---- whether it is usable

void MpiCommunicator::refuse_child(const char* call) const {
  if (in_child()) fail(ErrorKind::GroupClosed, call, ": ", kForkedChild);
}

// A failure that was found meanwhile is thrown as what it is, once.
void MpiCommunicator::require_open(const char* call) {
  if (state_ != State::Closed && family_->failed()) family_->throw_failure(call);
  if (state_ == State::Closed) fail(ErrorKind::GroupClosed, closed_in_order(call));
}

// ---- starting

Algorithm MpiCommunicator::resolve(const Collective& collective) const {
  if (collective.kind != Kind::AllReduce) return Algorithm::Auto;
  const Algorithm chosen =
      collective.algorithm == Algorithm::Auto ? preferred_ : collective.algorithm;
  return chosen == Algorithm::Auto ? Algorithm::Flat : chosen;
}

MpiCommunicator::Pending MpiCommunicator::prepare(const Collective& collective) {
  Pending pending;
  pending.stats = statistics_.entry_of(collective);
  pending.start = Clock::now();
  pending.collective = collective;
  pending.collective.algorithm = resolve(collective);
  pending.header = header_of(pending.collective, size(), submitted_ + 1);
  if (pending.header.has_program_text)
    pending.details = collective.program->text;
  else if (collective.layout != nullptr)
    pending.details = bytes_of(*collective.layout);
  Collective& kept = pending.collective;
  kept.program = nullptr;
  kept.layout = nullptr;
  kept.site = "";
  if (kept.kind == Kind::Barrier) kept.count = 0;
  if (kept.counts != nullptr) {
    pending.counts.assign(kept.counts, kept.counts + size());
    kept.counts = pending.counts.data();
  }
  if (kept.receive_counts != nullptr) {
    pending.receive_counts.assign(kept.receive_counts, kept.receive_counts + size());
    kept.receive_counts = pending.receive_counts.data();
  }
  const void* payload = nullptr;
  std::size_t bytes = 0;
  if (travels_with_header(kept, size())) {
    payload = kept.source;
    bytes = source_elements(kept, rank(), size()) * size_of(kept.dtype);
  } else if (kept.kind == Kind::AllToAll && kept.counts != nullptr) {
    payload = kept.counts;  // for the receivers to compare
    bytes = pending.counts.size() * sizeof(std::uint64_t);
  }
  const auto* data = static_cast<const std::byte*>(payload);
  if (bytes != 0) pending.payload.assign(data, data + bytes);
  return pending;
}

Work MpiCommunicator::submit(const Collective& collective) {
  refuse_child(name_of(collective.kind).data());
  const Entry entry(*this);
  const std::lock_guard lock(family_->mutex());
  if (state_ != State::Open || family_->failed()) require_open(describe(collective).c_str());
  validate(collective, rank(), size());
  try {
    if (between_two(collective.kind)) {
      const Work work{pairs_.submit(mailbox_, collective)};
      family_->submitted();
      return work;
    }
    works_.push_back(prepare(collective));
    const Pending& pending = works_.back();
    mailbox_.post(pending.header, pending.payload.data(), pending.payload.size());
  } catch (const Error& error) {
    close_failed(error.kind(), concat(describe(collective), ": ", error.what()), error.ranks());
    require_open(describe(collective).c_str());
  } catch (const std::exception&) {
    close_failed(failure_in_flight());
    family_->mark_thrown();
    throw;
  }
  // What travels with its header is under way, and is found by whoever waits for it.
  if (!travels_with_header(collective, size())) family_->submitted();
  return {++submitted_};
}

// ---- waiting

bool MpiCommunicator::is_complete(Work work) const {
  if (work.sequence >= Pairs::kFirst) {
    check(work.sequence <= pairs_.last(), "a send or a receive that was never submitted");
    return state_ == State::Open && pairs_.complete(work.sequence);  // closing forgets them
  }
  check(work.sequence <= submitted_, "collective ", work.sequence, " of ", submitted_);
  if (work.sequence <= completed_) return true;
  const std::size_t place = work.sequence - completed_ - 1;
  return place < works_.size() && works_[place].complete;
}

std::optional<Statistics::Entry> MpiCommunicator::stats_of(Work work) const {
  if (work.sequence >= Pairs::kFirst) return pairs_.stats_of(work.sequence);
  return works_[work.sequence - completed_ - 1].stats;
}

std::vector<CallStats> MpiCommunicator::stats() const {
  if (in_child()) return {};  // the lock may never be released here
  const std::lock_guard lock(family_->mutex());
  return statistics_.report();
}

void MpiCommunicator::wait(Work work, double timeout_seconds) {
  await(work, {timeout_seconds, kForEver}, "wait");
}

bool MpiCommunicator::wait_for(Work work, double seconds) {
  return await(work, {0, seconds}, "wait_for");
}

bool MpiCommunicator::await(Work work, Limits limits, const char* call) {
  refuse_child(call);
  const Entry entry(*this);
  const Family::Waiting waiting(*family_);
  Awaited awaited(*this);
  const std::chrono::duration<double> limit(limits.timeout_seconds);
  const auto start = Clock::now();
  Backoff backoff(local_size());
  std::uint64_t seen = 0;
  std::optional<Statistics::Entry> counted;
  auto last_move = start;
  auto next_look = start + std::chrono::milliseconds(100);
  while (true) {
    auto now = start;
    {
      const std::lock_guard lock(family_->mutex());
      if (state_ == State::Open) family_->progress();
      if (is_complete(work)) {
        if (counted) statistics_.add_waited(*counted, nanoseconds(Clock::now() - start));
        return true;
      }
      require_open(call);
      counted = stats_of(work);
      now = Clock::now();
      if (moves() != seen) {  // the deadline is that of a rank, not of a long transfer
        seen = moves();
        last_move = now;
        backoff.reset();
      }
      if (limits.timeout_seconds > 0 && now - last_move > limit)
        fail_timeout(work, limits.timeout_seconds);
      if (now >= next_look && watched()) fail_with_others(work);
      if (now >= next_look) awaited.note(work);
    }
    if (std::chrono::duration<double>(now - start).count() >= limits.patience) return false;
    backoff.pause();
    if (now < next_look) continue;
    next_look = now + std::chrono::milliseconds(100);
    if (interrupted()) fail_interrupted(work);
  }
}

// ---- moving

// Whatever goes wrong while works progress closes the communicator.
bool MpiCommunicator::progress() noexcept {
  if (state_ != State::Open) return false;
  try {
    mailbox_.progress();
    advance_works();
    pairs_.progress(mailbox_, [this](int peer, const CallRecord& mine, bool matched, auto start) {
      check_pair(peer, mine, matched, start);
    });
  } catch (const Unreachable& lost) {
    close_unreachable(lost);
  } catch (const std::exception&) {
    close_failed(failure_in_flight());
  }
  return !works_.empty() || !pairs_.idle();
}

void MpiCommunicator::close_unreachable(const Unreachable& lost) noexcept {
  std::string message;
  try {
    if (!works_.empty()) message = concat(describe(works_.front().header.call), ": ", lost.what());
  } catch (const std::bad_alloc&) {  // the message does without the collective
  }
  close_failed(lost.kind(), message.empty() ? lost.what() : message, lost.ranks());
}

void MpiCommunicator::advance_works() {
  for (std::size_t i = 0; i < works_.size() && i < kActive; ++i) {
    Pending& work = works_[i];
    if (work.complete) continue;
    if (work.received.empty() && !collect_headers(work)) break;
    work.complete = advance(work, static_cast<int>((completed_ + i) % kActive));
    if (!work.complete) continue;
    ++moves_;
    count(work);
  }
  while (!works_.empty() && works_.front().complete) {
    works_.pop_front();
    ++completed_;
  }
}

void MpiCommunicator::count(const Pending& work) {
  statistics_.add(work.stats, larger_side_bytes(work.collective, rank(), size()),
                  nanoseconds(Clock::now() - work.start), work.last < 0 ? rank() : work.last);
}

bool MpiCommunicator::advance(Pending& work, int slot) {
  if (!work.transfer) {
    if (travels_with_header(work.collective, size())) {
      std::vector<const std::byte*> contributions(static_cast<std::size_t>(size()));
      for (std::size_t r = 0; r < contributions.size(); ++r)
        contributions[r] = work.received[r].payload.data();
      contributions[static_cast<std::size_t>(rank())] = work.payload.data();
      finish_small(work.collective, rank(), size(), contributions);
      return true;
    }
    begin(work, slot);
  }
  const std::uint64_t steps_before = work.transfer->steps();
  bool finished = false;
  try {
    finished = work.transfer->advance();
  } catch (const Unreachable&) {
    throw;
  } catch (const Error&) {
    prefer_last_words(work);
    throw;
  }
  moves_ += work.transfer->steps() - steps_before;
  if (!finished) check_needed(work, true);
  return finished;
}

void MpiCommunicator::begin(Pending& work, int slot) {
  // MPI takes no data back from the way to a rank that has given up. That it has comes behind its
  // header, and MPI looks at what has come before it moves on: so it is asked again.
  for (int look = 0; look < kLooksBeforeData; ++look) mailbox_.progress();
  check_needed(work, true);
  const int tag = channel_.first_tag + kFirstDataTag + slot * kTagsPerCollective;
  if (shortcut_) work.transfer = shortcut_->make_transfer(tag, work.collective);
  if (!work.transfer) work.transfer = make_transfer(channel_, tag, work.collective);
}

// Shared memory has failed. A rank that gave up has also said why, in a message that comes later.
void MpiCommunicator::prefer_last_words(const Pending& work) {
  const auto limit = Clock::now() + std::chrono::duration<double>(kLastWordsSeconds);
  while (Clock::now() < limit) {
    mailbox_.progress();
    check_needed(work, true);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// True when every rank's header is here and equal to mine. A difference is thrown as soon as it is
// seen, before any rank's failure: it is more often the cause than the consequence.
bool MpiCommunicator::collect_headers(Pending& work) {
  bool complete = true;
  int missing = -1;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    if (mailbox_.from(peer).empty()) {
      complete = false;
      missing = peer;
    } else if (const Header& theirs = mailbox_.from(peer).front().header;
               !agree(work.header.call, theirs.call, *computations())) {
      fail_of(worlds_of({rank(), peer}), ErrorKind::CollectiveMismatch,
              describe_mismatch(work, peer, theirs));
    }
  }
  if (!complete) {
    work.last = missing;
    check_needed(work, false);
    return false;
  }
  work.received.resize(static_cast<std::size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    work.received[static_cast<std::size_t>(peer)] = mailbox_.take(peer);
    check_counts(work, peer);
  }
  return true;
}

// In an uneven all_to_all every pair of ranks has a number of its own.
void MpiCommunicator::check_counts(const Pending& work, int peer) const {
  if (work.receive_counts.empty()) return;
  const Message& message = work.received[static_cast<std::size_t>(peer)];
  std::vector<std::uint64_t> theirs(message.payload.size() / sizeof(std::uint64_t));
  check(theirs.size() == work.counts.size(), "an all_to_all with ", theirs.size(), " numbers");
  std::memcpy(theirs.data(), message.payload.data(), message.payload.size());
  const std::uint64_t sent = theirs[static_cast<std::size_t>(rank())];
  const std::uint64_t expected = work.receive_counts[static_cast<std::size_t>(peer)];
  if (sent != expected)
    fail_of(worlds_of({peer, rank()}), ErrorKind::CollectiveMismatch,
            mismatch_of_counts("", {channel_.world(peer), describe(message.header.call)}, sent,
                               {channel_.world(rank()), describe(work.header.call)}, expected));
}

// ---- failing

std::vector<int> MpiCommunicator::worlds_of(std::vector<int> peers) const {
  for (int& peer : peers) peer = channel_.world(peer);
  return peers;
}

std::string MpiCommunicator::describe_mismatch(const Pending& mine, int peer,
                                               const Header& theirs) {
  const Identity &my_identity = mine.header.call.identity, &their_identity = theirs.call.identity;
  const bool has_programs = mine.header.has_program_text && theirs.has_program_text;
  std::optional<std::string> details;
  if (has_programs || my_identity.layout_hash != their_identity.layout_hash)
    details = exchange_details(mine, peer);
  const ShownDetails my_details(mine.header, mine.details), their_details(theirs, details);
  return difference("", size(), my_details.of(channel_.world(rank())),
                    their_details.of(channel_.world(peer)));
}

// Ranks whose details differ all come here, and each shows its own to all; none where the peer's do
// not arrive in time.
std::optional<std::string> MpiCommunicator::exchange_details(const Pending& mine, int peer) {
  Header header = mine.header;
  header.topic = Topic::Details;
  const std::string_view shown = head_of(mine.details, kMaxPayloadBytes);
  mailbox_.post(header, shown.data(), shown.size());
  const auto limit = Clock::now() + std::chrono::duration<double>(kFarewellSeconds);
  while (!mailbox_.details(peer)) {
    if (Clock::now() > limit) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    mailbox_.progress();
  }
  return mailbox_.details(peer);
}

std::string MpiCommunicator::describe_awaited(Work work) const {
  if (work.sequence >= Pairs::kFirst) return pairs_.describe(work.sequence);
  return describe(works_.front().header.call);
}

// The calls in which missing ranks of the world wait, as far as their messages show them.
std::vector<std::string> MpiCommunicator::calls_of(const std::vector<int>& missing) {
  std::vector<std::string> facts;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || std::count(missing.begin(), missing.end(), channel_.world(peer)) == 0)
      continue;
    if (!mailbox_.from(peer).empty())
      facts.push_back(concat(world_name(peer), " called ",
                             describe(mailbox_.from(peer).front().header.call), "."));
    else if (!mailbox_.sent_by(peer).empty())
      facts.push_back(concat(world_name(peer), " called ",
                             describe(mailbox_.sent_by(peer).front().header.call), "."));
  }
  return facts;
}

void MpiCommunicator::fail_interrupted(Work work) {
  const std::lock_guard lock(family_->mutex());
  require_open("wait");
  // Python's exception is set. Complete: the result is lost, and the group is whole.
  if (is_complete(work)) throw Error(ErrorKind::Interrupted, "interrupted");
  const std::string what = concat("interrupted in ", describe_awaited(work));
  close_failed(ErrorKind::Interrupted, what);
  family_->mark_thrown();
  throw Error(ErrorKind::Interrupted, what);
}

void MpiCommunicator::close_failed(ErrorKind kind, std::string_view message,
                                   std::span<const int> ranks) noexcept {
  family_->fail(kind, message, ranks);
}

void MpiCommunicator::send_failure(const Failure& failure) noexcept {
  if (state_ != State::Open) return;
  state_ = State::Failed;
  mark_failed();
  marked_failed_ = true;
  try {
    Header header;
    header.topic = Topic::Failed;
    header.error = failure.kind;
    header.sequence = completed_ + 1;
    const std::string packed = failure.words.packed(header);
    mailbox_.post(header, packed.data(), packed.size());
  } catch (const std::exception&) {
    // A peer that cannot be told will see its own deadline.
  }
  if (shortcut_) shortcut_->fail(failure);
}

bool MpiCommunicator::has_sent_failure() {
  if (state_ != State::Failed) return true;
  mailbox_.progress();
  if (!mailbox_.everything_sent()) return false;
  if (!moves_data()) return true;
  // MPI calls a short message sent while it still waits for long ones. A peer that got it answers.
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && !mailbox_.ended(peer)) return false;
  return true;
}

bool MpiCommunicator::moves_data() const noexcept {
  return !pairs_.idle() || std::any_of(works_.begin(), works_.end(), [](const Pending& work) {
    return work.transfer != nullptr;
  });
}

void MpiCommunicator::drop_works() noexcept {
  works_.clear();
  pairs_.abandon();
}

void MpiCommunicator::abort(std::string_view traceback) noexcept {
  give_up(ErrorKind::RemoteRank, without_end(traceback), {});
}

void MpiCommunicator::give_up(ErrorKind kind, std::string_view why,
                              std::span<const int> ranks) noexcept {
  if (in_child()) return;
  const std::lock_guard lock(family_->mutex());
  if (state_ == State::Closed) return;
  family_->fail(is_between_ranks(kind) ? kind : ErrorKind::RemoteRank, why, ranks);
  family_->mark_thrown();
}

void MpiCommunicator::close() noexcept {
  if (in_child()) return;
  const std::lock_guard lock(family_->mutex());
  if (state_ == State::Closed) return;
  const bool failed = state_ == State::Failed;
  state_ = State::Closed;
  family_->remove(*this);
  if (library().finalized()) return;
  try {
    Header header;
    header.topic = Topic::Left;
    header.sequence = completed_ + 1;
    mailbox_.post(header, nullptr, 0);
  } catch (const std::exception&) {
    if (!marked_failed_) mark_failed();
    marked_failed_ = true;
  }
  // After a failure this process ends in MPI_Abort, unless all ranks are found to leave in order.
  wait_for_peers_to_leave(failed ? family_->farewell_seconds() : kQuickFarewellSeconds);
  drop_works();
  if (shortcut_) shortcut_->local().close();
  if (!mailbox_.close()) {
    family_->abandon();
  } else if (marked_failed_) {
    unmark_failed();
  }
}

void MpiCommunicator::wait_for_peers_to_leave(double seconds) noexcept {
  const auto limit = Clock::now() + std::chrono::duration<double>(seconds);
  try {
    while (Clock::now() < limit) {
      mailbox_.progress();
      bool finished = mailbox_.everything_sent();
      for (int peer = 0; peer < size(); ++peer)
        finished = finished && (peer == rank() || mailbox_.has_left(peer));
      if (finished) return;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  } catch (const std::exception&) {
    // What could not be sent stays unsent; close() abandons it to MPI.
  }
}

// ---- groups

// Each rank tells the others its color, its key, and the first number that no group of its own has:
// the largest of these numbers the new groups. Those of one split share no rank, so they may share
// it.
std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  constexpr std::size_t kNumbers = 3;
  const double timeout = config::timeout_seconds();
  const std::int64_t mine[kNumbers] = {color, key, next_group()};
  std::vector<std::int64_t> choices(kNumbers * static_cast<std::size_t>(size()));
  Collective gather;
  gather.kind = Kind::AllGather;
  gather.dtype = DType::I64;
  gather.count = kNumbers;
  gather.source = mine;
  gather.destination = choices.data();
  gather.site = "split()";
  const Work gathered = submit(gather);
  finish(gathered, timeout);
  const int group = take_group_number(choices, kNumbers);
  std::unique_ptr<Communicator> local;
  if (shortcut_) local = split_host(color, key, gathered);
  if (color < 0) return nullptr;
  RankSet channel = child_channel(color, choices);
  channel.first_tag = first_tag(group);
  std::unique_ptr<HostLayer> shortcut;
  if (local) shortcut = shortcut_->for_split(channel, std::move(local));
  if (shortcut && shortcut->local().size() == channel.size()) return shortcut->take_local(family_);
  auto child = std::make_unique<MpiCommunicator>(family_, channel);
  child->use(std::move(shortcut));
  return child;
}

int MpiCommunicator::next_group() const {
  refuse_child("split");
  const std::lock_guard lock(family_->mutex());
  return family_->next_group;
}

int MpiCommunicator::take_group_number(const std::vector<std::int64_t>& choices,
                                       std::size_t numbers) {
  const std::lock_guard lock(family_->mutex());
  for (std::size_t r = 0; r < choices.size(); r += numbers)
    family_->next_group = std::max(family_->next_group, static_cast<int>(choices[r + 2]));
  return family_->next_group++;
}

int MpiCommunicator::first_tag(int group) const {
  if (group >= family_->tag_limit() / kTagsPerGroup)
    fail(ErrorKind::Init, "split: expected at most ", family_->tag_limit() / kTagsPerGroup,
         " groups in the life of a world; this MPI has no message tags for more. Make groups once, "
         "outside of loops");
  return group * kTagsPerGroup;
}

// As in split, the number is the largest that a member proposed, so no member has a group of that
// number; another group of other ranks may. Messages that come before their receiver has made the
// group wait inside MPI.
std::unique_ptr<Communicator> MpiCommunicator::group_of(const std::vector<int>& members, int number,
                                                        const std::string& key,
                                                        double timeout_seconds,
                                                        const std::function<bool()>& interrupt) {
  refuse_child("split");
  {
    const std::lock_guard lock(family_->mutex());
    require_open("split");
    check(number >= family_->next_group, "a group's number ", number, ", which this rank has used");
    family_->next_group = number + 1;
  }
  RankSet channel{channel_.comm, {}, -1, first_tag(number)};
  for (const int member : members) {
    if (member == rank()) channel.rank = channel.size();
    channel.members.push_back(channel_.world(member));
  }
  check(channel.rank >= 0, "a new group without the rank that makes it");
  const HostLayer::Rendezvous rendezvous{key, timeout_seconds, interrupt};
  if (shortcut_ && shortcut_->is_local(channel))
    return shortcut_->for_members(channel, rendezvous)->take_local(family_);
  auto group = std::make_unique<MpiCommunicator>(family_, channel);
  group->set_interrupt(interrupt);
  or_abort(*group, [&] {
    if (shortcut_) group->use(shortcut_->for_members(channel, rendezvous));
  });
  Collective barrier;
  barrier.site = "new_group()";
  group->wait(group->submit(barrier), timeout_seconds);
  return group;
}

// What is in flight submits to the ranks of my host whenever it has come so far; the split must
// come at one place in that sequence. So all of it, up to `last`, ends first, and on every rank.
std::unique_ptr<Communicator> MpiCommunicator::split_host(int color, int key, Work last) {
  const double timeout = config::timeout_seconds();
  std::uint64_t oldest = 0;
  {
    const std::lock_guard lock(family_->mutex());
    oldest = completed_ + 1;
  }
  for (Work each{oldest}; each.sequence < last.sequence; ++each.sequence) finish(each, timeout);
  Collective barrier;
  barrier.site = "split()";
  finish(in_turn(timeout, [&] { return submit(barrier); }), timeout);
  // Shared memory may be in use by another thread, which must not shift the ranks' sequence.
  return in_turn(timeout, [&] {
    const std::lock_guard lock(family_->mutex());  // against the progress thread
    require_open("split");
    return notify_on_failure([&] { return shortcut_->split_local(color, key); },
                             [&](const FailureView& failure) {
                               if (failure.kind == ErrorKind::Busy || !shortcut_->local().is_over())
                                 return;
                               close_failed(failure);
                               family_->mark_thrown();
                             });
  });
}

RankSet MpiCommunicator::child_channel(int color, const std::vector<std::int64_t>& choices) const {
  std::vector<std::tuple<std::int64_t, int>> order;  // key, rank here
  for (int r = 0; r < size(); ++r) {
    const std::size_t at = static_cast<std::size_t>(r) * 3;
    if (choices[at] == color) order.emplace_back(choices[at + 1], r);
  }
  std::sort(order.begin(), order.end());
  RankSet channel{channel_.comm, {}, 0, 0};
  for (const auto& [key, r] : order) {
    if (r == rank()) channel.rank = channel.size();
    channel.members.push_back(channel_.world(r));
  }
  return channel;
}

// ---- memory

SharedBlock MpiCommunicator::allocate(std::size_t bytes) {
  refuse_child("memory of a group");
  if (shortcut_) {
    const std::lock_guard lock(family_->mutex());
    return shortcut_->local().allocate(bytes);
  }
  void* data = ::operator new(bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (data == nullptr) fail(ErrorKind::OutOfMemory, "no memory for ", bytes, " bytes");
  return {data, bytes};
}

// What MPI may still use is not given back.
void MpiCommunicator::release(SharedBlock block) noexcept {
  if (left_to_mpi()) return;
  if (shortcut_) {
    if (in_child()) return;
    const std::lock_guard lock(family_->mutex());
    shortcut_->local().release(block);
    return;
  }
  ::operator delete(block.data, std::align_val_t{kAlignment});
}

// The others have the endpoint, and there is nothing yet to tell them by: MPI_Abort does at exit.
std::unique_ptr<MpiCommunicator> open_world(int fortran_handle, double timeout_seconds) {
  const Endpoint endpoint = open_endpoint(fortran_handle, timeout_seconds);
  try {
    return std::make_unique<MpiCommunicator>(std::make_shared<Family>(endpoint));
  } catch (const Error&) {  // of what is wrong on all ranks alike
    throw;
  } catch (const std::exception&) {
    mark_failed();
    throw;
  }
}

}  // namespace mpi

std::unique_ptr<Communicator> make_mpi_communicator(int fortran_handle, double timeout_seconds) {
  return mpi::open_world(fortran_handle, timeout_seconds);
}

std::unique_ptr<Communicator> make_group_of(Communicator& world, const std::vector<int>& members,
                                            int number, const std::string& key,
                                            double timeout_seconds,
                                            const std::function<bool()>& interrupt) {
  return mpi::over_mpi(world).group_of(members, number, key, timeout_seconds, interrupt);
}

int next_group_number(Communicator& world) { return mpi::over_mpi(world).next_group(); }

}  // namespace ngd::comm
