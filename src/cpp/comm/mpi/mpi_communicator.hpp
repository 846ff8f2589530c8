// SPDX-License-Identifier: Apache-2.0
// Collectives over MPI's nonblocking point-to-point messages.
//
// Every collective begins with an exchange of headers, all to all: no data moves before all ranks
// are known to mean the same. A small collective's data travels with them. Works are carried out in
// the order submitted; a work's headers are sent at submit, its data moves in whatever call
// progresses. MPI's own collectives are not used: with a cut link they are silent for ever.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi/mailbox.hpp"
#include "comm/mpi/process.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::mpi {

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(const Endpoint& endpoint);
  ~MpiCommunicator() override { close(); }

  std::string_view name() const noexcept override { return "mpi"; }
  int rank() const noexcept override { return endpoint_.rank; }
  int size() const noexcept override { return endpoint_.size; }
  int local_rank() const noexcept override { return endpoint_.local_rank; }
  int local_size() const noexcept override { return endpoint_.local_size; }

  Work submit(const Collective& collective) override;
  void wait(Work work, double timeout_seconds) override;
  bool done(Work work) override;
  bool wait_for(Work work, double seconds) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  SharedBlock allocate(std::size_t bytes) override;
  void release(SharedBlock block) noexcept override;
  void abort(const std::string& traceback) noexcept override;
  void close() noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { Open, Failed, Closed };

  // A submitted collective: waits for all headers, then for its transfer.
  struct Pending {
    Collective collective;
    Header header;
    std::string program_text;
    std::vector<std::byte> payload;  // mine, where the data travels with the headers
    std::vector<Message> received;   // by rank, once every header is here
    std::unique_ptr<Transfer> transfer;
  };

  void require_open(const char* call) const;
  Algorithm resolve(Algorithm asked) const;
  bool travels_with_header(const Collective& collective) const;
  std::size_t contribution_bytes(const Collective& collective) const;

  void progress();
  bool advance_oldest();
  bool collect_headers(Pending& oldest);
  void check_not_ended(const Pending& oldest, bool headers_are_here);
  void begin(Pending& oldest);
  void finish_inline(Pending& oldest);

  [[noreturn]] void fail_mismatch(const Pending& mine, int peer, const Header& theirs);
  std::string differing_programs(const Pending& mine, int peer);
  [[noreturn]] void fail_timeout(double timeout_seconds);
  void close_failed(ErrorKind kind, const std::string& message) noexcept;
  void drain(double seconds, bool until_peers_left) noexcept;

  Endpoint endpoint_;
  pid_t owner_;
  Algorithm preferred_;
  State state_ = State::Open;
  std::string failure_;
  Mailbox mailbox_;
  std::deque<Pending> works_;
  std::uint64_t submitted_ = 0;  // sequence numbers start at 1
  std::uint64_t completed_ = 0;
  std::uint64_t moves_ = 0;  // works completed and steps of transfers: whether anything happens
};

}  // namespace ngd::comm::mpi
