// SPDX-License-Identifier: Apache-2.0
// A group of one rank. A collective copies its source to its destination when it is submitted, and
// is then complete. Any number of threads may use the group.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string_view>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/messages.hpp"
#include "device/device.hpp"

namespace ngd::comm {

namespace {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() : Communicator({"self"}) {}

  std::optional<Work> try_submit(const Collective& collective) override {
    check_open([&] { return describe(collective); });
    validate(collective, 0, 1);
    const std::uint64_t elements = destination_elements(collective, 0, 1);
    if (source_elements(collective, 0, 1) != elements) [[unlikely]]
      fail(ErrorKind::InvalidArgument, describe(collective),
           ": expected as many elements to receive as to send in a group of one rank");
    if (collective.destination != collective.source && elements > 0)
      std::memcpy(collective.destination, collective.source, elements * size_of(collective.dtype));
    return Work{++submitted_};
  }

  Progress try_wait(Work, const WaitLimits&) override {
    check_open([] { return "wait"; });
    return Progress::Done;
  }

  std::optional<std::unique_ptr<Communicator>> try_split(int color, int) override {
    check_open([] { return "split"; });
    return color < 0 ? nullptr : std::make_unique<SelfCommunicator>();
  }

  SharedBlock allocate(std::size_t bytes) override {
    return {device::cpu().allocate(bytes), bytes};
  }
  void release(SharedBlock block) noexcept override { device::cpu().release(block.data); }

  void give_up(ErrorKind, std::string_view why, std::span<const int>) noexcept override {
    close_with(why);
  }
  void close() noexcept override { close_with(""); }

 private:
  // Throw GroupClosed if the group is closed. For the error message, call() returns the name of the
  // refused call, such as "wait".
  template <class Call>
  void check_open(Call&& call) const {
    if (!closed_.load(std::memory_order_acquire)) [[likely]]
      return;
    const bool has_failed = why_[0] != '\0';
    fail(ErrorKind::GroupClosed,
         has_failed ? closed_by_failure(call(), why_) : closed_in_order(call()));
  }
  // Close the group. `why` is the text of the failure; "": no failure. Only the first call has an
  // effect.
  void close_with(std::string_view why) noexcept {
    const std::lock_guard lock(closing_);
    if (closed_.load(std::memory_order_relaxed)) return;
    std::copy_n(why.data(), std::min(why.size(), sizeof why_ - 1), why_);
    closed_.store(true, std::memory_order_release);
  }

  std::atomic<std::uint64_t> submitted_{0};
  std::mutex closing_;
  std::atomic<bool> closed_{false};
  char why_[256] = {};  // the text of the failure, or empty; written before closed_ is set
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace ngd::comm
