// SPDX-License-Identifier: Apache-2.0
// ONE descriptor for every collective, whoever runs it.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.hpp"

namespace ngd::comm {

enum class Kind : std::uint8_t {
  AllReduce,
  ReduceScatter,
  AllGather,
  Broadcast,
  Reduce,
  Gather,
  Scatter,
  AllToAll,
  Send,
  Receive,
  Barrier
};

enum class ReduceOp : std::uint8_t { None, Sum, Mean, Min, Max, Prod };

enum class Algorithm : std::uint8_t { Auto, Flat, Ring };

// What a rank's compiled program says of all its collectives; rides in the first one of every call.
struct ProgramIdentity {
  std::uint64_t hash = 0;      // of the sequence of collectives; 0 = eager
  const char* text = nullptr;  // one line a collective with its call site, for the message
};

struct Collective {
  Kind kind = Kind::Barrier;
  ReduceOp op = ReduceOp::None;
  DType dtype = DType::U8;
  std::uint64_t count = 0;  // elements
  int root = 0;
  const void* source = nullptr;  // count elements; may equal destination
  void* destination = nullptr;   // count elements
  Algorithm algorithm = Algorithm::Auto;
  const ProgramIdentity* program = nullptr;
  const char* site = "";  // "train.py:42": carried for messages, never compared
};

std::string_view name_of(Kind kind) noexcept;      // "all_reduce"
std::string_view name_of(ReduceOp op) noexcept;    // "mean"
Kind kind_named(std::string_view name);            // throws InvalidArgument
ReduceOp reduce_op_named(std::string_view name);   // throws InvalidArgument
Algorithm algorithm_named(std::string_view name);  // throws InvalidArgument
Algorithm preferred_algorithm();                   // NGD_ALLREDUCE's; throws the same

// Throws InvalidArgument for what no communicator does: an integer mean, a sum of bools, a root
// outside [0, size), a reduction without an op.
void validate(const Collective& collective, int size);

// "all_reduce(mean) of 512 float32", plus " at train.py:42" when the site is known.
std::string describe(const Collective& collective);

}  // namespace ngd::comm
