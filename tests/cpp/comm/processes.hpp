// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes: each is a forked child that reports its outcome.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ranks.hpp"

namespace ngd::comm {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A child process that runs one rank, and reports its outcome through a pipe.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::alarm(60);  // a time limit for all cases
      const Outcome outcome = outcome_of(body);
      const int kind = outcome.kind ? static_cast<int>(*outcome.kind) : -1;
      const bool told = ::write(ends[1], &kind, sizeof kind) == sizeof kind &&
                        ::write(ends[1], outcome.message.data(), outcome.message.size()) >= 0;
      ::_exit(told ? 0 : 1);
    }
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pipe_(std::exchange(other.pipe_, -1)) {}
  ~Child() {
    if (pid_ <= 0) return;
    kill();
    reap();
    ::close(pipe_);
  }

  void kill() const { ::kill(pid_, SIGKILL); }
  void reap() {
    if (!reaped_) ::waitpid(pid_, nullptr, 0);
    reaped_ = true;
  }
  // Return the child's outcome. If it died without a report, there is no kind, and the message is
  // "dead".
  Outcome outcome() {
    int kind = 0;
    if (::read(pipe_, &kind, sizeof kind) != sizeof kind) return {std::nullopt, "dead"};
    Outcome result;
    if (kind >= 0) result.kind = static_cast<ErrorKind>(kind);
    char buffer[4096];
    for (ssize_t got; (got = ::read(pipe_, buffer, sizeof buffer)) > 0;)
      result.message.append(buffer, static_cast<std::size_t>(got));
    return result;
  }

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
  bool reaped_ = false;
};

inline std::string new_key() {
  static int number = 0;
  return "ngd-test-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

using Body = std::function<void(Communicator&)>;

// Creates a world with `per_node` ranks on each NUMA node, or all on the nodes of this machine.
inline Child start_rank(const std::string& key, int rank, int size, double timeout,
                        const Body& body, int per_node = 0) {
  return Child([=] {
    if (per_node > 0) ::setenv("NGD_NUMA_NODE", std::to_string(rank / per_node).c_str(), 1);
    const auto group = make_shm_communicator(key, rank, size, timeout);
    body(*group);
  });
}

inline std::vector<Child> start_ranks(int size, const Body& body, int per_node = 0) {
  const std::string key = new_key();
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank)
    children.push_back(start_rank(key, rank, size, kSeconds, body, per_node));
  return children;
}

}  // namespace ngd::comm
