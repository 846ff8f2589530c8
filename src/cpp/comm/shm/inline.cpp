// SPDX-License-Identifier: Apache-2.0
// The inline algorithm (inline.hpp). Up to kInlineBytes (2 KiB) it is faster than the flat
// algorithm (flat.cpp) with operands in the shared arena (FlatDirect) or not (FlatStaged).
// All-reduce of float32, 2 ranks, AMD EPYC 9005, in us:
//   bytes    inline   FlatDirect   FlatStaged
//     512      0.19         0.26         0.34
//    2048      0.26         0.28         0.38
//    4096      0.62         0.31         0.43
//    8192      0.90         0.36         0.68
#include "comm/shm/inline.hpp"

namespace ngd::comm::shm {

bool Inline::advance(Context& context) {
  Group& group = context.group;
  const TaskHead& task = context.task;
  if (task.count == 0 || !gets_result(task, group.rank())) return true;
  for (int r = 0; r < group.size(); ++r)
    group.sources()[r] = inline_payload(group.segment(r), task.sequence, task.bytes(), 0);
  reduce(combine_of(task.op), task.dtype, group.sources(), group.size(), task.destination,
         task.count, divisor_of(task.op, group.size()));
  return true;
}

}  // namespace ngd::comm::shm
