// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/long_wait.hpp"

#include <algorithm>
#include <new>

#include "base/error.hpp"
#include "comm/messages.hpp"

namespace ngd::comm::mpi {

LongWait::~LongWait() {
  if (is_published_) group_.hosts->local().note_awaited(-1);
}

void LongWait::publish() {
  if (!group_.hosts || works_.is_complete(work_)) return;
  try {
    const std::vector<int> ranks = works_.awaited_ranks(work_);
    group_.hosts->local().note_awaited(ranks.empty() ? -1 : ranks.front());
    is_published_ = true;
  } catch (const std::bad_alloc&) {  // out of memory: nothing is published
  }
}

// Find the ranks that cause a late collective. At the call, `missing` has the ranks that this rank
// waits for. Each rank publishes to the ranks of its host which rank it waits for. So if rank 1 is
// in `missing` and waits for rank 2, replace 1 by 2, and return the line "rank 1 waits for rank
// 2.". Continue with rank 2 in the same way. Stop at a rank that waits for this rank or has
// published no awaited rank, or after as many replacements as the group has ranks.
//
// A rank found in this way has certainly stopped if it is on this host and waits for no rank. If
// there is such a rank, set `is_certain` to true, and keep only such ranks in `missing`. Otherwise
// set `is_certain` to false.
std::vector<std::string> LongWait::find_culprits(std::vector<int>& missing,
                                                 bool& is_certain) const {
  const HostLayer* hosts = group_.hosts.get();
  std::vector<std::string> facts;
  std::vector<int> stopped, others;
  const int me = group_.world(group_.rank());
  for (int suspect : missing) {
    for (int hops = 0; hosts != nullptr && hops < group_.size(); ++hops) {
      const int awaited = hosts->awaited_by(suspect);
      if (awaited < 0 || awaited == me) break;
      facts.push_back(concat("rank ", suspect, " waits for rank ", awaited, "."));
      suspect = awaited;
    }
    const bool is_stopped =
        hosts != nullptr && hosts->is_here(suspect) && hosts->awaited_by(suspect) < 0;
    std::vector<int>& category = is_stopped ? stopped : others;
    if (std::find(category.begin(), category.end(), suspect) == category.end())
      category.push_back(suspect);
  }
  is_certain = !stopped.empty();
  missing = is_certain ? stopped : others;
  std::sort(missing.begin(), missing.end());
  return facts;
}

void LongWait::throw_timeout(double timeout_seconds) {
  const bool has_begun = works_.has_begun(work_);
  std::vector<int> missing = works_.awaited_ranks(work_);
  const std::vector<std::string> calls = headers_.calls_of(missing);
  std::vector<std::string> facts;
  bool is_certain = false;
  if (has_begun) facts = find_culprits(missing, is_certain);
  // Another rank may know for certain which rank has stopped, and reports it at its own deadline,
  // which is about now. So wait a short time for a report. If one arrives, await() throws it.
  if (has_begun && !is_certain) group_.family->or_fail([&] { reports_.await(*works_.front()); });
  facts.insert(facts.end(), calls.begin(), calls.end());
  const std::string message = late(describe(works_.call_of(work_)), missing, has_begun,
                                   timeout_seconds, facts, late_advice(!calls.empty(), 0));
  group_.family->fail(ErrorKind::CollectiveTimeout, message, missing);
  group_.family->mark_thrown();
  throw Error(ErrorKind::CollectiveTimeout, message, missing);
}

}  // namespace ngd::comm::mpi
