// SPDX-License-Identifier: Apache-2.0
// What a kernel is: accept decides, the constructor prepares, run computes and decides nothing.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/attrs.hpp"
#include "base/shape.hpp"
#include "device/device.hpp"

namespace ngd::kernels {

// One op to compute: every operand is dense and row-major.
struct KernelQuery {
  std::string_view op;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  Attrs attrs;

  std::string key() const;  // of equal queries, and of no others, equal
};

// A result that may be computed over an operand: its output may be the very buffer of the input.
struct InPlace {
  int output, input;
  auto operator<=>(const InPlace&) const = default;
};

// Any of the pairs in_place hold together, but two outputs never share bytes; where one buffer
// serves several inputs, an output over it needs its pair with each of them.
struct Verdict {
  bool accepted = false;
  std::string reason;             // why not
  std::size_t scratch_bytes = 0;  // handed to run()
  std::vector<InPlace> in_place;

  static Verdict accept(std::size_t scratch_bytes = 0, std::vector<InPlace> in_place = {}) {
    return {true, {}, scratch_bytes, std::move(in_place)};
  }
  static Verdict reject(std::string reason) { return {false, std::move(reason), 0, {}}; }
};

// An output of which nobody reads anything is null: a kernel of several results leaves it out. (Of
// several alone: an instruction whose only result is not read does not exist.) The lists of
// pointers are the caller's again when run() returns, the memory that they point to when the queue
// has come so far.
struct KernelArgs {
  const void* const* inputs;
  void* const* outputs;
  void* scratch;
  device::Queue* queue;  // the kernel's work goes there; the CPU's is the calling thread
};

// One kernel may serve all instructions of a program that ask for the same. It outlives its work.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const KernelArgs& args) const = 0;
};

// A row of a device's table. The first row of an op whose accept() says yes serves it.
struct KernelRow {
  std::string_view op;
  std::string_view implementation;  // "onednn", "fused", ...: its folder
  Verdict (*accept)(const KernelQuery& query);
  std::unique_ptr<Kernel> (*construct)(const KernelQuery& query);
};

using KernelTable = std::span<const KernelRow>;

KernelTable cpu_table();

std::string onednn_version();  // "" where oneDNN is not built in

// The first row that accepts; or nullptr, with every refusal in *reasons.
const KernelRow* find(KernelTable table, const KernelQuery& query, Verdict* verdict,
                      std::string* reasons);

}  // namespace ngd::kernels
