// SPDX-License-Identifier: Apache-2.0
// Collectives over MPI's nonblocking point-to-point messages.
//
// Every collective begins with an exchange of headers, all to all: no data moves before all ranks
// are known to mean the same. A small collective's data travels with them. Works begin in the order
// submitted, a few at a time; a work's headers are sent at submit, its data moves in whatever call
// progresses. MPI's own collectives are not used: with a cut link they are silent for ever.
//
// If the group has a host layer (host_layer.hpp), long data of some kinds go over shared memory; all that is
// said here stays as it is.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi/family.hpp"
#include "comm/mpi/host_layer.hpp"
#include "comm/mpi/mailbox.hpp"
#include "comm/mpi/pairs.hpp"
#include "comm/mpi/transfer.hpp"
#include "comm/stats.hpp"

namespace ngd::comm::mpi {

class MpiCommunicator final : public Communicator, private Member {
 public:
  // All ranks of the family's endpoint.
  explicit MpiCommunicator(std::shared_ptr<Family> family);
  // Some of them.
  MpiCommunicator(std::shared_ptr<Family> family, RankSet channel);
  ~MpiCommunicator() override { close(); }

  // The first number that no group of this rank has.
  int next_group() const;
  // A group of my family, made by its members alone: see make_group_of.
  std::unique_ptr<Communicator> group_of(const std::vector<int>& members, int number,
                                         const std::string& key, double timeout_seconds,
                                         const std::function<bool()>& interrupt);

  // From here on long data may take this way; on all ranks, between two works.
  void use(std::unique_ptr<HostLayer> shortcut);

  const RankSet& channel() const noexcept { return channel_; }

  std::string_view name() const noexcept override;
  int rank() const noexcept override { return channel_.rank; }
  int size() const noexcept override { return channel_.size(); }
  int local_rank() const noexcept override;
  int local_size() const noexcept override;

  Work submit(const Collective& collective) override;
  void wait(Work work, double timeout_seconds) override;
  bool done(Work work) override { return wait_for(work, 0); }
  bool wait_for(Work work, double seconds) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::vector<CallStats> stats() const override;
  SharedBlock allocate(std::size_t bytes) override;
  void release(SharedBlock block) noexcept override;
  bool is_over() const noexcept override { return in_child() || state_ != State::Open; }
  bool in_child() const noexcept override { return in_forked_child(); }
  void abort(std::string_view traceback) noexcept override;
  void give_up(ErrorKind kind, std::string_view why, std::span<const int> ranks) noexcept override;
  void close() noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { Open, Failed, Closed };

  // A submitted collective: waits for all headers, then for its transfer.
  struct Pending {
    Collective collective;
    std::vector<std::uint64_t> counts;
    std::vector<std::uint64_t> receive_counts;
    Header header;
    std::string details;             // the program's text, or the layout as bytes (layout_bytes)
    std::vector<std::byte> payload;  // mine, where the data travels with the headers
    std::vector<Message> received;   // by rank, once every header is here
    std::unique_ptr<Transfer> transfer;
    bool complete = false;
    Statistics::Entry stats = 0;
    Clock::time_point start;
    int last = -1;  // who was missing when it was last looked at; nobody: I am the last to come
  };
  struct Limits {
    double timeout_seconds;  // of a rank; 0 = none
    double patience;         // of the caller, who then comes again; < 0 = none
  };

  // Tells the ranks of my host which rank a wait is for, while it lasts.
  class Awaited {
   public:
    explicit Awaited(MpiCommunicator& group) noexcept : group_(group) {}
    ~Awaited();
    Awaited(const Awaited&) = delete;
    Awaited& operator=(const Awaited&) = delete;
    void note(Work work);  // with the lock held

   private:
    MpiCommunicator& group_;
    bool noted_ = false;
  };

  void refuse_child(const char* call) const;
  void require_open(const char* call);
  Algorithm resolve(const Collective& collective) const;
  Pending prepare(const Collective& collective);
  bool is_complete(Work work) const;
  bool await(Work work, Limits limits, const char* call);

  bool progress() noexcept override;
  void send_failure(const Failure& failure) noexcept override;
  bool has_sent_failure() override;
  bool moves_data() const noexcept override;
  void drop_works() noexcept override;
  void advance_works();
  void close_unreachable(const Unreachable& lost) noexcept;
  void count(const Pending& work);
  std::optional<Statistics::Entry> stats_of(Work work) const;
  bool advance(Pending& work, int slot);
  bool collect_headers(Pending& work);
  void check_counts(const Pending& work, int peer) const;
  void check_not_ended(int peer, const CallRecord& mine, bool needed);
  bool has_failed(int peer, Clock::time_point start) const;
  void check_pair(int peer, const CallRecord& mine, bool matched, Clock::time_point start);
  bool has_left(int peer) const;
  void check_needed(const Pending& work, bool headers_are_here);
  void begin(Pending& work, int slot);
  void prefer_last_words(const Pending& work);
  std::uint64_t moves() const noexcept override { return moves_ + pairs_.moves(); }
  void expect_no_failure(const CallRecord& mine) override;
  template <class Call>
  void or_fail(Call&& call);
  void fail_with_others(Work work);

  std::optional<std::string> exchange_details(const Pending& mine, int peer);
  std::string describe_mismatch(const Pending& mine, int peer, const Header& theirs);
  std::string describe_awaited(Work work) const;
  std::vector<std::string> calls_of(const std::vector<int>& missing);
  std::vector<int> awaited_ranks(Work work) const;
  std::vector<std::string> find_culprits(std::vector<int>& missing, bool& is_certain) const;
  void hear_last_words(Work work);
  [[noreturn]] void fail_timeout(Work work, double timeout_seconds);
  void fail_interrupted(Work work);  // unless it is complete
  // Fail the family; each of its groups notifies its peers. No ranks means this one.
  void close_failed(ErrorKind kind, std::string_view message,
                    std::span<const int> ranks = {}) noexcept;
  void close_failed(const FailureView& failure) noexcept {
    close_failed(failure.kind, failure.text, failure.ranks);
  }
  void wait_for_peers_to_leave(double seconds) noexcept;
  std::unique_ptr<Communicator> split_host(int color, int key, Work last);
  RankSet child_channel(int color, const std::vector<std::int64_t>& choices) const;
  int take_group_number(const std::vector<std::int64_t>& choices, std::size_t numbers);
  int first_tag(int group) const;
  std::vector<int> worlds_of(std::vector<int> peers) const;
  bool is_world() const noexcept { return channel_.size() == family_->endpoint().size; }
  std::string world_name(int peer) const { return concat("rank ", channel_.world(peer)); }

  const std::shared_ptr<Family> family_;
  const RankSet channel_;
  const Algorithm preferred_;
  std::unique_ptr<HostLayer> shortcut_;
  std::atomic<State> state_ = State::Open;
  Mailbox mailbox_;
  Statistics statistics_;
  Pairs pairs_;
  std::deque<Pending> works_;
  std::uint64_t submitted_ = 0;  // sequence numbers start at 1
  std::uint64_t completed_ = 0;  // all up to here
  std::uint64_t moves_ = 0;      // works completed and steps of transfers: whether anything happens
  bool marked_failed_ = false;   // in the process, until this group is found to end in order
};

// The ranks of an MPI communicator; -1 = MPI_COMM_WORLD.
std::unique_ptr<MpiCommunicator> open_world(int fortran_handle, double timeout_seconds);

// Run a part of making a group that other ranks make at the same time. If it throws, those are
// notified.
template <class Call>
void or_abort(MpiCommunicator& group, Call&& call) {
  notify_on_failure(call, [&](const FailureView& failure) {
    group.give_up(failure.kind, failure.text, failure.ranks);
  });
}

}  // namespace ngd::comm::mpi
