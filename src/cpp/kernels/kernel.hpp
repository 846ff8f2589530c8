// SPDX-License-Identifier: Apache-2.0
// Kernels, and the tables that choose them: a row offers a kernel for a query, or says why not.
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
#include "kernels/machine.hpp"

namespace ngd::kernels {

// One op to compute: every operand is dense and row-major.
struct KernelQuery {
  std::string_view op;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  Attrs attrs;

  std::string key() const;  // of equal queries, and of no others, equal
};

// An output that may be computed in the memory of an input.
struct InPlace {
  int output, input;
  auto operator<=>(const InPlace&) const = default;
};

// An output that no instruction reads is null, and a kernel of several results skips it. (Only a
// kernel of several: an instruction whose only result is not read does not exist.) The lists of
// pointers belong to the caller again when run() returns, and the memory that they point to when
// the queue has done the work.
struct KernelArgs {
  const void* const* inputs;
  void* const* outputs;
  void* scratch;
  device::Queue* queue;  // the kernel's work goes there; the CPU's is the calling thread
};

// One kernel may serve all instructions of a program with the same query. It outlives its work.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Called once, before the first run(). Does what takes long and is not needed to answer a query,
  // for example generates code.
  virtual void prepare() {}
  virtual void run(const KernelArgs& args) const = 0;
  virtual std::size_t scratch_bytes() const { return 0; }  // of KernelArgs::scratch
  // All pairs may be used together, but two outputs never share bytes. If one buffer serves several
  // inputs, an output in this buffer needs a pair with each of them.
  virtual std::vector<InPlace> in_place() const { return {}; }
};

// The answer of a row to a query.
struct Offer {
  std::unique_ptr<Kernel> kernel;  // null: refused
  // The reason, if refused. Empty if a later row offers the same kernel and gives the reason.
  std::string refusal = {};
  // False if 16-bit operands are widened in memory or their products are emulated: the kernel is
  // then slower than one of float32.
  bool is_native = true;

  static Offer refuse(std::string reason) { return {nullptr, std::move(reason)}; }
};

// A row of a device's table.
struct KernelRow {
  std::string_view op;
  std::string_view implementation;  // "onednn", "fused", ...: its folder
  Offer (*offer)(const KernelQuery& query, const Machine& machine);
};

using KernelTable = std::span<const KernelRow>;

KernelTable cpu_table();

std::string onednn_version();  // "" in a build without oneDNN

struct Found {
  const KernelRow* row = nullptr;  // null: all rows refused, and offer.refusal has their reasons
  Offer offer;
};

// Return the first offer of a kernel, and its row.
Found find(KernelTable table, const KernelQuery& query, const Machine& machine);

}  // namespace ngd::kernels
