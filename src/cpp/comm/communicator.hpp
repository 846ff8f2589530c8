// SPDX-License-Identifier: Apache-2.0
// A group of ranks: the caller submits a Collective, and waits for its Work.
//
// Threads. A communicator has no global state, and a process may have many communicators. One
// thread at a time uses a group: a second thread that calls submit, wait, done or split at the same
// time gets Busy. All other calls may come from any thread, and from the interrupt callback. If
// another thread closes the group, a waiting call throws GroupClosed.
//
// Order. All ranks submit the same sequence of collectives. Sends and receives are not part of this
// sequence: each pair of ranks has its own.
//
// Progress. Every blocking call advances all pending works, checks its deadline, and watches its
// peers. Any error closes the group, and every later call throws GroupClosed with the message of
// the first failure.
//
// Families. split() makes smaller groups. A group and all groups that were split from it are a
// family. One thread at a time drives a family. A blocking call in one group advances the works of
// all, so the collectives of two groups may overlap in time. Memory that one group has allocated is
// shared memory for all.
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

// Throw Busy. For the functions that the boundary to Python calls; inside the core, Busy is a
// return value.
[[noreturn]] void throw_busy();

// The rank of this process in a group, and the size of the group.
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

  // The same as try_submit(), try_wait() and try_split() for callers outside of the core: these
  // throw Busy.
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
  // Return false if the work is not complete after `seconds`.
  bool wait_for(Work work, double seconds);
  bool done(Work work) { return wait_for(work, 0); }
  std::unique_ptr<Communicator> split(int color, int key);

  void watch(bool is_on) noexcept override { watched_ += is_on ? 1 : -1; }
  bool is_watched() const noexcept { return watched_ > 0; }

  // Return the computations of the compiled steps that use this group. The steps may outlive the
  // group.
  const std::shared_ptr<Computations>& computations() const noexcept { return computations_; }

  // Set the interrupt callback. A blocking call calls it about ten times per second, and throws
  // Interrupted if it returns true.
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

// Return the memory interface of a group whose ranks share memory. Throws Unsupported.
CommonMemory& common_memory_of(Communicator& communicator);

// Return a group of one rank. Each collective copies its source to its destination.
std::unique_ptr<Communicator> make_self_communicator();

// Return the group of the ranks of one host, over shared memory. The ranks find each other by
// `job_key`, which is equal on all ranks of a job and different in every other job
// (shm/bootstrap.hpp). The rendezvous calls `interrupt` about ten times per second, and throws
// Interrupted if it returns true. `job_ranks`: the number of each rank in errors; empty: its rank.
// Throws Init, CollectiveTimeout, and Unsupported if this was not built.
std::unique_ptr<Communicator> make_shm_communicator(const std::string& job_key, int rank, int size,
                                                    double timeout_seconds,
                                                    const std::function<bool()>& interrupt = {},
                                                    const std::vector<int>& job_ranks = {});

// Return a group over MPI's point-to-point messages, with ngd's own deadlines. It uses a duplicate
// of the MPI communicator with this Fortran handle (MPI_Fint; -1: MPI_COMM_WORLD). Throws Init,
// CollectiveTimeout, and Unsupported if this was not built.
std::unique_ptr<Communicator> make_mpi_communicator(int fortran_handle, double timeout_seconds);
// Return a group over MPI whose ranks share memory inside each host. If there are several hosts
// with an equal number of ranks, large collectives use shared memory inside a host and MPI between
// hosts. If there is one host, the group uses only shared memory. Arguments and errors are those of
// the two functions above.
std::unique_ptr<Communicator> make_hierarchical_communicator(
    int fortran_handle, double timeout_seconds, const std::function<bool()>& interrupt = {});
// Return a group of some ranks of `world`, which is a group over MPI. Only these ranks, the
// members, call this. The new group belongs to the family of `world`. All members pass the same
// list of members, a `key` that no other group has, and the largest of their next_group_number()s;
// how they agree on these is up to the caller. Makes no blocking call of MPI. Throws as above.
// CollectiveTimeout names the ranks that did not arrive.
std::unique_ptr<Communicator> make_group_of(Communicator& world, const std::vector<int>& members,
                                            int number, const std::string& key,
                                            double timeout_seconds,
                                            const std::function<bool()>& interrupt = {});
// Return the first number that no group of this rank has.
int next_group_number(Communicator& world);

// Load the MPI that this process uses: "openmpi", "mpich" (any MPI with its ABI), or "", the first
// one that is found. The process cannot change it later. If no MPI was loaded, the first group over
// MPI loads the first one that is found. Throws Init, and Unsupported if this was not built.
void load_mpi(const std::string& name);
std::string mpi_version();  // of the loaded MPI; "" if none is loaded
std::string mpis();         // the MPIs that this build supports, separated by spaces

// Call this once, when the process exits and all communicators are closed. If ngd has initialised
// MPI and no other code has finalized it, this calls MPI_Finalize; after a failure it calls
// MPI_Abort, which does not return.
void finalize_mpi() noexcept;
// Return true if a collective has failed and MPI did not give up one of its messages. From then on
// ngd does not call MPI, and the memory of that collective must never be freed.
bool mpi_holds_memory() noexcept;

}  // namespace ngd::comm
