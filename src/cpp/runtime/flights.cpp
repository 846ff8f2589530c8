// SPDX-License-Identifier: Apache-2.0
#include "runtime/flights.hpp"

#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "base/config.hpp"
#include "base/error.hpp"

namespace ngd::runtime {

Flights::Flights(device::Device& device, device::Queue& queue,
                 std::vector<comm::Communicator*> communicators,
                 const std::vector<GroupSequence>& groups)
    : device_(device),
      queue_(queue),
      asynchronous_(queue.asynchronous()),
      timeout_seconds_(config::timeout_seconds()),
      communicators_(std::move(communicators)) {
  check(communicators_.size() >= groups.size(), "executor: expected ", groups.size(),
        " communicators; got ", communicators_.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const GroupSequence& group = groups[i];
    identities_.push_back({group.hash, group.text.c_str(), group.computation});
    if (group.hash != 0) held_.emplace_back(communicators_[i]->computations(), group.computation);
  }
}

Flight& Flights::add(const Instruction& instruction, const TensorType& operand,
                     const TensorType& result) {
  Flight& flight = flights_.emplace_back();
  const Attrs& attrs = instruction.attrs;
  comm::Collective& collective = flight.collective;
  const auto group = static_cast<std::size_t>(instruction.group);
  flight.instruction = &instruction;
  flight.communicator = communicators_.at(group);
  const int rank = flight.communicator->rank(), size = flight.communicator->size();
  const auto counts_of = [&](const char* name, std::vector<std::uint64_t>& counts) {
    if (!attrs.has(name)) return static_cast<const std::uint64_t*>(nullptr);
    for (const std::int64_t n : attrs.integers(name))
      counts.push_back(static_cast<std::uint64_t>(n));
    check(static_cast<int>(counts.size()) == size, "executor: expected ", size, " ", name, "; got ",
          counts.size());
    return static_cast<const std::uint64_t*>(counts.data());
  };
  collective.kind = comm::kind_named(instruction.op);
  if (attrs.has("reduce_op")) collective.op = comm::reduce_op_named(attrs.text("reduce_op"));
  if (attrs.has("algorithm")) collective.algorithm = comm::algorithm_named(attrs.text("algorithm"));
  collective.root = static_cast<int>(attrs.integer("root", 0));
  collective.tag = static_cast<int>(attrs.integer("tag", 0));
  collective.dtype = result.dtype;
  collective.count = static_cast<std::uint64_t>(attrs.integer("count", operand.count()));
  collective.counts = counts_of("counts", flight.counts);
  collective.receive_counts = counts_of("receive_counts", flight.receive_counts);
  if (!comm::between_two(collective.kind)) {
    const auto branch = static_cast<std::uint64_t>(attrs.integer("branch", 0));
    flight.program = comm::in_branch(identities_.at(group), branch);
    collective.program = &flight.program;
  }
  collective.site = instruction.site.c_str();

  comm::validate(collective, rank, size);
  const std::uint64_t read = comm::source_elements(collective, rank, size);
  const std::uint64_t written = comm::destination_elements(collective, rank, size);
  check(read <= static_cast<std::uint64_t>(operand.count()) &&
            (written == 0 || written == static_cast<std::uint64_t>(result.count())),
        "executor: ", comm::describe(collective), " of ", operand.count(), " elements to ",
        result.count());
  if (written == 0) flight.zeros = result.bytes();
  add_staging(flight, operand.bytes(), result.bytes());
  return flight;
}

void Flights::add_staging(Flight& flight, std::size_t operand_bytes, std::size_t result_bytes) {
  flight.staged = !flight.communicator->reaches(device_);
  if (flight.staged) {
    flight.source = device::Buffer(device::cpu(), operand_bytes);
    flight.destination = device::Buffer(device::cpu(), result_bytes);
  }
  if (!asynchronous_) return;
  flight.there = device_.make_event();
  started_.reserve(flights_.size());
  if (!flight.staged) return;
  flight.copied = device_.make_event();
  if (transfers_ == nullptr) transfers_ = device_.make_queue();
}

void Flights::begin() noexcept {
  started_.clear();
  submitted_ = 0;
  have_begun_ = false;
  watch(true);
}

void Flights::watch(bool on) noexcept {
  if (communicators_.size() < 2) return;
  for (comm::Communicator* communicator : communicators_) communicator->watch(on);
}

void Flights::start(Flight& flight, const void* operand, void* result) {
  flight.result = result;
  flight.collective.source = flight.staged ? flight.source.data() : operand;
  flight.collective.destination = flight.staged ? flight.destination.data() : result;
  if (!asynchronous_) {
    if (flight.staged) queue_.copy_to_host(flight.source.data(), operand, flight.source.bytes());
    return submit(flight);
  }
  queue_.record(*flight.there);
  if (flight.staged) {
    transfers_->set_origin(flight.instruction);
    transfers_->wait(*flight.there);
    transfers_->copy_to_host(flight.source.data(), operand, flight.source.bytes());
    transfers_->record(*flight.copied);
  }
  started_.push_back(&flight);
  submit_started(!have_begun_);
}

// Submits what was started, in the order of the program: all, or only until one is not there yet.
void Flights::submit_started(bool all) {
  for (; submitted_ < started_.size(); ++submitted_) {
    Flight& flight = *started_[submitted_];
    const auto is_there = [&] {
      return flight.there->done() && (!flight.staged || flight.copied->done());
    };
    if (!all && !is_there()) return;
    flight.there->wait();
    if (flight.staged) flight.copied->wait();
    submit(flight);
  }
  started_.clear();
  submitted_ = 0;
}

void Flights::submit(Flight& flight) {
  const auto call = [&] { return flight.communicator->submit(flight.collective); };
  flight.work = have_begun_ ? flight.communicator->in_turn(timeout_seconds_, call) : call();
  have_begun_ = true;
}

void Flights::wait(Flight& flight) {
  // All that was started: a peer may need what stands behind this one first.
  if (asynchronous_) submit_started(true);
  flight.communicator->finish(flight.work, timeout_seconds_);
  if (flight.staged) {
    if (flight.zeros > 0) std::memset(flight.destination.data(), 0, flight.zeros);
    queue_.copy_from_host(flight.result, flight.destination.data(), flight.destination.bytes());
  } else if (flight.zeros > 0) {
    queue_.clear(flight.result, flight.zeros);
  }
}

void Flights::abort(std::string_view why) noexcept {
  comm::Communicator* told = nullptr;
  for (const Flight& flight : flights_)
    if (flight.communicator != told) (told = flight.communicator)->abort(why);
}

void Flights::drain() noexcept {
  if (transfers_ == nullptr) return;
  try {
    transfers_->synchronize();
  } catch (const std::exception&) {
  }
}

}  // namespace ngd::runtime
