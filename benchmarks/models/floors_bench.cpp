// SPDX-License-Identifier: Apache-2.0
// Time oneDNN's primitives without a step, for floors.py, which writes the lines that this reads:
//     floors_bench BYTES
//   matmul FACTORS RESULT BATCH M K N
//   conv|conv_data_grad|conv_weight_grad FACTORS RESULT N GROUPS IN OUT AXES, then of each axis:
//       data, kernel, stride, dilation (1: none), before, after   (IN and OUT are those of a group)
//   norm DATA DATA N CHANNELS AXES, then the extent of each axis  (batch norm and relu; forward and
//       backward together)
// FACTORS, RESULT and DATA are dtypes. Each line is answered by the microseconds of the fastest
// layout, the median of its runs. Reorders into that layout are not included.
//
// A primitive finds its operands in the same state as in a step. A step touches BYTES between two
// runs of a primitive. Therefore its operands, including weights, have several copies of BYTES or
// more in all, and each run takes the next copy. If BYTES exceed the caches, no run finds its
// operands there. With one copy it would, and would be faster than in most steps. In a step, the
// results of the previous instruction may still be in a cache, and so may the weights of a loop. In
// these cases a primitive may be faster than measured here.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <exception>
#include <iostream>
#include <iterator>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/dtype.hpp"

namespace {

using dnnl::memory;
using Clock = std::chrono::steady_clock;
using Names = std::vector<int>;
using Tag = memory::format_tag;
using Type = memory::data_type;

constexpr double kEnoughSeconds = 0.1;
constexpr std::size_t kLeastRuns = 5, kWarmUp = 2;
// A layout is abandoned if its first runs are all slower than the fastest layout by this factor.
// Eight measurements of one layout, on two cores that other processes used, differed by up to 1.08
// x (matmuls and convolutions) and 1.27 x (batch norms).
constexpr double kGiveUp = 1.3;
constexpr double kNone = std::numeric_limits<double>::infinity();

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

Type read_type(std::istream& line) {
  std::string name;
  line >> name;
  if (name == "float32") return Type::f32;
  if (name == "bfloat16") return Type::bf16;
  if (name == "float16") return Type::f16;
  throw std::invalid_argument("expected float32, bfloat16 or float16; got " + name);
}

memory::dims read(std::istream& line, std::size_t count) {
  memory::dims values(count);
  for (auto& value : values) line >> value;
  return values;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <class Element>
void fill(void* data, std::size_t bytes) {
  auto* elements = static_cast<Element*>(data);
  for (std::size_t i = 0; i < bytes / sizeof(Element); ++i)
    elements[i] = Element(0.01F * static_cast<float>(i % 7));
}

// An operand of small numbers. Masks of bits have some bits set.
memory make_operand(const memory::desc& desc) {
  memory operand(desc, engine());
  void* data = operand.get_data_handle();
  const std::size_t bytes = desc.get_size();
  if (desc.get_data_type() == Type::f32)
    fill<float>(data, bytes);
  else if (desc.get_data_type() == Type::bf16)
    fill<ngd::BFloat16>(data, bytes);
  else if (desc.get_data_type() == Type::f16)
    fill<ngd::Float16>(data, bytes);
  else if (bytes > 0)
    std::memset(data, 0x55, bytes);
  return operand;
}

// The fastest of the primitives that compute the same in other layouts.
class Contest {
 public:
  Contest(std::size_t bytes_of_step, Names names)
      : bytes_of_step_(bytes_of_step), names_(std::move(names)) {}

  double least_us() const { return least_us_; }

  // Does nothing if oneDNN has no such primitive, or if it was added before.
  void enter(const dnnl::primitive_desc& descriptor) {
    if (!descriptor) return;
    std::vector<memory::desc> operands;
    for (const int name : names_)
      operands.push_back(descriptor.query_md(dnnl::query::exec_arg_md, name));
    if (std::find(seen_.begin(), seen_.end(), operands) != seen_.end()) return;
    seen_.push_back(operands);
    // oneDNN's reference implementations take seconds.
    const std::string_view kind = descriptor.impl_info_str();
    if (least_us_ < kNone && kind.find("ref") != std::string_view::npos) return;
    least_us_ = std::min(least_us_, median_us(dnnl::primitive(descriptor), copies_of(operands)));
  }

 private:
  using Arguments = std::unordered_map<int, memory>;

  std::vector<Arguments> copies_of(const std::vector<memory::desc>& operands) const {
    std::size_t bytes = 1;
    for (const memory::desc& operand : operands) bytes += operand.get_size();
    std::vector<Arguments> copies(bytes_of_step_ / bytes + 1);
    for (Arguments& copy : copies)
      for (std::size_t i = 0; i < operands.size(); ++i)
        copy.emplace(names_[i], make_operand(operands[i]));
    return copies;
  }

  // Infinite if the first runs are much slower than the fastest layout.
  double median_us(const dnnl::primitive& primitive, const std::vector<Arguments>& copies) const {
    dnnl::stream stream(engine());
    std::vector<double> runs;
    const auto begin = Clock::now();
    for (std::size_t run = 0; runs.size() < kLeastRuns || seconds_since(begin) < kEnoughSeconds;
         ++run) {
      const auto start = Clock::now();
      primitive.execute(stream, copies[run % copies.size()]);
      stream.wait();
      if (run >= kWarmUp) runs.push_back(seconds_since(start) * 1e6);
      if (runs.size() == kLeastRuns &&
          *std::min_element(runs.begin(), runs.end()) > kGiveUp * least_us_)
        return kNone;
    }
    const auto middle = runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2);
    std::nth_element(runs.begin(), middle, runs.end());
    return *middle;
  }

  std::size_t bytes_of_step_;
  Names names_;
  std::vector<std::vector<memory::desc>> seen_;
  double least_us_ = kNone;
};

// Also tries the transposed product of the transposed operands, which has another result layout.
double matmul(std::size_t bytes_of_step, std::istream& line) {
  const Type factors = read_type(line), result = read_type(line);
  const memory::dims given = read(line, 4);
  const memory::dim rows = given[1], depth = given[2], columns = given[3];
  const bool batched = given[0] > 1;
  const Tag plain = batched ? Tag::abc : Tag::ab, transposed = batched ? Tag::acb : Tag::ba;
  const auto matrix = [&](memory::dim m, memory::dim n, Type type, Tag layout) {
    const auto dims = batched ? memory::dims{given[0], m, n} : memory::dims{m, n};
    return memory::desc(dims, type, layout);
  };
  Contest contest(bytes_of_step, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST});
  for (const auto& [m, n] : {std::pair(rows, columns), std::pair(columns, rows)})
    for (const Tag of_a : {plain, transposed, Tag::any})
      for (const Tag of_b : {plain, transposed, Tag::any})
        for (const Tag of_result : {plain, Tag::any})
          contest.enter(dnnl::matmul::primitive_desc(engine(), matrix(m, depth, factors, of_a),
                                                     matrix(depth, n, factors, of_b),
                                                     matrix(m, n, result, of_result), {}, true));
  return contest.least_us();
}

std::vector<Tag> image_layouts(std::size_t axes) {
  if (axes == 1) return {Tag::ncw, Tag::nwc};
  if (axes == 2) return {Tag::nchw, Tag::nhwc};
  return {Tag::ncdhw, Tag::ndhwc};
}

struct Convolution {
  explicit Convolution(std::istream& line) : factors(read_type(line)), made(read_type(line)) {
    const memory::dims head = read(line, 5);
    const memory::dim groups = head[1], in = head[2], out = head[3];
    data = {head[0], groups * in};
    weights = {out, in};
    result = {head[0], groups * out};
    if (groups > 1) weights.insert(weights.begin(), groups);
    axes = static_cast<std::size_t>(head[4]);
    for (std::size_t axis = 0; axis < axes; ++axis) {
      const memory::dims x = read(line, 6);
      data.push_back(x[0]);
      weights.push_back(x[1]);
      strides.push_back(x[2]);
      dilations.push_back(x[3] - 1);
      before.push_back(x[4]);
      after.push_back(x[5]);
      result.push_back((x[0] + x[4] + x[5] - x[3] * (x[1] - 1) - 1) / x[2] + 1);
    }
  }

  // The operand that the primitive computes has the dtype of the result.
  dnnl::primitive_desc describe(const std::string& which, Tag layout) const {
    const auto direct = dnnl::algorithm::convolution_direct;
    const auto type = [&](const char* maker) { return which == maker ? made : factors; };
    const memory::desc x(data, type("conv_data_grad"), layout),
        w(weights, type("conv_weight_grad"), Tag::any), y(result, type("conv"), layout);
    const auto forward_of = [&](const memory::desc& a, const memory::desc& b) {
      return dnnl::convolution_forward::primitive_desc(engine(), dnnl::prop_kind::forward_training,
                                                       direct, a, b, y, strides, dilations, before,
                                                       after, {}, true);
    };
    if (which == "conv") return forward_of(x, w);
    const auto forward = forward_of({data, factors, layout}, {weights, factors, Tag::any});
    if (!forward) return {};
    if (which == "conv_data_grad")
      return dnnl::convolution_backward_data::primitive_desc(
          engine(), direct, x, w, y, strides, dilations, before, after, forward, {}, true);
    return dnnl::convolution_backward_weights::primitive_desc(
        engine(), direct, x, w, y, strides, dilations, before, after, forward, {}, true);
  }

  Type factors, made;
  std::size_t axes = 0;
  memory::dims data, weights, result, strides, dilations, before, after;
};

double convolution(const std::string& which, std::size_t bytes_of_step, std::istream& line) {
  const std::unordered_map<std::string, Names> names = {
      {"conv", {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}},
      {"conv_data_grad", {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC}},
      {"conv_weight_grad", {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS}}};
  const Convolution given(line);
  Contest contest(bytes_of_step, names.at(which));
  for (const Tag layout : image_layouts(given.axes)) contest.enter(given.describe(which, layout));
  contest.enter(given.describe(which, Tag::any));
  return contest.least_us();
}

double norm(std::size_t bytes_of_step, std::istream& line) {
  using Flags = dnnl::normalization_flags;
  const Flags flags = Flags::use_scale | Flags::use_shift | Flags::fuse_norm_relu;
  const Type type = read_type(line);
  read_type(line);
  memory::dims dims = read(line, 3);
  const auto axes = static_cast<std::size_t>(dims[2]);
  dims.pop_back();
  for (const memory::dim extent : read(line, axes)) dims.push_back(extent);
  std::vector<Tag> layouts = image_layouts(axes);
  layouts.push_back(axes == 1 ? Tag::nCw16c : axes == 2 ? Tag::nChw16c : Tag::nCdhw16c);
  Contest forward(bytes_of_step, {DNNL_ARG_SRC, DNNL_ARG_DST, DNNL_ARG_MEAN, DNNL_ARG_VARIANCE,
                                  DNNL_ARG_SCALE, DNNL_ARG_SHIFT, DNNL_ARG_WORKSPACE});
  Contest backward(bytes_of_step, {DNNL_ARG_SRC, DNNL_ARG_MEAN, DNNL_ARG_VARIANCE,
                                   DNNL_ARG_DIFF_DST, DNNL_ARG_SCALE, DNNL_ARG_WORKSPACE,
                                   DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_SCALE, DNNL_ARG_DIFF_SHIFT});
  for (const Tag layout : layouts) {
    const memory::desc x(dims, type, layout);
    const dnnl::batch_normalization_forward::primitive_desc ahead(
        engine(), dnnl::prop_kind::forward_training, x, x, 1e-5F, flags, {}, true);
    if (!ahead) continue;
    forward.enter(ahead);
    backward.enter(dnnl::batch_normalization_backward::primitive_desc(
        engine(), dnnl::prop_kind::backward, x, x, x, 1e-5F, flags, ahead, {}, true));
  }
  return forward.least_us() + backward.least_us();
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw std::invalid_argument("expected BYTES, of a step");
  const std::string digits = argv[1];
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos)
    throw std::invalid_argument("expected BYTES, of a step; got " + digits);
  const auto bytes_of_step = static_cast<std::size_t>(std::stoull(digits));
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream line(text);
    std::string what;
    line >> what;
    const double found = what == "matmul" ? matmul(bytes_of_step, line)
                         : what == "norm" ? norm(bytes_of_step, line)
                                          : convolution(what, bytes_of_step, line);
    if (!line || found == kNone) throw std::runtime_error("no primitive for: " + text);
    std::printf("%.3f\n", found);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "floors_bench: %s\n", error.what());
  return 1;
}
