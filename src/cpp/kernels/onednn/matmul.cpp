// SPDX-License-Identifier: Apache-2.0
// matmul by oneDNN: f32 everywhere; f16 and bf16 where it has them for this CPU. Of two-byte factors
// the result, a bias and what is added may each be f32.
#include <algorithm>
#include <bit>
#include <unordered_map>

#include "base/simd.hpp"
#include "device/team.hpp"
#include "device/threads.hpp"
#include "kernels/onednn/engine.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/matmul_shape.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::onednn {

namespace {

using dnnl::memory;

constexpr std::int64_t kReluGrain = 1 << 16;  // elements that are worth a thread

// Whether gemm/packed_gemm.hpp multiplies instead, of f32, B not transposed. At every SIMD level:
//
// Transposed A of little depth, the gradient of weights in a step of few samples. What cuts it, or
// computes more with it (elementwise_product.cpp), is the own product, too, and has its bits. With
// AVX-512 it takes 0.94 to 0.98 of oneDNN's time.
//
// With AVX-512, because it is faster:
//
// Some rows, by a matrix whose rows lie a power of two apart. oneDNN's copies of such a matrix meet
// in the same few sets of the caches, and wait for memory. On one core of an EPYC of Zen 5 the own
// product takes 0.7 to 0.9 of its time, of 192 rows 0.92; of fewer rows than 32 it wins nothing that
// is in no cache, and takes up to 1.9 times as long where the matrix is in one: it packs all of it.
// Of 128 x 768 by 768 x 3072 it takes as long.
//
// Few columns more than fill vectors, of which oneDNN fills a last one with zeros. Zen 4, own product
// to oneDNN: 128 x 784 by 784 x 100 0.93, x 50 0.85, x 33 0.81; of transposed A, 784 x 128 by 128 x 100
// 0.89, x 68 0.90, x 50 0.77; by 128 x 200, where less than a tenth is zeros, 0.99.
bool is_own(const KernelQuery& query, const MatmulShape& shape) {
  constexpr std::int64_t kLeastRows = 32, kMostRows = 128, kLeastColumns = 512, kLeastDepth = 128;
  constexpr std::int64_t kLanes = 16, kMostOver = 12, kLeastFilled = 20, kLittleDepth = 256;
  const bool plain = query.outputs[0].dtype == DType::F32 && !shape.mixed &&
                     element_count(shape.batch) == 1 && !shape.transpose_b &&
                     std::all_of(shape.post.begin(), shape.post.end(),
                                 [](const std::string& post) { return post == "relu"; });
  if (!plain) return false;
  if (shape.transpose_a && shape.k <= kLittleDepth &&
      shape.m * shape.n >= shape.k * (shape.m + shape.n))
    return true;
  if (simd_level() < SimdLevel::Avx512 || shape.m < kLeastRows) return false;
  const std::int64_t over = shape.n % kLanes, empty = over > 0 ? kLanes - over : 0;
  const bool mostly_empty = empty >= kLanes - kMostOver && shape.n >= kLeastFilled &&
                            10 * empty >= shape.n + empty && shape.k >= kLanes;
  if (mostly_empty) return true;
  return !shape.transpose_a && shape.m <= kMostRows && shape.n >= kLeastColumns &&
         shape.k >= kLeastDepth && std::has_single_bit(static_cast<std::uint64_t>(shape.n));
}

// A descriptor of [batch..., rows, columns], dense as stored.
memory::desc describe(const Shape& batch, std::int64_t rows, std::int64_t columns, bool transposed,
                      memory::data_type type) {
  memory::dims dims(batch.begin(), batch.end());
  dims.insert(dims.end(), {rows, columns});
  memory::dims strides(dims.size());
  std::int64_t stride = rows * columns;
  for (std::size_t axis = batch.size(); axis-- > 0; stride *= dims[axis]) strides[axis] = stride;
  strides[batch.size()] = transposed ? 1 : columns;
  strides[batch.size() + 1] = transposed ? rows : 1;
  return {dims, type, strides};
}

// Batch axes that both operands have, or that neither has, are one axis: oneDNN's fast paths know
// two and three axes.
void merge_batch(MatmulShape& shape) {
  Shape batch, batch_a, batch_b;
  for (std::size_t axis = 0; axis < shape.batch.size(); ++axis) {
    const std::int64_t a = shape.batch_a[axis], b = shape.batch_b[axis], n = shape.batch[axis];
    if (n == 1) continue;
    if (!batch.empty() && (a == 1) == (batch_a.back() == 1) && (b == 1) == (batch_b.back() == 1)) {
      batch.back() *= n;
      batch_a.back() *= a;
      batch_b.back() *= b;
    } else {
      batch.push_back(n);
      batch_a.push_back(a);
      batch_b.push_back(b);
    }
  }
  // Rows of one stored matrix: [batch, m, k] @ [k, n] is [batch * m, k] @ [k, n].
  if (batch.size() == 1 && batch_b[0] == 1 && !shape.transpose_a) {
    shape.m *= batch[0];
    batch.clear(), batch_a.clear(), batch_b.clear();
  }
  shape.batch = batch;
  shape.batch_a = batch_a;
  shape.batch_b = batch_b;
}

// Of what is added, which has the output's shape.
memory::desc added_of(const KernelQuery& query, const MatmulShape& merged) {
  return describe(merged.batch, merged.m, merged.n, false, data_type(query.inputs.back().dtype));
}

dnnl::matmul::primitive_desc make_descriptor(const KernelQuery& query) {
  MatmulShape shape(query);
  merge_batch(shape);
  const memory::data_type type = data_type(query.inputs[0].dtype);
  const auto a = describe(shape.batch_a, shape.m, shape.k, shape.transpose_a, type);
  const auto b = describe(shape.batch_b, shape.k, shape.n, shape.transpose_b, type);
  const auto out =
      describe(shape.batch, shape.m, shape.n, false, data_type(query.outputs[0].dtype));
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  // Post-operations are the primitive's, but for relu: see append_post. A product of 256 x 256 by
  // 256 x 1024 on 2 threads of a Xeon of 2.5 GHz with gelu behind it: 0.90 ms, apart 1.43 ms;
  // gelu_tanh 0.96 and 1.38, silu 1.03 and 1.18. Of 2048 x 512 by 512 x 512 with a bias and a
  // residual: 7.9 and 8.1 ms.
  dnnl::post_ops post_ops;
  for (const std::string& post : shape.post)
    if (post == "add")
      post_ops.append_binary(dnnl::algorithm::binary_add, added_of(query, shape));
    else
      append_post(post_ops, post);
  attr.set_post_ops(post_ops);
  if (!shape.bias) return {engine(), a, b, out, attr, true};
  const auto bias =
      describe(Shape(shape.batch.size(), 1), 1, shape.n, false, data_type(query.inputs[2].dtype));
  return {engine(), a, b, bias, out, attr, true};
}

// A primitive, made for the number of threads that it runs on, with its operands.
class Primitive {
 public:
  Primitive(const KernelQuery& query, int threads)
      : Primitive(make_descriptor(query), query, MatmulShape(query), threads) {}

  int threads() const { return threads_; }
  std::size_t scratch_bytes() const { return scratch_.get_desc().get_size(); }

  void run(const KernelArgs& args, void* scratch) const {
    const ThreadScope scope(threads_);
    a_.set_data_handle(const_cast<void*>(args.inputs[0]));
    b_.set_data_handle(const_cast<void*>(args.inputs[1]));
    if (bias_) bias_.set_data_handle(const_cast<void*>(args.inputs[2]));
    if (added_) added_.set_data_handle(const_cast<void*>(args.inputs[bias_ ? 3 : 2]));
    out_.set_data_handle(args.outputs[0]);
    scratch_.set_data_handle(scratch);
    primitive_.execute(stream(), operands_);
  }

 private:
  Primitive(const dnnl::matmul::primitive_desc& descriptor, const KernelQuery& query,
            MatmulShape shape, int threads)
      : threads_(threads),
        primitive_(descriptor),
        a_(descriptor.src_desc(), engine(), nullptr),
        b_(descriptor.weights_desc(), engine(), nullptr),
        out_(descriptor.dst_desc(), engine(), nullptr),
        scratch_(descriptor.scratchpad_desc(), engine(), nullptr),
        operands_{{DNNL_ARG_SRC, a_},
                  {DNNL_ARG_WEIGHTS, b_},
                  {DNNL_ARG_DST, out_},
                  {DNNL_ARG_SCRATCHPAD, scratch_}} {
    if (descriptor.bias_desc().get_size() > 0) {
      bias_ = memory(descriptor.bias_desc(), engine(), nullptr);
      operands_.emplace(DNNL_ARG_BIAS, bias_);
    }
    if (shape.adds) {
      const auto at = std::find(shape.post.begin(), shape.post.end(), "add") - shape.post.begin();
      merge_batch(shape);
      added_ = memory(added_of(query, shape), engine(), nullptr);
      operands_.emplace(DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(at)) | DNNL_ARG_SRC_1,
                        added_);
    }
  }

  int threads_;
  dnnl::matmul primitive_;
  memory a_, b_, bias_, added_, out_, scratch_;
  std::unordered_map<int, memory> operands_;
};

class Matmul final : public Kernel {
 public:
  explicit Matmul(const KernelQuery& query)
      : primitive_(query),
        count_(query.outputs[0].count()),
        widen_(tiles::widening(query.outputs[0].dtype)),
        narrow_(tiles::narrowing(query.outputs[0].dtype)) {
    const MatmulShape shape(query);
    relu_ = !shape.post.empty() && shape.post.back() == "relu";
  }

  void run(const KernelArgs& args) const override {
    primitive_.run(args);
    if (relu_) relu(args.outputs[0]);
  }

 private:
  void relu(void* out) const {
    const tiles::TileFunction function =
        tiles::tile_table()
            .operations[static_cast<int>(tiles::Opcode::relu)][static_cast<int>(DType::F32)];
    device::for_range(count_, kReluGrain, [&](std::int64_t begin, std::int64_t end) {
      if (widen_ == nullptr) {
        auto* x = static_cast<float*>(out) + begin;
        function(x, nullptr, nullptr, x, end - begin);
        return;
      }
      constexpr std::int64_t kBuffer = 1024;
      alignas(64) float wide[kBuffer];
      for (std::int64_t i = begin; i < end; i += kBuffer) {
        const std::int64_t n = std::min(kBuffer, end - i);
        std::byte* x = static_cast<std::byte*>(out) + 2 * i;
        widen_(x, nullptr, nullptr, wide, n);
        function(wide, nullptr, nullptr, wide, n);
        narrow_(wide, nullptr, nullptr, x, n);
      }
    });
  }

  Threaded<Primitive> primitive_;
  std::int64_t count_;
  tiles::TileFunction widen_, narrow_;  // null: the output is f32
  bool relu_ = false;
};

}  // namespace

Verdict accept_matmul(const KernelQuery& query) {
  const DType dtype = query.outputs[0].dtype;
  if (dtype != DType::F32 && !is_half(dtype)) return Verdict::reject("oneDNN has no such dtype");
  const MatmulShape shape(query);
  if (!shape.refusal.empty()) return Verdict::reject(shape.refusal);
  if (is_own(query, shape)) return Verdict::reject("the own product is for this");
  dnnl::post_ops known;
  for (std::size_t i = 0; i < shape.post.size(); ++i) {
    const std::string& post = shape.post[i];
    if (post != "relu" && post != "add" && !append_post(known, post))
      return Verdict::reject("no post-operation is called " + post);
    if (post != "relu" && i > 0 && shape.post[i - 1] == "relu")
      return Verdict::reject(post + " behind relu");
  }
  if (query.outputs[0].count() == 0 || shape.k == 0) return Verdict::reject("nothing to multiply");
  try {
    const ThreadScope scope(device::thread_count());
    return Verdict::accept(make_descriptor(query).scratchpad_desc().get_size());
  } catch (const dnnl::error& error) {
    return Verdict::reject(error.what());
  }
}

std::unique_ptr<Kernel> construct_matmul(const KernelQuery& query) {
  return std::make_unique<Matmul>(query);
}

}  // namespace ngd::kernels::onednn
