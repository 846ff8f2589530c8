// SPDX-License-Identifier: Apache-2.0
// The text of an elementwise program, read. The grammar stands in kernels/README.md.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "base/shape.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::fused {

using tiles::kTabledOpcodes;
using tiles::Opcode;

struct Operand {
  enum class Kind : std::uint8_t { Input, Result, Immediate };
  Kind kind = Kind::Input;
  int index = 0;          // of the input or the instruction
  std::string_view text;  // of an immediate, without '#'
  DType dtype = DType::F32;
};

struct Instruction {
  Opcode opcode = Opcode::copy;
  DType dtype = DType::F32;  // of the operands; of a cast, what it casts from
  DType result = DType::F32;
  std::vector<Operand> operands;
};

// Why a program is not accepted.
class Refusal : public std::runtime_error {
  using runtime_error::runtime_error;
};

// Operands' texts are views into `text`. Throws Refusal.
std::vector<Instruction> parse_program(std::string_view text,
                                       const std::vector<TensorType>& inputs);

}  // namespace ngd::kernels::fused
