// SPDX-License-Identifier: Apache-2.0
// matmul by oneDNN: f32 on all CPUs, f16 and bf16 on CPUs for which oneDNN has kernels. If the two
// multiplied operands are 16-bit floats, each of the result, the bias and the operand that `post`
// adds may be f32. ngd's own GEMM (fallback/matmul.cpp) is before this kernel in table.inc. It
// serves the shapes for which it is faster than oneDNN.
#include <algorithm>
#include <optional>
#include <unordered_map>

#include "device/team.hpp"
#include "kernels/onednn/engine.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/matmul_shape.hpp"
#include "kernels/tiles/tiles.hpp"

namespace ngd::kernels::onednn {

namespace {

using dnnl::memory;

constexpr std::int64_t kReluGrain = 1 << 16;  // the minimum of elements per thread

// Return oneDNN's descriptor of an array [batch..., rows, columns] that is dense in memory.
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

// Merge neighbouring batch axes if each operand broadcasts along both of them, or along neither of
// them. oneDNN's fast code is for two and three axes.
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
  // If B is a single matrix, the batch axes of A are merged with its rows: [batch, m, k] @ [k, n]
  // has the same elements as [batch * m, k] @ [k, n].
  if (batch.size() == 1 && batch_b[0] == 1 && !shape.transpose_a) {
    shape.m *= batch[0];
    batch.clear(), batch_a.clear(), batch_b.clear();
  }
  shape.batch = batch;
  shape.batch_a = batch_a;
  shape.batch_b = batch_b;
}

// The description of a matmul for oneDNN, without the generated code.
struct Plan {
  explicit Plan(const KernelQuery& query) {
    MatmulShape shape(query);
    merge_batch(shape);
    const memory::data_type type = data_type(query.inputs[0].dtype);
    const auto a = describe(shape.batch_a, shape.m, shape.k, shape.transpose_a, type);
    const auto b = describe(shape.batch_b, shape.k, shape.n, shape.transpose_b, type);
    const auto out =
        describe(shape.batch, shape.m, shape.n, false, data_type(query.outputs[0].dtype));
    if (shape.adds)
      addend = describe(shape.batch, shape.m, shape.n, false, data_type(query.inputs.back().dtype));
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attr.set_post_ops(posts_of(shape));
    if (shape.bias) {
      const memory::data_type bias_type = data_type(query.inputs[2].dtype);
      const auto bias = describe(Shape(shape.batch.size(), 1), 1, shape.n, false, bias_type);
      matmul = {engine(), a, b, bias, out, attr, true};
    } else {
      matmul = {engine(), a, b, out, attr, true};
    }
    bytes = matmul.scratchpad_desc().get_size();  // throws if oneDNN has no such matmul
  }

  std::size_t scratch_bytes() const { return bytes; }

  dnnl::matmul::primitive_desc matmul;
  std::size_t bytes = 0;  // of scratch memory
  // The operand that a post-operation adds to the result, and the index of this post-operation.
  std::optional<memory::desc> addend;
  int addend_post = 0;

 private:
  // Return the post-operations of the matmul. relu is left out, because oneDNN's relu turns NaN
  // into 0. Times on 2 threads of a Xeon of 2.5 GHz, with the post-operations in the primitive and
  // in a second pass:
  //
  //   256 x 256 by 256 x 1024, gelu                                 0.90 and 1.43 ms
  //   256 x 256 by 256 x 1024, gelu_tanh                            0.96 and 1.38 ms
  //   256 x 256 by 256 x 1024, silu                                 1.03 and 1.18 ms
  //   2048 x 512 by 512 x 512, a bias and a residual connection     7.9 and 8.1 ms
  dnnl::post_ops posts_of(const MatmulShape& shape) {
    dnnl::post_ops posts;
    for (const std::string& post : shape.post)
      if (post == "add") {
        addend_post = posts.len();
        posts.append_binary(dnnl::algorithm::binary_add, *addend);
      } else {
        append_post(posts, post);
      }
    return posts;
  }
};

// A oneDNN primitive that is built from a Plan, with one oneDNN memory object per operand.
class Primitive {
 public:
  explicit Primitive(const Plan& plan)
      : primitive_(plan.matmul),
        a_(plan.matmul.src_desc(), engine(), nullptr),
        b_(plan.matmul.weights_desc(), engine(), nullptr),
        out_(plan.matmul.dst_desc(), engine(), nullptr),
        scratch_(plan.matmul.scratchpad_desc(), engine(), nullptr),
        operands_{{DNNL_ARG_SRC, a_},
                  {DNNL_ARG_WEIGHTS, b_},
                  {DNNL_ARG_DST, out_},
                  {DNNL_ARG_SCRATCHPAD, scratch_}} {
    if (plan.matmul.bias_desc().get_size() > 0) {
      bias_ = memory(plan.matmul.bias_desc(), engine(), nullptr);
      operands_.emplace(DNNL_ARG_BIAS, bias_);
    }
    if (plan.addend) {
      addend_ = memory(*plan.addend, engine(), nullptr);
      operands_.emplace(DNNL_ARG_ATTR_MULTIPLE_POST_OP(plan.addend_post) | DNNL_ARG_SRC_1, addend_);
    }
  }

  // Compute the matmul with all post-operations except relu. `scratch` has Plan::scratch_bytes()
  // bytes.
  void run(const KernelArgs& args, void* scratch) const {
    a_.set_data_handle(const_cast<void*>(args.inputs[0]));
    b_.set_data_handle(const_cast<void*>(args.inputs[1]));
    if (bias_) bias_.set_data_handle(const_cast<void*>(args.inputs[2]));
    if (addend_) addend_.set_data_handle(const_cast<void*>(args.inputs[bias_ ? 3 : 2]));
    out_.set_data_handle(args.outputs[0]);
    scratch_.set_data_handle(scratch);
    primitive_.execute(stream(), operands_);
  }

 private:
  dnnl::matmul primitive_;
  memory a_, b_, bias_, addend_, out_, scratch_;
  std::unordered_map<int, memory> operands_;
};

class Matmul final : public Kernel {
 public:
  Matmul(const KernelQuery& query, const Machine& machine)
      : primitive_(query, machine.threads),
        count_(query.outputs[0].count()),
        widen_(tiles::widening(query.outputs[0].dtype)),
        narrow_(tiles::narrowing(query.outputs[0].dtype)) {
    const MatmulShape shape(query);
    has_relu_ = !shape.post.empty() && shape.post.back() == "relu";
  }

  std::size_t scratch_bytes() const override { return primitive_.plan().scratch_bytes(); }
  void prepare() override { primitive_.prepare(); }

  void run(const KernelArgs& args) const override {
    primitive_.run(args);
    if (has_relu_) relu(args.outputs[0]);
  }

 private:
  // Apply relu to the result in place. NaN stays NaN.
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
      alignas(64) float buffer[kBuffer];
      for (std::int64_t i = begin; i < end; i += kBuffer) {
        const std::int64_t n = std::min(kBuffer, end - i);
        std::byte* x = static_cast<std::byte*>(out) + 2 * i;
        widen_(x, nullptr, nullptr, buffer, n);
        function(buffer, nullptr, nullptr, buffer, n);
        narrow_(buffer, nullptr, nullptr, x, n);
      }
    });
  }

  Threaded<Plan, Primitive> primitive_;
  std::int64_t count_;
  // relu() needs f32: widen_ converts 16-bit outputs to f32, and narrow_ converts them back. Both
  // are null if the output is f32.
  tiles::TileFunction widen_, narrow_;
  bool has_relu_ = false;
};

}  // namespace

Offer offer_matmul(const KernelQuery& query, const Machine& machine) {
  const DType dtype = query.outputs[0].dtype;
  if (dtype != DType::F32 && !is_half(dtype))
    return Offer::refuse("oneDNN does not support the dtype");
  const MatmulShape shape(query);
  if (!shape.refusal.empty()) return Offer::refuse(shape.refusal);
  dnnl::post_ops checked_posts;
  for (std::size_t i = 0; i < shape.post.size(); ++i) {
    const std::string& post = shape.post[i];
    if (post != "relu" && post != "add" && !append_post(checked_posts, post))
      return Offer::refuse("there is no post-operation " + post);
    if (post != "relu" && i > 0 && shape.post[i - 1] == "relu")
      return Offer::refuse(post + " after relu");
  }
  if (query.outputs[0].count() == 0 || shape.k == 0)
    return Offer::refuse("the inputs have no elements to multiply");
  try {
    return {
        std::make_unique<Matmul>(query, machine), {}, has_native_products(query.inputs[0].dtype)};
  } catch (const dnnl::error& error) {
    return Offer::refuse(error.what());
  }
}

}  // namespace ngd::kernels::onednn
