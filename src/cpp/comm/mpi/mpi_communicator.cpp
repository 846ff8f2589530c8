// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_communicator.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "comm/messages.hpp"
#include "comm/mpi/backoff.hpp"

namespace ngd::comm {
namespace mpi {
namespace {

constexpr double kFarewellSeconds = 1.0;        // for last words, before MPI_Abort
constexpr double kQuickFarewellSeconds = 0.05;  // where the rest is done in MPI_Finalize
constexpr std::size_t kAlignment = 64;

// Whether a failure is the group's; any other is one rank's own, and RemoteRank to the rest.
bool is_between_ranks(ErrorKind kind) {
  return kind == ErrorKind::CollectiveMismatch || kind == ErrorKind::CollectiveTimeout ||
         kind == ErrorKind::RankLost;
}

std::string describe_program(const Header& header) {
  return header.program_hash == 0 ? "no compiled program"
                                  : concat("the program ", std::hex, header.program_hash);
}

}  // namespace

MpiCommunicator::MpiCommunicator(const Endpoint& endpoint)
    : endpoint_(endpoint),
      owner_(::getpid()),
      preferred_(preferred_algorithm()),
      mailbox_(endpoint.comm, endpoint.rank, endpoint.size) {}

void MpiCommunicator::require_open(const char* call) const {
  if (::getpid() != owner_)
    fail(ErrorKind::GroupClosed, call,
         ": this is a forked child of a rank; only the rank itself takes part in collectives");
  if (state_ == State::Failed)
    fail(ErrorKind::GroupClosed, call, ": an earlier failure closed the group: ", failure_);
  if (state_ == State::Closed) fail(ErrorKind::GroupClosed, call, ": the group was closed");
}

Algorithm MpiCommunicator::resolve(Algorithm asked) const {
  const Algorithm chosen = asked == Algorithm::Auto ? preferred_ : asked;
  return chosen == Algorithm::Auto ? Algorithm::Flat : chosen;
}

bool MpiCommunicator::travels_with_header(const Collective& collective) const {
  return collective.count * size_of(collective.dtype) <= kInlineBytes;
}

std::size_t MpiCommunicator::contribution_bytes(const Collective& collective) const {
  const bool contributes = collective.kind == Kind::AllReduce || collective.root == rank();
  return contributes ? collective.count * size_of(collective.dtype) : 0;
}

Work MpiCommunicator::submit(const Collective& collective) {
  const Entry entry(*this);
  const std::string call(name_of(collective.kind));
  require_open(call.c_str());
  validate(collective, rank(), size());
  if (collective.kind != Kind::AllReduce && collective.kind != Kind::Broadcast &&
      collective.kind != Kind::Barrier)
    fail(ErrorKind::Unsupported, call, ": the MPI communicator does not do it yet");

  Pending pending;
  pending.collective = collective;
  pending.collective.program = nullptr;
  pending.collective.site = "";
  pending.collective.algorithm =
      collective.kind == Kind::AllReduce ? resolve(collective.algorithm) : Algorithm::Auto;
  if (collective.kind == Kind::Barrier) pending.collective.count = 0;
  pending.header = header_of(collective, submitted_ + 1);
  pending.header.algorithm = pending.collective.algorithm;
  pending.header.count = pending.collective.count;
  if (pending.header.has_program_text) pending.program_text = collective.program->text;
  if (travels_with_header(pending.collective) && contribution_bytes(pending.collective) != 0) {
    const auto* data = static_cast<const std::byte*>(collective.source);
    pending.payload.assign(data, data + contribution_bytes(pending.collective));
  }
  try {
    mailbox_.post(pending.header, pending.payload.data(), pending.payload.size());
  } catch (const Error& error) {
    close_failed(error.kind(), concat(describe(pending.header), ": ", error.what()));
    throw Error(error.kind(), failure_);
  }
  works_.push_back(std::move(pending));
  return {++submitted_};
}

void MpiCommunicator::wait(Work work, double timeout_seconds) {
  const Entry entry(*this);
  check(work.sequence <= submitted_, "wait for collective ", work.sequence, " of ", submitted_);
  if (work.sequence <= completed_) return;
  require_open("wait");
  const std::chrono::duration<double> limit(timeout_seconds);
  Backoff backoff(local_size());
  auto last_move = Clock::now();
  auto next_look = last_move + std::chrono::milliseconds(100);
  while (true) {
    const std::uint64_t before = moves_;
    progress();
    if (work.sequence <= completed_) return;
    const auto now = Clock::now();
    if (moves_ != before) {  // the deadline is that of a rank, not of a long transfer
      last_move = now;
      backoff.reset();
    }
    if (timeout_seconds > 0 && now - last_move > limit) fail_timeout(timeout_seconds);
    backoff.pause();
    if (now < next_look) continue;
    next_look = now + std::chrono::milliseconds(100);
    if (!interrupted()) continue;
    const std::string what = concat("interrupted in ", describe(works_.front().header));
    close_failed(ErrorKind::Interrupted, what);
    throw Error(ErrorKind::Interrupted, what);
  }
}

bool MpiCommunicator::done(Work work) {
  const Entry entry(*this);
  check(work.sequence <= submitted_, "collective ", work.sequence, " of ", submitted_);
  if (work.sequence <= completed_) return true;
  require_open("done");
  progress();
  return work.sequence <= completed_;
}

bool MpiCommunicator::wait_for(Work work, double) { return done(work); }

std::unique_ptr<Communicator> MpiCommunicator::split(int, int) {
  fail(ErrorKind::Unsupported, "the MPI communicator has no groups yet");
}

// Whatever goes wrong while works progress closes the communicator.
void MpiCommunicator::progress() {
  try {
    mailbox_.progress();
    while (!works_.empty() && advance_oldest()) {
      works_.pop_front();
      ++completed_;
      ++moves_;
    }
  } catch (const Unreachable& lost) {
    const std::string where = works_.empty() ? "" : " in " + describe(works_.front().header);
    close_failed(lost.kind(), lost.what() + where);
    throw Error(lost.kind(), failure_);
  } catch (const Error& error) {
    close_failed(error.kind(), error.what());
    throw;
  } catch (const std::bad_alloc&) {
    close_failed(ErrorKind::OutOfMemory, "out of memory");
    throw;
  }
}

bool MpiCommunicator::advance_oldest() {
  Pending& oldest = works_.front();
  if (!oldest.transfer) {
    if (!collect_headers(oldest)) return false;
    if (travels_with_header(oldest.collective)) {
      finish_inline(oldest);
      return true;
    }
    begin(oldest);
  }
  const std::uint64_t steps_before = oldest.transfer->steps();
  const bool finished = oldest.transfer->advance();
  moves_ += oldest.transfer->steps() - steps_before;
  if (finished) return true;
  check_not_ended(oldest, true);
  return false;
}

// True when every rank's header is here and equal to mine. A difference is thrown as soon as it is
// seen, before any rank's failure: it is more often the cause than the consequence.
bool MpiCommunicator::collect_headers(Pending& oldest) {
  bool complete = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    if (mailbox_.from(peer).empty()) {
      complete = false;
    } else if (const Header& theirs = mailbox_.from(peer).front().header;
               !agree(oldest.header, theirs)) {
      fail_mismatch(oldest, peer, theirs);
    }
  }
  if (!complete) {
    check_not_ended(oldest, false);
    return false;
  }
  oldest.received.resize(static_cast<std::size_t>(size()));
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) oldest.received[static_cast<std::size_t>(peer)] = mailbox_.take(peer);
  return true;
}

// Throws when a rank that the oldest work still needs has said that it goes no further.
void MpiCommunicator::check_not_ended(const Pending& oldest, bool headers_are_here) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || !mailbox_.ended(peer)) continue;
    const Message& end = *mailbox_.ended(peer);
    const bool needed = headers_are_here ? end.header.sequence <= oldest.header.sequence
                                         : mailbox_.from(peer).empty();
    if (!needed) continue;
    const std::string mine = describe(oldest.header);
    const std::string words(reinterpret_cast<const char*>(end.payload.data()), end.payload.size());
    const std::string who = concat("rank ", peer, " of ", size());
    if (end.header.topic == Topic::Left)
      fail(ErrorKind::RankLost, who, " left the group while this rank waited for it in ", mine);
    if (is_between_ranks(end.header.error))
      fail(end.header.error, who, " gave up: ", words, "; this rank was in ", mine);
    fail(ErrorKind::RemoteRank, who, " failed while this rank was in ", mine, ":\n", words);
  }
}

void MpiCommunicator::begin(Pending& oldest) {
  const Collective& collective = oldest.collective;
  const auto make = collective.kind == Kind::Broadcast                      ? make_chain_broadcast
                    : collective.algorithm == Algorithm::Ring && size() > 1 ? make_ring_all_reduce
                                                                            : make_flat_all_reduce;
  oldest.transfer = make(endpoint_.comm, rank(), size(), collective);
}

// Every rank has every contribution: each sums them all, in the canonical order.
void MpiCommunicator::finish_inline(Pending& oldest) {
  const Collective& collective = oldest.collective;
  if (collective.count == 0) return;
  std::vector<const void*> contributions(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    const std::vector<std::byte>& bytes = r == rank() ? oldest.payload : oldest.received[i].payload;
    contributions[i] = bytes.data();
  }
  if (collective.kind == Kind::Broadcast) {
    std::memcpy(collective.destination, contributions[static_cast<std::size_t>(collective.root)],
                collective.count * size_of(collective.dtype));
    return;
  }
  const Arithmetic arithmetic = arithmetic_of(collective.op, size());
  reduce(arithmetic.combine, collective.dtype, contributions.data(), size(), collective.destination,
         collective.count, arithmetic.divisor);
}

void MpiCommunicator::fail_mismatch(const Pending& mine, int peer, const Header& theirs) {
  std::string message = concat("the ranks' collectives differ: rank ", rank(), " calls ",
                               describe(mine.header), "; rank ", peer, " calls ", describe(theirs));
  if (mine.header.program_hash != theirs.program_hash) {
    message += concat("; rank ", rank(), " runs ", describe_program(mine.header), ", rank ", peer,
                      " runs ", describe_program(theirs));
    if (mine.header.has_program_text && theirs.has_program_text)
      message += differing_programs(mine, peer);
  }
  throw Error(ErrorKind::CollectiveMismatch, message);
}

// Where my program's text parts from that of `peer`. Ranks whose programs differ all come here, and
// each shows its text to all; "" when the peer's does not arrive in time.
std::string MpiCommunicator::differing_programs(const Pending& mine, int peer) {
  Header header = mine.header;
  header.topic = Topic::Program;
  const std::size_t shown = std::min(mine.program_text.size(), kMaxPayloadBytes);
  mailbox_.post(header, mine.program_text.data(), shown);
  const auto limit = Clock::now() + std::chrono::duration<double>(kFarewellSeconds);
  while (!mailbox_.program_text(peer)) {
    if (Clock::now() > limit) return "";
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    mailbox_.progress();
  }
  return "; " + first_difference(rank(), mine.program_text.substr(0, shown), peer,
                                 *mailbox_.program_text(peer));
}

void MpiCommunicator::fail_timeout(double timeout_seconds) {
  const Pending& oldest = works_.front();
  std::vector<int> missing;
  if (oldest.transfer) {
    missing = oldest.transfer->pending_peers();
  } else {
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank() && mailbox_.from(peer).empty()) missing.push_back(peer);
  }
  const std::string message = concat(describe(oldest.header), ": ", list_ranks(missing),
                                     oldest.transfer ? " stopped half-way" : " did not come",
                                     " within ", timeout_seconds, " s (NGD_TIMEOUT)");
  close_failed(ErrorKind::CollectiveTimeout, message);
  throw Error(ErrorKind::CollectiveTimeout, message);
}

void MpiCommunicator::close_failed(ErrorKind kind, const std::string& message) noexcept {
  if (state_ != State::Open) return;
  state_ = State::Failed;
  mark_failed(true);
  try {
    failure_ = message;
    Header header;
    header.topic = Topic::Failed;
    header.error = kind;
    header.sequence = completed_ + 1;
    const std::size_t kept = std::min(message.size(), kMaxPayloadBytes);
    mailbox_.post(header, message.data() + (message.size() - kept), kept);
  } catch (const std::exception&) {
    // A peer that cannot be told will see its own deadline.
  }
  drain(kFarewellSeconds, false);
  works_.clear();
}

void MpiCommunicator::abort(const std::string& traceback) noexcept {
  if (::getpid() == owner_) close_failed(ErrorKind::RemoteRank, traceback);
}

void MpiCommunicator::close() noexcept {
  if (state_ == State::Closed || ::getpid() != owner_) return;
  const bool failed = state_ == State::Failed;
  state_ = State::Closed;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  try {
    Header header;
    header.topic = Topic::Left;
    header.sequence = completed_ + 1;
    mailbox_.post(header, nullptr, 0);
  } catch (const std::exception&) {
    mark_failed(true);
  }
  // After a failure this process ends in MPI_Abort, unless all ranks are found to leave in order.
  drain(failed ? kFarewellSeconds : kQuickFarewellSeconds, true);
  works_.clear();
  if (!mailbox_.close()) return;
  MPI_Comm_free(&endpoint_.comm);
  mark_failed(false);
}

void MpiCommunicator::drain(double seconds, bool until_peers_left) noexcept {
  const auto limit = Clock::now() + std::chrono::duration<double>(seconds);
  try {
    while (Clock::now() < limit) {
      mailbox_.progress();
      bool finished = mailbox_.everything_sent();
      for (int peer = 0; until_peers_left && peer < size(); ++peer)
        finished = finished && (peer == rank() || mailbox_.has_left(peer));
      if (finished) return;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  } catch (const std::exception&) {
    // What could not be sent stays unsent; close() abandons it to MPI.
  }
}

SharedBlock MpiCommunicator::allocate(std::size_t bytes) {
  void* data = ::operator new(bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (data == nullptr) fail(ErrorKind::OutOfMemory, "no memory for ", bytes, " bytes");
  return {data, bytes};
}

void MpiCommunicator::release(SharedBlock block) noexcept {
  ::operator delete(block.data, std::align_val_t{kAlignment});
}

}  // namespace mpi

std::unique_ptr<Communicator> make_mpi_communicator(int fortran_handle, double timeout_seconds) {
  return std::make_unique<mpi::MpiCommunicator>(
      mpi::open_endpoint(fortran_handle, timeout_seconds));
}

}  // namespace ngd::comm
