// SPDX-License-Identifier: Apache-2.0
// What ranks say to one another before any data moves: one fixed-size header, then a payload.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "comm/blocks.hpp"
#include "comm/collective.hpp"
#include "comm/messages.hpp"

namespace ngd::comm::mpi {

// A collective of at most this many bytes travels with its header: one exchange and no more. With
// the header it stays under 4 KiB, which Open MPI sends eagerly between processes and over TCP.
inline constexpr std::size_t kInlineBytes = 3840;
// A traceback is cut to this (the end of it says the most and is what stays); so is a program's
// text.
inline constexpr std::size_t kMaxPayloadBytes = std::size_t{64} << 10;

enum class Topic : std::uint8_t {
  Submitted,  // this rank has submitted the collective that the header describes
  Sent,       // this rank sends to the reader what the header describes
  Details,    // the payload is the program's text or the layout, because it differs from another's
  Failed,     // this rank goes no further: `error` is why, the payload are its LastWords
  Left        // this rank closed its communicator in good order, or after it said Failed
};

struct Header {
  static constexpr std::uint32_t kMagic = 0x6e676432;  // "ngd2"
  std::uint32_t magic = kMagic;
  Topic topic = Topic::Submitted;
  ErrorKind error = ErrorKind::Internal;
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  DType dtype = DType::U8;
  Algorithm algorithm = Algorithm::Auto;
  std::uint8_t has_program_text = 0;
  std::int32_t root = 0;
  std::int32_t tag = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t sequence =
      0;                    // Failed, Left: the first collective that this rank will not complete
  std::uint64_t count = 0;  // 0 where blocks are uneven
  std::uint64_t counts_hash = 0;  // of what is then equal on all ranks; 0 where they are even
  std::uint64_t program_hash = 0;
  std::uint64_t layout_hash = 0;
  std::uint64_t computation = 0;  // compared by who holds it, too (computations.hpp)
  char site[kSiteBytes] = {};
};
static_assert(std::is_trivially_copyable_v<Header>);

struct Message {
  Header header;
  std::vector<std::byte> payload;
};

// Why a rank goes no further: the ranks that it speaks of, `count` of the header, and its words.
struct LastWords {
  std::vector<int> ranks;
  std::string text;

  static constexpr std::size_t kMaxRanks = 1024;

  // As a payload; sets the header's count.
  std::string packed(Header& header) const {
    header.count = std::min(ranks.size(), kMaxRanks);
    const std::size_t bytes = header.count * sizeof(int);
    std::string payload(reinterpret_cast<const char*>(ranks.data()), bytes);
    return payload.append(tail_of(text, kMaxPayloadBytes - bytes));
  }
  static LastWords of(const Message& message) {
    const auto* data = reinterpret_cast<const char*>(message.payload.data());
    const std::size_t bytes = message.header.count * sizeof(int);
    check(message.header.count <= kMaxRanks && bytes <= message.payload.size(), "last words of ",
          message.payload.size(), " bytes");
    LastWords words{std::vector<int>(message.header.count), {}};
    if (bytes != 0) std::memcpy(words.ranks.data(), data, bytes);
    if (message.payload.size() > bytes)
      words.text.assign(data + bytes, message.payload.size() - bytes);
    return words;
  }
};

inline Header header_of(const Collective& collective, int size, std::uint64_t sequence) {
  Header header;
  header.kind = collective.kind;
  header.op = collective.op;
  header.dtype = collective.dtype;
  header.algorithm = collective.algorithm;
  header.root = collective.root;
  header.sequence = sequence;
  header.tag = collective.tag;
  header.counts_hash = collective.counts == nullptr ? 0 : mix_counts(1, collective, size) | 1;
  const bool counted = collective.kind != Kind::Barrier && collective.counts == nullptr;
  header.count = counted ? collective.count : 0;
  header.layout_hash = collective.layout == nullptr ? 0 : collective.layout->hash;
  if (collective.program != nullptr) {
    header.computation = collective.program->computation;
    header.program_hash = collective.program->hash;
    header.has_program_text = collective.program->text != nullptr;
  }
  copy_site(collective.site, header.site);
  return header;
}

// Whether two ranks mean the same collective. The site and the sequence are not part of it.
inline bool agree(const Header& a, const Header& b) {
  return a.kind == b.kind && a.op == b.op && a.dtype == b.dtype && a.algorithm == b.algorithm &&
         a.root == b.root && a.count == b.count && a.counts_hash == b.counts_hash &&
         a.program_hash == b.program_hash && a.layout_hash == b.layout_hash;
}

// The collective of a header, for messages. Of `counts` only whether there are any.
inline Collective collective_of(const Header& header) {
  Collective collective;
  collective.kind = header.kind;
  collective.op = header.op;
  collective.dtype = header.dtype;
  collective.count = header.count;
  collective.root = header.root;
  collective.algorithm = header.algorithm;
  if (header.counts_hash != 0) collective.counts = &header.counts_hash;
  collective.site = header.site;
  return collective;
}
inline std::string describe(const Header& header) { return comm::describe(collective_of(header)); }
inline std::string options_of(const Header& header) {
  return comm::options_of(collective_of(header), header.program_hash != 0);
}

}  // namespace ngd::comm::mpi
