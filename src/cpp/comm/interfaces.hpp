// SPDX-License-Identifier: Apache-2.0
// The parts of the interface of a group of ranks (communicator.hpp): collectives, memory that the
// ranks of a host share, and the state of the peers.
//
// Busy is a return value here, not an exception. A call is refused as Busy if another thread is in
// a call of the same group. A refused call has had no effect, and its caller decides whether to
// retry it (retry.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "comm/collective.hpp"
#include "comm/copy_on_write.hpp"
#include "device/device.hpp"

namespace ngd::comm {

class Communicator;

// The handle of a submitted collective: its position in the sequence of its group. Sends and
// receives have numbers of their own, from 2^63 on.
struct Work {
  std::uint64_t sequence = 0;
};

// The result of a wait. Done: the work is complete. NotYet: the work is not complete, and
// patience_seconds of WaitLimits have passed. Busy: the call was refused, because another thread
// uses the group.
enum class [[nodiscard]] Progress { Done, NotYet, Busy };

// The limits of one wait. When the timeout has passed, the wait throws CollectiveTimeout and the
// group fails. When the patience has passed, the wait returns NotYet, and the caller may wait
// again. A wait has at most one of the two.
struct WaitLimits {
  static constexpr double kForEver = std::numeric_limits<double>::infinity();

  double timeout_seconds = 0;          // after which CollectiveTimeout is thrown; 0: no limit
  double waited_seconds = 0;           // the part of the timeout that has passed before this call
  double patience_seconds = kForEver;  // after which NotYet is returned; needs timeout_seconds == 0

  // Return limits for a wait that returns NotYet after `seconds`, and never throws
  // CollectiveTimeout.
  static WaitLimits patience(double seconds) { return {0, 0, seconds}; }
  // Return true if patience_seconds is finite. The wait then returns NotYet after that time.
  bool has_patience() const noexcept { return patience_seconds != kForEver; }
};

// The number of calls, the bytes and the times of all calls of one kind at one call site, on this
// rank.
struct CallStats {
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  std::string site;
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;          // each call adds the larger of its source and destination
  double seconds = 0;               // the sum of the times from submit to completion
  double waited_seconds = 0;        // the part of `seconds` inside wait()
  std::vector<std::uint64_t> last;  // last[r]: the number of calls in which rank r arrived last
};

// The part of a group's interface that starts collectives and waits for them.
class Collectives {
 public:
  virtual ~Collectives() = default;

  // Start a collective. Until its wait has returned, the source and the destination belong to the
  // communicator: the caller must not change or free them. This call never waits for another rank,
  // even if many collectives are pending. Throws InvalidArgument before anything is sent to other
  // ranks. Returns nothing if another thread uses the group (Busy).
  [[nodiscard]] virtual std::optional<Work> try_submit(const Collective& collective) = 0;
  // Wait until a submitted work (a collective, a send or a receive) is complete or a limit is
  // reached. After Done, the destination holds the result.
  virtual Progress try_wait(Work work, const WaitLimits& limits) = 0;
  // Split the group: the ranks that pass the same color become a new group. They are ordered by
  // their keys; ranks with equal keys keep their order in this group. A rank that passes a negative
  // color gets null. Every rank of this group calls this. Close the new group before this one.
  // Returns nothing if another thread uses the group (Busy).
  [[nodiscard]] virtual std::optional<std::unique_ptr<Communicator>> try_split(int color,
                                                                               int key) = 0;
  // Return the ranks that a submitted collective, send or receive still waits for, by their numbers
  // in the job.
  virtual std::vector<int> missing(Work work) const {
    static_cast<void>(work);
    return {};
  }
  // Return the statistics of the calls, such as their number and time: one entry for each
  // combination of kind (such as all_reduce), reduction (such as sum) and call site. The result is
  // empty if this kind of group does not count its calls.
  virtual std::vector<CallStats> stats() const { return {}; }
};

// A block of memory that a group has allocated. Collectives read and write it without staging
// buffers. Over shared memory, the peers map it.
struct SharedBlock {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Memory that all ranks of a group read and write. One rank, the maker, calls make_common(), which
// returns a number, and sends the number to the other ranks. Then every rank, including the maker,
// calls open_common() with the maker's rank and the number. The memory is 64-byte aligned. The
// memory exists until all ranks have released it, even if the group has ended before. The ranks
// must order their writes themselves. make_common() throws OutOfMemory.
class CommonMemory {
 public:
  virtual ~CommonMemory() = default;
  virtual std::uint64_t make_common(std::size_t bytes) = 0;
  virtual std::shared_ptr<void> open_common(int maker, std::uint64_t number) = 0;
  // Return a copy-on-write mapping of common memory that this process has opened. The mapping is
  // valid while the memory is open. Throws Unsupported.
  virtual std::unique_ptr<CopyOnWriteMapping> map_common(int maker, std::uint64_t number,
                                                         std::size_t bytes) = 0;
};

// The memory that a group allocates, and the devices whose memory its collectives can use.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  // Allocate memory, 64-byte aligned. Peers use the memory only between the submit and the wait of
  // a collective. Throws OutOfMemory.
  virtual SharedBlock allocate(std::size_t bytes) = 0;
  virtual void release(SharedBlock block) noexcept = 0;
  // Return the interface to memory that the ranks share; null if they do not map each other's
  // memory.
  virtual CommonMemory* common_memory() noexcept { return nullptr; }

  // Return true if collectives accept pointers to memory of the device. If not, the caller copies
  // the operands to the host and the results back. Collectives use no queue of the device: a caller
  // with an asynchronous queue waits until the operands are ready before it submits.
  virtual bool reaches(const device::Device& device) const noexcept {
    return device.host_addressable();
  }
  // Return true if kernels of the device may use the memory that allocate() returns.
  virtual bool lends_to(const device::Device& device) const noexcept {
    return device.addresses_host();
  }
};

// The state of the other ranks of a group, and the calls that end this rank's part in the group.
class Peers {
 public:
  virtual ~Peers() = default;

  // Begin (`is_on`) or end the watch of this group for failures. A compiled step that uses several
  // groups watches all of them while it runs. A wait in a watched group also ends when a rank has
  // reported a failure in another watched group. Example: rank A waits in group 1 for rank B. B
  // waits in group 2 for rank C, which fails. A is in a group with C too. With the watch, the wait
  // of A ends with the failure of C. Without the watch, it ends only at its deadline.
  virtual void watch(bool is_on) noexcept = 0;
  // Throw the failure that a rank of this group has reported. Only a group over shared memory, in
  // which each rank can read the reports of all ranks, overrides this function.
  virtual void check_peers() const {}

  // Publish the rank that this rank waits for; -1: it waits for none. On the other ranks,
  // awaited_by() returns this value. The awaited rank may be outside of this group, so the callers
  // on all ranks use one numbering that includes it, such as world ranks. A rank whose wait has
  // timed out uses the values to find the rank that has stopped. A rank that still waits repeats
  // the call several times per second.
  virtual void note_awaited(int awaited) noexcept { static_cast<void>(awaited); }
  // Return the rank that `rank` waits for, if `rank` has published it with note_awaited() within
  // the last second; otherwise -1.
  virtual int awaited_by(int rank) const noexcept {
    static_cast<void>(rank);
    return -1;
  }

  // Notify the peers that this rank has failed, and close the group. If `kind` is
  // CollectiveMismatch, CollectiveTimeout or RankLost, the peers raise the same kind, otherwise
  // RemoteRank. `why` is the text of the error; a text that is too long is cut. `ranks` are the
  // ranks of the job that `why` names; empty: this rank.
  virtual void give_up(ErrorKind kind, std::string_view why,
                       std::span<const int> ranks) noexcept = 0;
  // Call give_up() with ErrorKind::RemoteRank and the text `traceback`, because this rank has
  // raised an exception.
  void abort(std::string_view traceback) noexcept;
  // Leave the group without a failure: peers that still wait for this rank are notified that it has
  // left. A second call does nothing.
  virtual void close() noexcept = 0;
  // Return true if the group is closed or has failed; always false for a group of one rank.
  virtual bool is_over() const noexcept { return false; }
  // Return true in a forked child of the process that made the group. There every call that takes
  // part in a collective throws GroupClosed, all other calls do nothing, and the owner of the
  // object must not destroy it.
  virtual bool in_child() const noexcept { return false; }
};

}  // namespace ngd::comm
