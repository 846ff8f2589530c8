// SPDX-License-Identifier: Apache-2.0
// Convolutions and their gradients by oneDNN: f32 on all CPUs, bf16 and f16 on CPUs for which it
// has kernels. If the operands are 16-bit floats, the result or the bias may be f32.
//
// If the channels are last in memory, oneDNN's primitive uses the data and the result as ngd stores
// them, and oneDNN chooses only the layout of the weights. If the channels are first, oneDNN
// chooses the layout of each operand. If a chosen layout differs from ngd's, a reorder (a further
// primitive) copies the operand to this layout in scratch memory before the convolution, or copies
// the output back after the convolution.
#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/bits.hpp"
#include "kernels/onednn/engine.hpp"
#include "kernels/rows.hpp"
#include "kernels/shapes/conv_shape.hpp"

namespace ngd::kernels::onednn {

namespace {

using dnnl::memory;
using Which = ConvShape::Which;

// Return `values` for the spatial axes of the convolution, each minus `decrement`. The axes of
// length 1 that Windows adds are left out. oneDNN counts dilations from 0, so their decrement is 1.
memory::dims spatial(const ConvShape& shape, const ConvShape::Axes& values,
                     std::int64_t decrement = 0) {
  memory::dims dims;
  for (std::size_t axis = 3 - shape.axes; axis < 3; ++axis)
    dims.push_back(values[axis] - decrement);
  return dims;
}

// Return the row-major layout of a tensor. If there are several groups, the weights get a first
// axis of groups.
memory::desc plain(const TensorType& type, std::int64_t groups = 1) {
  Shape shape = type.shape;
  if (groups > 1) {
    shape[0] /= groups;
    shape.insert(shape.begin(), groups);
  }
  return {shape, data_type(type.dtype), row_major_strides(shape)};
}

// Return the memory layout of the bias.
memory::desc bias_of(const ConvShape& s) { return plain({s.bias_dtype, {s.weights.shape[0]}}); }

// Return the memory layout of the input or the output of a convolution. In type.shape, the axis of
// channels is always before the spatial axes, even if the channels come last in memory.
memory::desc stored_layout(const TensorType& type, const ConvShape& s) {
  if (!s.channels_last) return plain(type);
  Shape shape = type.shape;
  std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
  Shape strides = row_major_strides(shape);
  std::rotate(strides.begin() + 1, strides.end() - 1, strides.end());
  return {type.shape, data_type(type.dtype), strides};
}

// Return the same shape and dtype without a layout, so that oneDNN chooses the layout.
memory::desc in_any_layout(const memory::desc& desc) {
  return {desc.get_dims(), desc.get_data_type(), memory::format_tag::any};
}

// Return attributes of a primitive that gets its scratch memory from the caller at each run.
dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

// Return the description of the primitive that computes a convolution. The primitive also adds the
// bias and applies the post-operations, which saves a pass over the result. Times on 2 threads of a
// Xeon of 2.5 GHz, in ms:
//
//                                               bias  gelu  silu
//   1 x 1, data [4, 128, 32, 32], 256 kernels:
//     in the primitive                           2.9   2.3   2.7
//     as a separate kernel                       4.1   6.0   4.2
//   depthwise 7 x 7, data [8, 96, 28, 28]:
//     in the primitive                           1.8   2.1
//     as a separate kernel                       2.9   3.7
dnnl::primitive_desc describe(const ConvShape& s) {
  const auto direct = dnnl::algorithm::convolution_direct;
  // For the primitive of a gradient, oneDNN requires a hint: the primitive of the forward
  // convolution. In the hint, the data, the weights and the result all have the dtype s.factors,
  // the dtype of the gradient's two operands. The gradient itself may have the dtype f32.
  const auto layout_of = [&](TensorType type, bool is_hint) {
    if (is_hint) type.dtype = s.factors;
    return s.channels_last ? stored_layout(type, s) : in_any_layout(plain(type));
  };
  const auto weights_layout_of = [&](TensorType type, bool is_hint) {
    if (is_hint) type.dtype = s.factors;
    return in_any_layout(plain(type, s.groups));
  };
  const bool is_backward = s.which != Which::Forward;
  const auto data = layout_of(s.data, false), result = layout_of(s.result, false),
             weights = weights_layout_of(s.weights, false);
  const auto strides = spatial(s, s.strides), dilations = spatial(s, s.dilations, 1),
             before = spatial(s, s.before), after = spatial(s, s.after);
  dnnl::primitive_attr attr = user_scratchpad();
  dnnl::post_ops posts;
  for (const std::string& post : s.post) append_post(posts, post);
  attr.set_post_ops(posts);
  const memory::desc bias = s.bias ? bias_of(s) : memory::desc();
  const dnnl::convolution_forward::primitive_desc forward(
      engine(), dnnl::prop_kind::forward_training, direct, layout_of(s.data, is_backward),
      weights_layout_of(s.weights, is_backward), bias, layout_of(s.result, is_backward), strides,
      dilations, before, after, attr);
  switch (s.which) {
    case Which::Forward:
      return forward;
    case Which::DataGrad:
      return dnnl::convolution_backward_data::primitive_desc(engine(), direct, data, weights,
                                                             result, strides, dilations, before,
                                                             after, forward, attr);
    default:
      return dnnl::convolution_backward_weights::primitive_desc(engine(), direct, data, weights,
                                                                result, strides, dilations, before,
                                                                after, forward, attr);
  }
}

// An operand of the convolution: its layout in memory (`stored`), and the layout that the primitive
// requires. If the layouts differ, the operand has a copy in scratch memory.
struct Operand {
  int argument;
  memory::desc stored, required;
  bool is_written;
  std::size_t offset = 0;
  std::optional<dnnl::reorder::primitive_desc> reorder = {};
};

// The plan of a convolution: the descriptions of its primitives, and the list of its operands.
// oneDNN has not generated code for the primitives yet. The list has the inputs of the query in
// order, and then the output.
struct Plan {
  explicit Plan(const KernelQuery& query) : Plan(ConvShape(query)) {}
  explicit Plan(const ConvShape& s) : convolution(describe(s)) {
    const Operand data{DNNL_ARG_SRC, stored_layout(s.data, s), {}, false},
        weights{DNNL_ARG_WEIGHTS, plain(s.weights, s.groups), {}, false},
        result{DNNL_ARG_DST, stored_layout(s.result, s), {}, false};
    switch (s.which) {
      case Which::Forward:
        operands = {data, weights, result};
        break;
      case Which::DataGrad:
        operands = {result, weights, data};
        operands[0].argument = DNNL_ARG_DIFF_DST;
        operands[2].argument = DNNL_ARG_DIFF_SRC;
        break;
      default:
        operands = {data, result, weights};
        operands[1].argument = DNNL_ARG_DIFF_DST;
        operands[2].argument = DNNL_ARG_DIFF_WEIGHTS;
    }
    operands[2].is_written = true;
    if (s.bias) operands.insert(operands.end() - 1, {DNNL_ARG_BIAS, bias_of(s), {}, false});
    scratchpad = convolution.query_md(dnnl::query::scratchpad_md).get_size();
    for (Operand& o : operands) {
      o.required = convolution.query_md(dnnl::query::exec_arg_md, o.argument);
      if (o.required == o.stored) continue;
      o.reorder.emplace(engine(), o.is_written ? o.required : o.stored, engine(),
                        o.is_written ? o.stored : o.required, user_scratchpad());
      scratchpad = std::max(scratchpad, o.reorder->scratchpad_desc().get_size());
    }
    bytes = round_to_alignment(scratchpad);
    for (Operand& o : operands)
      if (o.reorder) {
        o.offset = bytes;
        bytes += round_to_alignment(o.required.get_size());
      }
  }

  std::size_t scratch_bytes() const { return bytes; }

  // Return true if oneDNN has no optimized code for this convolution, only its reference code.
  bool is_slow() const {
    return std::string_view(convolution.impl_info_str()).find("ref") != std::string_view::npos;
  }

  // Round a size in bytes up to a multiple of device::kAlignment.
  static std::size_t round_to_alignment(std::size_t size) {
    return (size + device::kAlignment - 1) / device::kAlignment * device::kAlignment;
  }

  dnnl::primitive_desc convolution;
  std::vector<Operand> operands;
  // scratchpad: the bytes of oneDNN's scratchpad. The primitives run one after the other and share
  // it, so it has the size of the largest one. bytes: all scratch memory of the plan.
  std::size_t scratchpad = 0, bytes = 0;
};

// The primitives of one convolution, in the order in which they run, with their operands.
class Primitives {
 public:
  explicit Primitives(const Plan& plan) {
    std::unordered_map<int, memory> arguments;
    for (const Operand& o : plan.operands) {
      operands_.emplace_back(o.stored, engine(), nullptr);
      memory required = operands_.back();
      if (o.reorder) {
        required = memory(o.required, engine(), nullptr);
        copies_.emplace_back(required, o.offset);
      }
      arguments.emplace(o.argument, required);
      if (o.reorder && !o.is_written)
        add(*o.reorder, {{DNNL_ARG_FROM, operands_.back()}, {DNNL_ARG_TO, required}});
    }
    add(plan.convolution, arguments);
    const Operand& output = plan.operands.back();
    if (output.reorder)
      add(*output.reorder,
          {{DNNL_ARG_FROM, arguments.at(output.argument)}, {DNNL_ARG_TO, operands_.back()}});
  }

  // Run all primitives in order. `scratch` has Plan::scratch_bytes() bytes.
  void run(const KernelArgs& args, void* scratch) const {
    for (std::size_t i = 0; i + 1 < operands_.size(); ++i)
      operands_[i].set_data_handle(const_cast<void*>(args.inputs[i]));
    operands_.back().set_data_handle(args.outputs[0]);
    for (const auto& [copy, offset] : copies_)
      copy.set_data_handle(static_cast<std::byte*>(scratch) + offset);
    for (const Step& step : steps_) {
      step.scratchpad.set_data_handle(scratch);
      step.primitive.execute(stream(), step.arguments);
    }
  }

 private:
  struct Step {
    dnnl::primitive primitive;
    memory scratchpad;
    std::unordered_map<int, memory> arguments;
  };

  // Generate the code of a primitive, and append the primitive to the list that run() executes.
  void add(const dnnl::primitive_desc_base& descriptor, std::unordered_map<int, memory> arguments) {
    memory scratchpad(descriptor.query_md(dnnl::query::scratchpad_md), engine(), nullptr);
    arguments.emplace(DNNL_ARG_SCRATCHPAD, scratchpad);
    steps_.push_back({dnnl::primitive(descriptor.get()), scratchpad, std::move(arguments)});
  }

  std::vector<memory> operands_;
  // The copies of operands in the layouts that the convolution requires, each with its offset in
  // scratch memory.
  std::vector<std::pair<memory, std::size_t>> copies_;
  std::vector<Step> steps_;
};

// Return the number of threads for a convolution: 1 if it is small and the CPU has AVX-512, and
// otherwise all threads. With AVX-512, any convolution of at most 1 MFLOP is faster on one thread.
//
// With AVX-512, oneDNN divides a weight gradient into parts. A part is one block of 16 input
// channels with one block of 16 output channels, for one group and one sample. If there are fewer
// parts than threads, oneDNN uses only one thread per part. libgomp then ends the other threads,
// and the next kernel creates them again, which takes 37 us per thread. In this time, a core
// computes 4 MFLOP (Zen 4). So a weight gradient is faster on one thread if it has at most 4 MFLOP
// for each thread that libgomp would end.
int threads_for(const ConvShape& s, const Machine& machine) {
  // Limits in FLOP. A convolution of at most kSmall runs on one thread. A weight gradient also runs
  // on one thread if it has at most kPerThread for each thread that libgomp would end.
  constexpr std::int64_t kSmall = 1'000'000, kPerThread = 4'000'000;
  // Each of oneDNN's parts of a weight gradient has kChannels input and kChannels output channels.
  constexpr std::int64_t kChannels = 16;
  const int all = machine.threads;
  if (dnnl::get_effective_cpu_isa() < dnnl::cpu_isa::avx512_core) return all;
  const auto blocks = [](std::int64_t channels) { return divide_up(channels, kChannels); };
  const std::int64_t parts = s.batch * s.groups * blocks(s.in) * blocks(s.out);
  const std::int64_t num_ended_threads = s.which == Which::WeightGrad ? all - parts : 0;
  const std::int64_t flop = 2 * s.weights.count() * (s.result.count() / s.weights.shape[0]);
  return flop <= std::max(kSmall, num_ended_threads * kPerThread) ? 1 : all;
}

class Conv final : public Kernel {
 public:
  Conv(const KernelQuery& query, int threads) : primitives_(query, threads) {}

  const Plan& plan() const { return primitives_.plan(); }
  std::size_t scratch_bytes() const override { return plan().scratch_bytes(); }
  void prepare() override { primitives_.prepare(); }
  void run(const KernelArgs& args) const override { primitives_.run(args); }

 private:
  Threaded<Plan, Primitives> primitives_;
};

// Return true if kernel position k along an axis reads data in at least one window, and not only
// padding.
bool meets_data(const ConvShape& s, std::size_t axis, std::int64_t k) {
  for (std::int64_t i = 0; i < s.counts[axis]; ++i) {
    const std::int64_t position = i * s.strides[axis] - s.before[axis] + k * s.dilations[axis];
    if (position >= 0 && position < s.extents[axis]) return true;
  }
  return false;
}

// Return true if oneDNN computes 16-bit convolutions of this shape without memory errors. With
// oneDNN 3.2, tests with random shapes found reads and writes outside of the operands for these
// shapes:
//   - one or three spatial axes
//   - a kernel position that reads only padding
//   - one channel of the data
//   - a 1 x 1 kernel with a stride, and fewer than 16 input or output channels per group
bool is_trusted_in_16_bits(const ConvShape& s) {
  if (s.axes != 2 || (s.in == 1 && s.groups == 1)) return false;
  for (std::size_t axis = 1; axis < 3; ++axis)
    for (std::int64_t k = 0; k < s.kernel[axis]; ++k)
      if (!meets_data(s, axis, k)) return false;
  const bool is_strided = s.strides[1] > 1 || s.strides[2] > 1;
  return s.kernel_places() > 1 || !is_strided || (s.in >= 16 && s.out >= 16);
}

}  // namespace

Offer offer_conv(const KernelQuery& query, const Machine& machine) {
  const DType dtype = query.outputs[0].dtype;
  if (dtype != DType::F32 && !is_half(dtype))
    return Offer::refuse("oneDNN does not support the dtype");
  const ConvShape shape(query);
  if (!shape.refusal.empty()) return Offer::refuse(shape.refusal);
  dnnl::post_ops checked_posts;
  for (const std::string& post : shape.post)
    if (!append_post(checked_posts, post))
      return Offer::refuse("there is no post-operation " + post);
  if (shape.data.count() == 0 || shape.weights.count() == 0 || shape.result.count() == 0)
    return Offer::refuse("the operands have no elements to convolve");
  if (is_half(shape.factors) && !is_trusted_in_16_bits(shape))
    return Offer::refuse("oneDNN's kernels for 16-bit floats are not used here");
  try {
    auto kernel = std::make_unique<Conv>(query, threads_for(shape, machine));
    // If oneDNN has only its slow reference code for channels last, the kernel is refused, and the
    // compiler uses channels first.
    if (shape.channels_last && kernel->plan().is_slow()) return Offer::refuse("oneDNN is slow");
    return {std::move(kernel), {}, has_native_products(shape.factors)};
  } catch (const dnnl::error& error) {
    return Offer::refuse(error.what());
  }
}

}  // namespace ngd::kernels::onednn
