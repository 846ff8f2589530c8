// SPDX-License-Identifier: Apache-2.0
// Kernels, and the tables that choose them. A query describes an op with the types of its operands.
// Each row of a table is an implementation of one op. For a query, a row returns a kernel, or the
// reason why it has none.
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

// A query for a kernel: an op to compute, with the types of its operands and results. All of them
// are dense and row-major.
struct KernelQuery {
  std::string_view op;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  Attrs attrs;

  std::string key() const;  // two queries have the same key if, and only if, they are equal
};

// An output that may be computed in the memory of an input.
struct InPlace {
  int output, input;
  auto operator<=>(const InPlace&) const = default;
};

// The arguments of one run of a kernel. If a kernel has several outputs, the pointer of an output
// that no instruction reads is null, and the kernel skips it. The pointer of a single output is
// never null. The arrays `inputs` and `outputs` must stay valid until run() returns. The memory of
// the operands and results must stay valid until the queue has done the work.
struct KernelArgs {
  const void* const* inputs;
  void* const* outputs;
  void* scratch;
  device::Queue* queue;  // runs the kernel's work; on the CPU, the calling thread runs it
};

// A kernel: the code that computes one op for the operand types and attributes of one KernelQuery.
// If several instructions of a program have equal queries, they share one kernel. A kernel must not
// be destroyed before the work that it has put into a queue is done.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Do work that takes long, such as code generation. Called once, before the first run(). It is
  // not called for a kernel that is only constructed to find out whether there is one for a query.
  virtual void prepare() {}
  // Compute the outputs. On the CPU, they are complete when run() returns. On a device with
  // asynchronous queues, run() only puts the work into args.queue.
  virtual void run(const KernelArgs& args) const = 0;
  virtual std::size_t scratch_bytes() const { return 0; }  // the size of KernelArgs::scratch
  // Return pairs of an output and an input: the kernel can compute the output in the memory of the
  // input. The caller may use several pairs at once, but must not give two outputs the same memory.
  // If the caller passes one buffer as several inputs, an output may use this buffer only if it has
  // a pair with each of these inputs.
  virtual std::vector<InPlace> in_place() const { return {}; }
};

// The answer to a query by one row of the table, an implementation of an op: a kernel, or the
// reason for a refusal.
struct Offer {
  std::unique_ptr<Kernel> kernel;  // null if the implementation refuses the query
  // The reason for a refusal, for the error message of find(). A row of the table leaves the text
  // empty if a later row offers the same kernel for more queries. If the later row also refuses
  // the query, find() reports the reason of the later row.
  std::string refusal = {};
  // True if the kernel computes with its operands as they are stored. False if the kernel widens
  // 16-bit operands in memory, or if it emulates their products because the CPU has no
  // instruction for them. Such a kernel is slower than the same kernel for float32.
  bool is_native = true;

  static Offer refuse(std::string reason) { return {nullptr, std::move(reason)}; }
};

// One implementation of an op: a row of the table of a device's kernels. `offer` returns a kernel
// for a query of `op`, or the reason why it refuses the query.
struct KernelRow {
  std::string_view op;
  std::string_view implementation;  // the folder of its file: "onednn", "fused", ...
  Offer (*offer)(const KernelQuery& query, const Machine& machine);
};

using KernelTable = std::span<const KernelRow>;

// Return the rows of table.inc. Each row is one implementation of an op. find() uses the first row
// of the op that does not refuse the query.
KernelTable cpu_table();

std::string onednn_version();  // "" in a build without oneDNN

// The result of find(): the first row of the table that has a kernel, and this kernel.
struct Found {
  // Null if no row of the table has a kernel; offer.refusal then has the reasons of the rows.
  const KernelRow* row = nullptr;
  Offer offer;
};

// Return the first row of the table that has a kernel for the query, and this kernel. If all rows
// refuse the query, `row` is null.
Found find(KernelTable table, const KernelQuery& query, const Machine& machine);

}  // namespace ngd::kernels
