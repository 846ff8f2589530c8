// SPDX-License-Identifier: Apache-2.0
// Tests the connections of the rendezvous.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <tuple>
#include <utility>

#include "comm/shm/channel.hpp"

namespace ngd::comm::shm {
namespace {

std::pair<Channel, Channel> connected() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {Channel(Descriptor(ends[0])), Channel(Descriptor(ends[1]))};
}

const std::function<bool()> kGoOn;
const Clock kNoDeadline(0, kGoOn);

// In one of ten thousand calls the kernel reports the end of the connection although it has the
// packet.
TEST(Channel, TheLastMessageArrivesBeforeTheEnd) {
  constexpr int kTimes = 100'000;
  const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Channel theirs;
  std::atomic<int> begun{0}, left{0};
  std::thread peer([&] {
    for (int time = 1; time <= kTimes; ++time) {
      while (begun != time) std::this_thread::yield();
      theirs.send(make_message(Topic::Go, 0, 2), file.get(), -1, kNoDeadline);
      theirs.close();
      left = time;
    }
  });
  int heard = 0, ended = 0;
  for (int time = 1; time <= kTimes; ++time) {
    auto [mine, other] = connected();
    theirs = std::move(other);
    begun = time;
    Parcel got;
    Channel::Got what = Channel::Got::Nothing;
    while (what == Channel::Got::Nothing) what = mine.receive(got);
    heard += what == Channel::Got::Parcel && got.message.topic == Topic::Go && !got.cut &&
             got.segment.valid();
    while (left != time) std::this_thread::yield();
    Parcel none;
    ended += mine.receive(none) == Channel::Got::End;
  }
  peer.join();
  EXPECT_EQ(heard, kTimes);
  EXPECT_EQ(ended, kTimes);
}

// Root is exempt from the limit of sent descriptors because of these two capabilities.
bool drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  data[0].effective &= ~(1u << CAP_SYS_RESOURCE | 1u << CAP_SYS_ADMIN);
  return ::syscall(SYS_capset, &header, data) == 0;
}

// Send descriptors over a socket that is never read, until the kernel rejects more.
class Flood {
 public:
  Flood() {
    const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    std::tie(near_, far_) = connected();
    const Clock at_once(1e-9, kGoOn);
    for (int i = 0; i < 1000 && !full_; ++i)
      full_ = near_.send(make_message(Topic::Go, 0, 2), file.get(), file.get(), at_once) ==
              Channel::Sent::TooManyDescriptors;
  }
  bool full() const { return full_; }
  void end() {
    near_.close();
    far_.close();
  }

 private:
  Channel near_, far_;
  bool full_ = false;
};

// Run a call in a process without privileges and with a low RLIMIT_NOFILE. Return its result.
int run_unprivileged(const std::function<int()>& call) {
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 40;
    if (!drop_capabilities() || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::_exit(101);
    ::_exit(call());
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Channel, WaitsWhileTooManyDescriptorsAreQueued) {
  EXPECT_EQ(run_unprivileged([] {
              Flood flood;
              if (!flood.full()) return 1;
              auto [mine, other] = connected();
              const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
              std::thread later([&] {
                std::this_thread::sleep_for(std::chrono::milliseconds(400));
                flood.end();
              });
              const auto start = std::chrono::steady_clock::now();
              const Channel::Sent sent =
                  mine.send(make_message(Topic::Go, 0, 2), file.get(), file.get(), kNoDeadline);
              const double seconds = seconds_since(start);
              later.join();
              Parcel got;
              if (sent != Channel::Sent::Yes || seconds < 0.3) return 2;
              return other.receive(got) == Channel::Got::Parcel && got.segment.valid() ? 0 : 3;
            }),
            0);
}

TEST(Channel, ReportsThatTooManyDescriptorsAreQueued) {
  EXPECT_EQ(run_unprivileged([] {
              const Flood flood;
              auto [mine, other] = connected();
              const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
              const auto start = std::chrono::steady_clock::now();
              const Channel::Sent sent =
                  mine.send(make_message(Topic::Go, 0, 2), file.get(), file.get(), kNoDeadline);
              if (sent != Channel::Sent::TooManyDescriptors) return 1;
              return seconds_since(start) > 4.5 ? 0 : 2;
            }),
            0);
}

TEST(Channel, IsInterruptedWhileItWaitsForTheQueue) {
  EXPECT_EQ(run_unprivileged([] {
              const Flood flood;
              auto [mine, other] = connected();
              const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
              const std::function<bool()> stop = [] { return true; };
              const Clock clock(0, stop);
              try {
                mine.send(make_message(Topic::Go, 0, 2), file.get(), file.get(), clock);
              } catch (const Error& error) {
                return error.kind() == ErrorKind::Interrupted ? 0 : 1;
              }
              return 2;
            }),
            0);
}

}  // namespace
}  // namespace ngd::comm::shm
