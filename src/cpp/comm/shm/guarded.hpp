// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <utility>

#include "base/error.hpp"
#include "comm/shm/family.hpp"

namespace ngd::comm::shm {

// Runs an engine call: whatever it throws closes the family, and is told to the peers. But for
// GroupClosed: the thread that closed the group has told them.
template <class Call>
decltype(auto) guarded(Family& family, Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::GroupClosed)
      family.fail_with(error.kind(), error.what(), error.ranks());
    throw;
  } catch (const std::bad_alloc&) {
    family.fail_with(ErrorKind::OutOfMemory, "out of memory");
    throw;
  } catch (const std::exception& error) {
    family.fail_with(ErrorKind::Internal, error.what());
    throw;
  }
}

}  // namespace ngd::comm::shm
