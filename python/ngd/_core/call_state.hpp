// SPDX-License-Identifier: Apache-2.0
// The C++ part of a Call (call.pxi): the descriptor of a collective, the arrays of numbers that it
// points to, and the handle of the submitted collective. The descriptor points into this object, so
// the object is neither copied nor moved. The constructor allocates nothing, for calls on the stack
// (quick_call.pxi).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/grouped.hpp"
#include "comm/layout.hpp"
#include "comm/retry.hpp"

// Submits a collective and waits for it.
inline void run_collective(ngd::comm::Communicator& group, const ngd::comm::Collective& collective,
                           double timeout_seconds) {
  ngd::comm::wait_retrying(group, group.submit(collective), timeout_seconds);
}

struct CallState {
  using Communicator = ngd::comm::Communicator;

  CallState() = default;
  CallState(const CallState&) = delete;
  CallState& operator=(const CallState&) = delete;

  // Sets the shape of the array and `more`, which the ranks compare (comm/layout.hpp).
  void set_shape(const std::int64_t* shape, int axes, std::uint64_t more) {
    layout = layout_of(shape, axes, more);
    collective.layout = layout.hash != 0 ? &layout : nullptr;
  }
  // Adds an array to a collective on a list.
  void add_array(ngd::comm::Tensor array, const std::int64_t* shape, int axes) {
    array.layout = layout_of(shape, axes, 0).hash;
    arrays.push_back(array);
  }

  // Submits the collective. `follows` means that a collective of the same public call was submitted
  // before. Then Busy would come too late, so the call waits while another thread uses the group.
  void submit(Communicator& group, bool follows, double timeout_seconds) {
    if (is_list)
      grouped = std::make_unique<ngd::comm::Grouped>(group, collective, arrays);
    else
      work = follows ? ngd::comm::submit_retrying(group, collective, timeout_seconds)
                     : group.submit(collective);
  }
  void wait(Communicator& group, double timeout_seconds) {
    grouped ? grouped->wait(timeout_seconds) : group.wait(work, timeout_seconds);
  }
  // Waits directly after submit(). It does not throw Busy, but waits while another thread uses the
  // group.
  void finish(Communicator& group, double timeout_seconds) {
    if (grouped)
      grouped->wait_retrying(timeout_seconds);
    else
      ngd::comm::wait_retrying(group, work, timeout_seconds);
  }
  bool wait_for(Communicator& group, double seconds) {
    return grouped ? grouped->wait_for(seconds) : group.wait_for(work, seconds);
  }
  void run(Communicator& group, double timeout_seconds) {
    if (!is_list) return run_collective(group, collective, timeout_seconds);
    submit(group, false, timeout_seconds);
    finish(group, timeout_seconds);
  }

  ngd::comm::Collective collective;  // for a list, it does not describe the arrays
  bool is_list = false;
  std::vector<std::uint64_t> counts, receive_counts;
  ngd::comm::Work work;

 private:
  ngd::comm::Layout layout_of(const std::int64_t* shape, int axes, std::uint64_t more) {
    if (axes > kMaxAxes)
      ngd::fail(ngd::ErrorKind::InvalidArgument, "expected at most ", kMaxAxes, " axes; got ",
                axes);
    return ngd::comm::layout_of_shape(shape, axes, more, extents);
  }

  static constexpr int kMaxAxes = 64;  // as in NumPy

  std::uint64_t extents[kMaxAxes];  // memory for the extents of `layout`
  ngd::comm::Layout layout;
  std::vector<ngd::comm::Tensor> arrays;
  std::unique_ptr<ngd::comm::Grouped> grouped;
};

inline std::unique_ptr<CallState> make_call_state() { return std::make_unique<CallState>(); }
