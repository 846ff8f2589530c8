// SPDX-License-Identifier: Apache-2.0
// The environment switches that the core reads, one line each. python/ngd/_util/config.py has the rest.
#pragma once

#include <algorithm>
#include <string>

namespace ngd::config {

std::string text(const char* name, const char* fallback);
double number(const char* name, double fallback);  // throws Init when it is none
// One of least..most; throws Init when it is none. `others`: for the message, what it may be else.
int whole_number(const char* name, int fallback, int least, int most, const char* others = "");

// 0 = no deadline; "inf" and the like are 30 years, which clocks can count
inline double timeout_seconds() { return std::min(number("NGD_TIMEOUT", 300.0), 1e9); }
// auto, flat or ring
inline std::string all_reduce_algorithm() { return text("NGD_ALLREDUCE", "auto"); }
// The memory node of this rank, for sums inside nodes first; -1 = none of that
inline constexpr int kOwnNumaNode = -2;  // that of the cores which this rank may use
inline int numa_node() {
  if (text("NGD_NUMA_NODE", "") == "auto") return kOwnNumaNode;
  return whole_number("NGD_NUMA_NODE", -1, 0, 1023, "auto or ");
}
// auto, on or off: a thread that moves data between hosts while kernels run
inline std::string progress() { return text("NGD_PROGRESS", "auto"); }
// A step fails where a value begins that is no finite number.
inline bool check_finite() { return whole_number("NGD_CHECK_FINITE", 0, 0, 1) == 1; }
inline std::string simd() { return text("NGD_SIMD", ""); }  // cap: baseline|avx2|avx512
// 0 = the fair share; the most that an affinity mask can tell apart
inline int threads() { return whole_number("NGD_THREADS", 0, 0, 1024); }

}  // namespace ngd::config
