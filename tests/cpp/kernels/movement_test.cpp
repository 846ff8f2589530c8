// SPDX-License-Identifier: Apache-2.0
// Tests kernels that move elements, against index arithmetic: copy, transpose, slice, pad_slice,
// concat, gather, scatter_add, one_hot, iota.
#include <algorithm>
#include <numeric>

#include "harness.hpp"

namespace ngd::kernels::test {
namespace {

Integers index_of(const Shape& shape, std::int64_t i) {
  Integers index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0; i /= shape[axis]) index[axis] = i % shape[axis];
  return index;
}

std::int64_t offset_of(const Shape& shape, const Integers& index) {
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    offset = offset * shape[axis] + index[axis];
  return offset;
}

TEST(Copy, SameBytes) {
  for (const DType dtype : all_dtypes())
    for (const std::int64_t n : {0, 1, 1000, 300001}) {
      const Tensor x = random_tensor(dtype, {n}, 1);
      EXPECT_EQ(run("copy", {x}, {x.type()}, {})[0], x);
    }
}

TEST(Transpose, ComputesEveryPermutation) {
  for (const DType dtype : {DType::Bool, DType::F16, DType::F32, DType::I64})
    for (const Shape& shape :
         {Shape{}, Shape{5}, Shape{3, 4}, Shape{70, 33}, Shape{2, 3, 4}, Shape{3, 40, 37},
          Shape{2, 1, 3, 5}, Shape{0, 3, 2}, Shape{129, 2, 65}}) {
      const Tensor x = random_tensor(dtype, shape, 2);
      Integers permutation(shape.size());
      std::iota(permutation.begin(), permutation.end(), 0);
      do {
        Shape out_shape;
        for (const std::int64_t axis : permutation)
          out_shape.push_back(shape[static_cast<std::size_t>(axis)]);
        const Tensor out = run("transpose", {x}, {{dtype, out_shape}},
                               attrs_of({{"permutation", permutation}}))[0];
        for (std::int64_t i = 0; i < out.count(); ++i) {
          const Integers to = index_of(out_shape, i);
          Integers from(shape.size());
          for (std::size_t a = 0; a < shape.size(); ++a)
            from[static_cast<std::size_t>(permutation[a])] = to[a];
          ASSERT_EQ(out.at(i), x.at(offset_of(shape, from))) << to_string(x.type());
        }
      } while (std::next_permutation(permutation.begin(), permutation.end()));
    }
}

struct SliceCase {
  Shape whole, part;
  Integers starts, steps;
};

const std::vector<SliceCase>& slice_cases() {
  static const std::vector<SliceCase> all = {
      {{10}, {4}, {2}, {1}},
      {{10}, {4}, {9}, {-2}},
      {{10}, {10}, {9}, {-1}},
      {{10}, {0}, {3}, {1}},
      {{4, 6}, {2, 6}, {1, 0}, {1, 1}},
      {{4, 6}, {4, 2}, {0, 1}, {1, 3}},
      {{4, 6}, {2, 3}, {3, 5}, {-2, -2}},
      {{3, 4, 5}, {3, 1, 5}, {0, 2, 0}, {1, 1, 1}},
      {{3, 4, 5}, {2, 4, 3}, {1, 0, 0}, {1, 1, 2}},
      {{}, {}, {}, {}},
      {{300, 200}, {150, 100}, {0, 1}, {2, 2}},
  };
  return all;
}

TEST(Slice, StartsAndSteps) {
  for (const DType dtype : {DType::I8, DType::BF16, DType::F32, DType::F64})
    for (const SliceCase& c : slice_cases()) {
      const Tensor x = random_tensor(dtype, c.whole, 3);
      const Attrs attrs = attrs_of({{"starts", c.starts}, {"steps", c.steps}});
      const Tensor part = run("slice", {x}, {{dtype, c.part}}, attrs)[0];
      Tensor padded(dtype, c.whole);
      for (std::int64_t i = 0; i < padded.count(); ++i) padded.set(i, 0);
      for (std::int64_t i = 0; i < part.count(); ++i) {
        Integers index = index_of(c.part, i);
        for (std::size_t a = 0; a < index.size(); ++a)
          index[a] = c.starts[a] + index[a] * c.steps[a];
        ASSERT_EQ(part.at(i), x.at(offset_of(c.whole, index))) << to_string(x.type());
        padded.set(offset_of(c.whole, index), part.at(i));
      }
      EXPECT_EQ(run("pad_slice", {part}, {{dtype, c.whole}}, attrs)[0], padded);
    }
}

TEST(Slice, RejectsIndicesOutsideOfTheTensor) {
  for (const auto& [start, step, count] :
       std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{
           {0, 1, 11}, {10, 1, 1}, {9, 2, 2}, {0, -1, 2}, {-1, 1, 2}}) {
    const Attrs attrs = attrs_of({{"starts", Integers{start}}, {"steps", Integers{step}}});
    const TensorType whole{DType::F32, {10}}, part{DType::F32, {count}};
    EXPECT_NE(refusal_of({"slice", {whole}, {part}, attrs}), "");
    EXPECT_NE(refusal_of({"pad_slice", {part}, {whole}, attrs}), "");
  }
}

TEST(Concat, JoinsAnyNumberAlongAnyAxis) {
  for (const DType dtype : {DType::U8, DType::F16, DType::F32, DType::I64})
    for (std::size_t axis = 0; axis < 3; ++axis) {
      Shape whole{4, 3, 5};
      whole[axis] = 0;
      std::vector<Tensor> parts;
      for (const std::int64_t length : {2, 0, 1, 7, 4}) {
        Shape shape = whole;
        shape[axis] = length;
        parts.push_back(random_tensor(dtype, shape, static_cast<unsigned>(length)));
      }
      whole[axis] = 14;
      const Tensor out = run("concat", parts, {{dtype, whole}},
                             attrs_of({{"axis", static_cast<std::int64_t>(axis)}}))[0];
      for (std::int64_t i = 0; i < out.count(); ++i) {
        Integers index = index_of(whole, i);
        std::size_t part = 0;
        while (index[axis] >= parts[part].type().shape[axis])
          index[axis] -= parts[part++].type().shape[axis];
        ASSERT_EQ(out.at(i), parts[part].at(offset_of(parts[part].type().shape, index)));
      }
    }
}

// The shape with the axis replaced by the shape of the indices.
Shape taken(const Shape& shape, std::size_t axis, const Shape& indices) {
  Shape result(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis));
  result.insert(result.end(), indices.begin(), indices.end());
  result.insert(result.end(), shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1, shape.end());
  return result;
}

TEST(Gather, TakesAlongAnyAxisAndItsAdjointAdds) {
  for (const DType dtype : all_dtypes())
    for (const DType index_dtype : {DType::I32, DType::I64})
      for (const Shape& index_shape : {Shape{}, Shape{3}, Shape{2, 5}, Shape{0}})
        for (std::size_t axis = 0; axis < 3; ++axis) {
          const Shape shape{4, 6, 5};
          const Tensor x = random_tensor(dtype, shape, 4);
          Tensor indices = random_tensor(index_dtype, index_shape, 5, 0, 3);
          if (indices.count() > 0) indices.set(0, -1);
          const Attrs attrs = attrs_of({{"axis", static_cast<std::int64_t>(axis)}});
          const Shape part = taken(shape, axis, index_shape);
          const Tensor out = run("gather", {x, indices}, {{dtype, part}}, attrs)[0];
          Tensor sums(DType::F64, shape);
          for (std::int64_t i = 0; i < out.count(); ++i) {
            Integers from = index_of(part, i);
            const auto begin = from.begin() + static_cast<std::ptrdiff_t>(axis);
            const auto end = begin + static_cast<std::ptrdiff_t>(index_shape.size());
            std::int64_t index = indices.integer(offset_of(index_shape, Integers(begin, end)));
            if (index < 0) index += shape[axis];
            from.insert(from.erase(begin, end), index);
            ASSERT_EQ(out.at(i), x.at(offset_of(shape, from)));
            sums.set(offset_of(shape, from), sums.at(offset_of(shape, from)) + out.at(i));
          }
          const Tensor added = run("scatter_add", {out, indices}, {{dtype, shape}}, attrs)[0];
          for (std::int64_t i = 0; i < added.count(); ++i)
            ASSERT_EQ(added.at(i), dtype == DType::Bool ? std::min(sums.at(i), 1.0) : sums.at(i));
        }
}

TEST(Gather, NamesAnIndexOutOfRange) {
  const Tensor x(DType::F32, {4, 2});
  for (const std::int64_t bad : {4, -5, 1000}) {
    const Tensor indices(DType::I64, {3}, Integers{0, bad, 1});
    const Attrs attrs = attrs_of({{"axis", std::int64_t{0}}});
    for (const char* op : {"gather", "scatter_add"}) {
      try {
        if (std::string(op) == "gather")
          run(op, {x, indices}, {{DType::F32, {3, 2}}}, attrs);
        else
          run(op, {Tensor(DType::F32, {3, 2}), indices}, {{DType::F32, {4, 2}}}, attrs);
        FAIL() << "no error";
      } catch (const std::out_of_range& error) {
        const std::string what = error.what();
        EXPECT_NE(what.find(concat("got ", bad, " at [1]")), std::string::npos) << what;
        EXPECT_NE(what.find("an index in [-4, 4)"), std::string::npos) << what;
      }
    }
  }
}

TEST(Gather, ManyRowsOnSeveralThreads) {
  const Tensor x = random_tensor(DType::F32, {1000, 64}, 6);
  Tensor indices(DType::I32, {3000});
  for (std::int64_t i = 0; i < 3000; ++i) indices.set(i, i * 7 % 1000);
  const Attrs attrs = attrs_of({{"axis", std::int64_t{0}}});
  const Tensor out = run("gather", {x, indices}, {{DType::F32, {3000, 64}}}, attrs)[0];
  for (std::int64_t i = 0; i < out.count(); ++i)
    ASSERT_EQ(out.at(i), x.at(i / 64 * 7 % 1000 * 64 + i % 64));
  const Tensor added = run("scatter_add", {out, indices}, {x.type()}, attrs)[0];
  for (std::int64_t i = 0; i < added.count(); ++i) ASSERT_EQ(added.at(i), 3 * x.at(i));
}

TEST(OneHot, IsZeroForIndicesOutOfRange) {
  for (const DType dtype : all_dtypes())
    for (const DType index_dtype : {DType::I8, DType::I32, DType::U64}) {
      const Tensor indices(index_dtype, {2, 3}, Integers{0, 2, 5, 4, 100, -1});
      const Tensor out = run("one_hot", {indices}, {{dtype, {2, 3, 5}}}, {})[0];
      for (std::int64_t i = 0; i < out.count(); ++i)
        ASSERT_EQ(out.at(i), indices.integer(i / 5) == i % 5 ? 1 : 0);
    }
}

TEST(Iota, CountsAlongAnAxis) {
  for (const DType dtype : all_dtypes()) {
    if (dtype == DType::Bool) continue;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const Shape shape{3, 4, 5};
      const Tensor out = run("iota", {}, {{dtype, shape}},
                             attrs_of({{"axis", static_cast<std::int64_t>(axis)}}))[0];
      for (std::int64_t i = 0; i < out.count(); ++i)
        ASSERT_EQ(out.at(i), static_cast<double>(index_of(shape, i)[axis]));
    }
  }
}

}  // namespace
}  // namespace ngd::kernels::test
