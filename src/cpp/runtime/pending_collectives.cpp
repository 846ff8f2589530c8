// SPDX-License-Identifier: Apache-2.0
#include "runtime/pending_collectives.hpp"

#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/config.hpp"
#include "base/error.hpp"
#include "comm/retry.hpp"

namespace ngd::runtime {

namespace {

// Copy the attribute `name`, a list with one number per rank, to `counts`. Return counts.data(), or
// null if the attribute is missing.
const std::uint64_t* counts_in(const Attrs& attrs, const char* name, int size,
                               std::vector<std::uint64_t>& counts) {
  if (!attrs.has(name)) return nullptr;
  for (const std::int64_t n : attrs.integers(name)) counts.push_back(static_cast<std::uint64_t>(n));
  check(static_cast<int>(counts.size()) == size, "executor: expected ", size, " ", name, "; got ",
        counts.size());
  return counts.data();
}

// Set pending.collective to the collective that the Start instruction describes.
void describe_collective(PendingCollective& pending, int size, const TensorType& operand,
                         const TensorType& result) {
  const Attrs& attrs = pending.instruction->attrs;
  comm::Collective& collective = pending.collective;
  collective.kind = comm::kind_named(pending.instruction->op);
  if (attrs.has("reduce_op")) collective.op = comm::reduce_op_named(attrs.text("reduce_op"));
  if (attrs.has("algorithm")) collective.algorithm = comm::algorithm_named(attrs.text("algorithm"));
  collective.root = static_cast<int>(attrs.integer("root", 0));
  collective.tag = static_cast<int>(attrs.integer("tag", 0));
  collective.dtype = result.dtype;
  collective.count = static_cast<std::uint64_t>(attrs.integer("count", operand.count()));
  collective.counts = counts_in(attrs, "counts", size, pending.counts);
  collective.receive_counts = counts_in(attrs, "receive_counts", size, pending.receive_counts);
  collective.site = pending.instruction->site.c_str();
}

}  // namespace

PendingCollectives::PendingCollectives(device::Device& device, device::Queue& queue,
                                       std::vector<comm::Communicator*> communicators,
                                       const std::vector<GroupSequence>& groups)
    : device_(device),
      queue_(queue),
      is_asynchronous_(queue.asynchronous()),
      timeout_seconds_(config::timeout_seconds()),
      communicators_(std::move(communicators)) {
  check(communicators_.size() >= groups.size(), "executor: expected ", groups.size(),
        " communicators; got ", communicators_.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const GroupSequence& group = groups[i];
    identities_.push_back({group.hash, group.text.c_str(), group.computation});
    if (group.hash != 0)
      held_computations_.emplace_back(communicators_[i]->computations(), group.computation);
  }
}

PendingCollective& PendingCollectives::add(const Instruction& instruction,
                                           const TensorType& operand, const TensorType& result) {
  PendingCollective& pending = collectives_.emplace_back();
  const auto group = static_cast<std::size_t>(instruction.group);
  pending.instruction = &instruction;
  pending.communicator = communicators_.at(group);
  const int rank = pending.communicator->rank(), size = pending.communicator->size();
  comm::Collective& collective = pending.collective;
  describe_collective(pending, size, operand, result);
  if (!comm::between_two(collective.kind)) {
    const auto branch = static_cast<std::uint64_t>(instruction.attrs.integer("branch", 0));
    pending.program = comm::in_branch(identities_.at(group), branch);
    collective.program = &pending.program;
  }
  comm::validate(collective, rank, size);
  const std::uint64_t read = comm::source_elements(collective, rank, size);
  const std::uint64_t written = comm::destination_elements(collective, rank, size);
  check(read <= static_cast<std::uint64_t>(operand.count()) &&
            (written == 0 || written == static_cast<std::uint64_t>(result.count())),
        "executor: ", comm::describe(collective), " of ", operand.count(), " elements to ",
        result.count());
  if (written == 0) pending.bytes_to_clear = result.bytes();
  add_staging(pending, operand.bytes(), result.bytes());
  return pending;
}

void PendingCollectives::add_staging(PendingCollective& pending, std::size_t operand_bytes,
                                     std::size_t result_bytes) {
  pending.is_staged = !pending.communicator->reaches(device_);
  if (pending.is_staged) {
    pending.source = device::Buffer(device::cpu(), operand_bytes);
    pending.destination = device::Buffer(device::cpu(), result_bytes);
  }
  if (!is_asynchronous_) return;
  pending.operand_ready = device_.make_event();
  started_.reserve(collectives_.size());
  if (!pending.is_staged) return;
  pending.operand_staged = device_.make_event();
  if (staging_queue_ == nullptr) staging_queue_ = device_.make_queue();
}

void PendingCollectives::begin() noexcept {
  started_.clear();
  submitted_ = 0;
  has_submitted_ = was_refused_ = false;
  watch(true);
}

void PendingCollectives::watch(bool on) noexcept {
  if (communicators_.size() < 2) return;
  for (comm::Communicator* communicator : communicators_) communicator->watch(on);
}

void PendingCollectives::start(PendingCollective& pending, const void* operand, void* result) {
  pending.result = result;
  pending.collective.source = pending.is_staged ? pending.source.data() : operand;
  pending.collective.destination = pending.is_staged ? pending.destination.data() : result;
  if (!is_asynchronous_) {
    if (pending.is_staged)
      queue_.copy_to_host(pending.source.data(), operand, pending.source.bytes());
    return submit(pending);
  }
  queue_.record(*pending.operand_ready);
  if (pending.is_staged) {
    staging_queue_->set_origin(pending.instruction);
    staging_queue_->wait(*pending.operand_ready);
    staging_queue_->copy_to_host(pending.source.data(), operand, pending.source.bytes());
    staging_queue_->record(*pending.operand_staged);
  }
  started_.push_back(&pending);
  submit_started(!has_submitted_);
}

// Submit the started collectives in the order of the program. If `all` is true, wait for the
// operand of each one; otherwise stop at the first one whose operand is not ready.
void PendingCollectives::submit_started(bool all) {
  for (; submitted_ < started_.size(); ++submitted_) {
    PendingCollective& pending = *started_[submitted_];
    const auto is_ready = [&] {
      return pending.operand_ready->done() &&
             (!pending.is_staged || pending.operand_staged->done());
    };
    if (!all && !is_ready()) return;
    pending.operand_ready->wait();
    if (pending.is_staged) pending.operand_staged->wait();
    submit(pending);
  }
  started_.clear();
  submitted_ = 0;
}

void PendingCollectives::submit(PendingCollective& pending) {
  comm::Communicator& group = *pending.communicator;
  if (has_submitted_) {
    pending.work = comm::submit_retrying(group, pending.collective, timeout_seconds_);
    return;
  }
  const std::optional<comm::Work> work = group.try_submit(pending.collective);
  was_refused_ = !work;
  if (was_refused_) comm::throw_busy();
  pending.work = *work;
  has_submitted_ = true;
}

void PendingCollectives::wait(PendingCollective& pending) {
  // Submit all started collectives, not only this one: a peer may wait for a later one first.
  if (is_asynchronous_) submit_started(true);
  comm::wait_retrying(*pending.communicator, pending.work, timeout_seconds_);
  if (pending.is_staged) {
    if (pending.bytes_to_clear > 0)
      std::memset(pending.destination.data(), 0, pending.bytes_to_clear);
    queue_.copy_from_host(pending.result, pending.destination.data(), pending.destination.bytes());
  } else if (pending.bytes_to_clear > 0) {
    queue_.clear(pending.result, pending.bytes_to_clear);
  }
}

void PendingCollectives::abort(std::string_view why) noexcept {
  comm::Communicator* aborted = nullptr;
  for (const PendingCollective& pending : collectives_)
    if (pending.communicator != aborted) (aborted = pending.communicator)->abort(why);
}

void PendingCollectives::drain() noexcept {
  if (staging_queue_ == nullptr) return;
  try {
    staging_queue_->synchronize();
  } catch (const std::exception&) {
  }
}

}  // namespace ngd::runtime
