// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/stream.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/step.hpp"

namespace ngd::comm::shm {

namespace {

Collective call_of(const Transfer& transfer, int world_peer) {
  Collective call;
  call.kind = transfer.kind;
  call.dtype = transfer.dtype;
  call.count = transfer.count;
  call.root = world_peer;
  call.tag = transfer.tag;
  call.site = transfer.site;
  return call;
}

// The chunk that holds a stream's bytes from `moved` on ends here.
std::size_t chunk_bytes(const Transfer& transfer) noexcept {
  return std::min(kStreamChunk, transfer.bytes() - transfer.moved);
}

}  // namespace

Streams::Streams(Family& family, Group& group, Statistics& statistics)
    : family_(family),
      group_(group),
      statistics_(statistics),
      outgoing_(static_cast<std::size_t>(group.size())),
      incoming_(static_cast<std::size_t>(group.size())) {}

Work Streams::submit(const Collective& collective) {
  Transfer fresh;
  fresh.work = kBetweenTwo | (submitted_ + 1);
  fresh.kind = collective.kind;
  fresh.peer = collective.root;
  fresh.dtype = collective.dtype;
  fresh.count = collective.count;
  fresh.tag = collective.tag;
  fresh.source = static_cast<const std::byte*>(collective.source);
  fresh.destination = static_cast<std::byte*>(collective.destination);
  copy_site(collective.site, fresh.site);
  fresh.submitted_ns = now_ns();
  fresh.stats = statistics_.entry_of(collective);
  const auto peer = static_cast<std::size_t>(fresh.peer);
  if (fresh.kind == Kind::Send) {
    if (outgoing_[peer].stream == nullptr) open(fresh.peer);
    fresh.offset = fresh.bytes() <= kLetterBytes
                       ? kInline
                       : group_.mine().offset_of(fresh.source, fresh.bytes());
    outgoing_[peer].sends.push_back(fresh);
  } else {
    incoming_[peer].receives.push_back(fresh);
  }
  ++submitted_;
  ++in_flight_;
  fresh.kind == Kind::Send ? progress_sends(fresh.peer) : progress_receives(fresh.peer);
  return Work{fresh.work};
}

void Streams::open(int peer) {
  const std::uint64_t offset = family_.heap().allocate(sizeof(Stream));
  blocks_.push_back(offset);
  auto* stream = reinterpret_cast<Stream*>(group_.mine().at(offset));
  std::memset(static_cast<void*>(stream), 0, offsetof(Stream, letters));
  outgoing_[static_cast<std::size_t>(peer)].stream = stream;
  protocol_step();
  group_.mine().control().streams[peer].store(offset, std::memory_order_release);
  protocol_step();
}

const Transfer* Streams::find(std::uint64_t work) const noexcept {
  const auto look = [&](const std::deque<Transfer>& transfers) -> const Transfer* {
    for (const Transfer& each : transfers)
      if (each.work == work && !each.over) return &each;
    return nullptr;
  };
  for (const Outgoing& each : outgoing_)
    if (const Transfer* found = look(each.sends)) return found;
  for (const Incoming& each : incoming_)
    if (const Transfer* found = look(each.receives)) return found;
  return nullptr;
}

Statistics::Entry Streams::stats_of(std::uint64_t work) const noexcept {
  const Transfer* transfer = find(work);
  return transfer == nullptr ? 0 : transfer->stats;
}

void Streams::finish(Transfer& transfer) noexcept {
  --in_flight_;
  finished_ns_ = now_ns();
  statistics_.add(transfer.stats, transfer.bytes(), finished_ns_ - transfer.submitted_ns, -1);
}

Need Streams::need_of(std::uint64_t work) const noexcept {
  const Transfer* transfer = find(work);
  if (transfer == nullptr) return {};
  return {Need::Flag::Letter, transfer->peer, transfer->peer + 1, work, 0};
}

std::string Streams::describe(std::uint64_t work) const {
  const Transfer* transfer = find(work);
  return transfer == nullptr ? "send or recv"
                             : comm::describe(call_of(*transfer, group_.world(transfer->peer)));
}

void Streams::raise(std::atomic<std::uint64_t>& flag, std::uint64_t value, int peer) noexcept {
  protocol_step();
  flag.store(value);
  protocol_step();
  ring_bell(group_.record(peer), group_.world(group_.rank()));
  ++family_.moves();
}

void Streams::progress() {
  if (in_flight_ == 0) return;
  for (int peer = 0; peer < group_.size(); ++peer) {
    progress_sends(peer);
    progress_receives(peer);
  }
}

// ---- sending

// Letters are posted, and chunks are filled, in the order of the sends.
void Streams::progress_sends(int peer) {
  auto& sends = outgoing_[static_cast<std::size_t>(peer)].sends;
  bool filling = true;  // all before this one have left
  for (Transfer& send : sends) {
    if (send.over) continue;
    if (!send.posted && !post(peer, send)) break;
    const Stream& stream = *outgoing_[static_cast<std::size_t>(peer)].stream;
    if (send.offset == kInline)
      send.over = true;
    else if (send.offset != kPrivate)
      send.over = stream.received.load() > send.letter;
    else if (filling)
      fill(peer, send);
    if (send.over) {
      finish(send);
      ++family_.moves();
    }
    filling = filling && (send.over || send.offset != kPrivate);
  }
  while (!sends.empty() && sends.front().over) sends.pop_front();
}

bool Streams::post(int peer, Transfer& send) {
  Outgoing& out = outgoing_[static_cast<std::size_t>(peer)];
  Stream& stream = *out.stream;
  if (out.letters >= stream.received.load() + kLetters) return false;
  Letter& letter = stream.letters[out.letters % kLetters];
  letter.count = send.count;
  letter.source_offset = send.offset;
  letter.tag = send.tag;
  letter.dtype = send.dtype;
  std::memcpy(letter.site, send.site, sizeof letter.site);
  if (send.offset == kInline && send.count > 0)
    std::memcpy(letter.payload, send.source, send.bytes());
  send.posted = true;
  send.letter = out.letters++;
  raise(stream.posted, out.letters, peer);
  return true;
}

void Streams::fill(int peer, Transfer& send) {
  Stream& stream = *outgoing_[static_cast<std::size_t>(peer)].stream;
  while (!send.over) {
    const std::uint64_t chunk = stream.filled.load(std::memory_order_relaxed);
    if (chunk >= stream.drained.load() + 2) return;
    const std::size_t bytes = chunk_bytes(send);
    std::memcpy(stream.chunks[chunk % 2], send.source + send.moved, bytes);
    send.moved += bytes;
    send.over = send.moved == send.bytes();
    raise(stream.filled, chunk + 1, peer);
  }
}

// ---- receiving

void Streams::progress_receives(int peer) {
  Incoming& in = incoming_[static_cast<std::size_t>(peer)];
  while (!in.receives.empty()) {
    if (in.stream == nullptr) {
      const std::uint64_t offset =
          group_.control(peer).streams[group_.rank()].load(std::memory_order_acquire);
      if (offset == 0) return;
      in.stream = reinterpret_cast<Stream*>(group_.segment(peer).at(offset));
    }
    if (!receive(peer, in.receives.front())) return;
    finish(in.receives.front());
    in.receives.pop_front();
    raise(in.stream->received, ++in.letters, peer);
  }
}

bool Streams::receive(int peer, Transfer& receive) {
  Incoming& in = incoming_[static_cast<std::size_t>(peer)];
  if (in.stream->posted.load() <= in.letters) return false;
  const Letter& letter = in.stream->letters[in.letters % kLetters];
  check_letter(receive, letter);
  if (letter.source_offset == kPrivate) return drain(peer, receive);
  if (receive.count == 0) return true;
  std::memcpy(receive.destination,
              letter.source_offset == kInline ? letter.payload
                                              : group_.segment(peer).at(letter.source_offset),
              receive.bytes());
  return true;
}

bool Streams::drain(int peer, Transfer& receive) {
  Incoming& in = incoming_[static_cast<std::size_t>(peer)];
  while (receive.moved < receive.bytes()) {
    if (in.stream->filled.load() <= in.chunks) return false;
    const std::size_t bytes = chunk_bytes(receive);
    std::memcpy(receive.destination + receive.moved, in.stream->chunks[in.chunks % 2], bytes);
    receive.moved += bytes;
    raise(in.stream->drained, ++in.chunks, peer);
  }
  return true;
}

void Streams::check_letter(const Transfer& receive, const Letter& letter) const {
  if (letter.count == receive.count && letter.dtype == receive.dtype && letter.tag == receive.tag)
    return;
  Transfer sent;
  sent.dtype = letter.dtype;
  sent.count = letter.count;
  sent.tag = letter.tag;
  std::memcpy(sent.site, letter.site, sizeof sent.site);
  const int mine = group_.world(group_.rank()), theirs = group_.world(receive.peer);
  fail_of({theirs, mine}, ErrorKind::CollectiveMismatch,
          mismatch_of_pair(group_.where(), theirs, call_of(sent, mine), mine,
                           call_of(receive, theirs)));
}

}  // namespace ngd::comm::shm
