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
// receives are numbered from 2^63.
struct Work {
  std::uint64_t sequence = 0;
};

// The result of a wait. NotYet: the patience of the caller has ended. Busy: the call was refused.
enum class [[nodiscard]] Progress { Done, NotYet, Busy };

// The limits of one wait.
struct WaitLimits {
  static constexpr double kForEver = std::numeric_limits<double>::infinity();

  double timeout_seconds = 0;          // CollectiveTimeout if a rank is later; 0 = no limit
  double waited_seconds = 0;           // the part of the timeout that has passed before this call
  double patience_seconds = kForEver;  // after which the call returns NotYet; excludes a timeout

  static WaitLimits patience(double seconds) { return {0, 0, seconds}; }
  bool has_patience() const noexcept { return patience_seconds != kForEver; }
};

// The costs of a call site on this rank so far.
struct CallStats {
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  std::string site;
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;          // the larger of this rank's source and destination
  double seconds = 0;               // from submit to completion
  double waited_seconds = 0;        // of these, inside wait()
  std::vector<std::uint64_t> last;  // by rank: how often it was the last to arrive
};

// Starts collectives and waits for them.
class Collectives {
 public:
  virtual ~Collectives() = default;

  // Start a collective. Until its wait has returned, the source and the destination belong to the
  // communicator. This call never waits for another rank, for any number of pending works. Throws
  // InvalidArgument before anything is published. Returns nothing if Busy.
  [[nodiscard]] virtual std::optional<Work> try_submit(const Collective& collective) = 0;
  // Wait for a work. Done: the destination holds the result.
  virtual Progress try_wait(Work work, const WaitLimits& limits) = 0;
  // Split the group: the ranks that pass the same color become a new group of the family. They are
  // ordered by their keys; ranks with equal keys keep their order in this group. A rank that passes
  // a negative color gets null. Every rank of this group calls this. Close the new group before
  // this one. Returns nothing if Busy.
  [[nodiscard]] virtual std::optional<std::unique_ptr<Communicator>> try_split(int color,
                                                                               int key) = 0;
  // Return the ranks of the job that a work waits for.
  virtual std::vector<int> missing(Work work) const {
    static_cast<void>(work);
    return {};
  }
  // Return one entry per kind, reduction and call site. Empty if nothing is counted.
  virtual std::vector<CallStats> stats() const { return {}; }
};

// Memory that collectives read and write without staging buffers. Over shared memory, the peers map
// it.
struct SharedBlock {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Memory that all ranks of a group read and write. One rank makes it and sends its number to the
// other ranks; then every rank opens it, including the maker. It exists until all ranks have
// released it, even if the group has ended before. It is 64-byte aligned. The ranks must order
// their writes themselves. Throws OutOfMemory.
class CommonMemory {
 public:
  virtual ~CommonMemory() = default;
  virtual std::uint64_t make_common(std::size_t bytes) = 0;
  virtual std::shared_ptr<void> open_common(int maker, std::uint64_t number) = 0;
  // Return a copy-on-write mapping of memory that this process has open. It is valid while the
  // memory is open. Throws Unsupported.
  virtual std::unique_ptr<CopyOnWriteMapping> map_common(int maker, std::uint64_t number,
                                                         std::size_t bytes) = 0;
};

// Memory of the group, and the devices whose memory collectives can use.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  // Allocate memory, 64-byte aligned. Peers use it only between submit and wait of a collective.
  // Throws OutOfMemory.
  virtual SharedBlock allocate(std::size_t bytes) = 0;
  virtual void release(SharedBlock block) noexcept = 0;
  // Return the interface to memory that the ranks share; null if they do not map each other's
  // memory.
  virtual CommonMemory* common_memory() noexcept { return nullptr; }

  // Return true if collectives accept pointers of the device. Otherwise their caller copies the
  // operands to the host and back. They use no queue of the device: a caller with an asynchronous
  // one waits until the operands are ready before it submits.
  virtual bool reaches(const device::Device& device) const noexcept {
    return device.host_addressable();
  }
  // Return true if kernels of the device may use what allocate() returns.
  virtual bool lends_to(const device::Device& device) const noexcept {
    return device.addresses_host();
  }
};

// The state of the peers, and the failure and the end of this rank's part of the group.
class Peers {
 public:
  virtual ~Peers() = default;

  // Mark the group as watched. A running program that uses several groups of the family watches all
  // of them: a wait in one then ends with the failure that a rank of another one has reported.
  // Otherwise the wait would end at its deadline, if the awaited rank itself waits for the failed
  // rank.
  virtual void watch(bool is_on) noexcept = 0;
  // Throw the failure that a rank of this group has reported, if that is known without receiving a
  // message.
  virtual void check_peers() const {}

  // Publish the rank that this rank waits for outside of this group, by the caller's numbering; -1:
  // none. A caller that still waits repeats the call several times per second.
  virtual void note_awaited(int awaited) noexcept { static_cast<void>(awaited); }
  // Return the rank that a rank of this group has published within the last second; -1 = none.
  virtual int awaited_by(int rank) const noexcept {
    static_cast<void>(rank);
    return -1;
  }

  // Notify the peers that this rank has failed, and close the group. The peers raise the same kind
  // if it is between ranks, and RemoteRank otherwise. `ranks` are the ranks of the job that the
  // text names; none means this one. The text is cut to what fits.
  virtual void give_up(ErrorKind kind, std::string_view why,
                       std::span<const int> ranks) noexcept = 0;
  // Call give_up() with the traceback of an exception of this rank.
  void abort(std::string_view traceback) noexcept;
  // Leave in good order: peers that still wait for this rank are notified that it left. Idempotent.
  virtual void close() noexcept = 0;
  // Return true for a group of several ranks that is closed or has failed.
  virtual bool is_over() const noexcept { return false; }
  // Return true in a forked child of the process that made the group. There every call that takes
  // part in a collective throws GroupClosed, the others do nothing, and the owner of the object
  // must not destroy it.
  virtual bool in_child() const noexcept { return false; }
};

}  // namespace ngd::comm
