// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/letters.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/step.hpp"

namespace ngd::comm::shm {

namespace {

// Return the Collective that describes a send or a receive in error messages. `world_peer`: the
// peer's rank in the job.
Collective call_of(const PendingLetter& pending, int world_peer) {
  Collective call;
  call.kind = pending.kind;
  call.dtype = pending.dtype;
  call.count = pending.count;
  call.root = world_peer;
  call.tag = pending.tag;
  call.site = pending.site;
  return call;
}

// Return the number of bytes in the chunk that a pending send fills next, or that a pending receive
// copies out next.
std::size_t chunk_bytes(const PendingLetter& pending) noexcept {
  return std::min(kLetterChunkBytes, pending.bytes() - pending.moved);
}

}  // namespace

Letters::Letters(Family& family, Group& group, Statistics& statistics)
    : family_(family),
      group_(group),
      statistics_(statistics),
      outgoing_(static_cast<std::size_t>(group.size())),
      incoming_(static_cast<std::size_t>(group.size())) {}

Work Letters::submit(const Collective& collective) {
  PendingLetter pending;
  pending.work = kLetterBit | (submitted_ + 1);
  pending.kind = collective.kind;
  pending.peer = collective.root;
  pending.dtype = collective.dtype;
  pending.count = collective.count;
  pending.tag = collective.tag;
  pending.source = static_cast<const std::byte*>(collective.source);
  pending.destination = static_cast<std::byte*>(collective.destination);
  copy_site(collective.site, pending.site);
  pending.submitted_ns = now_ns();
  pending.stats = statistics_.entry_of(collective);
  const auto peer = static_cast<std::size_t>(pending.peer);
  if (pending.kind == Kind::Send) {
    if (outgoing_[peer].box == nullptr) open(pending.peer);
    pending.offset = pending.bytes() <= kLetterBytes
                         ? kInline
                         : group_.mine().offset_of(pending.source, pending.bytes());
    outgoing_[peer].sends.push_back(pending);
  } else {
    incoming_[peer].receives.push_back(pending);
  }
  ++submitted_;
  ++in_flight_;
  pending.kind == Kind::Send ? progress_sends(pending.peer) : progress_receives(pending.peer);
  return Work{pending.work};
}

void Letters::open(int peer) {
  const std::uint64_t offset = family_.heap().allocate(sizeof(LetterBox));
  blocks_.push_back(offset);
  auto* box = reinterpret_cast<LetterBox*>(group_.mine().at(offset));
  std::memset(static_cast<void*>(box), 0, offsetof(LetterBox, letters));
  outgoing_[static_cast<std::size_t>(peer)].box = box;
  protocol_step();
  group_.mine().control().letter_boxes[peer].store(offset, std::memory_order_release);
  protocol_step();
}

const PendingLetter* Letters::find(std::uint64_t work) const noexcept {
  const auto search = [&](const std::deque<PendingLetter>& letters) -> const PendingLetter* {
    for (const PendingLetter& each : letters)
      if (each.work == work && !each.is_complete) return &each;
    return nullptr;
  };
  for (const Outgoing& each : outgoing_)
    if (const PendingLetter* match = search(each.sends)) return match;
  for (const Incoming& each : incoming_)
    if (const PendingLetter* match = search(each.receives)) return match;
  return nullptr;
}

Statistics::Entry Letters::stats_of(std::uint64_t work) const noexcept {
  const PendingLetter* pending = find(work);
  return pending == nullptr ? 0 : pending->stats;
}

void Letters::finish(PendingLetter& pending) noexcept {
  --in_flight_;
  finished_ns_ = now_ns();
  statistics_.add(pending.stats, pending.bytes(), finished_ns_ - pending.submitted_ns, -1);
}

Need Letters::need_of(std::uint64_t work) const noexcept {
  const PendingLetter* pending = find(work);
  if (pending == nullptr) return {};
  return {Need::Flag::Letter, pending->peer, pending->peer + 1, work, 0};
}

std::string Letters::describe(std::uint64_t work) const {
  const PendingLetter* pending = find(work);
  return pending == nullptr ? "send or recv"
                            : comm::describe(call_of(*pending, group_.job_rank(pending->peer)));
}

void Letters::raise(std::atomic<std::uint64_t>& flag, std::uint64_t value, int peer) noexcept {
  protocol_step();
  flag.store(value);
  protocol_step();
  ring_bell(group_.record(peer), group_.world(group_.rank()));
  ++family_.moves();
}

void Letters::progress() {
  if (in_flight_ == 0) return;
  for (int peer = 0; peer < group_.size(); ++peer) {
    progress_sends(peer);
    progress_receives(peer);
  }
}

// ---- sending

// Advance the sends to `peer`, in their order. Write the letter of each send, which is its entry in
// the shared memory for this peer (the letter box). Copy private data to the letter box in chunks.
void Letters::progress_sends(int peer) {
  auto& sends = outgoing_[static_cast<std::size_t>(peer)].sends;
  bool may_fill = true;  // all earlier sends have copied their private data to shared memory
  for (PendingLetter& send : sends) {
    if (send.is_complete) continue;
    if (!send.is_posted && !post(peer, send)) break;
    const LetterBox& box = *outgoing_[static_cast<std::size_t>(peer)].box;
    if (send.offset == kInline)
      send.is_complete = true;
    else if (send.offset != kPrivate)
      send.is_complete = box.received.load() > send.letter;
    else if (may_fill)
      fill(peer, send);
    if (send.is_complete) {
      finish(send);
      ++family_.moves();
    }
    may_fill = may_fill && (send.is_complete || send.offset != kPrivate);
  }
  while (!sends.empty() && sends.front().is_complete) sends.pop_front();
}

bool Letters::post(int peer, PendingLetter& send) {
  Outgoing& out = outgoing_[static_cast<std::size_t>(peer)];
  LetterBox& box = *out.box;
  if (out.posted >= box.received.load() + kLetters) return false;
  Letter& letter = box.letters[out.posted % kLetters];
  letter.count = send.count;
  letter.source_offset = send.offset;
  letter.tag = send.tag;
  letter.dtype = send.dtype;
  std::memcpy(letter.site, send.site, sizeof letter.site);
  if (send.offset == kInline && send.count > 0)
    std::memcpy(letter.payload, send.source, send.bytes());
  send.is_posted = true;
  send.letter = out.posted++;
  raise(box.posted, out.posted, peer);
  return true;
}

void Letters::fill(int peer, PendingLetter& send) {
  LetterBox& box = *outgoing_[static_cast<std::size_t>(peer)].box;
  while (!send.is_complete) {
    const std::uint64_t chunk = box.filled.load(std::memory_order_relaxed);
    if (chunk >= box.drained.load() + 2) return;
    const std::size_t bytes = chunk_bytes(send);
    std::memcpy(box.chunks[chunk % 2], send.source + send.moved, bytes);
    send.moved += bytes;
    send.is_complete = send.moved == send.bytes();
    raise(box.filled, chunk + 1, peer);
  }
}

// ---- receiving

void Letters::progress_receives(int peer) {
  Incoming& in = incoming_[static_cast<std::size_t>(peer)];
  while (!in.receives.empty()) {
    if (in.box == nullptr) {
      const std::uint64_t offset =
          group_.control(peer).letter_boxes[group_.rank()].load(std::memory_order_acquire);
      if (offset == 0) return;
      in.box = reinterpret_cast<LetterBox*>(group_.segment(peer).at(offset));
    }
    if (!receive(peer, in.receives.front())) return;
    finish(in.receives.front());
    in.receives.pop_front();
    raise(in.box->received, ++in.received, peer);
  }
}

bool Letters::receive(int peer, PendingLetter& receive) {
  Incoming& in = incoming_[static_cast<std::size_t>(peer)];
  if (in.box->posted.load() <= in.received) return false;
  const Letter& letter = in.box->letters[in.received % kLetters];
  check_letter(receive, letter);
  if (letter.source_offset == kPrivate) return drain(peer, receive);
  if (receive.count == 0) return true;
  std::memcpy(receive.destination,
              letter.source_offset == kInline ? letter.payload
                                              : group_.segment(peer).at(letter.source_offset),
              receive.bytes());
  return true;
}

bool Letters::drain(int peer, PendingLetter& receive) {
  Incoming& in = incoming_[static_cast<std::size_t>(peer)];
  while (receive.moved < receive.bytes()) {
    if (in.box->filled.load() <= in.drained) return false;
    const std::size_t bytes = chunk_bytes(receive);
    std::memcpy(receive.destination + receive.moved, in.box->chunks[in.drained % 2], bytes);
    receive.moved += bytes;
    raise(in.box->drained, ++in.drained, peer);
  }
  return true;
}

void Letters::check_letter(const PendingLetter& receive, const Letter& letter) const {
  if (letter.count == receive.count && letter.dtype == receive.dtype && letter.tag == receive.tag)
    return;
  PendingLetter sent;
  sent.dtype = letter.dtype;
  sent.count = letter.count;
  sent.tag = letter.tag;
  std::memcpy(sent.site, letter.site, sizeof sent.site);
  const int mine = group_.job_rank(group_.rank()), theirs = group_.job_rank(receive.peer);
  fail_of({theirs, mine}, ErrorKind::CollectiveMismatch,
          mismatch_of_pair(group_.where(), theirs, call_of(sent, mine), mine,
                           call_of(receive, theirs)));
}

}  // namespace ngd::comm::shm
