// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.hpp"
#include "comm/shm/family.hpp"

namespace ngd::comm::shm {

// Run call(), which carries out submit, wait, done or split for a group. If it throws, report to
// the peers that this rank has failed (Family::fail_with). Do not report an error of the kind
// GroupClosed: the thread that closed the group has notified the peers already.
template <class Call>
decltype(auto) guarded(Family& family, Call&& call) {
  return notify_on_failure(call, [&](const FailureView& failure) {
    if (failure.kind != ErrorKind::GroupClosed)
      family.fail_with(failure.kind, failure.text, failure.ranks);
  });
}

}  // namespace ngd::comm::shm
