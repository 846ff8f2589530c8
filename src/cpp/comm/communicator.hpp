// SPDX-License-Identifier: Apache-2.0
// A group of ranks: submit a Collective, then wait for its Work.
//
// A communicator has no global state and is used by one thread at a time: a second thread that calls
// submit, wait, done or split at the same time gets Busy. All other calls may come from any thread, and
// from the interrupt callback. A call that waits ends with GroupClosed when another thread
// closes the group. A process may hold many communicators. All ranks submit the same sequence; a
// send and its receive stand outside of it, in the sequence of their two ranks. Every blocking call
// progresses all outstanding works, checks its deadline, and watches its peers; whatever goes wrong
// closes the communicator, and every later call throws GroupClosed with the first failure's
// message.
//
// split() makes smaller groups. A group and all that were split from it are one family: they are
// driven by one thread at a time, a blocking call of one progresses the works of all (so groups may
// overlap in time), and memory that one of them allocated is shared memory to all.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/computations.hpp"
#include "comm/interfaces.hpp"

namespace ngd::comm {

// Throws Busy. Only for functions that a program calls: inside C++, Busy is a value.
[[noreturn]] void throw_busy();

// This rank's place in a group.
struct Membership {
  std::string_view name;  // "self", "shm", "mpi", "hierarchical"
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this host
};

class Communicator : public Collectives, public HostMemory, public Peers {
 public:
  std::string_view name() const noexcept { return membership_.name; }
  int rank() const noexcept { return membership_.rank; }
  int size() const noexcept { return membership_.size; }
  int local_rank() const noexcept { return membership_.local_rank; }
  int local_size() const noexcept { return membership_.local_size; }
  const Membership& membership() const noexcept { return membership_; }

  // The same as try_submit(), try_wait() and try_split(), for a program: these throw Busy.
  Work submit(const Collective& collective) {
    const std::optional<Work> work = try_submit(collective);
    if (!work) [[unlikely]]
      throw_busy();
    return *work;
  }
  void wait(Work work, double timeout_seconds) {
    if (try_wait(work, {timeout_seconds}) == Progress::Busy) [[unlikely]]
      throw_busy();
  }
  // Return false if the work is not complete after `seconds`, and nothing is wrong.
  bool wait_for(Work work, double seconds);
  bool done(Work work) { return wait_for(work, 0); }
  std::unique_ptr<Communicator> split(int color, int key);

  void watch(bool is_on) noexcept override { watched_ += is_on ? 1 : -1; }
  bool is_watched() const noexcept { return watched_ > 0; }

  // The computations of the programs that use this group. They may outlive it.
  const std::shared_ptr<Computations>& computations() const noexcept { return computations_; }

  // Called about ten times a second while a call blocks; returns true to interrupt it.
  void set_interrupt(std::function<bool()> interrupt) { interrupt_ = std::move(interrupt); }
  bool is_interrupted() const { return interrupt_ && interrupt_(); }

 protected:
  explicit Communicator(Membership membership, std::shared_ptr<Computations> computations =
                                                   std::make_shared<Computations>())
      : membership_(membership), computations_(std::move(computations)) {}
  void set_membership(const Membership& membership) noexcept { membership_ = membership; }

  // Marks a call of try_submit, try_wait or try_split. False if another thread is inside one.
  class [[nodiscard]] Entry {
   public:
    explicit Entry(Communicator& communicator)
        : inside_(communicator.inside_),
          is_first_(!inside_.exchange(true, std::memory_order_acquire)) {}
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    ~Entry() {
      if (is_first_) inside_.store(false, std::memory_order_release);
    }
    explicit operator bool() const noexcept { return is_first_; }

   private:
    std::atomic<bool>& inside_;
    const bool is_first_;
  };

 private:
  Membership membership_;
  std::atomic<bool> inside_{false};
  std::atomic<int> watched_{0};  // the number of runs of programs that watch
  std::function<bool()> interrupt_;
  std::shared_ptr<Computations> computations_;
};

// Return the memory that the ranks have in common. Throws Unsupported.
CommonMemory& common_memory_of(Communicator& communicator);

// Size 1: every collective is the identity.
std::unique_ptr<Communicator> make_self_communicator();

// The ranks of one host over shared memory. Rendezvous by `job_key`, equal on all ranks of a job
// and on no other; see shm/bootstrap.hpp. Throws Init, CollectiveTimeout, Unsupported (not built).
// `interrupt` is asked about ten times a second; true ends the rendezvous with Interrupted.
// `job_ranks`: the number that errors use for each rank; empty: its rank.
std::unique_ptr<Communicator> make_shm_communicator(const std::string& job_key, int rank, int size,
                                                    double timeout_seconds,
                                                    const std::function<bool()>& interrupt = {},
                                                    const std::vector<int>& job_ranks = {});

// MPI point-to-point under our own deadlines, over a duplicate of MPI_COMM_WORLD or of the
// communicator whose MPI_Fint handle is given (-1 = world). Throws Init, Unsupported (not built).
std::unique_ptr<Communicator> make_mpi_communicator(int fortran_handle, double timeout_seconds);
// The same, but where several hosts have as many ranks each, long data go over shared memory inside
// a host and over MPI between hosts; a communicator of one host alone is one of shared memory.
// `interrupt` as above. Throws as both.
std::unique_ptr<Communicator> make_hierarchical_communicator(
    int fortran_handle, double timeout_seconds, const std::function<bool()>& interrupt = {});
// A group of some ranks of `world`, which is over MPI, made by these alone, of world's family. The
// members call it with the same list of themselves, a `key` that is theirs alone, and the largest
// of their next_group_number()s: all three come another way. Makes no blocking call of MPI. Throws
// as above; CollectiveTimeout names who did not come.
std::unique_ptr<Communicator> make_group_of(Communicator& world, const std::vector<int>& members,
                                            int number, const std::string& key,
                                            double timeout_seconds,
                                            const std::function<bool()>& interrupt = {});
int next_group_number(Communicator& world);

// Which MPI this process uses: "openmpi", "mpich" (and all that has its ABI), or "", the first that
// is found. For good: a group over MPI takes the first where none was loaded. Throws Init,
// Unsupported (not built).
void load_mpi(const std::string& name);
std::string mpi_version();  // what the loaded one says of itself; "" where none is
std::string mpis();         // those that were built for, with spaces between; "" for none

// To be called once at the process's exit, after every communicator was closed. Where ngd
// initialised MPI and nobody has finalized it: MPI_Finalize, or after a failure MPI_Abort, which
// does not return.
void finalize_mpi() noexcept;
// True once a collective has failed and MPI did not give up a message of it. From then on nothing
// here calls MPI, and the memory of that collective must never be freed.
bool mpi_holds_memory() noexcept;

}  // namespace ngd::comm
