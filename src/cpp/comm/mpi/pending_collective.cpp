// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/pending_collective.hpp"

#include "comm/mpi/choose.hpp"
#include "comm/mpi/details.hpp"

namespace ngd::comm::mpi {
namespace {

// Copy the caller's `size` counts from `counts` to `copy`, and let `counts` point to the copy. Do
// nothing if `counts` is null.
void copy_counts(const std::uint64_t*& counts, std::vector<std::uint64_t>& copy, int size) {
  if (counts == nullptr) return;
  copy.assign(counts, counts + size);
  counts = copy.data();
}

// Set work.payload, which travels with the header: the data of a small collective, or this rank's
// counts in a larger all_to_all with counts.
void set_payload(PendingCollective& work, const RankSet& group) {
  const Collective& collective = work.collective;
  const void* payload = nullptr;
  std::size_t bytes = 0;
  if (travels_with_header(collective, group.size())) {
    payload = collective.source;
    bytes = source_elements(collective, group.rank, group.size()) * size_of(collective.dtype);
  } else if (collective.kind == Kind::AllToAll && collective.counts != nullptr) {
    payload = collective.counts;  // the receivers compare these with their own counts
    bytes = work.counts.size() * sizeof(std::uint64_t);
  }
  const auto* data = static_cast<const std::byte*>(payload);
  if (bytes != 0) work.payload.assign(data, data + bytes);
}

}  // namespace

void prepare(PendingCollective& work, const Collective& submitted, const RankSet& group,
             Algorithm preferred, std::uint64_t sequence) {
  Collective& stored = work.collective;
  stored = submitted;
  stored.algorithm = choose_algorithm(submitted, preferred);
  work.header = header_of(stored, group.size(), sequence);
  work.details = encode_details(submitted);
  stored.program = nullptr;
  stored.layout = nullptr;
  stored.site = "";
  if (stored.kind == Kind::Barrier) stored.count = 0;
  copy_counts(stored.counts, work.counts, group.size());
  copy_counts(stored.receive_counts, work.receive_counts, group.size());
  set_payload(work, group);
}

}  // namespace ngd::comm::mpi
