// SPDX-License-Identifier: Apache-2.0
// Attention without a matrix of scores: T. Dao et al., "FlashAttention" (2022, arXiv:2205.14135),
// algorithms 1 and 4, in the order of "FlashAttention-2" (2023, arXiv:2307.08691), algorithm 1.
//
// A block of queries meets block after block of keys. The scores of the two stay in the
// second-level cache; forward they are summed at once, with a maximum that is corrected on the way.
// Backward they are computed again, and the sum of their exponentials is known. Blocks of keys that
// lie behind the diagonal are left out. Sums run in one order, however the blocks are dealt out to
// threads.
#include "kernels/fused/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/simd.hpp"
#include "device/team.hpp"
#include "kernels/rows.hpp"

namespace ngd::kernels::fused {

namespace {

constexpr std::int64_t kKeys = 128;           // of a block
constexpr std::int64_t kStep = 32;            // of the stairs along the diagonal
constexpr std::int64_t kGrainWork = 1 << 18;  // multiplications that are worth a thread

template <class T>
const AttentionLoops<T>& loops() {
  const AttentionTable& table = NGD_SIMD_SELECT(attention_table)();
  if constexpr (std::is_same_v<T, float>)
    return table.f32;
  else
    return table.f64;
}

// The shape with the heads before the places, wherever they lie.
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

// What is asked for, and how the operands lie.
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
    sharers = groups == 0 ? 0 : heads / groups;
    blocks = (queries + kQueries - 1) / kQueries;
    key_blocks = (keys + kKeys - 1) / kKeys;
  }

  // How many keys any query before `end` sees.
  std::int64_t seen(std::int64_t end) const { return causal ? std::min(keys, end) : keys; }
  std::int64_t multiplications() const {
    return units * sharers * queries * keys * (extent + width) / (causal ? 2 : 1);
  }

  // Rows of a matrix: number `matrix` of those of all batches, each with `of` heads.
  template <class T>
  Dense<T> rows(T* tensor, std::int64_t matrix, std::int64_t of, std::int64_t length,
                std::int64_t row, std::int64_t elements) const {
    if (!heads_last) return {tensor + (matrix * length + row) * elements, elements};
    const std::int64_t place = matrix / of * length + row;
    return {tensor + (place * of + matrix % of) * elements, of * elements};
  }

  bool causal, heads_last;
  double scale;
  std::int64_t heads, groups;   // of a batch: of queries, and of keys and values
  std::int64_t units, sharers;  // groups of all batches; heads of a group
  std::int64_t queries, keys, extent, width;
  std::int64_t blocks, key_blocks;
};

// Which block is next: the last one sees most where the first one sees least, so they are
// neighbours, and tasks side by side have equal work.
std::int64_t in_turn(std::int64_t turn, std::int64_t blocks) {
  return turn % 2 == 0 ? turn / 2 : blocks - 1 - turn / 2;
}

// What is added to the scores: at each axis of [..., heads, queries, keys] its stride, or 0.
class Mask {
 public:
  Mask() = default;
  Mask(const TensorType& type, const Shape& scores)
      : given_(true), flags_(type.dtype == DType::Bool) {
    const Shape dense = row_major_strides(type.shape);
    strides_.assign(scores.size(), 0);
    const std::size_t missing = scores.size() - type.shape.size();
    for (std::size_t axis = 0; axis < type.shape.size(); ++axis)
      if (type.shape[axis] != 1) strides_[missing + axis] = dense[axis];
    batch_.assign(scores.begin(), scores.end() - 2);
    row_ = strides_[scores.size() - 2];
    column_ = strides_[scores.size() - 1];
  }
  explicit operator bool() const { return given_; }

  static bool fits(const TensorType& type, const Shape& scores) {
    if (type.shape.size() > scores.size()) return false;
    return std::equal(type.shape.rbegin(), type.shape.rend(), scores.rbegin(),
                      [](std::int64_t own, std::int64_t all) { return own == 1 || own == all; });
  }

  // Where the matrix of a head begins, the heads of all batches counted through.
  std::int64_t begin(std::int64_t head) const {
    std::int64_t offset = 0;
    for (std::size_t axis = batch_.size(); axis-- > 0; head /= batch_[axis])
      offset += head % batch_[axis] * strides_[axis];
    return offset;
  }

  // Whether a query sees any of its first `keys` keys.
  template <class T>
  bool sees_any(const void* mask, std::int64_t head, std::int64_t query, std::int64_t keys) const {
    const std::int64_t first = begin(head) + query * row_;
    for (std::int64_t key = 0; key < keys; ++key)
      if (addend<T>(mask, first + key * column_) != -std::numeric_limits<T>::infinity())
        return true;
    return false;
  }

  // The addends of a block, a key a row; `staged` has room for a block, a query a row.
  template <class T>
  void block(const void* mask, std::int64_t head, std::int64_t query, std::int64_t queries,
             std::int64_t key, std::int64_t keys, T* staged, T* out) const {
    const std::int64_t first = begin(head) + query * row_ + key * column_;
    Dense<const T> rows{static_cast<const T*>(mask) + first, row_};
    if (flags_ || column_ == 0) {
      const std::int64_t count = row_ == 0 ? 1 : queries;
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t p = 0; p < keys; ++p)
          staged[i * kKeys + p] = addend<T>(mask, first + i * row_ + p * column_);
      rows = {staged, row_ == 0 ? 0 : kKeys};
    }
    loops<T>().transpose(rows, queries, keys, 1, out);
  }

 private:
  template <class T>
  T addend(const void* mask, std::int64_t at) const {
    if (!flags_) return static_cast<const T*>(mask)[at];
    return static_cast<const bool*>(mask)[at] ? T(0) : -std::numeric_limits<T>::infinity();
  }

  bool given_ = false, flags_ = false;
  Shape strides_, batch_;
  std::int64_t row_ = 0, column_ = 0;
};

Mask mask_of(const KernelQuery& query, std::size_t place) {
  if (query.inputs.size() <= place) return {};
  return {query.inputs[place], shape_of_scores(query)};
}

// A block of queries of one head.
struct Block {
  std::int64_t unit, head;    // of the keys, of the queries: counted through all batches
  std::int64_t first, count;  // queries
  std::int64_t columns;       // count, rounded up to whole vectors
};

// What both kernels share: blocks of scores, threads and their scratch.
template <class T>
class Attention {
 public:
  Attention(const KernelQuery& query, std::size_t mask_place, const Machine& machine)
      : problem_(query),
        mask_(mask_of(query, mask_place)),
        loops_(loops<T>()),
        pieces_(std::clamp<std::int64_t>(problem_.multiplications() / kGrainWork, 1,
                                         machine.threads)) {}

 protected:
  // Of a thread, in elements: transposed queries, a block of scores, a mask's block twice.
  std::int64_t shared_elements() const {
    return kQueries * (problem_.extent + kKeys * (mask_ ? 3 : 1));
  }

  Block block_of(std::int64_t head, std::int64_t block) const {
    const std::int64_t first = block * kQueries;
    const std::int64_t count = std::min(kQueries, problem_.queries - first);
    const std::int64_t columns = (count + loops_.lanes - 1) / loops_.lanes * loops_.lanes;
    return {head / problem_.sharers, head, first, count, columns};
  }

  // Rows of a tensor like the query, or like the key.
  template <class U>
  Dense<U> query_rows(U* tensor, const Block& b, std::int64_t width) const {
    return problem_.rows(tensor, b.head, problem_.heads, problem_.queries, b.first, width);
  }
  template <class U>
  Dense<U> key_rows(U* tensor, std::int64_t unit, std::int64_t key, std::int64_t width) const {
    return problem_.rows(tensor, unit, problem_.groups, problem_.keys, key, width);
  }
  // Rows that are read again and again: a dense copy of those that lie apart, which would share few
  // sets of the first cache.
  static Dense<const T> gathered(Dense<const T> rows, std::int64_t count, std::int64_t width,
                                 T* room) {
    if (rows.stride == width) return rows;
    for (std::int64_t row = 0; row < count; ++row)
      std::copy_n(rows.data + row * rows.stride, width, room + row * width);
    return {room, width};
  }
  static const T* input(const KernelArgs& args, std::size_t place) {
    return static_cast<const T*>(args.inputs[place]);
  }

  // The scores of a block of queries, transposed and scaled, with a block of keys.
  void scores(const KernelArgs& args, const void* mask, const Block& b, const T* queries,
              std::int64_t key, std::int64_t keys, T* out) const {
    const Dense<const T> k = key_rows(input(args, 1), b.unit, key, problem_.extent);
    multiply_to_scores(b, key, keys, k, queries, problem_.extent, out);
    if (mask_) {
      T *staged = out + kKeys * kQueries, *addends = staged + kKeys * kQueries;
      mask_.template block<T>(mask, b.head, b.first, b.count, key, keys, staged, addends);
      loops_.add_mask(addends, keys, b.columns, out);
    }
    if (problem_.causal)
      for (std::int64_t p = std::max<std::int64_t>(b.first - key, 0); p < keys; ++p)
        std::fill_n(out + p * kQueries, std::min(key + p - b.first, b.columns),
                    -std::numeric_limits<T>::infinity());
  }

  // Calls body(row, rows, column) for keys of a block and the first query that sees any of them:
  // those before the diagonal at once, then step by step.
  template <class Body>
  void for_keys(const Block& b, std::int64_t key, std::int64_t keys, Body&& body) const {
    const std::int64_t corner = problem_.causal ? std::min(b.first - key, keys) : keys;
    if (corner > 0) body(std::int64_t{0}, corner, std::int64_t{0});
    for (std::int64_t row = corner; row < keys; row += kStep)
      body(row, std::min(kStep, keys - row), row - corner);
  }

  // Calls body(row, rows, depth) for queries of a block and how many keys of a block they see.
  template <class Body>
  void for_queries(const Block& b, std::int64_t key, std::int64_t keys, Body&& body) const {
    if (!problem_.causal || key + keys <= b.first) return body(std::int64_t{0}, b.count, keys);
    for (std::int64_t row = 0; row < b.count; row += kStep) {
      const std::int64_t rows = std::min(kStep, b.count - row);
      body(row, rows, std::min(keys, b.first + row + rows - key));
    }
  }

  // Of a block of scores: left @ right, for the queries that see a key. `left` has a key a row,
  // `right` a query a column.
  void multiply_to_scores(const Block& b, std::int64_t key, std::int64_t keys, Dense<const T> left,
                          const T* right, std::int64_t depth, T* out) const {
    for_keys(b, key, keys, [&](std::int64_t row, std::int64_t rows, std::int64_t column) {
      loops_.multiply({left.data + row * left.stride, left.stride, 1}, {right + column, kQueries},
                      {out + row * kQueries + column, kQueries}, {rows, b.columns - column, depth},
                      false);
    });
  }

  // Adds block @ right, which has a query a row, to rows of keys.
  void multiply_to_keys(const Block& b, std::int64_t key, std::int64_t keys, const T* block,
                        Dense<const T> right, Dense<T> out, std::int64_t width) const {
    for_keys(b, key, keys, [&](std::int64_t row, std::int64_t rows, std::int64_t column) {
      loops_.multiply({block + row * kQueries + column, kQueries, 1},
                      {right.data + column * right.stride, right.stride},
                      {out.data + row * out.stride, out.stride}, {rows, width, b.count - column},
                      true);
    });
  }

  // Transposed block @ right, which has a key a row, into rows of queries; the first keys' product
  // is what the others' are added to.
  void multiply_to_queries(const Block& b, std::int64_t key, std::int64_t keys, const T* block,
                           Dense<const T> right, Dense<T> out, std::int64_t width) const {
    for_queries(b, key, keys, [&](std::int64_t row, std::int64_t rows, std::int64_t depth) {
      loops_.multiply({block + row, 1, kQueries}, right, {out.data + row * out.stride, out.stride},
                      {rows, width, depth}, key > 0);
    });
  }

  // Calls body(task, scratch) for each task, on some threads.
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

// Inputs query, key, value, perhaps a mask; outputs the value and the logarithm of a row's sum.
template <class T>
class Forward final : public Kernel, Attention<T> {
  using Base = Attention<T>;
  using Base::loops_, Base::mask_, Base::problem_;

 public:
  Forward(const KernelQuery& query, const Machine& machine) : Base(query, 3, machine) {}
  std::size_t scratch_bytes() const override { return Base::bytes(elements()); }

  void run(const KernelArgs& args) const override {
    const std::int64_t heads = problem_.units * problem_.sharers, blocks = problem_.blocks;
    Base::for_tasks(heads * blocks, elements(), args.scratch, [&](std::int64_t task, T* scratch) {
      run_block(args, Base::block_of(task / blocks, in_turn(task % blocks, blocks)), scratch);
    });
  }

 private:
  std::int64_t elements() const { return Base::shared_elements() + 3 * kQueries; }

  void run_block(const KernelArgs& args, const Block& b, T* scratch) const {
    const std::int64_t width = problem_.width, seen = problem_.seen(b.first + b.count);
    T *maxima = scratch, *sums = maxima + kQueries, *factors = sums + kQueries;
    T *queries = factors + kQueries, *weights = queries + kQueries * problem_.extent;
    std::fill_n(maxima, kQueries, -std::numeric_limits<T>::infinity());
    std::fill_n(sums, kQueries, T(0));
    loops_.transpose(Base::query_rows(Base::input(args, 0), b, problem_.extent), b.count,
                     problem_.extent, static_cast<T>(problem_.scale), queries);
    const bool wanted = args.outputs[0] != nullptr;
    Dense<T> value{nullptr, 0};
    if (wanted) value = Base::query_rows(static_cast<T*>(args.outputs[0]), b, width);
    for (std::int64_t key = 0; key < seen; key += kKeys) {
      const std::int64_t keys = std::min(kKeys, seen - key);
      Base::scores(args, mask_ ? args.inputs[3] : nullptr, b, queries, key, keys, weights);
      loops_.exponentials(weights, keys, b.columns, maxima, sums, factors);
      if (!wanted) continue;
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
      if (sums[i] == T(0)) {  // nothing is seen, or nothing but scores of -inf
        const bool some = sees_any(args, b, b.first + i);
        logsum = some ? kNan : T(0);
        sums[i] = some ? kNan : T(1);
      }
      if (value.data != nullptr)
        loops_.scale(value.data + i * value.stride, problem_.width, T(1) / sums[i]);
      if (args.outputs[1] != nullptr)
        static_cast<T*>(args.outputs[1])[b.head * problem_.queries + b.first + i] = logsum;
    }
  }

  bool sees_any(const KernelArgs& args, const Block& b, std::int64_t query) const {
    const std::int64_t seen = problem_.seen(query + 1);
    return mask_ ? mask_.template sees_any<T>(args.inputs[3], b.head, query, seen) : seen > 0;
  }
};

// Inputs query, key, value, the two results, their adjoints, perhaps a mask; outputs the adjoints
// of query, key and value.
template <class T>
class Backward final : public Kernel, Attention<T> {
  using Base = Attention<T>;
  using Base::loops_, Base::mask_, Base::problem_, Base::pieces_;

 public:
  Backward(const KernelQuery& query, const Machine& machine) : Base(query, 7, machine) {
    // One walk over all pairs of blocks makes all adjoints, by 5 products a pair, on as many
    // threads as there are units. Two walks, over queries and over keys, have 7 products and more
    // tasks.
    const std::int64_t rounds = (problem_.units + pieces_ - 1) / pieces_;
    at_once_ = rounds * pieces_ * 5 <= problem_.units * 7;
  }
  std::size_t scratch_bytes() const override { return Base::bytes(elements()); }

  void run(const KernelArgs& args) const override {
    const Problem& p = problem_;
    void *const *out = args.outputs, *scratch = args.scratch;
    T *dq = static_cast<T*>(out[0]), *dk = static_cast<T*>(out[1]), *dv = static_cast<T*>(out[2]);
    if (at_once_) {
      Base::for_tasks(p.units, elements(), scratch, [&](std::int64_t unit, T* own) {
        clear(unit, 0, p.keys, dk, dv);
        walk(args, {dq, dk, dv}, unit * p.sharers, p.sharers, 0, p.blocks, 0, p.keys, own);
      });
      return;
    }
    if (dq != nullptr)
      Base::for_tasks(p.units * p.sharers * p.blocks, elements(), scratch,
                      [&](std::int64_t task, T* own) {
                        const std::int64_t block = in_turn(task % p.blocks, p.blocks);
                        walk(args, {dq, nullptr, nullptr}, task / p.blocks, 1, block, block + 1, 0,
                             p.keys, own);
                      });
    if (dk == nullptr && dv == nullptr) return;
    Base::for_tasks(p.units * p.key_blocks, elements(), scratch, [&](std::int64_t task, T* own) {
      const std::int64_t unit = task / p.key_blocks;
      const std::int64_t key = in_turn(task % p.key_blocks, p.key_blocks) * kKeys;
      clear(unit, key, std::min(key + kKeys, p.keys), dk, dv);
      walk(args, {nullptr, dk, dv}, unit * p.sharers, p.sharers, p.causal ? key / kQueries : 0,
           p.blocks, key, std::min(key + kKeys, p.keys), own);
    });
  }

 private:
  struct Adjoints {
    T *query, *key, *value;  // null: not wanted
  };

  std::int64_t elements() const {
    return Base::shared_elements() + kQueries * (problem_.extent + 2 * problem_.width + kKeys + 2);
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

  // Some blocks of queries of some heads that share keys, with the keys from `key` to `end`.
  void walk(const KernelArgs& args, const Adjoints& to, std::int64_t head, std::int64_t heads,
            std::int64_t block, std::int64_t blocks_end, std::int64_t key, std::int64_t end,
            T* scratch) const {
    for (std::int64_t h = head; h < head + heads; ++h)
      for (std::int64_t i = block; i < blocks_end; ++i) {
        const Block b = Base::block_of(h, i);
        run_block(args, to, b, key, std::min(end, problem_.seen(b.first + b.count)), scratch);
      }
  }

  void run_block(const KernelArgs& args, const Adjoints& to, const Block& b, std::int64_t key,
                 std::int64_t end, T* scratch) const {
    const std::int64_t extent = problem_.extent, width = problem_.width;
    const auto scale = static_cast<T>(problem_.scale);
    T *logsums = scratch, *deltas = logsums + kQueries, *slopes = deltas + kQueries;
    T *dy = slopes + kQueries * kKeys, *room = dy + kQueries * width;
    T *queries = room + kQueries * (extent + width), *weights = queries + kQueries * extent;
    const Dense<const T> q =
        Base::gathered(Base::query_rows(Base::input(args, 0), b, extent), b.count, extent, room);
    const Dense<const T> adjoints = Base::gathered(Base::query_rows(Base::input(args, 5), b, width),
                                                   b.count, width, room + kQueries * extent);
    prepare(args, b, adjoints, logsums, deltas);
    loops_.transpose(q, b.count, extent, scale, queries);
    loops_.transpose(adjoints, b.count, width, 1, dy);
    for (; key < end; key += kKeys) {
      const std::int64_t keys = std::min(kKeys, end - key);
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

  // A row's logsum, and what is taken off its weights' adjoints: dy value - dlogsum.
  void prepare(const KernelArgs& args, const Block& b, Dense<const T> adjoints, T* logsums,
               T* deltas) const {
    const std::int64_t row = b.head * problem_.queries + b.first, width = problem_.width;
    const T *known = Base::input(args, 4) + row, *to_logsum = Base::input(args, 6) + row;
    loops_.dot(Base::query_rows(Base::input(args, 3), b, width), adjoints, b.count, width, deltas);
    for (std::int64_t i = 0; i < kQueries; ++i) {
      logsums[i] = i < b.count ? known[i] : T(0);
      deltas[i] = i < b.count ? deltas[i] - to_logsum[i] : T(0);
    }
  }

  bool at_once_;
};

std::string refusal(const KernelQuery& query, std::size_t mask_place) {
  const std::vector<TensorType>& in = query.inputs;
  const DType dtype = in[0].dtype;
  if (dtype != DType::F32 && dtype != DType::F64) return "attention is of float32 or float64";
  const std::size_t rank = in[0].shape.size();
  if (rank < 3 || in[1].shape.size() != rank || in[2].shape.size() != rank)
    return "the operands have not one rank of at least 3";
  const Shape scores = shape_of_scores(query);
  if (scores.back() == 0) return "there are no keys";
  if (in.size() > mask_place && !Mask::fits(in[mask_place], scores))
    return "the mask does not broadcast to the scores";
  if (in.size() > mask_place && in[mask_place].dtype != DType::Bool &&
      in[mask_place].dtype != dtype)
    return "the mask is neither of bools nor of the operands' dtype";
  for (std::size_t i = 1; i < std::min(in.size(), mask_place); ++i)
    if (in[i].dtype != dtype) return "the operands have not one dtype";
  return "";
}

template <template <class> class Kind>
Offer offer(const KernelQuery& query, std::size_t mask_place, const Machine& machine) {
  if (std::string reason = refusal(query, mask_place); !reason.empty())
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
