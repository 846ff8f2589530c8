// SPDX-License-Identifier: Apache-2.0
// The connections over which ranks meet.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <utility>

#include "comm/shm/channel.hpp"

namespace ngd::comm::shm {
namespace {

std::pair<Channel, Channel> connected() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {Channel(Descriptor(ends[0])), Channel(Descriptor(ends[1]))};
}

// The kernel says one time in ten thousand that the connection has ended, and has the packet.
TEST(Channel, LastWordsComeBeforeTheEnd) {
  constexpr int kTimes = 100'000;
  const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Channel theirs;
  std::atomic<int> begun{0}, left{0};
  std::thread peer([&] {
    for (int time = 1; time <= kTimes; ++time) {
      while (begun != time) std::this_thread::yield();
      theirs.send(make_message(Topic::Go, 0, 2), file.get());
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

}  // namespace
}  // namespace ngd::comm::shm
