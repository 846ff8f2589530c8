// SPDX-License-Identifier: Apache-2.0
// The environment variables that the C++ core reads, one function each. Python reads the others in
// python/ngd/_util/config.py.
#pragma once

#include <algorithm>
#include <string>

namespace ngd::config {

// Return the environment variable `name`, or `fallback` if the variable is not set or is empty.
std::string text(const char* name, const char* fallback);
double number(const char* name, double fallback);  // throws Init if the value is not a number >= 0
// Return the environment variable `name` as an integer, or `fallback` if the variable is not set or
// is empty. Throws Init if the value is not an integer from `min_value` to `max_value`.
// `alternatives` is a part of the error message: the other values that the caller accepts, such as
// "auto or ".
int whole_number(const char* name, int fallback, int min_value, int max_value,
                 const char* alternatives = "");

// The longest time that a rank waits for other ranks. 0 = no limit. Values above 1e9 seconds
// ("inf") become 1e9 seconds, about 30 years, which clocks can represent.
inline double timeout_seconds() { return std::min(number("NGD_TIMEOUT", 300.0), 1e9); }
// "auto", "flat" or "ring"
inline std::string all_reduce_algorithm() { return text("NGD_ALLREDUCE", "auto"); }
inline constexpr int kOwnNumaNode = -2;  // "auto": the node of the cores that this rank may use
// The NUMA node of this rank: the number in NGD_NUMA_NODE, kOwnNumaNode for "auto", or -1 if it is
// not set. Reductions first combine the ranks of one NUMA node. With -1, they do not distinguish
// NUMA nodes.
inline int numa_node() {
  if (text("NGD_NUMA_NODE", "") == "auto") return kOwnNumaNode;
  return whole_number("NGD_NUMA_NODE", -1, 0, 1023, "auto or ");
}
// The setting of the progress thread, which moves data between hosts while kernels run: "auto",
// "on" or "off".
inline std::string progress() { return text("NGD_PROGRESS", "auto"); }
// If true, a step fails at the first instruction whose result has a NaN or an infinity that its
// operands do not have.
inline bool check_finite() { return whole_number("NGD_CHECK_FINITE", 0, 0, 1) == 1; }
// The highest SIMD level that may be used, such as "avx2". "" = no limit.
inline std::string simd() { return text("NGD_SIMD", ""); }
// The number of threads of this rank. 0 = this rank's share of the cores. The limit of 1024 is the
// number of CPUs in an affinity mask (cpu_set_t).
inline int threads() { return whole_number("NGD_THREADS", 0, 0, 1024); }

}  // namespace ngd::config
