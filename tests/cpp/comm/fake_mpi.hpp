// SPDX-License-Identifier: Apache-2.0
// An MPI inside one process, for ranks that are threads. A test that includes this file defines
// mpi::library() by it, and needs neither mpirun nor an MPI.
//
// It behaves like Open MPI where the standard leaves a choice: a short message completes at once
// for its sender, a long one moves while its receiver is inside a call, and a send is never
// cancelled. It counts messages, and it can fail a call that the test chooses.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "comm/mpi/library.hpp"
#include "comm/mpi/rank_set.hpp"

namespace ngd::comm {

class FakeMpi final : public mpi::Library {
 public:
  struct Rank {
    int number;
    int size;
    long tests = 0;     // the number of calls of test_some
    long failing = -1;  // the number of the call that fails
  };
  // The source, the destination, and the tag without the slot of its collective, which depends on
  // earlier ones.
  using Route = std::tuple<int, int, int>;

  // Start a job, and return the communicator of each rank.
  std::vector<mpi::Comm> start(int ranks) {
    const std::lock_guard lock(mutex_);
    operations_.clear();
    sent_.clear();
    calls_ = 0;
    ranks_.clear();
    std::vector<mpi::Comm> comms;
    for (int r = 0; r < ranks; ++r) {
      ranks_.push_back(std::make_unique<Rank>(Rank{r, ranks}));
      comms.push_back(reinterpret_cast<mpi::Comm>(ranks_.back().get()));
    }
    return comms;
  }

  // Let call `number` of test_some on a rank fail.
  void fail_test(int rank, long number) {
    ranks_[static_cast<std::size_t>(rank)]->failing = number;
  }
  long tests(int rank) const { return ranks_[static_cast<std::size_t>(rank)]->tests; }
  // Set if long messages that have started can be cancelled, which no MPI promises.
  void oblige(bool on) { obliging_ = on; }

  std::map<Route, int> sent() const {
    const std::lock_guard lock(mutex_);
    return sent_;
  }
  void forget_sent() {
    const std::lock_guard lock(mutex_);
    sent_.clear();
  }
  // Return the messages with a tag >= `tag` that were sent and never received.
  int unreceived(int tag) const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(
        std::count_if(operations_.begin(), operations_.end(), [&](const Operation& each) {
          return each.sends && !each.delivered && each.tag % mpi::kTagsPerGroup >= tag;
        }));
  }
  // Return true if MPI still uses some of these bytes.
  bool holds(const void* data, std::size_t bytes) const {
    const std::lock_guard lock(mutex_);
    const auto* begin = static_cast<const std::byte*>(data);
    return std::any_of(operations_.begin(), operations_.end(), [&](const Operation& each) {
      return !each.complete && begin < each.data + each.bytes && each.data < begin + bytes;
    });
  }
  long calls() const { return calls_; }  // calls that may move messages

  bool initialised() const noexcept override { return true; }
  bool finalized() const noexcept override { return false; }
  int initialise() const noexcept override { return mpi::kSuccess; }
  mpi::Threads threads() const noexcept override { return mpi::Threads::Few; }
  void finalize() const noexcept override {}
  void abort() const noexcept override {}
  mpi::Comm from_fortran(int) const noexcept override { return 0; }
  int return_errors(mpi::Comm) const noexcept override { return mpi::kSuccess; }
  int is_between_groups(mpi::Comm, bool&) const noexcept override { return mpi::kSuccess; }
  int duplicate(mpi::Comm comm, mpi::Comm& copy) const noexcept override {
    ++calls_;
    copy = comm;
    return mpi::kSuccess;
  }
  int of_this_host(mpi::Comm comm, mpi::Comm& part) const noexcept override {
    ++calls_;
    part = comm;
    return mpi::kSuccess;
  }
  void free(mpi::Comm) const noexcept override { ++calls_; }
  int rank(mpi::Comm comm) const noexcept override { return of(comm).number; }
  int size(mpi::Comm comm) const noexcept override { return of(comm).size; }
  int largest_tag(mpi::Comm, int otherwise) const noexcept override { return otherwise; }

  int send(const void* data, std::size_t bytes, int peer, int tag, mpi::Comm comm,
           mpi::Request& request) const noexcept override {
    const std::lock_guard lock(mutex_);
    const int me = of(comm).number;
    const int first = mpi::kFirstDataTag;
    ++sent_[{me, peer, tag < first ? tag : first + (tag - first) % mpi::kTagsPerCollective}];
    // MPI only reads the buffer.
    auto* source = static_cast<std::byte*>(const_cast<void*>(data));
    Operation& mine = post({true, me, peer, tag, source, bytes}, request);
    if (bytes <= kEagerBytes) {
      mine.copy.assign(source, source + bytes);
      mine.complete = true;
    }
    match(mine);
    return mpi::kSuccess;
  }
  int receive(void* data, std::size_t bytes, int peer, int tag, mpi::Comm comm,
              mpi::Request& request) const noexcept override {
    const std::lock_guard lock(mutex_);
    match(post({false, of(comm).number, peer, tag, static_cast<std::byte*>(data), bytes}, request));
    return mpi::kSuccess;
  }
  int test_some(mpi::Request* requests, std::size_t n, mpi::Completed* completed,
                std::size_t& count) const noexcept override {
    const std::lock_guard lock(mutex_);
    ++calls_;
    count = 0;
    const mpi::Request* first = std::find_if(
        requests, requests + n, [this](mpi::Request each) { return each != no_request; });
    if (first == requests + n) return mpi::kSuccess;
    Rank& caller = *ranks_[static_cast<std::size_t>(reinterpret_cast<Operation*>(*first)->me)];
    if (caller.failing == caller.tests++) return 1;
    move(caller.number);
    for (std::size_t i = 0; i < n; ++i) {
      if (requests[i] == no_request) continue;
      const Operation& each = *reinterpret_cast<Operation*>(requests[i]);
      if (!each.complete) continue;
      completed[count++] = {static_cast<int>(i), mpi::kSuccess, static_cast<int>(each.received)};
      end(requests[i]);
    }
    return mpi::kSuccess;
  }
  int test(mpi::Request& request, bool& complete) const noexcept override {
    const std::lock_guard lock(mutex_);
    ++calls_;
    Operation& each = *reinterpret_cast<Operation*>(request);
    move(each.me);
    complete = each.complete;
    if (complete) end(request);
    return mpi::kSuccess;
  }
  void cancel(mpi::Request& request) const noexcept override {
    const std::lock_guard lock(mutex_);
    ++calls_;
    Operation& each = *reinterpret_cast<Operation*>(request);
    if (each.complete || (each.partner != nullptr && !obliging_) || (each.sends && !obliging_))
      return;
    if (each.partner != nullptr) {
      if (!each.sends) return;  // the data are on their way, and test() completes the send
      each.partner->partner = nullptr;
      each.partner = nullptr;
    }
    each.complete = each.delivered = true;
  }
  void poke(int, mpi::Comm) const noexcept override { ++calls_; }
  void error_text(int, char* text, std::size_t size) const noexcept override {
    std::strncpy(text, "as the test wants it", size - 1);
  }
  void version(char* text, std::size_t size) const noexcept override {
    std::strncpy(text, "fake", size - 1);
  }

 private:
  static constexpr std::size_t kEagerBytes = std::size_t{64} << 10;

  struct Operation {
    bool sends;
    int me, peer, tag;
    std::byte* data;
    std::size_t bytes;
    std::vector<std::byte> copy = {};  // of a short message
    Operation* partner = nullptr;      // the matching operation, until the data have moved
    bool complete = false;             // the caller may free its memory
    bool delivered = false;            // the data have arrived, or never will
    bool ended = false;                // the caller has seen that it is complete
    std::size_t received = 0;
  };

  static Rank& of(mpi::Comm comm) { return *reinterpret_cast<Rank*>(comm); }

  Operation& post(Operation&& operation, mpi::Request& request) const {
    ++calls_;
    operations_.push_back(std::move(operation));
    request = reinterpret_cast<mpi::Request>(&operations_.back());
    return operations_.back();
  }
  // In the order in which they were posted.
  void match(Operation& mine) const {
    for (Operation& each : operations_) {
      if (each.sends == mine.sends || each.me != mine.peer || each.peer != mine.me ||
          each.tag != mine.tag || each.partner != nullptr || each.delivered ||
          (each.complete && !each.sends))
        continue;
      each.partner = &mine;
      mine.partner = &each;
      return;
    }
  }
  // All messages to a rank arrive while the rank is inside any call.
  void move(int rank) const {
    for (Operation& each : operations_) {
      if (each.sends || each.me != rank || each.complete || each.partner == nullptr) continue;
      Operation& from = *each.partner;
      each.received = std::min(from.bytes, each.bytes);
      const std::byte* data = from.copy.empty() ? from.data : from.copy.data();
      if (each.received != 0) std::memcpy(each.data, data, each.received);
      each.complete = each.delivered = from.complete = from.delivered = true;
      each.partner = from.partner = nullptr;
    }
  }
  void end(mpi::Request& request) const {
    reinterpret_cast<Operation*>(request)->ended = true;
    request = no_request;
    operations_.remove_if([](const Operation& each) { return each.ended && each.delivered; });
  }

  mutable std::recursive_mutex mutex_;  // operator delete may call holds()
  mutable std::list<Operation> operations_;
  mutable std::map<Route, int> sent_;
  mutable std::atomic<long> calls_{0};
  std::vector<std::unique_ptr<Rank>> ranks_;
  bool obliging_ = false;
};

}  // namespace ngd::comm
