// SPDX-License-Identifier: Apache-2.0
// The table of MPI functions that library.hpp declares, for one MPI. This file is compiled with the
// mpi.h of that MPI, but is not linked with it. Its undefined symbols are found in the MPI that was
// loaded before (library.cpp).
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "comm/mpi/library.hpp"

namespace ngd::comm::mpi {
namespace {

// Convert an MPI handle to a machine word. handle_of() converts the word to the handle again.
template <typename Word, typename Handle>
Word word_of(Handle handle) noexcept {
  Word word = 0;
  std::memcpy(&word, &handle, sizeof handle);
  return word;
}

template <typename Handle, typename Word>
Handle handle_of(Word word) noexcept {
  static_assert(sizeof(Handle) <= sizeof(Word));
  Handle handle;
  std::memcpy(&handle, &word, sizeof handle);
  return handle;
}

MPI_Comm comm_of(Comm word) noexcept { return handle_of<MPI_Comm>(word); }

// Run an MPI call that takes a pointer to a request. Requests are stored as words, so convert
// `word` to an MPI_Request before the call, and store the changed request in `word` after it.
template <typename Call>
int call_with(Request& word, Call call) noexcept {
  MPI_Request request = handle_of<MPI_Request>(word);
  const int code = call(&request);
  word = word_of<Request>(request);
  return code;
}

// Copy `length` characters into `text`, which has `size` bytes. Cut a longer text, and end with 0.
void copy_text(const char* from, int length, char* text, std::size_t size) noexcept {
  const std::size_t num_copied = std::min(static_cast<std::size_t>(std::max(length, 0)), size - 1);
  std::memcpy(text, from, num_copied);
  text[num_copied] = '\0';
}

// The largest number of requests that one call of MPI_Testsome tests. test_part() has arrays for
// them on the stack. test_part() must not throw, so it cannot allocate the arrays. They cannot be
// thread-local either: memory for thread-local variables is allocated at the first use in a thread,
// and the process ends if that fails.
constexpr std::size_t kAtOnce = 256;

class Implementation final : public Library {
 public:
  Implementation() {
    world = word_of<Comm>(MPI_COMM_WORLD);
    no_comm = word_of<Comm>(MPI_COMM_NULL);
    no_request = word_of<Request>(MPI_REQUEST_NULL);
  }

  bool initialised() const noexcept override {
    int flag = 0;
    MPI_Initialized(&flag);
    return flag != 0;
  }
  bool finalized() const noexcept override {
    int flag = 0;
    MPI_Finalized(&flag);
    return flag != 0;
  }
  int initialise() const noexcept override {
    int provided = 0;
    return MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  }
  Threads threads() const noexcept override {
    int provided = MPI_THREAD_SINGLE;
    MPI_Query_thread(&provided);
    if (provided == MPI_THREAD_MULTIPLE) return Threads::Any;
    return provided == MPI_THREAD_SERIALIZED ? Threads::OneAtATime : Threads::Few;
  }
  void finalize() const noexcept override { MPI_Finalize(); }
  void abort() const noexcept override { MPI_Abort(MPI_COMM_WORLD, 1); }

  Comm from_fortran(int handle) const noexcept override {
    return word_of<Comm>(MPI_Comm_f2c(handle));
  }
  int return_errors(Comm comm) const noexcept override {
    return MPI_Comm_set_errhandler(comm_of(comm), MPI_ERRORS_RETURN);
  }
  int is_between_groups(Comm comm, bool& answer) const noexcept override {
    int flag = 0;
    const int code = MPI_Comm_test_inter(comm_of(comm), &flag);
    answer = flag != 0;
    return code;
  }
  int duplicate(Comm comm, Comm& copy) const noexcept override {
    MPI_Comm created = MPI_COMM_NULL;
    const int code = MPI_Comm_dup(comm_of(comm), &created);
    copy = word_of<Comm>(created);
    return code;
  }
  int of_this_host(Comm comm, Comm& part) const noexcept override {
    MPI_Comm created = MPI_COMM_NULL;
    const int code = MPI_Comm_split_type(comm_of(comm), MPI_COMM_TYPE_SHARED, rank(comm),
                                         MPI_INFO_NULL, &created);
    part = word_of<Comm>(created);
    return code;
  }
  void free(Comm comm) const noexcept override {
    MPI_Comm handle = comm_of(comm);
    MPI_Comm_free(&handle);
  }
  int rank(Comm comm) const noexcept override {
    int number = 0;
    MPI_Comm_rank(comm_of(comm), &number);
    return number;
  }
  int size(Comm comm) const noexcept override {
    int number = 1;
    MPI_Comm_size(comm_of(comm), &number);
    return number;
  }
  int largest_tag(Comm comm, int otherwise) const noexcept override {
    void* limit = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comm_of(comm), MPI_TAG_UB, static_cast<void*>(&limit), &found);
    return found != 0 ? *static_cast<int*>(limit) : otherwise;
  }

  int send(const void* data, std::size_t bytes, int peer, int tag, Comm comm,
           Request& request) const noexcept override {
    return call_with(request, [&](MPI_Request* created) {
      return MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_of(comm), created);
    });
  }
  int receive(void* data, std::size_t bytes, int peer, int tag, Comm comm,
              Request& request) const noexcept override {
    return call_with(request, [&](MPI_Request* created) {
      return MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_of(comm), created);
    });
  }
  int test_some(Request* requests, std::size_t n, Completed* completed,
                std::size_t& count) const noexcept override {
    count = 0;
    for (std::size_t begin = 0; begin < n; begin += kAtOnce) {
      const std::size_t end = std::min(n, begin + kAtOnce);
      if (const int code = test_part(requests, begin, end, completed, count); code != kSuccess)
        return code;
    }
    return kSuccess;
  }
  int test(Request& request, bool& complete) const noexcept override {
    int flag = 0;
    const int code = call_with(
        request, [&](MPI_Request* one) { return MPI_Test(one, &flag, MPI_STATUS_IGNORE); });
    complete = flag != 0;
    return code;
  }
  void cancel(Request& request) const noexcept override { call_with(request, MPI_Cancel); }
  void poke(int unused_tag, Comm comm) const noexcept override {
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, unused_tag, comm_of(comm), &found, MPI_STATUS_IGNORE);
  }

  void error_text(int code, char* text, std::size_t size) const noexcept override {
    char buffer[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    if (MPI_Error_string(code, buffer, &length) != MPI_SUCCESS) length = 0;
    copy_text(buffer, length, text, size);
  }
  void version(char* text, std::size_t size) const noexcept override {
    char buffer[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(buffer, &length);
    copy_text(buffer, length, text, size);
  }

 private:
  // Do the work of test_some() for the requests [begin, end), at most kAtOnce. For each complete
  // request, append an entry to `completed` and add 1 to `count`.
  static int test_part(Request* requests, std::size_t begin, std::size_t end, Completed* completed,
                       std::size_t& count) noexcept {
    MPI_Request handles[kAtOnce];
    MPI_Status statuses[kAtOnce];
    int indices[kAtOnce];
    for (std::size_t i = begin; i < end; ++i)
      handles[i - begin] = handle_of<MPI_Request>(requests[i]);
    int done = 0;
    const int code = MPI_Testsome(static_cast<int>(end - begin), handles, &done, indices, statuses);
    for (std::size_t i = begin; i < end; ++i) requests[i] = word_of<Request>(handles[i - begin]);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return code;
    if (done == MPI_UNDEFINED) return kSuccess;
    for (int i = 0; i < done; ++i) {
      const MPI_Status& status = statuses[i];
      Completed& one = completed[count++];
      one = {static_cast<int>(begin) + indices[i], kSuccess, 0};
      MPI_Get_count(&status, MPI_BYTE, &one.bytes);
      const bool has_failed = code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_ERR_PENDING;
      if (has_failed) one.error = status.MPI_ERROR;
    }
    return kSuccess;
  }
};

}  // namespace
}  // namespace ngd::comm::mpi

// Return the functions of this module. library.cpp finds this function by its name.
extern "C" __attribute__((visibility("default"))) const ngd::comm::mpi::Library* ngd_mpi_library();
const ngd::comm::mpi::Library* ngd_mpi_library() {
  static const ngd::comm::mpi::Implementation implementation;
  return &implementation;
}
