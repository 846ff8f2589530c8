// SPDX-License-Identifier: Apache-2.0
#include "runtime/program.hpp"

#include <gtest/gtest.h>

#include <locale>
#include <string>

#include "base/error.hpp"

namespace ngd::runtime {
namespace {

Program small() {
  Program program;
  program.values = {{{DType::F32, {2, 3}}, MemoryKind::Input, 0},
                    {{DType::F32, {2, 3}}, MemoryKind::Shared, 64}};
  program.inputs = 1;
  program.shared_bytes = 128;
  Instruction copy{Action::Run, "copy", {0}, {1}, {}, -1, 0, "a.py:1", {}};
  Instruction start{Action::Start, "all_reduce", {1}, {1}, {}, -1, 0, "a.py:2", {}};
  start.attrs.set("reduce_op", std::string("mean"));
  Instruction wait{Action::Wait, "all_reduce", {}, {1}, {}, 1, 0, "a.py:2", {}};
  program.instructions = {copy, start, wait};
  program.groups = {{"all_reduce f32[2,3] at a.py:2", 5}, {"", 0}};
  return program;
}

TEST(Program, PrintsAStableText) {
  EXPECT_EQ(to_string(small()),
            "program(1 inputs, 0 outputs, 0 variables, private 0 bytes, shared 128 bytes)\n"
            "  %0 : f32[2,3] @ input 0\n"
            "  %1 : f32[2,3] @ shared+64\n"
            "  0: %1 = copy(%0)\n"
            "  1: %1 = start all_reduce(%1) reduce_op=\"mean\"\n"
            "  2: %1 = wait all_reduce(1)\n");
}

TEST(Program, MayHavePartsOfNumberedMemoryAndUnreadResults) {
  Program program = small();
  program.constants.emplace_back(24);
  program.values.push_back({{DType::F32, {3}}, MemoryKind::Constant, 0, 12});
  program.values.push_back({{DType::I64, {3}}, MemoryKind::Nowhere});
  program.instructions.insert(program.instructions.begin(),
                              {Action::Run, "top_k", {2}, {1, 3}, {}, -1, 0, "a.py:3", {}});
  program.instructions[3].start = 2;
  EXPECT_NO_THROW(verify(program));
  const std::string text = to_string(program);
  EXPECT_NE(text.find("  %2 : f32[3] @ constant 0+12\n  %3 : i64[3] @ nowhere\n"),
            std::string::npos);
  EXPECT_NE(text.find("  0: %1, %3 = top_k(%2)\n"), std::string::npos);
  Program read = program;
  read.instructions[0].inputs = {3};
  EXPECT_THROW(verify(read), Error);
  Program sent = program;
  sent.instructions[2].outputs = {3};
  EXPECT_THROW(verify(sent), Error);
  program.values[2].offset = 16;
  EXPECT_THROW(verify(program), Error);
}

// In this locale 1234 is "1.234", and 0.5 is "0,5".
struct Grouping : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Program, PrintsTheSameTextInEveryLocale) {
  Program program = small();
  program.shared_bytes = 123456;
  program.instructions[0].attrs.set("rate", 0.123456789);
  const std::string text = to_string(program);
  EXPECT_NE(text.find("shared 123456 bytes"), std::string::npos);
  EXPECT_NE(text.find("rate=0.123456789\n"), std::string::npos);
  const std::locale before = std::locale::global(std::locale(std::locale(), new Grouping));
  const std::string grouped = to_string(program), message = concat(1234, ' ', 0.5);
  std::locale::global(before);
  EXPECT_EQ(grouped, text);
  EXPECT_EQ(message, "1234 0.5");
}

TEST(Program, RejectsReferencesOutsideOfTheProgram) {
  EXPECT_NO_THROW(verify(small()));
  Program other_group = small();
  other_group.instructions[1].group = 1;
  EXPECT_NO_THROW(verify(other_group));
  EXPECT_NE(to_string(other_group).find("reduce_op=\"mean\" group 1\n"), std::string::npos);
  other_group.instructions[1].group = 2;
  EXPECT_THROW(verify(other_group), Error);
  Program program = small();
  program.shared_bytes = 64;
  EXPECT_THROW(verify(program), Error);
  program = small();
  program.instructions[0].inputs = {2};
  EXPECT_THROW(verify(program), Error);
  program = small();
  program.instructions[2].start = 0;
  EXPECT_THROW(verify(program), Error);
}

}  // namespace
}  // namespace ngd::runtime
