// SPDX-License-Identifier: Apache-2.0
#include "comm/hierarchical/transfers.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <span>

#include "base/bits.hpp"
#include "base/reduce.hpp"
#include "comm/mpi/owners_exchange.hpp"

namespace ngd::comm::hierarchical {
namespace {

using mpi::LongMessage;
using mpi::Transfer;
using mpi::Window;
using mpi::WindowedTransfer;

// Return true if a mean is computed in two stages: each host first computes the mean of its own
// ranks, so that large values do not overflow in a sum. This is done only if the number of ranks
// per host is a power of two, because the division is exact only then.
bool averages_inside(const Hosts& hosts, const Collective& collective) {
  return collective.op == ReduceOp::Mean &&
         std::has_single_bit(static_cast<unsigned>(hosts.per_host()));
}

// Return the divisor of the reduction between hosts. For a mean: the number of hosts if each host
// has averaged its own ranks, otherwise the number of all ranks. For other reductions: 1.
double divisor_between(const Hosts& hosts, const Collective& collective) {
  return divisor_of(collective.op,
                    averages_inside(hosts, collective) ? hosts.count() : hosts.ranks());
}

// Return a collective inside this host, with the dtype of `collective`, and with its op if `kind`
// reduces. Without averages_inside(), a mean becomes a sum: the reduction between hosts divides it.
Collective local_step(const Hosts& hosts, const Collective& collective, Kind kind) {
  const bool is_summed_inside =
      collective.op == ReduceOp::Mean && !averages_inside(hosts, collective);
  Collective step;
  step.kind = kind;
  step.op = reduces(kind) ? (is_summed_inside ? ReduceOp::Sum : collective.op) : ReduceOp::None;
  step.dtype = collective.dtype;
  return step;
}

// Append the ranks that the local step `work` (a collective inside this host) waits for to `peers`.
// A rank that `peers` already has is not appended again.
void add_missing(const Hosts& hosts, Work work, std::vector<int>& peers) {
  for (const int rank : hosts.missing(work))
    if (std::find(peers.begin(), peers.end(), rank) == peers.end()) peers.push_back(rank);
}

// A transfer that cuts the operand into slices. A window transfers one slice at a time, and several
// windows are active at once (mpi/transfer.hpp). The transfer of a slice is a sequence of steps. A
// step may submit a local step: a collective among the ranks of this host. All ranks of the host
// must submit their local steps in the same order. So the windows take turns: only window number
// turn_ % num_windows() may submit.
//
// If another thread uses the group of the host, the submission is refused, and the window
// repeats it later. So a step has two functions. submission() only describes the local step, and
// may be called again. complete_step() runs once, after the submission was accepted: it may send
// and receive messages.
class HostWindows : public WindowedTransfer {
 public:
  std::vector<int> pending_peers() const override {
    std::vector<int> peers = WindowedTransfer::pending_peers();
    for (const std::optional<Work>& work : works_)
      if (work) add_missing(hosts_, *work, peers);
    return peers.empty() ? hosts_.neighbours() : peers;
  }

 protected:
  HostWindows(Hosts& hosts, int tag, const Collective& collective, Windowing windowing)
      : WindowedTransfer(hosts.counterparts(), tag, collective, windowing),
        hosts_(hosts),
        ticket_(hosts.take_ticket()),
        slices_left_(num_slices(windowing.elements, windowing.window_elements)),
        counts_(static_cast<std::size_t>(hosts.per_host())),
        works_(static_cast<std::size_t>(windowing.num_windows)) {}

  static std::size_t num_slices(std::size_t elements, std::size_t window_elements) {
    return divide_up(elements, window_elements);
  }
  // Return how to transfer an operand of `elements` elements: in slices of `window_elements`
  // elements. At most `most` slices are transferred at the same time, each by a window.
  static Windowing windowing_of(std::size_t elements, std::size_t window_elements, int most) {
    const std::size_t slices = num_slices(elements, window_elements);
    return {elements, window_elements, static_cast<int>(std::min<std::size_t>(slices, most))};
  }

  // Return true if step number `step` of the transfer of a slice submits a collective inside this
  // host. A slice is a range of the operand.
  virtual bool submits(int step) const = 0;
  // Return the collective inside this host that step number window.step submits. The steps
  // transfer the window's slice, a range of the operand. The result may use `counts` as its
  // Collective::counts: the span has space for one number per rank of the host. If another thread
  // uses the group of the host, the submission is refused, and submission() is called again for the
  // same step. So two calls must have the same effect as one.
  virtual Collective submission(const Window& window, std::span<std::uint64_t> counts) const = 0;
  // Carry out step number window.step of the slice, and return true. If submits(window.step) is
  // true, the collective of the step was already submitted. If the slice has no step with this
  // number, because all its steps were carried out, transfer no data and return false.
  virtual bool complete_step(Window& window) = 0;

  // Let the next window submit a collective inside this host; window 0 follows the last one.
  void end_turn() { ++turn_; }
  // A derived class calls this once per slice, when the last collective inside this host for the
  // slice was submitted. After the call for the last slice of the operand, the next transfer may
  // submit its collectives inside this host.
  void end_submissions() {
    if (--slices_left_ == 0) hosts_.next_ticket();
  }
  // Return true if the window has another slice after its current one.
  bool has_more(const Window& window) const {
    return window.slice.begin + window_elements() * num_windows() < elements();
  }

  Hosts& hosts_;

 private:
  bool is_ready(Window& window) final {
    std::optional<Work>& work = works_[static_cast<std::size_t>(window.number)];
    if (work && hosts_.is_done(*work)) work.reset();
    if (!window.requests.test() || work) return false;
    if (!submits(window.active ? window.step : 0)) return true;
    return hosts_.serves(ticket_) &&
           turn_ % num_windows() == static_cast<std::size_t>(window.number);
  }

  Outcome step(Window& window) final {
    if (submits(window.step)) {
      std::optional<Work>& work = works_[static_cast<std::size_t>(window.number)];
      work = hosts_.try_submit(submission(window, counts_));
      if (!work) return Outcome::Blocked;
    }
    return complete_step(window) ? Outcome::Continues : Outcome::SliceComplete;
  }

  const std::uint64_t ticket_;
  // The number of slices whose last collective inside this host is not submitted yet.
  std::size_t slices_left_;
  std::size_t turn_ = 0;
  std::vector<std::uint64_t> counts_;
  // Element i: the collective inside this host that window i has submitted, until it is complete.
  std::vector<std::optional<Work>> works_;
};

// The all_reduce inside and between hosts (described in transfers.hpp), in slices of the operand.
// The transfer of a slice has four steps. Step 0 submits the reduce-scatter inside the host, which
// gives this rank a share of the slice. Step 1 sends one part of the share to each counterpart: the
// ranks with the same local rank on the other hosts. Step 2 reduces the parts that this rank has
// received, and sends the result to the counterparts. Step 3 submits the all-gather inside the
// host.
//
// A few windows are active at once. Each window transfers one slice at a time. They take turns in
// the submissions of steps 0 and 3, in the order of their numbers. In its first turn, a window
// carries out step 0 of its first slice. In each later turn, it carries out step 3 of its slice,
// and step 0 of its next slice if there is one.
class AllReduce final : public HostWindows {
 public:
  AllReduce(Hosts& hosts, int tag, const Collective& collective)
      : HostWindows(hosts, tag, collective, windowing(hosts, collective)),
        is_half_(is_half(collective.dtype)),
        partial_dtype_(is_half_ ? DType::F32 : collective.dtype),
        partial_bytes_(size_of(partial_dtype_)),
        share_bytes_(round_up((window_elements() / per_host() + 1) * partial_bytes_, 64)),
        wide_bytes_(is_half_ ? round_up(window_elements() * partial_bytes_, 64) : 0),
        scratch_(add_buffer(hosts.local(), num_windows() * (share_bytes_ + wide_bytes_)).data()),
        owners_(hosts.counterparts()) {}

 private:
  static constexpr std::size_t kLeastWindowBytes = std::size_t{256} << 10;
  static constexpr int kWindows = 4;

  // Divide the operand evenly into kWindows slices. A slice has at least kLeastWindowBytes, so a
  // small operand has fewer slices. A slice has at most mpi::reduce_window() elements, so a large
  // operand has more slices. At most kWindows slices are transferred at the same time, each by a
  // window.
  static Windowing windowing(const Hosts& hosts, const Collective& collective) {
    const std::size_t least = kLeastWindowBytes / size_of(collective.dtype);
    const std::size_t most = mpi::reduce_window(collective.dtype, hosts.ranks());
    const std::size_t even = collective.count / kWindows + 1;
    return windowing_of(collective.count, std::min(most, std::max(even, least)), kWindows);
  }
  std::size_t per_host() const { return static_cast<std::size_t>(hosts_.per_host()); }

  bool submits(int step) const override { return step == 0 || step == 3; }

  Collective submission(const Window& window, std::span<std::uint64_t> counts) const override {
    for (std::size_t i = 0; i < counts.size(); ++i)
      counts[i] = share(window, static_cast<int>(i)).count;
    Collective inside = window.step == 0 ? reduction_inside(window) : gathering_inside(window);
    inside.counts = counts.data();
    return inside;
  }

  bool complete_step(Window& window) override {
    switch (window.step) {
      case 0:
        end_turn();
        return true;
      case 1:
        owners_.exchange_contributions(window, contribution_to(window, rank_).size(),
                                       [&](int h) { return contribution_to(window, h); });
        return true;
      case 2:
        reduce_between(window);
        owners_.exchange_results(window, result_of(window, rank_),
                                 [&](int h) { return result_of(window, h); });
        return true;
      case 3:
        end_submissions();
        return true;
      default:
        if (!has_more(window)) end_turn();
        return false;
    }
  }

  // Return share i of the slice: the elements that the rank with local rank i reduces over the
  // ranks of its host. The ranks with local rank i on the other hosts, its counterparts, have the
  // same share. A share is divided into one part per host: the counterpart on host h reduces part h
  // over all hosts.
  Slice share(const Window& window, int i) const {
    return part_of(window.slice, i, hosts_.per_host());
  }
  Slice my_share(const Window& window) const { return share(window, hosts_.local().rank()); }
  Slice part(const Window& window, int h) const { return part_of(my_share(window), h, size_); }

  // Return the address of the partial results of the slice that this window transfers: this rank's
  // share of the slice, reduced over the ranks of this host.
  std::byte* sums(const Window& window) const {
    return scratch_ + static_cast<std::size_t>(window.number) * share_bytes_;
  }
  std::byte* sum_of_part(const Window& window, int h) const {
    return sums(window) + (part(window, h).begin - my_share(window).begin) * partial_bytes_;
  }
  // Return the address of the slice widened to float32. Used only for 16-bit floats.
  std::byte* widened(const Window& window) const {
    return scratch_ + num_windows() * share_bytes_ +
           static_cast<std::size_t>(window.number) * wide_bytes_;
  }
  // Return part h of this rank's share, reduced over this host. The rank that reduces it over all
  // hosts is on host h, and has the same local rank as this rank.
  std::span<const std::byte> contribution_to(const Window& window, int h) const {
    return {sum_of_part(window, h), part(window, h).count * partial_bytes_};
  }
  // Return the destination of part h of this rank's share, as bytes. A rank on host h reduces it.
  std::span<std::byte> result_of(const Window& window, int h) const {
    const Slice theirs = part(window, h);
    return {destination(theirs), bytes(theirs)};
  }

  Collective reduction_inside(const Window& window) const {
    Collective inside = local_step(hosts_, collective_, Kind::ReduceScatter);
    inside.dtype = partial_dtype_;
    inside.source = source(window.slice);
    if (is_half_) {
      widen(collective_.dtype, source(window.slice), reinterpret_cast<float*>(widened(window)),
            window.slice.count);
      inside.source = widened(window);
    }
    inside.destination = sums(window);
    return inside;
  }

  // Reduce this rank's part of the slice: combine the data of all hosts into the destination.
  void reduce_between(const Window& window) {
    const std::span<std::byte> result = result_of(window, rank_);
    std::byte* sum = sum_of_part(window, rank_);
    owners_.reduce(window, contribution_to(window, rank_), combine_of(collective_.op),
                   partial_dtype_, is_half_ ? sum : result.data(),
                   divisor_between(hosts_, collective_));
    if (is_half_)
      narrow(collective_.dtype, reinterpret_cast<const float*>(sum), result.data(),
             part(window, rank_).count);
  }

  Collective gathering_inside(const Window& window) const {
    Collective inside = local_step(hosts_, collective_, Kind::AllGather);
    inside.source = destination(my_share(window));
    inside.destination = destination(window.slice);
    return inside;
  }

  const bool is_half_;
  const DType partial_dtype_;
  const std::size_t partial_bytes_;
  const std::size_t share_bytes_;
  const std::size_t wide_bytes_;
  std::byte* const scratch_;  // memory that the ranks of this host share
  mpi::OwnersExchange owners_;
};

// The broadcast of transfers.hpp, in slices. The leader of a host is the rank that has the same
// local rank as the root. The hosts are in the order of their numbers, from the root's host on; the
// last number is followed by 0. In step 0 of a slice, the leader receives the slice from the leader
// of the previous host. In step 1, the ranks of the host submit the broadcast inside the host, and
// the leader sends the slice to the leader of the next host.
class Broadcast final : public HostWindows {
 public:
  Broadcast(Hosts& hosts, int tag, const Collective& collective)
      : HostWindows(
            hosts, tag, collective,
            windowing_of(collective.count, kWindowBytes / size_of(collective.dtype), kWindows)),
        leader_(hosts.place(collective.root)),
        is_leader_(hosts.local().rank() == leader_),
        hop_((rank_ - hosts.host(collective.root) + size_) % size_) {}

 private:
  static constexpr std::size_t kWindowBytes = std::size_t{512} << 10;
  static constexpr int kWindows = 4;

  bool submits(int step) const override { return step == 1; }

  Collective submission(const Window& window, std::span<std::uint64_t>) const override {
    Collective inside = local_step(hosts_, collective_, Kind::Broadcast);
    inside.root = leader_;
    inside.count = window.slice.count;
    inside.source = is_leader_ ? slice_data(window) : nullptr;
    inside.destination = destination(window.slice);
    return inside;
  }

  bool complete_step(Window& window) override {
    if (window.step == 0 && is_leader_ && hop_ > 0)
      window.requests.receive(destination(window.slice), bytes(window.slice),
                              (rank_ - 1 + size_) % size_, window.tag);
    if (window.step == 1) {
      if (is_leader_ && hop_ < size_ - 1)
        window.requests.send(slice_data(window), bytes(window.slice), (rank_ + 1) % size_,
                             window.tag);
      end_turn();
      end_submissions();
    }
    return window.step < 2;
  }

  // Return the address of the slice on the leader of this host, the rank with the local rank of the
  // root. On the root's host, the leader is the root, and the slice is in its source. On another
  // host, it is in the destination.
  const std::byte* slice_data(const Window& window) const {
    return hop_ == 0 ? source(window.slice) : destination(window.slice);
  }

  // The local rank of the root. The rank with this local rank is the leader of its host.
  const int leader_;
  const bool is_leader_;
  const int hop_;  // this host's position in the order of the hosts; 0: the root's host
};

// The base class of the transfers of blocks (reduce_scatter and all_gather). Each rank sends one
// message to each of its counterparts, the ranks with the same local rank on the other hosts. The
// ranks of this host run one local step per host h of the group. A local step is a collective
// inside this host, on the region of h: the blocks of all ranks of h. This class submits the local
// steps in order. A derived class describes a local step in submission(), which must have no side
// effect. If another thread uses the group of this host, the step is refused, and submission() is
// called again.
class HostBlocks : public Transfer {
 public:
  std::vector<int> pending_peers() const override {
    std::vector<int> peers;
    for (const auto* messages : {&outgoing_, &incoming_})
      for (const std::optional<LongMessage>& message : *messages)
        if (message && peers.empty()) peers = message->pending_peers();
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
  // Return the number of the host that is `distance` hosts after this one; 0 follows the last.
  int after(int distance) const { return (hosts_.mine() + distance) % count(); }
  // Return the block of the rank on host h with the same local rank as this rank. region(h) returns
  // the blocks of all ranks of host h, which are consecutive.
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

  // Return a collective inside this host, with the counts of the blocks of the ranks of host h. The
  // caller sets its source and destination.
  Collective region_step(Kind kind, int h) const {
    Collective step = local_step(hosts_, collective_, kind);
    step.count = collective_.count;
    if (collective_.counts != nullptr)
      step.counts = collective_.counts + static_cast<std::ptrdiff_t>(h) * hosts_.per_host();
    return step;
  }

  // Local step `number` is a collective inside this host, on the region of one host (the blocks of
  // all ranks of that host). Return the number of that host.
  virtual int host_of_step(int number) const = 0;
  // Return true if this rank has the operand of local step `number` (a collective inside this
  // host). In a reduce_scatter, this is always true. In an all_gather, each step except the first
  // must wait for a block from a rank on another host.
  virtual bool has_operand(int number) = 0;
  // Return the collective inside this host to submit as local step `number`. If another thread uses
  // the group of this host, the submission is refused. submission() is then called again for the
  // same step.
  virtual Collective submission(int number) const = 0;

  // Submit the collectives inside this host (the local steps) in order, up to the first one that
  // cannot begin yet. A local step begins when its operand has arrived, the previous transfer has
  // submitted all its local steps, and no other thread uses the group of this host.
  void submit_steps() {
    while (hosts_.serves(ticket_) && submitted_ < count() && has_operand(submitted_)) {
      const std::optional<Work> work = hosts_.try_submit(submission(submitted_));
      if (!work) return;
      works_[static_cast<std::size_t>(host_of_step(submitted_))] = work;
      if (++submitted_ == count()) hosts_.next_ticket();
      ++steps_;
    }
  }
  // Return true if the collective inside this host on the blocks of the ranks of host h was
  // submitted and is complete.
  bool has_ended(int h) {
    std::optional<Work>& work = works_[static_cast<std::size_t>(h)];
    return work && hosts_.is_done(*work);
  }
  // send() and receive() prepare a message to or from the rank on host h with this local rank.
  // has_sent() and has_received() post the message.
  void send(int h, const void* data, std::size_t elements) {
    outgoing_[static_cast<std::size_t>(h)].emplace(hosts_.counterparts(), h, tag_, data, nullptr,
                                                   elements * width_);
  }
  void receive(int h, void* data, std::size_t elements) {
    incoming_[static_cast<std::size_t>(h)].emplace(hosts_.counterparts(), h, tag_, nullptr, data,
                                                   elements * width_);
  }
  // Advance the message that send(h) has prepared. Return true if it is complete.
  bool has_sent(int h) { return outgoing_[static_cast<std::size_t>(h)]->advance(steps_); }
  // Return true after send(h), including when the message is complete.
  bool is_sending(int h) const { return outgoing_[static_cast<std::size_t>(h)].has_value(); }
  bool has_received(int h) { return incoming_[static_cast<std::size_t>(h)]->advance(steps_); }

  Hosts& hosts_;
  const int tag_;
  const Collective collective_;
  const std::size_t width_;
  const Blocks blocks_;

 private:
  const std::uint64_t ticket_;
  int submitted_ = 0;
  std::vector<std::optional<Work>> works_;
  std::vector<std::optional<LongMessage>> outgoing_;
  std::vector<std::optional<LongMessage>> incoming_;
};

// The reduce_scatter inside and between hosts (algorithm: make_reduce_scatter() in transfers.hpp).
class ReduceScatter final : public HostBlocks {
 public:
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
    bool is_complete = has_ended(hosts_.mine());
    for (int distance = 1; distance < count(); ++distance) {
      const int h = after(distance);
      if (!is_sending(h) && has_ended(h)) send(h, sums(h), block(h).count);
      is_complete = is_sending(h) && has_sent(h) && is_complete;
      is_complete = has_received(h) && is_complete;
    }
    if (is_complete) sum_contributions();
    return is_complete;
  }

 private:
  // The region of this host (the blocks of its ranks) is reduced last, because the other hosts wait
  // for the sums of their regions.
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
      begins.push_back(begins.back() + round_up(block(h).count * width_, 64));
    return begins;
  }
  // Return the address at which block(h), summed over the ranks of this host, is stored.
  std::byte* sums(int h) const { return scratch_ + begins_[static_cast<std::size_t>(h)]; }
  // Return the address at which this rank's block, summed over the ranks of host h, arrives.
  std::byte* contribution(int h) const {
    return contributions_ + block(hosts_.mine()).count * width_ * static_cast<std::size_t>(h);
  }

  void sum_contributions() {
    std::vector<const void*> terms;
    for (int h = 0; h < count(); ++h)
      terms.push_back(h == hosts_.mine() ? sums(h) : contribution(h));
    reduce(combine_of(collective_.op), collective_.dtype, terms.data(), count(),
           collective_.destination, block(hosts_.mine()).count,
           divisor_between(hosts_, collective_));
  }

  // Element h: the byte offset in scratch_ at which block(h), summed over the ranks of this host,
  // is stored. Last element: the end of the last block.
  const std::vector<std::size_t> begins_;
  // One block per host, summed over the ranks of this host, in memory that these ranks share.
  std::byte* const scratch_;
  // One array per other host: this rank's block, summed over the ranks of that host.
  std::byte* const contributions_;
};

// The all_gather inside and between hosts (algorithm: make_all_gather() in transfers.hpp).
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
    bool is_complete = true;
    for (int distance = 1; distance < count(); ++distance) {
      is_complete = has_sent(after(distance)) && is_complete;
      is_complete = has_received(after(distance)) && is_complete;
    }
    submit_steps();
    for (int h = 0; h < count(); ++h) is_complete = has_ended(h) && is_complete;
    return is_complete;
  }

 private:
  int host_of_step(int number) const override { return after(number); }
  bool has_operand(int number) override { return number == 0 || has_received(after(number)); }
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
