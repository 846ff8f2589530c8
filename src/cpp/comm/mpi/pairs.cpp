// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/pairs.hpp"

#include <cstring>

namespace ngd::comm::mpi {

Pairs::Pairs(const RankSet& group, Statistics& statistics)
    : group_(group),
      statistics_(statistics),
      sends_(static_cast<std::size_t>(group.size())),
      receives_(static_cast<std::size_t>(group.size())) {}

std::uint64_t Pairs::submit(Mailbox& mailbox, const Collective& collective) {
  Pair pair{++last_,
            collective,
            header_of(collective, group_.size(), 0),
            statistics_.entry_of(collective),
            std::chrono::steady_clock::now(),
            false,
            {}};
  pair.collective.program = nullptr;
  pair.collective.site = "";
  const auto peer = static_cast<std::size_t>(collective.root);
  const std::size_t bytes = collective.count * size_of(collective.dtype);
  if (collective.kind == Kind::Receive) {
    receives_[peer].push_back(std::move(pair));
    ++pending_;
    return last_;
  }
  pair.header.topic = Topic::Sent;
  const bool is_small = bytes <= kInlineBytes;
  mailbox.post_to(collective.root, pair.header, collective.source, is_small ? bytes : 0);
  if (is_small) {
    count(pair);
    return last_;
  }
  sends_[peer].push_back(std::move(pair));
  ++pending_;
  return last_;
}

void Pairs::count(const Pair& pair) {
  const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - pair.start;
  statistics_.add(pair.stats, pair.collective.count * size_of(pair.collective.dtype),
                  static_cast<std::uint64_t>(spent.count()), -1);
}

bool Pairs::advance(Mailbox& mailbox, int peer, Pair& oldest) {
  const bool is_send = oldest.collective.kind == Kind::Send;
  const std::size_t bytes = oldest.collective.count * size_of(oldest.collective.dtype);
  if (!is_send && !oldest.is_matched && !match(mailbox, peer, oldest)) return false;
  if (bytes <= kInlineBytes) return true;
  if (!oldest.message)
    oldest.message.emplace(group_, peer, group_.first_tag + kPairTag,
                           is_send ? oldest.collective.source : nullptr,
                           is_send ? nullptr : oldest.collective.destination, bytes);
  return oldest.message->advance(moves_);
}

bool Pairs::match(Mailbox& mailbox, int peer, Pair& receive) {
  std::deque<Message>& sent = mailbox.sent_by(peer);
  if (sent.empty()) return false;
  const Message message = std::move(sent.front());
  sent.pop_front();
  const Collective theirs = pair_of(message.header), mine = pair_of(receive.header);
  if (theirs.dtype != mine.dtype || theirs.count != mine.count || theirs.tag != mine.tag)
    fail_of({group_.world(peer), group_.world(group_.rank)}, ErrorKind::CollectiveMismatch,
            mismatch_of_pair("", group_.world(peer), theirs, group_.world(group_.rank), mine));
  receive.is_matched = true;
  ++moves_;
  if (!message.payload.empty())
    std::memcpy(receive.collective.destination, message.payload.data(), message.payload.size());
  return true;
}

bool Pairs::complete(std::uint64_t number) const noexcept { return find(number) == nullptr; }

const Pairs::Pair* Pairs::find(std::uint64_t number) const {
  if (idle()) return nullptr;
  for (const std::vector<Queue>* queues : {&sends_, &receives_})
    for (const Queue& queue : *queues)
      for (const Pair& pair : queue)
        if (pair.number == number) return &pair;
  return nullptr;
}

int Pairs::peer_of(std::uint64_t number) const {
  return group_.world(find(number)->collective.root);
}

void Pairs::abandon() noexcept {
  for (std::vector<Queue>* queues : {&sends_, &receives_})
    for (Queue& queue : *queues)
      for (Pair& pair : queue) pair.message.reset();
}

}  // namespace ngd::comm::mpi
