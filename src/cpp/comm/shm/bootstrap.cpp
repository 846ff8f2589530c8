// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/bootstrap.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "base/step.hpp"
#include "comm/communicator.hpp"
#include "comm/messages.hpp"
#include "comm/shm/channel.hpp"
#include "comm/shm/names.hpp"
#include "comm/shm/numa.hpp"
#include "comm/shm/shm_communicator.hpp"
#include "device/threads.hpp"

namespace ngd::comm::shm {

namespace {

constexpr int kConnectRetryMs = 5;
constexpr const char* kLateStart =
    "A late rank did not start, ended early, or has not called ngd.init(). Read its output and the "
    "launcher's. \"ngd doctor\" under the same launcher checks the start. If the ranks are only "
    "slow, "
    "set NGD_TIMEOUT to more seconds.";

// The timeout of one call of connect(), which Client::connect() repeats until the deadline. If the
// queue of connections at rank 0's socket is full, connect() waits until rank 0 accepts a
// connection, for at most this time. Without this wait, each call might find the queue full, if
// many other processes connect too.
constexpr timeval kConnectWait{0, 20'000};
// the time between two checks if other users hold the socket names of the job (names.hpp)
constexpr std::uint64_t kLookAroundNs = 1'000'000'000;
constexpr int kAcceptedAtOnce = 256;  // the most connections that one poll_once() accepts

// Return the number of open descriptors of this process; 0 if /proc cannot be read.
int open_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int count = -3;  // not counted: ".", ".." and the folder itself
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

// Check that this process may open enough file descriptors (RLIMIT_NOFILE). Rank 0 needs a
// connection, a segment and a pidfd for each rank. The other ranks need fewer descriptors, but
// check for as many as rank 0 needs, so that all ranks with the same limit raise the same error.
void check_descriptors(int size) {
  rlimit limit{};
  const auto needed = static_cast<rlim_t>(open_descriptors() + 3 * size + 4);
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < needed)
    fail(ErrorKind::Init, "ngd.init: ", size, " ranks need ", needed,
         " file descriptors, and this process may have ", limit.rlim_cur,
         ": raise RLIMIT_NOFILE (ulimit -n)");
}

// In the rendezvous, the failure of one rank makes all ranks throw. Return the kind of error that
// the other ranks throw if one rank fails with `kind`. CollectiveMismatch, CollectiveTimeout and
// RankLost stay the same, and all other kinds become Init.
ErrorKind kind_for_all(ErrorKind kind) { return is_between_ranks(kind) ? kind : ErrorKind::Init; }

// The part of the rendezvous that is the same on rank 0 and on the other ranks.
class Rendezvous {
 public:
  Rendezvous(const std::string& job_key, int rank, int size, const Clock& clock,
             const JobRanks& job_ranks)
      : addresses_(addresses_of(job_key)),
        rank_(rank),
        size_(size),
        clock_(clock),
        job_ranks_(job_ranks) {
    parcels_.resize(static_cast<std::size_t>(size));
    Parcel& mine = parcel(rank);
    mine.message = make_message(Topic::Hello, rank, size);
    mine.message.pid = ::getpid();
    mine.message.start_time = start_time_of(::getpid());
    if (::sched_getaffinity(0, sizeof mine.message.cores, &mine.message.cores) != 0)
      CPU_ZERO(&mine.message.cores);
    mine.pidfd = open_own_pidfd();
    check_descriptors(size);
  }
  virtual ~Rendezvous() = default;

  // Run the rendezvous, and return the group of all ranks of this host. If this rank fails, notify
  // the other ranks before the exception leaves this function.
  std::unique_ptr<Communicator> run(bool checked) {
    std::unique_ptr<ShmCommunicator> world;
    const auto meet_all = [&]() -> std::unique_ptr<Communicator> {
      exchange();
      Assembly parts = assemble_parts();
      synchronise();
      // make_world() reads the records of the other ranks in shared memory. So synchronise() must
      // be called first: it waits until all ranks have initialised their records.
      world = make_world(std::move(parts.memory), std::move(parts.liveness),
                         Place{rank_, size_, size_ > parts.cores, checked, job_ranks_});
      synchronise();
      return std::move(world);
    };
    return notify_on_failure(meet_all,
                             [&](const FailureView& failure) { notify_all(world.get(), failure); });
  }

 protected:
  // Fill parcels_ with the Hello (the first message) of each rank and its descriptors.
  virtual void exchange() = 0;
  virtual void synchronise() = 0;  // returns when all ranks have called it
  // Send a failure to rank 0; rank 0 sends it to all ranks that have connected.
  virtual void notify(const Message& failure) noexcept = 0;

  Parcel& parcel(int rank) { return parcels_[static_cast<std::size_t>(rank)]; }
  // Return true if this rank has the segment of `rank`. It arrives with that rank's first message.
  bool has_come(int rank) { return parcel(rank).segment.valid(); }
  // Create the segment of this rank, the memory that it shares with its peers. This may fail, so
  // call it only when this rank is connected and can notify the other ranks of a failure.
  void make_segment() { parcel(rank_).segment = create_segment(size_); }
  // Return the other ranks of this host whose Hello (first message) has not arrived here yet.
  std::vector<int> missing() {
    std::vector<int> ranks;
    for (int r = 0; r < size_; ++r)
      if (r != rank_ && !has_come(r)) ranks.push_back(r);
    return ranks;
  }
  // Throw CollectiveTimeout: `late_ranks` (ranks of this host) did not arrive before the deadline.
  // `why`: a further line of the message, or "".
  [[noreturn]] void fail_late(const std::vector<int>& late_ranks,
                              const std::string& why = {}) const {
    const std::vector<int> ranks = job_ranks_.of(late_ranks);
    fail_of(ranks, ErrorKind::CollectiveTimeout, "ngd.init: ", list_ranks(ranks),
            " did not arrive within ", clock_.seconds(), " s.\n", why, why.empty() ? "" : "\n",
            kLateStart);
  }
  // Throw Init: this rank cannot receive a connection or descriptors, because too many are open.
  [[noreturn]] void fail_no_descriptors() const {
    fail(ErrorKind::Init, "ngd.init: rank ", job_ranks_[rank_], ": ", error_text(EMFILE));
  }
  // RLIMIT_NOFILE limits the number of open descriptors of a process. It also limits the number of
  // descriptors that all processes of the user have sent over sockets and that are not received
  // yet. This error is about the second number.
  [[noreturn]] void fail_queue_full() const {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    const auto messages = static_cast<rlim_t>(size_ - 1) * static_cast<rlim_t>(size_ - 1);
    fail(ErrorKind::Init, "ngd.init: expected room for the file descriptors that the ranks send ",
         "to one another; got none on rank ", job_ranks_[rank_],
         " for 5 s, because this user's processes have ",
         "more descriptors in sockets than RLIMIT_NOFILE allows (", limit.rlim_cur,
         "). Raise the limit before the ranks start (ulimit -n ",
         std::max(2 * messages, 2 * limit.rlim_cur), "), or start fewer jobs at the same time");
  }
  // Return the error text for a message that is not from this version of ngd.
  std::string other_version() const {
    return concat("ngd.init: expected one version of ngd on all ranks; rank ", job_ranks_[0],
                  " runs another one. Install the same version in the environment of each rank");
  }
  // Throw RankLost: `rank` has closed its connection, or does not read its messages.
  [[noreturn]] void fail_lost(int rank) const {
    fail_of({job_ranks_[rank]}, ErrorKind::RankLost, "ngd.init: rank ", job_ranks_[rank],
            " has died or ended. Read its last output, and the line of the launcher about it");
  }
  // Throw the failure that another rank has sent to this rank.
  [[noreturn]] void fail_relayed(const Message& failure) const {
    fail_of(job_ranks_.of(ranks_of(failure.ranks)), failure.error_kind, failure.text);
  }

  std::vector<Address> addresses_;
  int rank_;
  int size_;
  const Clock& clock_;
  const JobRanks& job_ranks_;
  std::vector<Parcel> parcels_;  // the first message of each rank, and its descriptors

 private:
  struct Assembly {
    std::unique_ptr<Memory> memory;
    std::unique_ptr<Liveness> liveness;
    int cores = 1;  // the number of different cores that the ranks of this host may use
  };

  // Notify the other ranks of the failure `why`. Allocates no memory.
  void notify_all(ShmCommunicator* world, const FailureView& why) noexcept {
    // Ranks that have finished the rendezvous find the failure in the segment of this rank.
    if (world != nullptr) world->give_up(why.kind, why.text, why.ranks);
    Message failure = make_message(Topic::Failure, rank_, size_);
    failure.error_kind = kind_for_all(why.kind);
    for (const int rank : why.ranks)
      if (const int local = job_ranks_.local(rank); local >= 0 && local < kMaxRanks)
        failure.ranks[static_cast<std::size_t>(local)] = true;
    if (why.ranks.empty()) failure.ranks[static_cast<std::size_t>(rank_)] = true;
    char text[sizeof failure.text + 64];
    const int length = static_cast<int>(std::min(why.text.size(), sizeof failure.text));
    if (failure.error_kind != why.kind)
      std::snprintf(text, sizeof text, "ngd.init: rank %d failed: %.*s", job_ranks_[rank_], length,
                    why.text.data());
    failure.set_text(failure.error_kind != why.kind ? std::string_view(text) : why.text);
    notify(failure);
  }

  // Map the segments of all ranks, and initialise the segment of this rank. The descriptors move
  // from parcels_ to the result.
  Assembly assemble_parts() {
    std::vector<Mapping> mappings;
    std::vector<KeptDescriptor> segments;
    std::vector<PeerProcess> peers;
    cpu_set_t all;
    CPU_ZERO(&all);
    Assembly assembly;
    for (int r = 0; r < size_; ++r) {
      Parcel& each = parcel(r);
      mappings.push_back(map_segment(each.segment, job_ranks_[r]));
      segments.emplace_back(std::move(each.segment));
      peers.push_back(
          {KeptDescriptor(std::move(each.pidfd)), each.message.pid, each.message.start_time});
      CPU_OR(&all, &all, &each.message.cores);
    }
    // `cores` is the number of cores that the ranks of this host may use together. If a CPU quota
    // allows this rank fewer cores than its affinity mask, `cores` is the number that the quota
    // allows. Otherwise `cores` is the number of cores in the masks of all ranks together, because
    // the ranks may be bound to different cores.
    const int available = device::available_cores();
    const bool has_quota = available < CPU_COUNT(&parcel(rank_).message.cores);
    assembly.cores = has_quota ? available : std::max(available, CPU_COUNT(&all));
    assembly.memory = make_process_memory(std::move(mappings), rank_, std::move(segments));
    assembly.liveness = make_process_liveness(std::move(peers));
    initialise_segment(*assembly.memory, rank_, size_, chosen_node(parcel(rank_).message.cores));
    return assembly;
  }
};

// The rendezvous on rank 0: it accepts the other ranks, distributes their segments, and relays
// failures.
class Server final : public Rendezvous {
 public:
  using Rendezvous::Rendezvous;

 private:
  void exchange() override {
    channels_.resize(static_cast<std::size_t>(size_));
    listen();
    while (!missing().empty()) {
      if (clock_.expired()) fail_late(missing());
      poll_once();
    }
    listener_ = Descriptor();
    strangers_.clear();
    make_segment();
    distribute();
  }

  // Listen with the first free name of the job. Names that another user holds are skipped.
  void listen() {
    listener_ = open_socket();
    const auto bound = [&](const Address& each) {
      if (::bind(listener_.get(), each.get(), each.length) == 0) return true;
      if (errno == EADDRINUSE) return false;
      fail(ErrorKind::Init,
           "ngd.init: cannot bind the socket of the rendezvous: ", error_text(errno));
    };
    for (std::size_t i = 0; i < addresses_.size() && !bound(addresses_[i]); ++i) {
      const Holders holders = holders_of(addresses_);
      if (holders[i] == ::geteuid())
        fail(ErrorKind::Init,
             "ngd.init: another running job of this user has the same job key, "
             "or two ranks of this job have the number 0: give each job a key of its own");
      if (i + 1 == addresses_.size())
        fail(ErrorKind::Init,
             "ngd.init: no socket name is free for the rendezvous: ", describe_others(holders));
    }
    protocol_step();
    if (::listen(listener_.get(), SOMAXCONN) != 0)
      fail(ErrorKind::Init,
           "ngd.init: cannot listen on the socket of the rendezvous: ", error_text(errno));
    protocol_step();
  }

  void synchronise() override {
    for (ready_ = 1; ready_ < size_;) {
      if (clock_.expired())
        fail(ErrorKind::CollectiveTimeout, "ngd.init: the ranks were not ready within ",
             clock_.seconds(), " s.\n", kLateStart);
      poll_once();
    }
    const Message go = make_message(Topic::Go, rank_, size_);
    for (int r = 1; r < size_; ++r)
      if (!channel(r).send(go)) fail_lost(r);
  }

  // Send the failure to all ranks, including those that have connected and have sent nothing yet:
  // otherwise they would report that rank 0 is lost. First shut down the listening socket, so that
  // no other rank can connect. Then accept() returns the connections that are still in its queue,
  // and these ranks get the failure too.
  void notify(const Message& failure) noexcept override {
    parcel(rank_).pidfd = Descriptor();  // frees a descriptor, so that accept() can get one
    if (listener_.valid() && ::shutdown(listener_.get(), SHUT_RD) == 0)
      for (Channel last = accept(); last.open(); last = accept())
        if (is_mine(last)) last.send(failure);
    for (std::vector<Channel>* channels : {&channels_, &strangers_})
      for (Channel& each : *channels)
        if (each.open()) each.send(failure);
  }

  Channel& channel(int rank) { return channels_[static_cast<std::size_t>(rank)]; }

  // Send to each rank, except 0, the Hello, segment and pidfd of each other rank, as Topic::Peer.
  void distribute() {
    for (int to = 1; to < size_; ++to)
      for (int r = 0; r < size_; ++r) {
        if (r == to) continue;
        Parcel& each = parcel(r);
        each.message.topic = Topic::Peer;
        const Channel::Sent sent =
            channel(to).send(each.message, each.segment.get(), each.pidfd.get(), clock_);
        if (sent == Channel::Sent::TooManyDescriptors) fail_queue_full();
        if (sent == Channel::Sent::Gone) fail_lost(to);
      }
  }

  // Wait at most 100 ms for new connections and messages, and handle them.
  void poll_once() {
    // A channel that is not open has the descriptor -1, which poll() ignores.
    std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
    for (const Channel& each : channels_) fds.push_back({each.fd(), POLLIN, 0});
    for (const Channel& each : strangers_) fds.push_back({each.fd(), POLLIN, 0});
    if (::poll(fds.data(), fds.size(), clock_.next_poll_ms()) <= 0) return;
    for (int r = 1; r < size_; ++r)
      if (fds[1 + static_cast<std::size_t>(r)].revents != 0) receive_from(r);
    // Iterate backwards, because admit() may remove the entry with this index.
    for (std::size_t i = strangers_.size(); i-- > 0;)
      if (fds[1 + channels_.size() + i].revents != 0) admit(i);
    if (fds[0].revents != 0)
      for (int i = 0; i < kAcceptedAtOnce && accept_stranger(); ++i) continue;
  }

  // Handle a message from a connected rank, if one has arrived. Count a Ready message. Throw the
  // error of a Failure message. Throw RankLost if the rank has closed the connection.
  void receive_from(int rank) {
    Parcel received;
    switch (channel(rank).receive(received)) {
      case Channel::Got::Nothing:
        return;
      case Channel::Got::End:
        channel(rank).close();
        fail_lost(rank);
      case Channel::Got::Parcel:
        break;
    }
    if (received.message.topic == Topic::Failure) {
      channel(rank).close();  // notify() must not send the failure to the rank that reported it
      fail_relayed(received.message);
    }
    if (received.message.topic == Topic::Ready) ++ready_;
  }

  // Accept a connection. Return a channel that is not open if no connection waits.
  Channel accept() noexcept {
    Channel stranger(
        Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
    if (stranger.open()) protocol_step();
    return stranger;  // if no connection was accepted, errno has the reason
  }
  // Return true if a process of this user has made the connection.
  static bool is_mine(const Channel& stranger) noexcept {
    return peer_user(stranger.fd()) == ::geteuid();
  }

  // Accept a connection, and keep it if a process of the same user has made it. Return false if
  // no connection was accepted.
  bool accept_stranger() {
    Channel stranger = accept();
    if (!stranger.open() && (errno == EMFILE || errno == ENFILE)) fail_no_descriptors();
    if (!stranger.open()) return false;
    if (is_mine(stranger)) strangers_.push_back(std::move(stranger));
    return true;
  }

  // Handle the first message on strangers_[index], if it has arrived. Move the connection to
  // channels_ if refuse() accepts the message, and close it otherwise.
  void admit(std::size_t index) {
    Parcel received;
    const Channel::Got result = strangers_[index].receive(received);
    if (result == Channel::Got::Nothing) return;
    Channel stranger = std::move(strangers_[index]);
    strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(index));
    if (result == Channel::Got::End) return;
    const bool is_of_this_job = received.message.magic == kMagic && received.message.size == size_;
    if (is_of_this_job && received.message.topic == Topic::Failure) fail_relayed(received.message);
    if (is_of_this_job && received.cut) {
      // Keep the connection. Then notify() sends the failure of this rank also to the process that
      // has sent `received`.
      strangers_.push_back(std::move(stranger));
      fail_no_descriptors();
    }
    if (const std::string refusal = refuse(received); !refusal.empty()) {
      Message failure = make_message(Topic::Failure, rank_, size_);
      failure.set_text(refusal);
      stranger.send(failure);
      // The sender was started with the same job key, but with another number of ranks. It may be a
      // rank that this job needs. Then the job would wait for it until the deadline, so this rank
      // fails at once.
      if (received.message.magic == kMagic && received.message.size != size_)
        fail(ErrorKind::Init, refusal);
      return;
    }
    const int rank = received.message.rank;
    channel(rank) = std::move(stranger);
    parcel(rank) = std::move(received);
    Message waiting = make_message(Topic::Waiting, rank_, size_);
    waiting.ranks = set_of(missing());
    for (int r = 1; r < size_; ++r)
      if (has_come(r)) channel(r).send(waiting);
  }

  // Return "" if `hello`, the first message on a connection, is from a rank of this job that was
  // missing. Otherwise return the reason to refuse the sender: it has another version of ngd or
  // another job size, its rank is not in the job, or that rank has connected already.
  std::string refuse(Parcel& hello) {
    const Message& message = hello.message;
    if (message.magic != kMagic || message.version != kLayoutVersion ||
        message.topic != Topic::Hello || !hello.segment.valid())
      return other_version();
    if (message.size != size_)
      return concat("ngd.init: expected the same number of ranks on all ranks; got ", size_,
                    " on rank ", job_ranks_[0], " and ", message.size, " on rank ",
                    job_ranks_[message.rank]);
    if (message.rank <= 0 || message.rank >= size_)
      return concat("ngd.init: rank ", job_ranks_[message.rank], " is not a rank of a job of ",
                    size_, " ranks");
    if (has_come(message.rank))
      return concat("ngd.init: rank ", job_ranks_[message.rank],
                    " has connected already: another running job of ",
                    "this user has the same job key, or two ranks have the same number");
    return {};
  }

  Descriptor listener_;
  std::vector<Channel> channels_;   // the connection to each rank
  std::vector<Channel> strangers_;  // connections without a message so far: the rank is not known
  int ready_ = 0;
};

// The rendezvous on each rank except rank 0: it connects to rank 0.
class Client final : public Rendezvous {
 public:
  using Rendezvous::Rendezvous;

 private:
  void exchange() override {
    connect();
    make_segment();
    Parcel& mine = parcel(rank_);
    send_to_server(mine.message, mine.segment.get(), mine.pidfd.get());
    std::vector<int> waited_for{0};
    while (!missing().empty()) {
      Parcel received = next(waited_for);
      if (received.message.topic == Topic::Waiting) waited_for = ranks_of(received.message.ranks);
      if (received.cut) fail_no_descriptors();
      if (received.message.topic == Topic::Peer && received.message.rank >= 0 &&
          received.message.rank < size_ && received.segment.valid())
        parcel(received.message.rank) = std::move(received);
    }
  }

  void synchronise() override {
    send_to_server(make_message(Topic::Ready, rank_, size_));
    while (next({0}).message.topic != Topic::Go) continue;
  }

  void notify(const Message& failure) noexcept override {
    if (server_.open()) server_.send(failure);
  }

  // Connect to rank 0, with repeated tries. Throws CollectiveTimeout at the deadline, and Init if
  // other users hold all socket names of the job.
  void connect() {
    std::uint64_t last_look_ns = now_ns();
    for (;;) {
      for (const Address& each : addresses_)
        if (connect_to(each)) return;
      const bool is_late = clock_.expired();
      if (is_late || now_ns() - last_look_ns > kLookAroundNs) {
        last_look_ns = now_ns();
        const Holders holders = holders_of(addresses_);
        const std::string others = describe_others(holders);
        if (all_held_by_others(holders))
          fail(ErrorKind::Init, "ngd.init: cannot connect to rank ", job_ranks_[0], ": ", others);
        if (is_late) fail_late({0}, others);
      }
      ::poll(nullptr, 0, std::min(kConnectRetryMs, clock_.next_poll_ms()));
    }
  }

  // Connect to an address. Return true if a process of this user listens there. The function sends
  // no data.
  bool connect_to(const Address& address) {
    Descriptor socket = open_socket();
    const int flags = ::fcntl(socket.get(), F_GETFL);
    // connect() could block forever: another program may hold the name and never accept. So make
    // the socket blocking for connect() only if setsockopt() has set a timeout; otherwise leave it
    // non-blocking.
    const bool has_timeout = ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kConnectWait,
                                          sizeof kConnectWait) == 0;
    if (has_timeout) ::fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK);
    if (::connect(socket.get(), address.get(), address.length) != 0) return false;
    if (peer_user(socket.get()) != ::geteuid()) return false;
    protocol_step();
    ::fcntl(socket.get(), F_SETFL, flags);
    server_ = Channel(std::move(socket));
    return true;
  }

  // Send a message to rank 0. If rank 0 has closed the connection or does not read, throw the
  // failure that rank 0 has sent before. If it has sent none, throw RankLost or Init.
  void send_to_server(const Message& message, int segment_fd = -1, int pidfd = -1) {
    const Channel::Sent sent = server_.send(message, segment_fd, pidfd, clock_);
    if (sent == Channel::Sent::Yes) return;
    const int error = errno;
    if (sent == Channel::Sent::TooManyDescriptors) fail_queue_full();
    for (;;) {
      Parcel received;
      if (!receive(received))
        fail(ErrorKind::Init, "ngd.init: cannot send a message to rank ", job_ranks_[0], ": ",
             error_text(error));
    }
  }

  // Wait for a message from rank 0. At the deadline, throw an error that blames `waited_for`.
  Parcel next(const std::vector<int>& waited_for) {
    for (;;) {
      Parcel received;
      if (receive(received)) return received;
      if (clock_.expired()) fail_late(waited_for.empty() ? std::vector{0} : waited_for);
      pollfd readable{server_.fd(), POLLIN, 0};
      ::poll(&readable, 1, clock_.next_poll_ms());
    }
  }

  // Receive a message that rank 0 has sent. Return false if no message waits.
  bool receive(Parcel& received) {
    switch (server_.receive(received)) {
      case Channel::Got::Nothing:
        return false;
      case Channel::Got::End:
        server_.close();
        fail_lost(0);
      case Channel::Got::Parcel:
        break;
    }
    if (received.message.magic != kMagic || received.message.version != kLayoutVersion)
      fail(ErrorKind::Init, other_version());
    if (received.message.topic == Topic::Failure) {
      server_.close();  // notify() must not send the failure to rank 0, which has sent it
      fail_relayed(received.message);
    }
    return true;
  }

  Channel server_;
};

}  // namespace

std::unique_ptr<Communicator> meet(const std::string& job_key, int rank, int size,
                                   double timeout_seconds, const std::function<bool()>& interrupt,
                                   bool checked, const JobRanks& job_ranks) {
  const Clock clock(timeout_seconds, interrupt);
  if (rank == 0) return Server(job_key, rank, size, clock, job_ranks).run(checked);
  return Client(job_key, rank, size, clock, job_ranks).run(checked);
}

}  // namespace ngd::comm::shm

namespace ngd::comm {

std::unique_ptr<Communicator> make_shm_communicator(const std::string& job_key, int rank, int size,
                                                    double timeout_seconds,
                                                    const std::function<bool()>& interrupt,
                                                    const std::vector<int>& job_ranks) {
  if (rank < 0 || rank >= size)
    fail(ErrorKind::Init, "ngd.init: rank ", rank, " is not a rank of a job of ", size, " ranks");
  if (size > shm::kMaxRanks)
    fail(ErrorKind::Init, "ngd.init: expected at most ", shm::kMaxRanks, " ranks on one host; got ",
         size);
  return shm::meet(job_key, rank, size, timeout_seconds, interrupt, true, shm::JobRanks(job_ranks));
}

}  // namespace ngd::comm
