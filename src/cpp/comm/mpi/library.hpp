// SPDX-License-Identifier: Apache-2.0
// The MPI of this process, as a table of the functions that ngd calls. The MPI is chosen when the
// first group over MPI is made (ADR 34). Only library_of.cpp includes mpi.h. The build compiles
// library_of.cpp once for each supported MPI, as a module. The process loads the chosen MPI first,
// and then its module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ngd::comm::mpi {

// An MPI communicator and an MPI request, stored as integers. The handles of every supported MPI
// fit into one machine word.
using Comm = std::uintptr_t;
using Request = std::uintptr_t;

inline constexpr int kSuccess = 0;

// The threads that may call MPI. Any: all threads at the same time. OneAtATime: all threads, but
// not at the same time. Few: maybe only the thread that initialised MPI.
enum class Threads { Few, OneAtATime, Any };

// A message that has completed: the index of its request, and its error.
struct Completed {
  int index = 0;
  int error = kSuccess;
  int bytes = 0;  // the size of a message that was received
};

// The functions of an MPI. A call that can fail returns the error code of MPI. Arguments have only
// plain types, and no exceptions are thrown: the shared library with these functions
// (library_of.cpp) may use another C++ standard library than the caller.
class Library {
 public:
  Comm world = 0;
  Comm no_comm = 0;
  Request no_request = 0;

  virtual bool initialised() const noexcept = 0;
  virtual bool finalized() const noexcept = 0;
  virtual int initialise() const noexcept = 0;  // requests MPI_THREAD_MULTIPLE
  virtual Threads threads() const noexcept = 0;
  virtual void finalize() const noexcept = 0;
  // Call MPI_Abort on MPI_COMM_WORLD: this ends all processes of the job.
  virtual void abort() const noexcept = 0;

  // Return the communicator with this Fortran handle; no_comm for that of MPI_COMM_NULL.
  virtual Comm from_fortran(int handle) const noexcept = 0;
  // Make MPI return the errors of calls on `comm`, instead of ending the process.
  virtual int return_errors(Comm comm) const noexcept = 0;
  // Set `answer` to true if `comm` is an intercommunicator.
  virtual int is_between_groups(Comm comm, bool& answer) const noexcept = 0;
  // All ranks of `comm` call the next two functions. duplicate() sets `copy` to a duplicate of
  // `comm`. of_this_host() sets `part` to a new communicator of the ranks on this host.
  virtual int duplicate(Comm comm, Comm& copy) const noexcept = 0;
  virtual int of_this_host(Comm comm, Comm& part) const noexcept = 0;
  virtual void free(Comm comm) const noexcept = 0;
  virtual int rank(Comm comm) const noexcept = 0;
  virtual int size(Comm comm) const noexcept = 0;
  // Return the largest message tag on `comm`; `otherwise` if MPI does not report one.
  virtual int largest_tag(Comm comm, int otherwise) const noexcept = 0;

  // Begin a nonblocking message to or from rank `peer` of `comm`, and set `request`.
  virtual int send(const void* data, std::size_t bytes, int peer, int tag, Comm comm,
                   Request& request) const noexcept = 0;
  virtual int receive(void* data, std::size_t bytes, int peer, int tag, Comm comm,
                      Request& request) const noexcept = 0;
  // Test n requests. Set `count` to the number of completed ones, and fill the first `count`
  // entries of `completed`. If a request has failed, its entry has the error and the call itself
  // succeeds.
  virtual int test_some(Request* requests, std::size_t n, Completed* completed,
                        std::size_t& count) const noexcept = 0;
  // Set `complete` to true if the request is complete, otherwise to false. When it is complete, MPI
  // sets `request` to no_request.
  virtual int test(Request& request, bool& complete) const noexcept = 0;
  // Ask MPI to cancel a message. The request stays pending until test() completes it.
  virtual void cancel(Request& request) const noexcept = 0;
  // Let MPI make progress, by a probe for a message with the tag `unused_tag`. No message has this
  // tag, so the probe finds nothing.
  virtual void poke(int unused_tag, Comm comm) const noexcept = 0;

  // error_text() writes the text of an MPI error code into `text`. version() writes the name and
  // version of the MPI library. `text` has `size` bytes, and a longer string is cut.
  virtual void error_text(int code, char* text, std::size_t size) const noexcept = 0;
  virtual void version(char* text, std::size_t size) const noexcept = 0;

 protected:
  ~Library() = default;
};

// Return the MPI of this process. If none was loaded, load the first one that is found.
const Library& library();

}  // namespace ngd::comm::mpi
