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
#include "comm/identity.hpp"

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
  static constexpr std::uint32_t kMagic = 0x6e676433;  // "ngd3"
  std::uint32_t magic = kMagic;
  Topic topic = Topic::Submitted;
  ErrorKind error = ErrorKind::Internal;
  std::uint8_t has_program_text = 0;
  std::uint32_t number = 0;  // Sent: the tag; Failed: the number of ranks in LastWords
  std::uint32_t payload_bytes = 0;
  // Of Failed and Left: the first collective that this rank will not complete.
  std::uint64_t sequence = 0;
  CallRecord call;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 136);

struct Message {
  Header header;
  std::vector<std::byte> payload;
};

// Why a rank goes no further: the ranks that the failure names, and its text.
struct LastWords {
  std::vector<int> ranks;
  std::string text;

  static constexpr std::size_t kMaxRanks = 1024;

  // Return the payload, and set the header's number.
  std::string packed(Header& header) const {
    header.number = static_cast<std::uint32_t>(std::min(ranks.size(), kMaxRanks));
    const std::size_t bytes = header.number * sizeof(int);
    std::string payload(reinterpret_cast<const char*>(ranks.data()), bytes);
    return payload.append(tail_of(text, kMaxPayloadBytes - bytes));
  }
  static LastWords of(const Message& message) {
    const auto* data = reinterpret_cast<const char*>(message.payload.data());
    const std::size_t bytes = message.header.number * sizeof(int);
    check(message.header.number <= kMaxRanks && bytes <= message.payload.size(), "last words of ",
          message.payload.size(), " bytes");
    LastWords words{std::vector<int>(message.header.number), {}};
    if (bytes != 0) std::memcpy(words.ranks.data(), data, bytes);
    if (message.payload.size() > bytes)
      words.text.assign(data + bytes, message.payload.size() - bytes);
    return words;
  }
};

inline Header header_of(const Collective& collective, int size, std::uint64_t sequence) {
  Header header;
  header.sequence = sequence;
  header.number = static_cast<std::uint32_t>(collective.tag);
  header.has_program_text = collective.program != nullptr && collective.program->text != nullptr;
  header.call.assign(collective, size);
  return header;
}

// The send or the receive of a header, for messages.
inline Collective pair_of(const Header& header) {
  Collective collective = collective_of(header.call);
  collective.tag = static_cast<int>(header.number);
  return collective;
}

}  // namespace ngd::comm::mpi
