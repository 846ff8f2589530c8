// SPDX-License-Identifier: Apache-2.0
#include "base/error.hpp"

#include <new>

namespace ngd {

FailureView failure_in_flight() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return {error.kind(), error.what(), error.ranks()};
  } catch (const std::bad_alloc&) {
    return {ErrorKind::OutOfMemory, "out of memory", {}};
  } catch (const std::exception& error) {
    return {ErrorKind::Internal, error.what(), {}};
  } catch (...) {
    return {ErrorKind::Internal, "an unknown exception", {}};
  }
}

}  // namespace ngd
