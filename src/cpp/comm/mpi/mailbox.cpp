// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mailbox.hpp"

#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "comm/mpi/process.hpp"

namespace ngd::comm::mpi {
namespace {

constexpr std::size_t kMailBytes = sizeof(Header) + kMaxPayloadBytes;

}  // namespace

Mailbox::Mailbox(const RankSet& group)
    : group_(group),
      peers_(index(group.size())),
      receives_(index(group.size()), library().no_request),
      completed_(index(group.size())) {
  for (int peer = 0; peer < group.size(); ++peer)
    if (peer != group.rank) listen(peer);
}

Mailbox::~Mailbox() { close(); }

void Mailbox::listen(int peer) {
  throw_if_left_to_mpi();
  Buffer& buffer = peers_[index(peer)].buffer;
  if (!buffer) buffer = std::make_unique_for_overwrite<std::byte[]>(kMailBytes);
  const int code =
      library().receive(buffer.get(), kMailBytes, group_.world(peer), group_.first_tag + kMailTag,
                        group_.comm, receives_[index(peer)]);
  if (code != kSuccess) throw Unreachable({group_.world(peer)}, code);
}

Mailbox::Outgoing& Mailbox::compose(Header header, const void* payload, std::size_t payload_bytes) {
  throw_if_left_to_mpi();
  release_sent();
  header.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
  const std::size_t bytes = sizeof(Header) + payload_bytes;
  Outgoing& mail = outgoing_->emplace_back(
      Outgoing{std::make_unique_for_overwrite<std::byte[]>(bytes), bytes, Requests(group_)});
  std::memcpy(mail.buffer.get(), &header, sizeof(Header));
  if (payload_bytes != 0) std::memcpy(mail.buffer.get() + sizeof(Header), payload, payload_bytes);
  return mail;
}

void Mailbox::post(const Header& header, const void* payload, std::size_t payload_bytes) {
  Outgoing& mail = compose(header, payload, payload_bytes);
  for (int peer = 0; peer < group_.size(); ++peer)
    if (peer != group_.rank)
      mail.requests.send(mail.buffer.get(), mail.bytes, peer, group_.first_tag + kMailTag);
}

void Mailbox::post_to(int peer, const Header& header, const void* payload,
                      std::size_t payload_bytes) {
  Outgoing& mail = compose(header, payload, payload_bytes);
  mail.requests.send(mail.buffer.get(), mail.bytes, peer, group_.first_tag + kMailTag);
}

void Mailbox::progress() {
  throw_if_left_to_mpi();
  release_sent();
  std::size_t count = 0;
  const int code =
      library().test_some(receives_.data(), receives_.size(), completed_.data(), count);
  if (code != kSuccess) throw Unreachable({}, code);
  for (std::size_t i = 0; i < count; ++i) {
    const int peer = completed_[i].index;
    if (completed_[i].error != kSuccess)
      throw Unreachable({group_.world(peer)}, completed_[i].error);
    deliver(peer, static_cast<std::size_t>(completed_[i].bytes));
    if (!has_left(peer)) listen(peer);
  }
}

void Mailbox::deliver(int rank, std::size_t bytes) {
  Peer& peer = peers_[index(rank)];
  Message message;
  const std::byte* text = peer.buffer.get() + sizeof(Header);
  if (bytes >= sizeof(Header)) std::memcpy(&message.header, peer.buffer.get(), sizeof(Header));
  if (bytes < sizeof(Header) || message.header.magic != Header::kMagic ||
      static_cast<std::size_t>(message.header.call.identity.kind) >= kKinds.size() ||
      bytes != sizeof(Header) + message.header.payload_bytes)
    fail(ErrorKind::Init, name(rank), " runs another version of ngd than this rank");
  message.payload.assign(text, text + message.header.payload_bytes);
  if (message.header.topic == Topic::Submitted) {
    peer.arrived.push_back(std::move(message));
    return;
  }
  if (message.header.topic == Topic::Sent) {
    peer.sent.push_back(std::move(message));
    return;
  }
  if (message.header.topic == Topic::Details) {
    peer.details.emplace(reinterpret_cast<const char*>(text), message.header.payload_bytes);
    return;
  }
  peer.left = message.header.topic == Topic::Left;
  if (peer.ended) return;
  peer.ended = std::move(message);
  peer.ended_at = std::chrono::steady_clock::now();
}

Message Mailbox::take(int peer) {
  std::deque<Message>& arrived = peers_[index(peer)].arrived;
  Message message = std::move(arrived.front());
  arrived.pop_front();
  return message;
}

bool Mailbox::release_sent() {
  while (!outgoing_->empty() && outgoing_->front().requests.test()) outgoing_->pop_front();
  return outgoing_->empty();
}

bool Mailbox::close() noexcept {
  if (!outgoing_) return false;  // the mailbox was closed before
  bool have_all_left = outgoing_->empty();
  for (std::size_t peer = 0; peer < receives_.size(); ++peer) {
    have_all_left = have_all_left && receives_[peer] == library().no_request;
    if (!give_up(receives_[peer])) keep_for_good(peers_[peer].buffer.release());
    receives_[peer] = library().no_request;
  }
  // MPI cannot cancel a message that it has begun to send, so the buffers of such messages are
  // never freed.
  if (!outgoing_->empty()) keep_for_good(outgoing_.release());
  return have_all_left;
}

}  // namespace ngd::comm::mpi
