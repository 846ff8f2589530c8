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
// family. Only one thread at a time advances the works of a family. A blocking call in one group
// advances the works of all groups of the family, so the collectives of two groups may overlap in
// time. Memory that one group has allocated is shared memory for all groups of the family.
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

// Throw Busy, the error for Python if another thread uses the group. The functions with the prefix
// try_ report this state by their return value instead.
[[noreturn]] void throw_busy();

// The kind of a group (such as "mpi"), the rank of this process in the group, and the group's size.
struct Membership {
  std::string_view name;  // the kind: "self", "shm", "mpi" or "hierarchical"
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // the rank and the number of ranks on this host
};

class Communicator : public Collectives, public HostMemory, public Peers {
 public:
  // name() is the kind of the group, such as "mpi". local_rank() and local_size() count only the
  // ranks of the group on this host.
  std::string_view name() const noexcept { return membership_.name; }
  int rank() const noexcept { return membership_.rank; }
  int size() const noexcept { return membership_.size; }
  int local_rank() const noexcept { return membership_.local_rank; }
  int local_size() const noexcept { return membership_.local_size; }
  const Membership& membership() const noexcept { return membership_; }

  // submit(), wait() and split() do the same as try_submit(), try_wait() and try_split(), but throw
  // Busy if another thread uses the group. In this case, try_wait() returns Progress::Busy, and
  // try_submit() and try_split() return nullopt.
  Work submit(const Collective& collective) {
    const std::optional<Work> work = try_submit(collective);
    if (!work) [[unlikely]]
      throw_busy();
    return *work;
  }
  // Wait until a work is complete. Throws CollectiveTimeout after `timeout_seconds` (0: no limit),
  // and the group fails.
  void wait(Work work, double timeout_seconds) {
    if (try_wait(work, {timeout_seconds}) == Progress::Busy) [[unlikely]]
      throw_busy();
  }
  // Wait for a work (a submitted collective, send or receive) for at most `seconds`. Return true if
  // the work is complete, false if it is not.
  bool wait_for(Work work, double seconds);
  // Return true if the work is complete. This call does not wait for it.
  bool done(Work work) { return wait_for(work, 0); }
  // Return the group of the ranks that pass the same `color`, ordered by `key`; null if this rank
  // passes a negative color.
  std::unique_ptr<Communicator> split(int color, int key);

  void watch(bool is_on) noexcept override { watched_ += is_on ? 1 : -1; }
  // Return true while a running compiled step watches this group for failures (Peers::watch).
  bool is_watched() const noexcept { return watched_ > 0; }

  // Return the set of the computations (hashes) of the loaded compiled steps that use this group.
  // The pointer is shared between the group and these steps, because a step may outlive the group.
  const std::shared_ptr<Computations>& computations() const noexcept { return computations_; }

  // Set the interrupt callback. A blocking call calls it about ten times per second, and throws
  // Interrupted if it returns true.
  void set_interrupt(std::function<bool()> interrupt) { interrupt_ = std::move(interrupt); }
  // Call the interrupt callback and return its result; false if no callback is set.
  bool is_interrupted() const { return interrupt_ && interrupt_(); }

 protected:
  explicit Communicator(Membership membership, std::shared_ptr<Computations> computations =
                                                   std::make_shared<Computations>())
      : membership_(membership), computations_(std::move(computations)) {}
  // Replace the Membership (kind, rank and size of the group) that the constructor has set.
  void set_membership(const Membership& membership) noexcept { membership_ = membership; }

  // A guard that marks a call of try_submit, try_wait or try_split as running while the guard
  // exists. The guard converts to false if another thread is in such a call already; then the new
  // call is refused.
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
  std::atomic<int> watched_{0};  // the number of running compiled steps that watch this group
  std::function<bool()> interrupt_;
  std::shared_ptr<Computations> computations_;
};

// Return the interface to memory that all ranks of the group read and write. Throws Unsupported if
// the ranks do not share memory.
CommonMemory& common_memory_of(Communicator& communicator);

// Return a group of one rank, in which each collective copies its source to its destination.
std::unique_ptr<Communicator> make_self_communicator();

// Return the group of the ranks of one host, over shared memory. The ranks find each other by
// `job_key`, which is equal on all ranks of a job and different in every other job
// (shm/bootstrap.hpp). The rendezvous calls `interrupt` about ten times per second, and throws
// Interrupted if it returns true. Error messages show ranks of the whole job: job_ranks[r] for rank
// r of this group. If `job_ranks` is empty, they show the ranks of this group. Throws Init,
// CollectiveTimeout, and Unsupported if this build has no shared memory.
std::unique_ptr<Communicator> make_shm_communicator(const std::string& job_key, int rank, int size,
                                                    double timeout_seconds,
                                                    const std::function<bool()>& interrupt = {},
                                                    const std::vector<int>& job_ranks = {});

// Return a group over MPI's point-to-point messages, with ngd's own deadlines. It uses a duplicate
// of the MPI communicator with this Fortran handle (MPI_Fint; -1: MPI_COMM_WORLD). Throws Init,
// CollectiveTimeout, and Unsupported if this build has no MPI.
std::unique_ptr<Communicator> make_mpi_communicator(int fortran_handle, double timeout_seconds);
// Return a group over MPI; if all ranks are on one host, return a group over shared memory instead.
// On several hosts that all have the same number of ranks, at least two, large collectives use
// shared memory inside a host and MPI between hosts. In all other cases, collectives use only MPI.
// The arguments and the errors are those of make_mpi_communicator() and make_shm_communicator().
std::unique_ptr<Communicator> make_hierarchical_communicator(
    int fortran_handle, double timeout_seconds, const std::function<bool()>& interrupt = {});
// Return a group of the ranks `members` of `world`, which is a group over MPI. Only the members
// call this, and all of them pass the same `members`, `key` and `number`. `key` is a text that no
// other group has. `number` gives the message tags of the group. Before the call, each member calls
// next_group_number(), and the members exchange the values and pass the largest one as `number`.
// The new group uses the MPI communicator and the lock of `world`. The function makes no blocking
// call of MPI. Throws the errors of make_mpi_communicator() and make_shm_communicator().
// CollectiveTimeout names the ranks that did not arrive.
std::unique_ptr<Communicator> make_group_of(Communicator& world, const std::vector<int>& members,
                                            int number, const std::string& key,
                                            double timeout_seconds,
                                            const std::function<bool()>& interrupt = {});
// Return the lowest number that this rank can give to a new group: it is above the numbers of all
// groups that this rank has made. The number of a group gives its message tags. The members of a
// new group pass the largest of their values to make_group_of(), so that the groups of a member
// have different numbers.
int next_group_number(Communicator& world);

// Load the MPI library that this process uses. `name`: "openmpi", "mpich" (any MPI with the ABI of
// MPICH), or "" for the first one that is found. The process cannot change its MPI later. Without
// this call, the first group over MPI loads the first one that is found. Throws Init, and
// Unsupported if this build has no MPI.
void load_mpi(const std::string& name);
std::string mpi_version();  // the version of the loaded MPI; "" if none is loaded
std::string mpis();         // the names of the MPIs that this build supports, separated by spaces

// Call this once, when the process exits and all communicators are closed. If ngd has initialised
// MPI and no other code has finalized it, this calls MPI_Finalize. If a group over MPI has failed,
// it calls MPI_Abort instead, which does not return.
void finalize_mpi() noexcept;
// Return true if a collective has failed and MPI still holds the memory of one of its messages.
// From then on ngd makes no MPI call that moves messages, and the memory of that collective must
// never be freed.
bool mpi_holds_memory() noexcept;

}  // namespace ngd::comm
