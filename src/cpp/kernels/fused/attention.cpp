// SPDX-License-Identifier: Apache-2.0
// Attention in blocks, without a matrix of all scores: T. Dao et al., "FlashAttention" (2022,
// arXiv:2205.14135), algorithms 1 and 4, with the order of loops of "FlashAttention-2" (2023,
// arXiv:2307.08691), algorithm 1.
//
// The score of a query and a key is their dot product times `scale`, plus the mask. The weights of
// a query are the softmax of its scores over all keys. The result is the sum of the values, each
// times its weight. The logsum of a query is the logarithm of the sum of its scores' exponentials.
//
// A block of queries (kQueries) of one head is combined with one block of keys (kKeyBlock) after
// the other. The scores of this pair of blocks stay in the second-level cache. The forward kernel
// adds up the exponentials and the weighted values block by block, and rescales its sums if the
// maximum grows. The backward kernel recomputes the scores, and gets the weights from the logsums.
// In causal attention, query i sees the keys up to i, and blocks of keys that no query of the block
// sees are skipped. The order of all sums does not depend on the number of threads.
#include "kernels/fused/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/simd.hpp"
#include "device/team.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fused {

namespace {

constexpr std::int64_t kKeyBlock = 128;  // keys per block
// The maximum number of queries or keys in a range near the diagonal of causal attention: see
// for_query_rows() and for_key_rows().
constexpr std::int64_t kDiagonalStep = 32;
constexpr std::int64_t kGrainWork = 1 << 18;  // the minimum number of multiplications per thread

template <class T>
const AttentionLoops<T>& loops_of(SimdLevel level) {
  const AttentionTable& table = NGD_SIMD_SELECT(level, attention_table)();
  if constexpr (std::is_same_v<T, float>)
    return table.f32;
  else
    return table.f64;
}

// Return the shape of an operand as [..., heads, positions, elements]. If the attribute heads_last
// is set, the operand itself is [..., positions, heads, elements].
Shape heads_first(const KernelQuery& query, std::size_t input) {
  Shape shape = query.inputs[input].shape;
  if (query.attrs.integer("heads_last") != 0)
    std::swap(shape[shape.size() - 2], shape[shape.size() - 3]);
  return shape;
}

Shape shape_of_scores(const KernelQuery& query) {
  Shape scores = heads_first(query, 0);
  scores.back() = heads_first(query, 1)[scores.size() - 2];
  return scores;
}

// The parameters and shapes of an attention op, read from its KernelQuery. Several heads of queries
// can share one head of keys and values: these heads of queries are a group. A unit is one head of
// keys and values of one batch element.
struct Problem {
  explicit Problem(const KernelQuery& query)
      : causal(query.attrs.integer("causal") != 0),
        heads_last(query.attrs.integer("heads_last") != 0),
        scale(query.attrs.number("scale")) {
    const Shape q = heads_first(query, 0), k = heads_first(query, 1), v = heads_first(query, 2);
    const std::size_t rank = q.size();
    queries = q[rank - 2], extent = q[rank - 1];
    keys = k[rank - 2], width = v[rank - 1];
    heads = q[rank - 3], groups = k[rank - 3];
    units = element_count(Shape(k.begin(), k.end() - 2));
    heads_per_group = groups == 0 ? 0 : heads / groups;
    blocks = divide_up(queries, kQueries);
    key_blocks = divide_up(keys, kKeyBlock);
  }

  // Return the number of keys that at least one query before `end` sees: in causal attention at
  // most `end` keys, and otherwise all keys.
  std::int64_t num_visible_keys(std::int64_t end) const {
    return causal ? std::min(keys, end) : keys;
  }
  std::int64_t multiplications() const {
    return units * heads_per_group * queries * keys * (extent + width) / (causal ? 2 : 1);
  }

  // Return the rows of one head's matrix in `tensor`, from row `row` on. The matrix has `length`
  // rows of `elements` elements. `matrix` is the number of the head over the whole batch: the
  // number of the batch element * num_heads + the number of the head in it.
  template <class T>
  Dense<T> rows(T* tensor, std::int64_t matrix, std::int64_t num_heads, std::int64_t length,
                std::int64_t row, std::int64_t elements) const {
    if (!heads_last) return {tensor + (matrix * length + row) * elements, elements};
    const std::int64_t position = matrix / num_heads * length + row;
    return {tensor + (position * num_heads + matrix % num_heads) * elements, num_heads * elements};
  }

  bool causal, heads_last;
  double scale;
  std::int64_t heads, groups;           // per batch element: heads of queries; heads of keys
  std::int64_t units, heads_per_group;  // key heads of the whole batch; query heads per key head
  std::int64_t queries, keys, extent, width;  // extent, width: elements per key, and per value
  std::int64_t blocks, key_blocks;            // blocks of queries, and of keys
};

// Return the i-th number of the order 0, n - 1, 1, n - 2, ... of blocks. In causal attention, the
// first block of queries sees the fewest keys, and the last block the most. So two neighbours in
// this order, numbers 2k and 2k + 1, together have about the same work for every k.
std::int64_t zigzag(std::int64_t i, std::int64_t n) { return i % 2 == 0 ? i / 2 : n - 1 - i / 2; }

// The mask, which is added to the scores. It has strides along [..., heads, queries, keys]. The
// stride along an axis that broadcasts is 0.
class Mask {
 public:
  Mask() = default;
  Mask(const TensorType& type, const Shape& scores)
      : exists_(true), is_bool_(type.dtype == DType::Bool) {
    const Shape dense = row_major_strides(type.shape);
    strides_.assign(scores.size(), 0);
    const std::size_t missing = scores.size() - type.shape.size();
    for (std::size_t axis = 0; axis < type.shape.size(); ++axis)
      if (type.shape[axis] != 1) strides_[missing + axis] = dense[axis];
    batch_.assign(scores.begin(), scores.end() - 2);
    row_ = strides_[scores.size() - 2];
    column_ = strides_[scores.size() - 1];
  }
  explicit operator bool() const { return exists_; }

  static bool fits(const TensorType& type, const Shape& scores) {
    if (type.shape.size() > scores.size()) return false;
    return std::equal(
        type.shape.rbegin(), type.shape.rend(), scores.rbegin(),
        [](std::int64_t length, std::int64_t full) { return length == 1 || length == full; });
  }

  // Return the index of the mask's first element for a head, numbered over all batch elements.
  std::int64_t begin(std::int64_t head) const {
    std::int64_t offset = 0;
    for (std::size_t axis = batch_.size(); axis-- > 0; head /= batch_[axis])
      offset += head % batch_[axis] * strides_[axis];
    return offset;
  }

  // Return true if query number `query` sees at least one of the first `keys` keys. It sees a key
  // if the mask of the pair is not -inf.
  template <class T>
  bool sees_any(const void* mask, std::int64_t head, std::int64_t query, std::int64_t keys) const {
    const std::int64_t first = begin(head) + query * row_;
    for (std::int64_t key = 0; key < keys; ++key)
      if (addend<T>(mask, first + key * column_) != -std::numeric_limits<T>::infinity())
        return true;
    return false;
  }

  // Store the mask of a block of queries and keys in `out`. Like a block of scores (attention.hpp),
  // `out` has one row per key. The input has one row per query, so its block is transposed.
  // `mask_rows` is scratch memory for the block before it is transposed.
  template <class T>
  void block(const void* mask, std::int64_t head, std::int64_t query, std::int64_t queries,
             std::int64_t key, std::int64_t keys, const AttentionLoops<T>& loops, T* mask_rows,
             T* out) const {
    const std::int64_t first = begin(head) + query * row_ + key * column_;
    Dense<const T> rows{static_cast<const T*>(mask) + first, row_};
    if (is_bool_ || column_ == 0) {
      const std::int64_t count = row_ == 0 ? 1 : queries;
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t p = 0; p < keys; ++p)
          mask_rows[i * kKeyBlock + p] = addend<T>(mask, first + i * row_ + p * column_);
      rows = {mask_rows, row_ == 0 ? 0 : kKeyBlock};
    }
    loops.transpose(rows, queries, keys, 1, out);
  }

 private:
  // Return element `index` of the mask as the number to add to a score: 0 or -inf for a bool.
  template <class T>
  T addend(const void* mask, std::int64_t index) const {
    if (!is_bool_) return static_cast<const T*>(mask)[index];
    return static_cast<const bool*>(mask)[index] ? T(0) : -std::numeric_limits<T>::infinity();
  }

  bool exists_ = false, is_bool_ = false;
  Shape strides_, batch_;
  std::int64_t row_ = 0, column_ = 0;
};

Mask mask_of(const KernelQuery& query, std::size_t index) {
  if (query.inputs.size() <= index) return {};
  return {query.inputs[index], shape_of_scores(query)};
}

// A block of queries of one head.
struct Block {
  // Numbers over the whole batch: `unit` of the head of keys, `head` of the head of queries.
  std::int64_t unit, head;
  std::int64_t first, count;  // the first query, and the number of queries
  std::int64_t columns;       // `count`, rounded up to whole vectors
};

// The common part of the forward and the backward kernel: blocks of scores, and the scratch memory
// of the threads.
template <class T>
class Attention {
 public:
  Attention(const KernelQuery& query, std::size_t mask_index, const Machine& machine)
      : problem_(query),
        mask_(mask_of(query, mask_index)),
        loops_(loops_of<T>(machine.simd)),
        pieces_(std::clamp<std::int64_t>(problem_.multiplications() / kGrainWork, 1,
                                         machine.threads)) {}

 protected:
  // Return the number of scratch elements per thread that forward and backward both need: for the
  // transposed queries, for a block of scores and, if there is a mask, for two blocks of the mask.
  std::int64_t shared_elements() const {
    return kQueries * (problem_.extent + kKeyBlock * (mask_ ? 3 : 1));
  }

  Block block_of(std::int64_t head, std::int64_t block) const {
    const std::int64_t first = block * kQueries;
    const std::int64_t count = std::min(kQueries, problem_.queries - first);
    const std::int64_t columns = round_up(count, loops_.lanes);
    return {head / problem_.heads_per_group, head, first, count, columns};
  }

  // Return the rows of the queries of block `b` in `tensor`, which has one row of `width` elements
  // per query.
  template <class U>
  Dense<U> query_rows(U* tensor, const Block& b, std::int64_t width) const {
    return problem_.rows(tensor, b.head, problem_.heads, problem_.queries, b.first, width);
  }
  // Return the rows of one head of keys, from key `key` on, in `tensor`, which has one row per key.
  // `unit` is the number of this head over the whole batch.
  template <class U>
  Dense<U> key_rows(U* tensor, std::int64_t unit, std::int64_t key, std::int64_t width) const {
    return problem_.rows(tensor, unit, problem_.groups, problem_.keys, key, width);
  }
  // Return the rows with stride `width`. If `rows` has this stride, the result is `rows` itself.
  // Otherwise, `count` rows of `width` elements are copied to `space`: rows with a larger stride
  // can compete for few sets of the first-level cache, which makes repeated reads slow.
  static Dense<const T> dense_copy(Dense<const T> rows, std::int64_t count, std::int64_t width,
                                   T* space) {
    if (rows.stride == width) return rows;
    for (std::int64_t row = 0; row < count; ++row)
      std::copy_n(rows.data + row * rows.stride, width, space + row * width);
    return {space, width};
  }
  static const T* input(const KernelArgs& args, std::size_t index) {
    return static_cast<const T*>(args.inputs[index]);
  }

  // Compute the scores of a block of queries with a block of keys. `queries` is already transposed
  // and multiplied by `scale`.
  void scores(const KernelArgs& args, const void* mask, const Block& b, const T* queries,
              std::int64_t key, std::int64_t keys, T* out) const {
    const Dense<const T> k = key_rows(input(args, 1), b.unit, key, problem_.extent);
    multiply_to_scores(b, key, keys, k, queries, problem_.extent, out);
    if (mask_) {
      T *mask_rows = out + kKeyBlock * kQueries, *addends = mask_rows + kKeyBlock * kQueries;
      mask_.template block<T>(mask, b.head, b.first, b.count, key, keys, loops_, mask_rows,
                              addends);
      loops_.add_mask(addends, keys, b.columns, out);
    }
    if (problem_.causal)
      for (std::int64_t p = std::max<std::int64_t>(b.first - key, 0); p < keys; ++p)
        std::fill_n(out + p * kQueries, std::min(key + p - b.first, b.columns),
                    -std::numeric_limits<T>::infinity());
  }

  // Divide the `keys` keys from number `key` on into ranges, and call body(row, rows, column) for
  // each range. The range has `rows` keys, from number key + row on. Query number `column` of `b`
  // is the first that sees a key of the range. Without causal attention, one range has all keys.
  // In causal attention, the first range has the keys that all queries of the block see: those
  // before its first query. Each further range has up to kDiagonalStep keys.
  template <class Body>
  void for_key_rows(const Block& b, std::int64_t key, std::int64_t keys, Body&& body) const {
    const std::int64_t corner = problem_.causal ? std::min(b.first - key, keys) : keys;
    if (corner > 0) body(std::int64_t{0}, corner, std::int64_t{0});
    for (std::int64_t row = corner; row < keys; row += kDiagonalStep)
      body(row, std::min(kDiagonalStep, keys - row), row - corner);
  }

  // Divide the queries of block `b` into ranges, and call body(row, rows, depth) for each range. A
  // range has `rows` queries, from number `row` of the block on. The block is combined with the
  // `keys` keys from number `key` on. In causal attention, the queries of the range see only the
  // first `depth` of these keys, so the matrix products skip the other keys.
  template <class Body>
  void for_query_rows(const Block& b, std::int64_t key, std::int64_t keys, Body&& body) const {
    if (!problem_.causal || key + keys <= b.first) return body(std::int64_t{0}, b.count, keys);
    for (std::int64_t row = 0; row < b.count; row += kDiagonalStep) {
      const std::int64_t rows = std::min(kDiagonalStep, b.count - row);
      body(row, rows, std::min(keys, b.first + row + rows - key));
    }
  }

  // Store left @ right in `out`, a block with one row per key and one column per query. `left` has
  // one row per key, and `right` has one column per query. In causal attention, an element
  // may stay unwritten if its query does not see its key.
  void multiply_to_scores(const Block& b, std::int64_t key, std::int64_t keys, Dense<const T> left,
                          const T* right, std::int64_t depth, T* out) const {
    for_key_rows(b, key, keys, [&](std::int64_t row, std::int64_t rows, std::int64_t column) {
      loops_.multiply({left.data + row * left.stride, left.stride, 1}, {right + column, kQueries},
                      {out + row * kQueries + column, kQueries}, {rows, b.columns - column, depth},
                      false);
    });
  }

  // Add block @ right to `out`. Row 0 of `out` is for key number `key`, row 1 for the next key.
  // `block` has one row per key and one column per query of `b`. `right` has one row per query.
  void multiply_to_keys(const Block& b, std::int64_t key, std::int64_t keys, const T* block,
                        Dense<const T> right, Dense<T> out, std::int64_t width) const {
    for_key_rows(b, key, keys, [&](std::int64_t row, std::int64_t rows, std::int64_t column) {
      loops_.multiply({block + row * kQueries + column, kQueries, 1},
                      {right.data + column * right.stride, right.stride},
                      {out.data + row * out.stride, out.stride}, {rows, width, b.count - column},
                      true);
    });
  }

  // Compute transposed(block) @ right, and add the product to `out`. For the first block of keys
  // (key = 0), store the product in `out` instead. `block` has one row per key and one column per
  // query, `right` has one row per key, and `out` has one row per query.
  void multiply_to_queries(const Block& b, std::int64_t key, std::int64_t keys, const T* block,
                           Dense<const T> right, Dense<T> out, std::int64_t width) const {
    for_query_rows(b, key, keys, [&](std::int64_t row, std::int64_t rows, std::int64_t depth) {
      loops_.multiply({block + row, 1, kQueries}, right, {out.data + row * out.stride, out.stride},
                      {rows, width, depth}, key > 0);
    });
  }

  // Call body(task, scratch) for each task number below `tasks`. The threads share the tasks, and
  // `scratch` is the thread's own scratch memory of `elements` elements.
  template <class Body>
  void for_tasks(std::int64_t tasks, std::int64_t elements, void* scratch, Body&& body) const {
    const std::int64_t pieces = std::min(tasks, pieces_);
    device::for_pieces(pieces, [&](std::int64_t piece) {
      const auto [begin, end] = device::share(tasks, 1, piece, pieces);
      for (std::int64_t task = begin; task < end; ++task)
        body(task, static_cast<T*>(scratch) + piece * elements);
    });
  }

  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(pieces_ * elements) * sizeof(T);
  }

  Problem problem_;
  Mask mask_;
  const AttentionLoops<T>& loops_;
  std::int64_t pieces_;
};

// The forward kernel. The inputs are query, key, value, and optionally a mask. The outputs are the
// result of the attention, and the logsum of each query.
template <class T>
class Forward final : public Kernel, Attention<T> {
  using Base = Attention<T>;
  using Base::loops_, Base::mask_, Base::problem_;

 public:
  Forward(const KernelQuery& query, const Machine& machine) : Base(query, 3, machine) {}
  std::size_t scratch_bytes() const override { return Base::bytes(elements()); }

  void run(const KernelArgs& args) const override {
    const std::int64_t heads = problem_.units * problem_.heads_per_group, blocks = problem_.blocks;
    Base::for_tasks(heads * blocks, elements(), args.scratch, [&](std::int64_t task, T* scratch) {
      run_block(args, Base::block_of(task / blocks, zigzag(task % blocks, blocks)), scratch);
    });
  }

 private:
  std::int64_t elements() const { return Base::shared_elements() + 3 * kQueries; }

  void run_block(const KernelArgs& args, const Block& b, T* scratch) const {
    const std::int64_t width = problem_.width,
                       num_keys = problem_.num_visible_keys(b.first + b.count);
    T *maxima = scratch, *sums = maxima + kQueries, *factors = sums + kQueries;
    T *queries = factors + kQueries, *weights = queries + kQueries * problem_.extent;
    std::fill_n(maxima, kQueries, -std::numeric_limits<T>::infinity());
    std::fill_n(sums, kQueries, T(0));
    loops_.transpose(Base::query_rows(Base::input(args, 0), b, problem_.extent), b.count,
                     problem_.extent, static_cast<T>(problem_.scale), queries);
    const bool stores_value = args.outputs[0] != nullptr;
    Dense<T> value{nullptr, 0};
    if (stores_value) value = Base::query_rows(static_cast<T*>(args.outputs[0]), b, width);
    for (std::int64_t key = 0; key < num_keys; key += kKeyBlock) {
      const std::int64_t keys = std::min(kKeyBlock, num_keys - key);
      Base::scores(args, mask_ ? args.inputs[3] : nullptr, b, queries, key, keys, weights);
      loops_.exponentials(weights, keys, b.columns, maxima, sums, factors);
      if (!stores_value) continue;
      for (std::int64_t i = 0; key > 0 && i < b.count; ++i)
        if (factors[i] != T(1)) loops_.scale(value.data + i * value.stride, width, factors[i]);
      Base::multiply_to_queries(b, key, keys, weights,
                                Base::key_rows(Base::input(args, 2), b.unit, key, width), value,
                                width);
    }
    finish(args, b, maxima, sums, value);
  }

  void finish(const KernelArgs& args, const Block& b, const T* maxima, T* sums,
              Dense<T> value) const {
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    for (std::int64_t i = 0; i < b.count; ++i) {
      T logsum = maxima[i] + std::log(sums[i]);
      if (sums[i] == T(0)) {  // the query sees no key, or only scores of -inf
        const bool has_visible_key = sees_any(args, b, b.first + i);
        logsum = has_visible_key ? kNan : T(0);
        sums[i] = has_visible_key ? kNan : T(1);
      }
      if (value.data != nullptr)
        loops_.scale(value.data + i * value.stride, problem_.width, T(1) / sums[i]);
      if (args.outputs[1] != nullptr)
        static_cast<T*>(args.outputs[1])[b.head * problem_.queries + b.first + i] = logsum;
    }
  }

  bool sees_any(const KernelArgs& args, const Block& b, std::int64_t query) const {
    const std::int64_t num_keys = problem_.num_visible_keys(query + 1);
    return mask_ ? mask_.template sees_any<T>(args.inputs[3], b.head, query, num_keys)
                 : num_keys > 0;
  }
};

// The backward kernel. The inputs are query, key, value, the two outputs of the forward kernel, the
// adjoints of these outputs, and optionally a mask. The outputs are the adjoints of query, key and
// value.
template <class T>
class Backward final : public Kernel, Attention<T> {
  using Base = Attention<T>;
  using Base::loops_, Base::mask_, Base::problem_, Base::pieces_;

 public:
  Backward(const KernelQuery& query, const Machine& machine) : Base(query, 7, machine) {
    // One pass over all pairs of a query block and a key block needs 5 matrix products per pair. It
    // has one task per unit (a head of keys), so threads may be idle. Two passes need 7 products
    // per pair, but have more tasks. In one pass, the busiest of the pieces_ threads computes
    // `rounds` units. One pass is chosen if the work of this thread, 5 * rounds, is at most the
    // work per thread of two passes, 7 * units / pieces_.
    const std::int64_t rounds = divide_up(problem_.units, pieces_);
    is_one_pass_ = rounds * pieces_ * 5 <= problem_.units * 7;
  }
  std::size_t scratch_bytes() const override { return Base::bytes(elements()); }

  void run(const KernelArgs& args) const override {
    const Problem& p = problem_;
    void *const *out = args.outputs, *scratch = args.scratch;
    T *dq = static_cast<T*>(out[0]), *dk = static_cast<T*>(out[1]), *dv = static_cast<T*>(out[2]);
    if (is_one_pass_) {
      Base::for_tasks(p.units, elements(), scratch, [&](std::int64_t unit, T* workspace) {
        clear(unit, 0, p.keys, dk, dv);
        process_blocks(args, {dq, dk, dv}, unit * p.heads_per_group, p.heads_per_group, 0, p.blocks,
                       0, p.keys, workspace);
      });
      return;
    }
    if (dq != nullptr)
      Base::for_tasks(p.units * p.heads_per_group * p.blocks, elements(), scratch,
                      [&](std::int64_t task, T* workspace) {
                        const std::int64_t block = zigzag(task % p.blocks, p.blocks);
                        process_blocks(args, {dq, nullptr, nullptr}, task / p.blocks, 1, block,
                                       block + 1, 0, p.keys, workspace);
                      });
    if (dk == nullptr && dv == nullptr) return;
    Base::for_tasks(
        p.units * p.key_blocks, elements(), scratch, [&](std::int64_t task, T* workspace) {
          const std::int64_t unit = task / p.key_blocks;
          const std::int64_t key = zigzag(task % p.key_blocks, p.key_blocks) * kKeyBlock;
          clear(unit, key, std::min(key + kKeyBlock, p.keys), dk, dv);
          process_blocks(args, {nullptr, dk, dv}, unit * p.heads_per_group, p.heads_per_group,
                         p.causal ? key / kQueries : 0, p.blocks, key,
                         std::min(key + kKeyBlock, p.keys), workspace);
        });
  }

 private:
  struct Adjoints {
    T *query, *key, *value;  // the memory of each adjoint; null if it is not computed
  };

  std::int64_t elements() const {
    return Base::shared_elements() +
           kQueries * (problem_.extent + 2 * problem_.width + kKeyBlock + 2);
  }

  void clear(std::int64_t unit, std::int64_t key, std::int64_t end, T* dk, T* dv) const {
    const auto zeros = [&](T* tensor, std::int64_t width) {
      const Dense<T> rows = Base::key_rows(tensor, unit, key, width);
      for (std::int64_t row = 0; row < end - key; ++row)
        std::fill_n(rows.data + row * rows.stride, width, T(0));
    };
    if (dk != nullptr) zeros(dk, problem_.extent);
    if (dv != nullptr) zeros(dv, problem_.width);
  }

  // Call run_block() for the query blocks `block` to blocks_end - 1 of the heads `head` to head +
  // heads - 1. These heads share one head of keys, and use its keys `key` to end - 1.
  void process_blocks(const KernelArgs& args, const Adjoints& to, std::int64_t head,
                      std::int64_t heads, std::int64_t block, std::int64_t blocks_end,
                      std::int64_t key, std::int64_t end, T* scratch) const {
    for (std::int64_t h = head; h < head + heads; ++h)
      for (std::int64_t i = block; i < blocks_end; ++i) {
        const Block b = Base::block_of(h, i);
        run_block(args, to, b, key, std::min(end, problem_.num_visible_keys(b.first + b.count)),
                  scratch);
      }
  }

  void run_block(const KernelArgs& args, const Adjoints& to, const Block& b, std::int64_t key,
                 std::int64_t end, T* scratch) const {
    const std::int64_t extent = problem_.extent, width = problem_.width;
    const auto scale = static_cast<T>(problem_.scale);
    T *logsums = scratch, *deltas = logsums + kQueries, *slopes = deltas + kQueries;
    T *dy = slopes + kQueries * kKeyBlock, *space = dy + kQueries * width;
    T *queries = space + kQueries * (extent + width), *weights = queries + kQueries * extent;
    const Dense<const T> q =
        Base::dense_copy(Base::query_rows(Base::input(args, 0), b, extent), b.count, extent, space);
    const Dense<const T> adjoints =
        Base::dense_copy(Base::query_rows(Base::input(args, 5), b, width), b.count, width,
                         space + kQueries * extent);
    prepare(args, b, adjoints, logsums, deltas);
    loops_.transpose(q, b.count, extent, scale, queries);
    loops_.transpose(adjoints, b.count, width, 1, dy);
    for (; key < end; key += kKeyBlock) {
      const std::int64_t keys = std::min(kKeyBlock, end - key);
      Base::scores(args, mask_ ? args.inputs[7] : nullptr, b, queries, key, keys, weights);
      loops_.weights(weights, keys, b.columns, logsums);
      if (to.value != nullptr)
        Base::multiply_to_keys(b, key, keys, weights, adjoints,
                               Base::key_rows(to.value, b.unit, key, width), width);
      if (to.query == nullptr && to.key == nullptr) continue;
      Base::multiply_to_scores(b, key, keys,
                               Base::key_rows(Base::input(args, 2), b.unit, key, width), dy, width,
                               slopes);
      loops_.slopes(weights, keys, b.columns, deltas, scale, slopes);
      if (to.key != nullptr)
        Base::multiply_to_keys(b, key, keys, slopes, q, Base::key_rows(to.key, b.unit, key, extent),
                               extent);
      if (to.query != nullptr)
        Base::multiply_to_queries(b, key, keys, slopes,
                                  Base::key_rows(Base::input(args, 1), b.unit, key, extent),
                                  Base::query_rows(to.query, b, extent), extent);
    }
  }

  // For each query of a block, store its logsum, and its delta = dy . y - dlogsum. y is the result
  // of the query, and dy and dlogsum are the adjoints of y and of the logsum. The loop `slopes`
  // (attention.hpp) computes the adjoints of the scores from the deltas.
  void prepare(const KernelArgs& args, const Block& b, Dense<const T> adjoints, T* logsums,
               T* deltas) const {
    const std::int64_t row = b.head * problem_.queries + b.first, width = problem_.width;
    const T *stored_logsums = Base::input(args, 4) + row,
            *logsum_adjoints = Base::input(args, 6) + row;
    loops_.dot(Base::query_rows(Base::input(args, 3), b, width), adjoints, b.count, width, deltas);
    for (std::int64_t i = 0; i < kQueries; ++i) {
      logsums[i] = i < b.count ? stored_logsums[i] : T(0);
      deltas[i] = i < b.count ? deltas[i] - logsum_adjoints[i] : T(0);
    }
  }

  bool is_one_pass_;
};

std::string refusal(const KernelQuery& query, std::size_t mask_index) {
  const std::vector<TensorType>& in = query.inputs;
  const DType dtype = in[0].dtype;
  if (dtype != DType::F32 && dtype != DType::F64) return "the operands are not float32 or float64";
  const std::size_t rank = in[0].shape.size();
  if (rank < 3 || in[1].shape.size() != rank || in[2].shape.size() != rank)
    return "the operands do not have one rank of at least 3";
  const Shape scores = shape_of_scores(query);
  if (scores.back() == 0) return "there are no keys";
  if (in.size() > mask_index && !Mask::fits(in[mask_index], scores))
    return "the mask does not broadcast to the scores";
  if (in.size() > mask_index && in[mask_index].dtype != DType::Bool &&
      in[mask_index].dtype != dtype)
    return "the mask is not of dtype bool or of the operands' dtype";
  for (std::size_t i = 1; i < std::min(in.size(), mask_index); ++i)
    if (in[i].dtype != dtype) return "the operands do not have one dtype";
  return "";
}

template <template <class> class Kind>
Offer offer(const KernelQuery& query, std::size_t mask_index, const Machine& machine) {
  if (std::string reason = refusal(query, mask_index); !reason.empty())
    return Offer::refuse(std::move(reason));
  if (query.inputs[0].dtype == DType::F64) return {std::make_unique<Kind<double>>(query, machine)};
  return {std::make_unique<Kind<float>>(query, machine)};
}

}  // namespace

Offer offer_attend(const KernelQuery& query, const Machine& machine) {
  return offer<Forward>(query, 3, machine);
}
Offer offer_attend_grad(const KernelQuery& query, const Machine& machine) {
  return offer<Backward>(query, 7, machine);
}

}  // namespace ngd::kernels::fused
