// SPDX-License-Identifier: Apache-2.0
// What a kernel is: accept decides, the constructor prepares, run computes and decides nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/attrs.hpp"
#include "base/shape.hpp"

namespace ngd::kernels {

// One op to compute: every operand is dense and row-major.
struct KernelQuery {
  std::string_view op;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  Attrs attrs;

  std::string key() const;  // of equal queries, and of no others, equal
};

struct Verdict {
  bool accepted = false;
  std::string reason;             // why not
  std::size_t scratch_bytes = 0;  // handed to run()
  std::uint64_t in_place = 0;     // bit i: output 0 may be the very buffer of input i

  static Verdict accept(std::size_t scratch_bytes = 0, std::uint64_t in_place = 0) {
    return {true, {}, scratch_bytes, in_place};
  }
  static Verdict reject(std::string reason) { return {false, std::move(reason), 0, 0}; }
};

struct KernelArgs {
  const void* const* inputs;
  void* const* outputs;
  void* scratch;
};

// One kernel may serve all instructions of a program that ask for the same.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const KernelArgs& args) const = 0;
};

// A row of a device's table. The first row of an op whose accept() says yes serves it.
struct KernelRow {
  std::string_view op;
  std::string_view implementation;  // "onednn", "fused", "ref"
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
