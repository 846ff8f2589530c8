// SPDX-License-Identifier: Apache-2.0
#include "comm/hierarchical/transfers.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <span>

#include "base/reduce.hpp"

namespace ngd::comm::hierarchical {
namespace {

using mpi::LaneTransfer;
using mpi::Stream;
using mpi::Transfer;

// A mean of all ranks is that of the hosts' means where these are exact: their sums might overflow.
bool averages_inside(const Hosts& hosts, const Collective& whole) {
  return whole.op == ReduceOp::Mean && std::has_single_bit(static_cast<unsigned>(hosts.per_host()));
}

double divisor_between(const Hosts& hosts, const Collective& whole) {
  return divisor_of(whole.op, averages_inside(hosts, whole) ? hosts.count() : hosts.ranks());
}

Collective local_step(const Hosts& hosts, const Collective& whole, Kind kind) {
  const bool sums = whole.op == ReduceOp::Mean && !averages_inside(hosts, whole);
  Collective step;
  step.kind = kind;
  step.op = reduces(kind) ? (sums ? ReduceOp::Sum : whole.op) : ReduceOp::None;
  step.dtype = whole.dtype;
  return step;
}

// Adds the ranks that hold up a local step, each once.
void add_missing(const Hosts& hosts, Work work, std::vector<int>& peers) {
  for (const int rank : hosts.missing(work))
    if (std::find(peers.begin(), peers.end(), rank) == peers.end()) peers.push_back(rank);
}

// Lanes whose steps may submit a collective among the ranks of this host. All ranks of the host
// submit in the same order: lane after lane, each as much as belongs to its turn.
//
// The host's shared memory can refuse a submission because another thread uses it. A step therefore
// has two parts: submission() only describes the collective, and complete_step(), which may send and
// receive, runs once the submission was accepted.
class HostLanes : public LaneTransfer {
 public:
  std::vector<int> pending_peers() const override {
    std::vector<int> peers = LaneTransfer::pending_peers();
    for (const std::optional<Work>& work : works_)
      if (work) add_missing(hosts_, *work, peers);
    return peers.empty() ? hosts_.neighbours() : peers;
  }

 protected:
  HostLanes(Hosts& hosts, int tag, const Collective& collective, Cut cut)
      : LaneTransfer(hosts.counterparts(), tag, collective, cut),
        hosts_(hosts),
        ticket_(hosts.take_ticket()),
        windows_((cut.elements + cut.window - 1) / cut.window),
        counts_(static_cast<std::size_t>(hosts.per_host())),
        works_(static_cast<std::size_t>(cut.lanes)) {}

  static Cut cut_of(std::size_t elements, std::size_t window, int lanes) {
    const std::size_t windows = (elements + window - 1) / window;
    return {elements, window, static_cast<int>(std::min<std::size_t>(windows, lanes))};
  }

  // Return true if the step submits to the local communicator.
  virtual bool submits(int step) const = 0;
  // Return the collective to submit at lane.step. `counts` holds one number per rank of the host; the
  // result may refer to it. May be called again for the same step, so it must not have an effect that shows.
  virtual Collective submission(const Lane& lane, std::span<std::uint64_t> counts) const = 0;
  // Carry out the rest of lane.step; false when the window was complete before it.
  virtual bool complete_step(Lane& lane) = 0;

  void end_turn() { ++turn_; }
  // After the last submission of a window: the next transfer may submit when it was the last one.
  void end_window() {
    if (--windows_ == 0) hosts_.next_ticket();
  }
  bool has_more(const Lane& lane) const {
    return lane.window.begin + window_elements() * lanes() < elements();
  }

  Hosts& hosts_;

 private:
  bool ready(Lane& lane) final {
    std::optional<Work>& work = works_[static_cast<std::size_t>(lane.number)];
    if (work && hosts_.done(*work)) work.reset();
    if (!lane.requests.test() || work) return false;
    if (!submits(lane.active ? lane.step : 0)) return true;
    return hosts_.serves(ticket_) && turn_ % lanes() == static_cast<std::size_t>(lane.number);
  }

  Outcome step(Lane& lane) final {
    if (submits(lane.step)) {
      std::optional<Work>& work = works_[static_cast<std::size_t>(lane.number)];
      work = hosts_.try_submit(submission(lane, counts_));
      if (!work) return Outcome::Blocked;
    }
    return complete_step(lane) ? Outcome::Continues : Outcome::WindowComplete;
  }

  const std::uint64_t ticket_;
  std::size_t windows_;  // whose last submission is to come
  std::size_t turn_ = 0;
  std::vector<std::uint64_t> counts_;
  std::vector<std::optional<Work>> works_;  // by lane: in flight
};

// The turns: the first windows' reduce-scatters, one a lane; then, lane after lane, the all-gather
// of a window with the reduce-scatter of the lane's next.
class AllReduce final : public HostLanes {
 public:
  AllReduce(Hosts& hosts, int tag, const Collective& collective)
      : HostLanes(hosts, tag, collective, cut(hosts, collective)),
        half_(is_half(collective.dtype)),
        partial_dtype_(half_ ? DType::F32 : collective.dtype),
        partial_bytes_(size_of(partial_dtype_)),
        slice_bytes_(round_up((window_elements() / per_host() + 1) * partial_bytes_)),
        wide_bytes_(half_ ? round_up(window_elements() * partial_bytes_) : 0),
        scratch_(add_buffer(hosts.local(), lanes() * (slice_bytes_ + wide_bytes_)).data()),
        sources_(static_cast<std::size_t>(size_)) {}

 private:
  static constexpr std::size_t kLeastWindowBytes = std::size_t{256} << 10;
  static constexpr int kLanes = 4;

  // Small enough for all lanes to have work, where that is not too small.
  static Cut cut(const Hosts& hosts, const Collective& collective) {
    const std::size_t width = size_of(collective.dtype);
    const std::size_t most = mpi::reduce_window(collective.dtype, hosts.ranks());
    const std::size_t share = collective.count / kLanes + 1;
    return cut_of(collective.count, std::min(most, std::max(share, kLeastWindowBytes / width)),
                  kLanes);
  }
  static std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }
  std::size_t per_host() const { return static_cast<std::size_t>(hosts_.per_host()); }

  bool submits(int step) const override { return step == 0 || step == 3; }

  Collective submission(const Lane& lane, std::span<std::uint64_t> counts) const override {
    for (std::size_t i = 0; i < counts.size(); ++i)
      counts[i] = slice(lane, static_cast<int>(i)).count;
    Collective inside = lane.step == 0 ? reduction_inside(lane) : gathering_inside(lane);
    inside.counts = counts.data();
    return inside;
  }

  bool complete_step(Lane& lane) override {
    switch (lane.step) {
      case 0:
        end_turn();
        return true;
      case 1:
        exchange_contributions(lane);
        return true;
      case 2:
        reduce_between(lane);
        exchange_results(lane);
        return true;
      case 3:
        end_window();
        return true;
      default:
        if (!has_more(lane)) end_turn();
        return false;
    }
  }

  // Of the window: what local rank i adds up; of that: what host h does.
  Slice slice(const Lane& lane, int i) const { return part_of(lane.window, i, hosts_.per_host()); }
  Slice mine(const Lane& lane) const { return slice(lane, hosts_.local().rank()); }
  Slice part(const Lane& lane, int h) const { return part_of(mine(lane), h, size_); }

  std::byte* sums(const Lane& lane) const {  // of my slice over my host
    return scratch_ + static_cast<std::size_t>(lane.number) * slice_bytes_;
  }
  std::byte* sum_at(const Lane& lane, const Slice& part) const {
    return sums(lane) + (part.begin - mine(lane).begin) * partial_bytes_;
  }
  std::byte* wide(const Lane& lane) const {
    return scratch_ + lanes() * slice_bytes_ + static_cast<std::size_t>(lane.number) * wide_bytes_;
  }

  Collective reduction_inside(const Lane& lane) const {
    Collective inside = local_step(hosts_, collective_, Kind::ReduceScatter);
    inside.dtype = partial_dtype_;
    inside.source = source(lane.window);
    if (half_) {
      widen(collective_.dtype, source(lane.window), reinterpret_cast<float*>(wide(lane)),
            lane.window.count);
      inside.source = wide(lane);
    }
    inside.destination = sums(lane);
    return inside;
  }

  void exchange_contributions(Lane& lane) {
    const Slice own = part(lane, rank_);
    lane.scratch.reserve(own.count * partial_bytes_ * static_cast<std::size_t>(size_));
    for (int distance = 1; distance < size_; ++distance) {
      const int from = (rank_ - distance + size_) % size_;
      lane.requests.receive(contribution(lane, own, from), own.count * partial_bytes_, from,
                            lane.tag);
    }
    for (int distance = 1; distance < size_; ++distance) {
      const int to = (rank_ + distance) % size_;
      const Slice theirs = part(lane, to);
      lane.requests.send(sum_at(lane, theirs), theirs.count * partial_bytes_, to, lane.tag);
    }
  }

  void reduce_between(Lane& lane) {
    const Slice own = part(lane, rank_);
    std::byte* sum = sum_at(lane, own);
    for (int h = 0; h < size_; ++h)
      sources_[static_cast<std::size_t>(h)] = h == rank_ ? sum : contribution(lane, own, h);
    reduce(combine_of(collective_.op), partial_dtype_, sources_.data(), size_,
           half_ ? sum : destination(own), own.count, divisor_between(hosts_, collective_));
    if (half_)
      narrow(collective_.dtype, reinterpret_cast<const float*>(sum), destination(own), own.count);
  }

  void exchange_results(Lane& lane) {
    const Slice own = part(lane, rank_);
    for (int distance = 1; distance < size_; ++distance) {
      const int from = (rank_ - distance + size_) % size_;
      const Slice theirs = part(lane, from);
      lane.requests.receive(destination(theirs), bytes(theirs), from, lane.tag);
    }
    for (int distance = 1; distance < size_; ++distance)
      lane.requests.send(destination(own), bytes(own), (rank_ + distance) % size_, lane.tag);
  }

  Collective gathering_inside(const Lane& lane) const {
    Collective inside = local_step(hosts_, collective_, Kind::AllGather);
    inside.source = destination(mine(lane));
    inside.destination = destination(lane.window);
    return inside;
  }

  std::byte* contribution(Lane& lane, const Slice& own, int from) const {
    return lane.scratch.data() + own.count * partial_bytes_ * static_cast<std::size_t>(from);
  }

  const bool half_;
  const DType partial_dtype_;
  const std::size_t partial_bytes_;
  const std::size_t slice_bytes_;
  const std::size_t wide_bytes_;
  std::byte* const scratch_;  // shared with the ranks of this host
  std::vector<const void*> sources_;
};

class Broadcast final : public HostLanes {
 public:
  Broadcast(Hosts& hosts, int tag, const Collective& collective)
      : HostLanes(hosts, tag, collective,
                  cut_of(collective.count, kWindowBytes / size_of(collective.dtype), kLanes)),
        leader_(hosts.place(collective.root)),
        leads_(hosts.local().rank() == leader_),
        hop_((rank_ - hosts.host(collective.root) + size_) % size_) {}

 private:
  static constexpr std::size_t kWindowBytes = std::size_t{512} << 10;
  static constexpr int kLanes = 4;

  bool submits(int step) const override { return step == 1; }

  Collective submission(const Lane& lane, std::span<std::uint64_t>) const override {
    Collective inside = local_step(hosts_, collective_, Kind::Broadcast);
    inside.root = leader_;
    inside.count = lane.window.count;
    inside.source = leads_ ? held(lane) : nullptr;
    inside.destination = destination(lane.window);
    return inside;
  }

  bool complete_step(Lane& lane) override {
    if (lane.step == 0 && leads_ && hop_ > 0)
      lane.requests.receive(destination(lane.window), bytes(lane.window),
                            (rank_ - 1 + size_) % size_, lane.tag);
    if (lane.step == 1) {
      if (leads_ && hop_ < size_ - 1)
        lane.requests.send(held(lane), bytes(lane.window), (rank_ + 1) % size_, lane.tag);
      end_turn();
      end_window();
    }
    return lane.step < 2;
  }

  // The window's data on the leader of this host.
  const std::byte* held(const Lane& lane) const {
    return hop_ == 0 ? source(lane.window) : destination(lane.window);
  }

  const int leader_;  // the local rank through which the data come
  const bool leads_;
  const int hop_;  // of my host, from the root's
};

// Collectives of blocks: streams between counterparts, and one local step per host. The base class
// submits the local steps in order; a derived class describes them and can have no effect before the
// host's shared memory has accepted one.
class HostBlocks : public Transfer {
 public:
  std::vector<int> pending_peers() const override {
    std::vector<int> peers;
    for (const auto* streams : {&outgoing_, &incoming_})
      for (const std::optional<Stream>& stream : *streams)
        if (stream && peers.empty()) peers = stream->pending_peers();
    for (const std::optional<Work>& work : works_)
      if (work) add_missing(hosts_, *work, peers);
    return peers.empty() ? hosts_.neighbours() : peers;
  }

 protected:
  HostBlocks(Hosts& hosts, int tag, const Collective& collective)
      : hosts_(hosts),
        tag_(tag),
        collective_(collective),
        width_(size_of(collective.dtype)),
        blocks_(collective.counts, collective.count),
        ticket_(hosts.take_ticket()),
        works_(static_cast<std::size_t>(hosts.count())),
        outgoing_(static_cast<std::size_t>(hosts.count())),
        incoming_(static_cast<std::size_t>(hosts.count())) {}

  int count() const { return hosts_.count(); }
  int after(int distance) const { return (hosts_.mine() + distance) % count(); }
  // The block of host h's rank in my place, and all of that host's.
  Slice block(int h) const { return blocks_[h * hosts_.per_host() + hosts_.local().rank()]; }
  Slice region(int h) const {
    const Slice first = blocks_[h * hosts_.per_host()];
    const Slice last = blocks_[(h + 1) * hosts_.per_host() - 1];
    return {first.begin, last.begin + last.count - first.begin};
  }
  std::byte* at(void* data, std::size_t element) const {
    return static_cast<std::byte*>(data) + element * width_;
  }
  const std::byte* at(const void* data, std::size_t element) const {
    return static_cast<const std::byte*>(data) + element * width_;
  }

  Collective region_step(Kind kind, int h) const {
    Collective step = local_step(hosts_, collective_, kind);
    step.count = collective_.count;
    if (collective_.counts != nullptr)
      step.counts = collective_.counts + static_cast<std::ptrdiff_t>(h) * hosts_.per_host();
    return step;
  }

  // The host whose region is the operand of local step `number`.
  virtual int host_of_step(int number) const = 0;
  // Return true if the data that local step `number` reads have arrived.
  virtual bool has_operand(int number) = 0;
  // Return local step `number`. May be called again for the same step.
  virtual Collective submission(int number) const = 0;

  // Submit the local steps that can begin now.
  void submit_steps() {
    while (hosts_.serves(ticket_) && submitted_ < count() && has_operand(submitted_)) {
      const std::optional<Work> work = hosts_.try_submit(submission(submitted_));
      if (!work) return;
      works_[static_cast<std::size_t>(host_of_step(submitted_))] = work;
      if (++submitted_ == count()) hosts_.next_ticket();
      ++steps_;
    }
  }
  // Whether the local step of host h has ended.
  bool ended(int h) {
    std::optional<Work>& work = works_[static_cast<std::size_t>(h)];
    return work && hosts_.done(*work);
  }
  void send(int h, const void* data, std::size_t elements) {
    outgoing_[static_cast<std::size_t>(h)].emplace(hosts_.counterparts(), h, tag_, data, nullptr,
                                                   elements * width_);
  }
  void receive(int h, void* data, std::size_t elements) {
    incoming_[static_cast<std::size_t>(h)].emplace(hosts_.counterparts(), h, tag_, nullptr, data,
                                                   elements * width_);
  }
  bool sent(int h) { return outgoing_[static_cast<std::size_t>(h)]->advance(steps_); }
  bool sending(int h) const { return outgoing_[static_cast<std::size_t>(h)].has_value(); }
  bool received(int h) { return incoming_[static_cast<std::size_t>(h)]->advance(steps_); }

  Hosts& hosts_;
  const int tag_;
  const Collective collective_;
  const std::size_t width_;
  const Blocks blocks_;

 private:
  const std::uint64_t ticket_;
  int submitted_ = 0;
  std::vector<std::optional<Work>> works_;
  std::vector<std::optional<Stream>> outgoing_;
  std::vector<std::optional<Stream>> incoming_;
};

class ReduceScatter final : public HostBlocks {
 public:
  // Of the scratch: the sums of my places' blocks over my host, then what the others have of mine.
  ReduceScatter(Hosts& hosts, int tag, const Collective& collective)
      : HostBlocks(hosts, tag, collective),
        begins_(layout()),
        scratch_(add_buffer(hosts.local(), begins_.back() + 64).data()),
        contributions_(
            add_buffer(block(hosts.mine()).count * width_ * static_cast<std::size_t>(count()))
                .data()) {
    for (int distance = 1; distance < count(); ++distance)
      receive(after(distance), contribution(after(distance)), block(hosts.mine()).count);
  }

  bool advance() override {
    submit_steps();
    bool complete = ended(hosts_.mine());
    for (int distance = 1; distance < count(); ++distance) {
      const int h = after(distance);
      if (!sending(h) && ended(h)) send(h, sums(h), block(h).count);
      complete = sending(h) && sent(h) && complete;
      complete = received(h) && complete;
    }
    if (complete) add_up();
    return complete;
  }

 private:
  // This host's own region is last, because the other hosts wait for the others.
  int host_of_step(int number) const override { return after(number + 1); }
  bool has_operand(int) override { return true; }
  Collective submission(int number) const override {
    const int h = host_of_step(number);
    Collective inside = region_step(Kind::ReduceScatter, h);
    inside.source = at(collective_.source, region(h).begin);
    inside.destination = sums(h);
    return inside;
  }

  std::vector<std::size_t> layout() const {
    std::vector<std::size_t> begins{0};
    for (int h = 0; h < count(); ++h)
      begins.push_back(begins.back() + (block(h).count * width_ + 63) / 64 * 64);
    return begins;
  }
  std::byte* sums(int h) const { return scratch_ + begins_[static_cast<std::size_t>(h)]; }
  std::byte* contribution(int h) const {
    return contributions_ + block(hosts_.mine()).count * width_ * static_cast<std::size_t>(h);
  }

  void add_up() {
    std::vector<const void*> terms;
    for (int h = 0; h < count(); ++h)
      terms.push_back(h == hosts_.mine() ? sums(h) : contribution(h));
    reduce(combine_of(collective_.op), collective_.dtype, terms.data(), count(),
           collective_.destination, block(hosts_.mine()).count,
           divisor_between(hosts_, collective_));
  }

  const std::vector<std::size_t> begins_;
  std::byte* const scratch_;  // shared with the ranks of this host
  std::byte* const contributions_;
};

class AllGather final : public HostBlocks {
 public:
  AllGather(Hosts& hosts, int tag, const Collective& collective)
      : HostBlocks(hosts, tag, collective) {
    for (int distance = 1; distance < count(); ++distance) {
      const int h = (hosts.mine() - distance + count()) % count();
      const Slice theirs = block(h);
      receive(h, at(collective_.destination, theirs.begin), theirs.count);
    }
    for (int distance = 1; distance < count(); ++distance)
      send(after(distance), collective_.source, block(hosts.mine()).count);
  }

  bool advance() override {
    bool complete = true;
    for (int distance = 1; distance < count(); ++distance) {
      complete = sent(after(distance)) && complete;
      complete = received(after(distance)) && complete;
    }
    submit_steps();
    for (int h = 0; h < count(); ++h) complete = ended(h) && complete;
    return complete;
  }

 private:
  int host_of_step(int number) const override { return after(number); }
  bool has_operand(int number) override { return number == 0 || received(after(number)); }
  Collective submission(int number) const override {
    const int h = host_of_step(number);
    Collective inside = region_step(Kind::AllGather, h);
    inside.source = number == 0 ? collective_.source : at(collective_.destination, block(h).begin);
    inside.destination = at(collective_.destination, region(h).begin);
    return inside;
  }
};

}  // namespace

std::unique_ptr<Transfer> make_all_reduce(Hosts& hosts, int tag, const Collective& collective) {
  return std::make_unique<AllReduce>(hosts, tag, collective);
}

std::unique_ptr<Transfer> make_broadcast(Hosts& hosts, int tag, const Collective& collective) {
  return std::make_unique<Broadcast>(hosts, tag, collective);
}

std::unique_ptr<Transfer> make_reduce_scatter(Hosts& hosts, int tag, const Collective& collective) {
  return std::make_unique<ReduceScatter>(hosts, tag, collective);
}

std::unique_ptr<Transfer> make_all_gather(Hosts& hosts, int tag, const Collective& collective) {
  return std::make_unique<AllGather>(hosts, tag, collective);
}

}  // namespace ngd::comm::hierarchical
