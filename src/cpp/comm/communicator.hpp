// SPDX-License-Identifier: Apache-2.0
// A group of ranks and ONE way to make it work: submit a Collective, wait for its Work.
//
// A communicator holds no global state and is driven by one thread at a time: a second one that
// calls submit, wait, done or split meanwhile gets Busy. All other calls may come from any thread,
// and from the interrupt callback. A call that waits ends with GroupClosed when another thread
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
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "comm/collective.hpp"
#include "comm/computations.hpp"
#include "comm/copy_on_write.hpp"
#include "device/device.hpp"

namespace ngd::comm {

// The handle of a submitted collective: its place in the sequence of its communicator (of a send or
// a receive: a number of its own, above all of those).
struct Work {
  std::uint64_t sequence = 0;
};

// What a call site has cost this rank so far.
struct CallStats {
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  std::string site;
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;          // of this rank's source or destination, the larger
  double seconds = 0;               // from submit to completion
  double waited_seconds = 0;        // of these, inside wait()
  std::vector<std::uint64_t> last;  // by rank: how often it was the last to come
};

// Memory from which collectives need no staging (in shm: memory that the peers map).
struct SharedBlock {
  void* data = nullptr;
  std::size_t bytes = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual std::string_view name() const noexcept = 0;  // "self", "shm", "mpi", "hierarchical"
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual int local_rank() const noexcept = 0;  // among the ranks of my host
  virtual int local_size() const noexcept = 0;

  // Whether collectives take the device's pointers. Where they do not, their caller copies the
  // operands to the host and back. They know no queue: who has an asynchronous one waits until the
  // operands are there before it submits.
  virtual bool reaches(const device::Device& device) const noexcept {
    return device.host_addressable();
  }
  // Whether the device's kernels may work in what allocate() gives.
  virtual bool lends_to(const device::Device& device) const noexcept {
    return device.addresses_host();
  }

  // Starts a collective. From here until its wait returns, source and destination are the
  // communicator's. Never waits for another rank, however many works are in flight; throws
  // InvalidArgument before anything is published.
  virtual Work submit(const Collective& collective) = 0;
  // Returns when destination holds the result. timeout_seconds: 0 = no deadline.
  virtual void wait(Work work, double timeout_seconds) = 0;
  // As wait, for a caller that has waited for `waited_seconds` of the timeout in another way.
  virtual void wait_on(Work work, double timeout_seconds, double waited_seconds) {
    static_cast<void>(waited_seconds);
    wait(work, timeout_seconds);
  }
  // Return the ranks of the job that a work waits for.
  virtual std::vector<int> missing(Work work) const {
    static_cast<void>(work);
    return {};
  }
  // Publishes the rank that this rank waits for outside of this group, in the caller's numbers; -1
  // ends it. A caller that still waits repeats it several times per second.
  virtual void note_awaited(int awaited) noexcept { static_cast<void>(awaited); }
  // The rank that a rank of this group has published within the last second; -1 = none.
  virtual int awaited_by(int rank) const noexcept {
    static_cast<void>(rank);
    return -1;
  }
  // Makes a call that belongs to a work under way, and retries it while another thread uses the
  // group. Where that takes longer than timeout_seconds (0 = no deadline), or the interrupt says
  // so, closes the group as abort() does and throws CollectiveTimeout or Interrupted.
  template <class Call>
  auto in_turn(double timeout_seconds, Call&& call) {
    for (Turn turn(*this, timeout_seconds);; turn.wait()) {
      try {
        return call();
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::Busy) throw;
      }
    }
  }
  // As submit, and below split, for a call that has submitted something before: never Busy.
  Work submit_next(const Collective& collective, double timeout_seconds) {
    return in_turn(timeout_seconds, [&] { return submit(collective); });
  }
  // As wait, for who has just submitted it: never Busy.
  void finish(Work work, double timeout_seconds) {
    in_turn(timeout_seconds, [&] { wait(work, timeout_seconds); });
  }
  // Progresses what can be progressed without blocking; throws what wait would throw.
  virtual bool done(Work work) = 0;
  // As wait, for at most `seconds`; false where that was not enough, and nothing is wrong then.
  virtual bool wait_for(Work work, double seconds) = 0;

  // The ranks that give the same color become a group of the family, in the order of their keys,
  // equals in the order of their ranks here; null for a negative color. Every rank of this group
  // calls it. Close the new group before this one.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  std::unique_ptr<Communicator> split_next(int color, int key, double timeout_seconds) {
    return in_turn(timeout_seconds, [&] { return split(color, key); });
  }

  // One entry a kind, reduction and call site. Empty where nothing is counted.
  virtual std::vector<CallStats> stats() const { return {}; }

  // 64-byte aligned. Returned memory is mine alone outside of submit..wait. Throws OutOfMemory.
  virtual SharedBlock allocate(std::size_t bytes) = 0;
  virtual void release(SharedBlock block) noexcept = 0;

  // Memory that all ranks of this group read and write: one of them makes it and tells the others
  // its number, and each of them opens it, that one too. It is there until all have given back what
  // they opened, which may outlive this. 64-byte aligned. They order among themselves who writes
  // what. Throws Unsupported where the ranks map no memory of each other's; OutOfMemory.
  virtual bool has_common_memory() const noexcept { return false; }
  // Of a group of several ranks: whether it is closed or has failed. Then nobody writes there any
  // more who meets the others first.
  virtual bool is_over() const noexcept { return false; }
  virtual std::uint64_t make_common(std::size_t bytes);
  virtual std::shared_ptr<void> open_common(int maker, std::uint64_t number);
  // A copy-on-write mapping of memory that this process has open, for as long as it stays open.
  // Throws Unsupported, OutOfMemory.
  virtual std::unique_ptr<CopyOnWriteMapping> map_common(int maker, std::uint64_t number,
                                                         std::size_t bytes);

  // While a program runs that needs this group and others of the family: then a wait in another one
  // ends, too, with what a rank of this one has said of its failure. Without it that wait would end
  // at its deadline, where it is for a rank that waits for the one that failed. Programs that run at
  // once, in several threads, hear of each other's groups.
  virtual void watch(bool on) noexcept { watched_ += on ? 1 : -1; }
  bool watched() const noexcept { return watched_ > 0; }
  // Throws what a rank of this group has said of its failure, where that needs no message to be
  // received.
  virtual void check_peers() const {}

  // Tells the peers that this rank has failed, with its traceback (cut to what fits), and closes.
  virtual void abort(std::string_view traceback) noexcept = 0;
  // The same for an error: the peers raise its kind where that is between ranks. `ranks` are the
  // ranks of the job that it names.
  virtual void give_up(ErrorKind kind, std::string_view why, std::span<const int> ranks) noexcept {
    static_cast<void>(kind);
    static_cast<void>(ranks);
    abort(why);
  }
  // Whether this process is a forked child of the one that made the group. Then every call above
  // that takes part in a collective throws GroupClosed, the others do nothing, and the owner of the
  // object must not destroy it.
  virtual bool in_child() const noexcept { return false; }
  // Leaves in good order: peers that still wait for this rank are told that it left. Idempotent.
  virtual void close() noexcept = 0;

  // Of the programs that talk here. May outlive this.
  virtual const std::shared_ptr<Computations>& computations() const noexcept {
    return computations_;
  }

  // Called about ten times a second while a call blocks; returns true to interrupt it.
  void set_interrupt(std::function<bool()> interrupt) { interrupt_ = std::move(interrupt); }

 protected:
  // Marks a call of submit, wait or done. Throws Busy where another thread is inside one.
  class Entry {
   public:
    explicit Entry(Communicator& communicator) : inside_(communicator.inside_) {
      if (inside_.exchange(true, std::memory_order_acquire)) [[unlikely]]
        fail(ErrorKind::Busy, "a collective while another thread is in one of the same group");
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    ~Entry() { inside_.store(false, std::memory_order_release); }

   private:
    std::atomic<bool>& inside_;
  };

  bool interrupted() const { return interrupt_ && interrupt_(); }

 private:
  // How long a caller has retried.
  class Turn {
   public:
    Turn(Communicator& group, double timeout_seconds) noexcept
        : group_(group), timeout_seconds_(timeout_seconds) {}
    void wait();  // a little; throws where that has been enough

   private:
    using Clock = std::chrono::steady_clock;
    [[noreturn]] void give_up(ErrorKind kind, const std::string& why);

    Communicator& group_;
    double timeout_seconds_;
    int naps_ = 0;
    Clock::time_point begin_{}, asked_{};
  };

  std::atomic<bool> inside_{false};
  std::atomic<int> watched_{0};  // by so many runs of programs
  std::function<bool()> interrupt_;
  std::shared_ptr<Computations> computations_ = std::make_shared<Computations>();
};

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
