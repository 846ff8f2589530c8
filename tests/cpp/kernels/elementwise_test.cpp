// SPDX-License-Identifier: Apache-2.0
// Tests kernel bodies of elementwise ops: fusion, strides, work in place, and rejected bodies.
#include "elementwise.hpp"

#include <functional>
#include <limits>
#include <map>
#include <random>

#include "harness.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::test {
namespace {

TEST(Elementwise, FusedChainsHaveTheBitsOfTheirParts) {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64}) {
    const Tensor a = random_floats(dtype, {37, 53}, 10), b = random_floats(dtype, {37, 53}, 11);
    const std::string d = std::string(":") + name(dtype) + " ";
    const Tensor fused = run_dense(
        "multiply" + d + "i0 #0.3;subtract" + d + "t0 i1;tanh" + d + "t1;multiply" + d + "t2 t0",
        {a, b}, {dtype}, {3})[0];
    const auto one = [&](const std::string& program, const std::vector<Tensor>& inputs) {
      return run_dense(program, inputs, {dtype}, {0})[0];
    };
    const Tensor t0 = one("multiply" + d + "i0 #0.3", {a});
    const Tensor t1 = one("subtract" + d + "i0 i1", {t0, b});
    const Tensor t2 = one("tanh" + d + "i0", {t1});
    EXPECT_EQ(fused, one("multiply" + d + "i0 i1", {t2, t0})) << name(dtype);
  }
}

// A random program of arithmetic, comparisons and casts of three inputs, and the stored statements.
struct RandomProgram {
  std::vector<std::string> lines;
  std::vector<DType> dtypes;  // of its statements
  Integers results;
};

RandomProgram random_program(std::mt19937& random, DType dtype, bool casts) {
  const auto below = [&](std::size_t n) { return random() % n; };
  const std::string d = concat(":", name(dtype), " ");
  RandomProgram made;
  const auto operand = [&] {
    for (int tries = 0; tries < 8 && !made.lines.empty(); ++tries) {
      const std::size_t t =
          made.lines.size() - 1 - below(std::min<std::size_t>(3, made.lines.size()));
      if (made.dtypes[t] == dtype) return concat("t", t);
    }
    const std::size_t i = below(4);
    return i == 3 ? std::string("#0.0") : concat("i", i);
  };
  const std::size_t length = 2 + below(12);
  while (made.lines.size() < length) {
    static const char* const kBinary[] = {"add", "subtract", "multiply"};
    const std::size_t kind = below(casts ? 7 : 6);
    if (kind < 4) {
      made.lines.push_back(concat(kBinary[below(3)], d, operand(), " ", operand()));
      made.dtypes.push_back(dtype);
    } else if (kind == 4) {
      made.lines.push_back(concat("relu", d, operand()));
      made.dtypes.push_back(dtype);
    } else if (kind == 5) {
      const std::string zero = below(2) == 0 ? "#0.0" : operand();
      made.lines.push_back(concat("greater", d, operand(), " ", operand()));
      made.dtypes.push_back(DType::Bool);
      made.lines.push_back(
          concat("where", d, "t", made.lines.size() - 1, " ", operand(), " ", zero));
      made.dtypes.push_back(dtype);
    } else {
      made.lines.push_back(concat("cast:", name(dtype), ">bf16 ", operand()));
      made.dtypes.push_back(DType::BF16);
      made.lines.push_back(concat("cast:bf16>", name(dtype), " t", made.lines.size() - 1));
      made.dtypes.push_back(dtype);
    }
  }
  for (std::size_t t = 0; t < made.lines.size(); ++t)
    if (t + 1 == made.lines.size() || below(4) == 0)
      made.results.push_back(static_cast<std::int64_t>(t));
  return made;
}

// Random inputs with special values.
std::vector<Tensor> random_inputs(std::mt19937& random, DType dtype, std::int64_t n, int seed) {
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<Tensor> inputs;
  for (unsigned i = 0; i < 3; ++i) {
    inputs.push_back(random_floats(dtype, {n}, seed + i));
    for (const double value : {0.0, -0.0, infinity, -infinity, infinity - infinity})
      inputs.back().set(static_cast<std::int64_t>(random() % n), value);
  }
  return inputs;
}

// Run one statement separately, on the inputs and on the values of earlier statements.
Tensor run_statement(const std::string& statement, DType result, const std::vector<Tensor>& inputs,
                     const std::vector<Tensor>& values) {
  std::vector<Tensor> read = {inputs[0]};
  std::string line;
  for (std::size_t at = 0; at < statement.size(); ++at) {
    if (at == 0 || statement[at - 1] != ' ' || (statement[at] != 'i' && statement[at] != 't')) {
      line += statement[at];
      continue;
    }
    const std::size_t number = std::stoul(statement.substr(at + 1));
    read.push_back(statement[at] == 'i' ? inputs[number] : values[number]);
    line += concat("i", read.size() - 1);
    at = std::min(statement.find(' ', at), statement.size()) - 1;
  }
  return run_dense(line, read, {result}, {0})[0];
}

// The bits stay equal if a result uses the memory of an input, for each pair that the planner
// allows.
void expect_same_in_place(const std::string& text, const std::vector<Tensor>& inputs,
                          const std::vector<DType>& stored, const Integers& results,
                          const std::vector<Tensor>& expected) {
  const TensorType type = inputs[0].type();
  std::vector<TensorType> types;
  for (const DType each : stored) types.push_back({each, inputs[0].type().shape});
  const Offer offer = offer_of(
      {"elementwise",
       {type, type, type},
       types,
       attrs_of({{"program", text}, {"results", results}, {"input_strides", Integers{1, 1, 1}}})});
  for (const InPlace& pair : offer.kernel->in_place()) {
    const std::vector<Tensor> over = run_dense(text, inputs, stored, results, {pair});
    for (std::size_t k = 0; k < stored.size(); ++k) EXPECT_EQ(expected[k], over[k]) << text;
  }
}

TEST(Elementwise, RandomProgramsHaveTheBitsOfTheirInstructions) {
  std::mt19937 random(31);
  for (int round = 0; round < 400; ++round) {
    const DType dtype = round % 3 == 0 ? DType::F64 : DType::F32;
    const std::int64_t n = round % 5 == 0 ? 3001 : 1 + random() % 70;
    const std::vector<Tensor> inputs = random_inputs(random, dtype, n, 100 * round);
    const RandomProgram program = random_program(random, dtype, round % 2 == 0);
    std::string text;
    std::vector<Tensor> values;  // of the statements, computed one by one
    for (std::size_t t = 0; t < program.lines.size(); ++t) {
      text += concat(t > 0 ? ";" : "", program.lines[t]);
      values.push_back(run_statement(program.lines[t], program.dtypes[t], inputs, values));
    }
    std::vector<DType> stored;
    for (const std::int64_t t : program.results) stored.push_back(program.dtypes[t]);
    const std::vector<Tensor> out = run_dense(text, inputs, stored, program.results);
    for (std::size_t k = 0; k < stored.size(); ++k)
      for (std::int64_t i = 0; i < n; ++i) {
        const double found = out[k].at(i), expected = values[program.results[k]].at(i);
        ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
            << text << " result " << k << " element " << i;
        ASSERT_EQ(std::signbit(found), std::signbit(std::isnan(expected) ? found : expected));
      }
    expect_same_in_place(text, inputs, stored, program.results, out);
  }
}

TEST(Elementwise, ManyOutputsMayRepeatAndFeedLaterInstructions) {
  for (const DType dtype : {DType::F16, DType::F32, DType::I16}) {
    const Tensor a = random_tensor(dtype, {2050}, 12), b = random_tensor(dtype, {2050}, 13);
    const std::string d = std::string(":") + name(dtype) + " ";
    const auto out = run_dense(
        "add" + d + "i0 i1;multiply" + d + "t0 #2;less" + d + "t0 t1;subtract" + d + "t1 i0",
        {a, b}, {dtype, DType::Bool, dtype, dtype}, {0, 2, 3, 0});
    for (std::int64_t i = 0; i < a.count(); ++i) {
      const double sum = a.at(i) + b.at(i);
      ASSERT_EQ(out[0].at(i), sum);
      ASSERT_EQ(out[1].at(i), sum < 2 * sum);
      ASSERT_EQ(out[2].at(i), 2 * sum - a.at(i));
      ASSERT_EQ(out[3].at(i), sum);
    }
  }
}

struct Geometry {
  Shape shape;
  Integers strides;  // of one input
  std::int64_t elements;
};

// Broadcasts and transposes of every kind that the planner distinguishes, with long and short rows.
const std::vector<Geometry>& geometries() {
  static const std::vector<Geometry> all = {
      {{}, {}, 1},
      {{5}, {0}, 1},
      {{5000}, {0}, 1},
      {{128, 100}, {0, 1}, 100},
      {{128, 100}, {1, 0}, 128},
      {{128, 100}, {0, 0}, 1},
      {{7, 3000}, {0, 1}, 3000},
      {{7, 3000}, {1, 0}, 7},
      {{7, 3000}, {3000, 1}, 21000},
      {{7, 3000}, {1, 7}, 21000},
      {{7, 3000}, {5000, 1}, 7 * 5000},
      {{100, 784}, {1, 100}, 78400},
      {{3, 5, 7}, {1, 3, 15}, 105},
      {{3, 5, 7}, {7, 0, 1}, 21},
      {{3, 5, 7}, {0, 1, 0}, 5},
      {{3, 1, 7}, {7, 99, 1}, 21},
      {{2, 3, 4, 5}, {0, 20, 0, 4}, 60},
      {{2, 3, 4, 5}, {0, 5, 0, 1}, 15},
      {{64, 3, 600}, {0, 600, 1}, 1800},
      {{64, 3, 600}, {3, 1, 0}, 192},
      {{0, 4}, {4, 1}, 0},
      {{4, 0}, {0, 1}, 0},
      {{1, 1, 1}, {0, 0, 0}, 1},
      {{40, 3}, {6, 2}, 240},
      {{3, 2000}, {4000, 2}, 12000},
  };
  return all;
}

TEST(Elementwise, ReadsAnyStrides) {
  for (const DType dtype : {DType::U8, DType::F16, DType::F32, DType::F64})
    for (const Geometry& g : geometries()) {
      const Tensor a = random_tensor(dtype, {g.elements}, 14);
      const Tensor b = random_tensor(dtype, {element_count(g.shape)}, 15);
      Integers strides = g.strides;
      for (const std::int64_t s : row_major_strides(g.shape)) strides.push_back(s);
      const std::string program = std::string("maximum:") + name(dtype) + " i0 i1";
      const Tensor out =
          run("elementwise", {a, b}, {{dtype, g.shape}},
              attrs_of(
                  {{"program", program}, {"results", Integers{0}}, {"input_strides", strides}}))[0];
      for (std::int64_t i = 0; i < out.count(); ++i) {
        std::int64_t offset = 0, rest = i;
        for (std::size_t axis = g.shape.size(); axis-- > 0; rest /= g.shape[axis])
          offset += rest % g.shape[axis] * g.strides[axis];
        ASSERT_EQ(out.at(i), std::max(a.at(offset), b.at(i)))
            << to_string(out.type()) << " element " << i;
      }
    }
}

TEST(Elementwise, WritesOverItsInputs) {
  for (const DType dtype : {DType::F16, DType::F32, DType::I64})
    for (const std::int64_t n : {1, 100, 5001}) {
      const Tensor a = random_tensor(dtype, {n}, 16), b = random_tensor(dtype, {n}, 17);
      const std::string program =
          concat("multiply:", name(dtype), " i1 #2;subtract:", name(dtype), " i0 t0");
      const Tensor fresh = run_dense(program, {a, b}, {dtype}, {1})[0];
      EXPECT_EQ(fresh, run_dense(program, {a, b}, {dtype}, {1}, {{0, 0}})[0]);
      EXPECT_EQ(fresh, run_dense(program, {a, b}, {dtype}, {1}, {{0, 1}})[0]);
    }
}

TEST(Elementwise, RejectsWritesOverInputsThatAreStillRead) {
  const auto in_place = [&](const char* program, Integers results, Integers strides) {
    const TensorType type{DType::F32, {4, 4}};
    const KernelQuery query{
        "elementwise",
        {type, type},
        std::vector<TensorType>(results.size(), type),
        attrs_of(
            {{"program", std::string(program)}, {"results", results}, {"input_strides", strides}})};
    const Offer offer = offer_of(query);
    if (offer.kernel == nullptr) throw std::runtime_error(offer.refusal);
    return offer.kernel->in_place();
  };
  using Pairs = std::vector<InPlace>;
  const Integers dense = {4, 1, 4, 1};
  EXPECT_EQ(in_place("add:f32 i0 i1", {0}, dense), (Pairs{{0, 0}, {0, 1}}));
  EXPECT_EQ(in_place("add:f32 i0 i1", {0}, {4, 1, 1, 4}), (Pairs{{0, 0}}));
  EXPECT_EQ(in_place("add:f32 i0 i1", {0}, {0, 1, 0, 0}), Pairs{});
  EXPECT_EQ(in_place("negative:f32 i0;add:f32 i0 i1", {0, 1}, dense), (Pairs{{1, 0}, {1, 1}}));
  EXPECT_EQ(in_place("negative:f32 i0;add:f32 t0 i1", {0, 1}, dense),
            (Pairs{{0, 0}, {1, 0}, {1, 1}}));
  EXPECT_EQ(in_place("negative:f32 i0;add:f32 t0 i1", {1, 0}, dense),
            (Pairs{{0, 0}, {0, 1}, {1, 0}}));
}

TEST(Elementwise, ImmediatesAreReadInTheirDtype) {
  const auto constant = [](const std::string& text, DType dtype) {
    return run("elementwise", {}, {{dtype, {3}}},
               attrs_of({{"program", std::string("copy:") + name(dtype) + " #" + text},
                         {"results", Integers{0}},
                         {"input_strides", Integers{}}}))[0];
  };
  EXPECT_EQ(constant("0.5", DType::F32).at(2), 0.5);
  EXPECT_EQ(constant("-inf", DType::F64).at(0), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(constant("nan", DType::F16).at(1)));
  EXPECT_EQ(constant("1.001", DType::BF16).at(0), 1.0);
  EXPECT_EQ(constant("-3", DType::I8).at(0), -3);
  EXPECT_EQ(static_cast<std::uint64_t>(constant("18446744073709551615", DType::U64).integer(0)),
            UINT64_MAX);
  EXPECT_EQ(constant("-9223372036854775808", DType::I64).integer(0), INT64_MIN);
  EXPECT_EQ(constant("1", DType::Bool).at(0), 1);
}

TEST(Elementwise, RejectsBadBodiesWithAReason) {
  const auto reason = [](const std::string& program, Integers results = {0},
                         Integers strides = {1}) {
    const KernelQuery query{"elementwise",
                            {{DType::F32, {4}}},
                            {{DType::F32, {4}}},
                            attrs_of({{"program", program},
                                      {"results", std::move(results)},
                                      {"input_strides", std::move(strides)}})};
    return refusal_of(query);
  };
  EXPECT_NE(reason("frobnicate:f32 i0").find("there is no elementwise opcode frobnicate"),
            std::string::npos);
  EXPECT_NE(reason("exp:f32 i1").find("operand i1"), std::string::npos);
  EXPECT_NE(reason("exp:f32 t0").find("operand t0"), std::string::npos);
  EXPECT_NE(reason("exp:f64 i0").find("operand i0 is f32 where f64"), std::string::npos);
  EXPECT_NE(reason("add:f32 i0").find("takes 2 operands, not 1"), std::string::npos);
  EXPECT_NE(reason("exp:i32 #1").find("output 0"), std::string::npos);
  EXPECT_NE(reason("cast:f32>i32 i0;exp:i32 t0;cast:i32>f32 t1", {2}).find("not defined for i32"),
            std::string::npos);
  EXPECT_NE(reason("add:f32 i0 #x").find("immediate #x is not of dtype f32"), std::string::npos);
  EXPECT_NE(reason("exp:f32 i0", {1}).find("results name 1"), std::string::npos);
  EXPECT_NE(reason("exp:f32 i0", {0}, {2}).find("past its end"), std::string::npos);
  EXPECT_NE(reason("exp:f32 i0", {0}, {1, 1}).find("input_strides"), std::string::npos);
}

// Every opcode gives equal bits on every SIMD level that this CPU supports. To compare other levels
// with the baseline, run this program with NGD_SIMD.
TEST(Elementwise, ResultsDoNotDependOnTheSimdLevel) {
  const tiles::TileTable& best = tiles::tile_table();
  const tiles::TileTable& base = tiles::baseline::tile_table();
  constexpr std::int64_t n = 1009;
  for (const DType dtype : {DType::F32, DType::F64, DType::I32, DType::U8})
    for (int op = 0; op < tiles::kTabledOpcodes; ++op) {
      const auto f = best.operations[op][static_cast<int>(dtype)];
      const auto g = base.operations[op][static_cast<int>(dtype)];
      if (f == nullptr || op == static_cast<int>(tiles::Opcode::where)) continue;
      const double low = is_floating(dtype) ? -50 : 0;
      const Tensor a = random_floats(dtype, {n}, 18, low, 50),
                   b = random_floats(dtype, {n}, 19, low, 50);
      std::vector<std::byte> x(n * 8), y(n * 8);
      f(a.data(), b.data(), nullptr, x.data(), n);
      g(a.data(), b.data(), nullptr, y.data(), n);
      if (dtype == DType::F32 || dtype == DType::F64) {  // the sign of a NaN may differ
        const auto quiet = [&](std::vector<std::byte>& bytes) {
          for (std::int64_t i = 0; i < n; ++i)
            if (auto* v = reinterpret_cast<float*>(bytes.data());
                dtype == DType::F32 && v[i] != v[i])
              v[i] = 0;
            else if (auto* w = reinterpret_cast<double*>(bytes.data());
                     dtype == DType::F64 && w[i] != w[i])
              w[i] = 0;
        };
        quiet(x), quiet(y);
      }
      EXPECT_EQ(x, y) << "opcode " << op << ' ' << name(dtype);
    }
}

}  // namespace
}  // namespace ngd::kernels::test
