// SPDX-License-Identifier: Apache-2.0
// The short messages that ranks send with a mailbox (mailbox.hpp), for example the call of a
// collective, or the report of a failure. A message is a header of fixed size, then a payload.
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

// A collective of at most this many bytes travels with its header. Header and data together stay
// under 4 KiB, which Open MPI sends at once (eagerly) between processes and over TCP.
inline constexpr std::size_t kInlineBytes = 3840;
// The longest payload. A longer traceback is cut at its beginning, a longer program text at its
// end.
inline constexpr std::size_t kMaxPayloadBytes = std::size_t{64} << 10;

enum class Topic : std::uint8_t {
  Submitted,  // this rank has submitted the collective that the header describes
  Sent,       // this rank has called the send that the header describes
  Details,    // the payload is the program text or the layout of a collective (details.hpp)
  Failed,     // this rank has failed: `error` and the payload are its Failure
  Left        // this rank has closed the group, without a failure or after it sent Failed
};

struct Header {
  static constexpr std::uint32_t kMagic = 0x6e676433;  // the characters "ngd3"
  std::uint32_t magic = kMagic;
  Topic topic = Topic::Submitted;
  ErrorKind error = ErrorKind::Internal;
  std::uint8_t has_program_text = 0;
  // In a Sent message: the tag of the send. In a Failed message: the number of ranks in the
  // payload.
  std::uint32_t number = 0;
  std::uint32_t payload_bytes = 0;
  // In a Failed or Left message: the number of the first collective that this rank will not
  // complete.
  std::uint64_t sequence = 0;
  CallRecord call;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 136);

struct Message {
  Header header;
  std::vector<std::byte> payload;
};

// The failure of a rank: the kind of error, the ranks of the world that it names, and its text.
struct Failure {
  ErrorKind kind = ErrorKind::Internal;
  std::vector<int> ranks;
  std::string text;

  static constexpr std::size_t kMaxRanks = 1024;

  // Return the payload of a Failed message: the ranks and the text. Set the fields topic, error and
  // number of `header`.
  std::string pack(Header& header) const {
    header.topic = Topic::Failed;
    header.error = kind;
    header.number = static_cast<std::uint32_t>(std::min(ranks.size(), kMaxRanks));
    const std::size_t bytes = header.number * sizeof(int);
    std::string payload(reinterpret_cast<const char*>(ranks.data()), bytes);
    return payload.append(tail_of(text, kMaxPayloadBytes - bytes));
  }
  // Return the failure in a Failed message. pack() may have cut its text and its ranks.
  static Failure unpack(const Message& message) {
    const auto* data = reinterpret_cast<const char*>(message.payload.data());
    const std::size_t bytes = message.header.number * sizeof(int);
    check(message.header.number <= kMaxRanks && bytes <= message.payload.size(), "a failure of ",
          message.payload.size(), " bytes");
    Failure failure{message.header.error, std::vector<int>(message.header.number), {}};
    if (bytes != 0) std::memcpy(failure.ranks.data(), data, bytes);
    if (message.payload.size() > bytes)
      failure.text.assign(data + bytes, message.payload.size() - bytes);
    return failure;
  }
};

// Return the header of a collective, send or receive in a group of `size` ranks. The field `topic`
// is Topic::Submitted. For a send, the caller changes it to Topic::Sent.
inline Header header_of(const Collective& collective, int size, std::uint64_t sequence) {
  Header header;
  header.sequence = sequence;
  header.number = static_cast<std::uint32_t>(collective.tag);
  header.has_program_text = collective.program != nullptr && collective.program->text != nullptr;
  header.call.assign(collective, size);
  return header;
}

// Return the send or the receive that a header describes, for error messages.
inline Collective pair_of(const Header& header) {
  Collective collective = collective_of(header.call);
  collective.tag = static_cast<int>(header.number);
  return collective;
}

}  // namespace ngd::comm::mpi
