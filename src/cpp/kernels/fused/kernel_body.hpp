// SPDX-License-Identifier: Apache-2.0
// The kernel body of a fused elementwise kernel, parsed from its text. A body is a list of
// statements. Each statement computes one value per element, by one opcode, from inputs, immediates
// (constants in the text) and the values of earlier statements. kernels/README.md has the grammar.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "base/shape.hpp"
#include "kernels/kernel.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::fused {

using tiles::kTabledOpcodes;
using tiles::Opcode;

// An operand of a statement: an input of the body, the value of an earlier statement, or an
// immediate (a constant in the text of the body, such as "#0.5").
struct Operand {
  enum class Kind : std::uint8_t { Input, Result, Immediate };
  Kind kind = Kind::Input;
  int index = 0;          // the number of the input or statement; not used for an immediate
  std::string_view text;  // the text of an immediate without its first character, '#'
  DType dtype = DType::F32;

  bool is_result_of(int statement) const { return kind == Kind::Result && index == statement; }
};

// A statement of a body: it applies one opcode to its operands, once per element.
struct Statement {
  Opcode opcode = Opcode::copy;
  DType dtype = DType::F32;  // of the operands, except the condition of `where`, which is bool
  DType result = DType::F32;
  std::vector<Operand> operands;
};

// The error for a query (an op with its types) that a kernel does not support. Its text is the
// reason.
class Refusal : public std::runtime_error {
  using runtime_error::runtime_error;
};

// Parse the statements of a body. The operands' texts are views into `text`. Throws Refusal.
std::vector<Statement> parse_statements(std::string_view text,
                                        const std::vector<TensorType>& inputs);

// Return the value of an immediate (a constant in the text) as the bits of one element of a tile.
// Tiles contain 16-bit floats as float32. Throws Refusal if the text is not a number of the dtype.
std::uint64_t bits_of_immediate(const Operand& operand);

// A kernel body: the statements that a fused kernel computes. They are read from the attributes of
// the query, which must outlive the body, because the body has views into the query.
struct Body {
  explicit Body(const KernelQuery& query);  // throws Refusal

  std::vector<Statement> statements;
  std::vector<std::int64_t> results;  // results[k] is the statement whose value is output k
  // reduced[k] is the number of the statement whose values are reduced (for example, summed) to
  // output number results.size() + k.
  std::vector<std::int64_t> reduced;
  Shape shape;  // the values of all statements have this shape
};

}  // namespace ngd::kernels::fused
