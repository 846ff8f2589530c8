// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/shm_communicator.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/step.hpp"
#include "comm/messages.hpp"
#include "comm/shm/algorithms.hpp"
#include "comm/shm/guarded.hpp"

namespace ngd::comm::shm {

namespace {

// How often I tell my peers how much I have finished: they need it when they come round to the slot
// of a sequence again.
constexpr std::uint64_t kTold = kSlots / 4;

}  // namespace

ShmCommunicator::ShmCommunicator(std::shared_ptr<Family> family, std::vector<Group::Member> members,
                                 int rank, std::uint64_t id)
    : family_(std::move(family)),
      group_(std::move(members), rank, id, family_->moves(), family_->checked(), *computations()),
      statistics_(group_.size()),
      streams_(*family_, group_, statistics_),
      preferred_(preferred_algorithm()),
      split_timeout_(config::timeout_seconds()) {
  family_->join(*this);
}

ShmCommunicator::~ShmCommunicator() { close(); }

// ---- failing and leaving

// Comes first: in a child the monitor stays as another thread of the parent has left it.
void ShmCommunicator::check_not_child() const {
  if (family_->in_child()) [[unlikely]]
    fail(ErrorKind::GroupClosed, kForkedChild);
}

void ShmCommunicator::refuse(const std::string& call) const {
  if (closed_ || family_->closed()) fail(ErrorKind::GroupClosed, closed_in_order(call));
  fail_of(family_->blamed(), ErrorKind::GroupClosed, closed_by_failure(call, family_->why()));
}

// The collective of a work, for a message. The slots of a closed group may serve another one.
std::string ShmCommunicator::describe_work(Work work) const {
  if (closed_) return "wait";
  if (is_transfer(work)) return streams_.describe(work.sequence);
  if (in_backlog(work)) {
    const Waiting& waiting = backlog_[work.sequence - submitted_ - 1];
    Collective collective = waiting.collective;
    collective.site = waiting.site;
    return describe(collective);
  }
  if (group_.mine().slot(work.sequence).published.load() != work.sequence) return "wait";
  return describe(group_.call(work.sequence, group_.rank())) + group_.where();
}

void ShmCommunicator::abort(std::string_view traceback) noexcept {
  if (family_->in_child()) return;
  const Locked locked(family_->monitor(), family_->record());
  char text[kErrorBytes];
  const std::string_view kept = tail_of(without_end(traceback), sizeof text - 64);
  const int length = std::snprintf(text, sizeof text, "rank %d failed: %.*s", family_->rank(),
                                   static_cast<int>(kept.size()), kept.data());
  if (!closed_) family_->fail_with(ErrorKind::RemoteRank, {text, static_cast<std::size_t>(length)});
}

void ShmCommunicator::give_up(ErrorKind kind, std::string_view why,
                              std::span<const int> ranks) noexcept {
  // The text of another rank's failure names that rank already.
  const bool is_remote = kind == ErrorKind::RemoteRank && !ranks.empty();
  if (!is_between_ranks(kind) && !is_remote) return abort(why);
  if (family_->in_child()) return;
  const Locked locked(family_->monitor(), family_->record());
  if (!closed_) family_->fail_with(kind, why, ranks);
}

void ShmCommunicator::close() noexcept {
  if (family_->in_child()) return;
  const Locked locked(family_->monitor(), family_->record());
  if (closed_) return;
  closed_ = true;
  if (group_.id() == 0) family_->close();
  family_->leave(*this);
  protocol_step();
  group_.control(group_.rank()).left.store(1);
  protocol_step();
  group_.wake_all();
  if (group_.id() == 0) return;
  for (int r = 0; r < group_.size(); ++r) {
    group_.control(r).departed.fetch_add(1);
    protocol_step();
  }
  texts_.clear();
  for (const auto& [name, text] : programs_)
    if (text.offset != kPrivate) texts_.push_back(text.offset);
  retired_.front() = {&group_.control(group_.rank()).departed, group_.mine().control_offset(),
                      streams_.take_blocks(), group_.size(), std::move(texts_)};
  family_->retire(std::move(retired_));
}

// ---- starting

Work ShmCommunicator::submit(const Collective& collective) {
  check_not_child();
  const Inside inside(family_->monitor());
  check_usable([&] { return describe(collective); });
  validate(collective, group_.rank(), group_.size());
  return submit_inside(collective);
}

Work ShmCommunicator::submit_inside(const Collective& collective) {
  return guarded(*family_, [&] {
    if (between_two(collective.kind)) return streams_.submit(collective);
    const Statistics::Entry stats = statistics_.entry_of(collective);
    const ProgramText program = text_of(collective.program);
    if (submitted_ >= slots_free_to_) [[unlikely]]
      progress();
    if (!backlog_.empty() || !has_free_slot()) [[unlikely]]
      keep_waiting(collective, stats, program);
    else
      start(collective, stats, program, 0);
    return Work{submitted_ + backlog_.size()};
  });
}

void ShmCommunicator::start(const Collective& collective, Statistics::Entry stats,
                            const ProgramText& program, std::uint64_t waited_ns) {
  const std::uint64_t sequence = submitted_ + 1;
  Task& fresh = task(sequence);
  fresh.begin();
  fresh.sequence = sequence;
  fresh.stats = stats;
  fresh.waited_ns = waited_ns;
  fresh.moved_bytes = larger_side_bytes(collective, group_.rank(), group_.size());
  prepare(fresh, collective);
  publish(fresh, collective, program);
  submitted_ = sequence;
}

// Whoever has not finished sequence - kSlots may still read the slot that the next one needs.
bool ShmCommunicator::has_free_slot() {
  if (submitted_ < slots_free_to_) [[likely]]
    return true;
  const std::uint64_t oldest = round_up(submitted_ + 1 - kSlots, kTold);
  if (finished_ < oldest) return false;
  if (next_slots_.sequence != oldest)
    next_slots_ = group_.all(Need::Flag::Finished, oldest, oldest);
  if (!group_.met(next_slots_)) return false;
  slots_free_to_ = oldest + kSlots;
  return true;
}

// submit() never blocks: what it would have to wait for may need what its caller submits next.
void ShmCommunicator::keep_waiting(const Collective& collective, Statistics::Entry stats,
                                   const ProgramText& program) {
  Waiting& kept = backlog_.emplace_back();
  kept.collective = collective;
  const auto ranks = static_cast<std::size_t>(group_.size());
  if (collective.counts != nullptr)
    kept.counts.assign(collective.counts, collective.counts + ranks);
  if (collective.receive_counts != nullptr)
    kept.receive_counts.assign(collective.receive_counts, collective.receive_counts + ranks);
  if (collective.layout != nullptr) {
    kept.layout = *collective.layout;
    kept.numbers.assign(kept.layout.numbers, kept.layout.numbers + kept.layout.known);
  }
  copy_site(collective.site, kept.site);
  kept.stats = stats;
  kept.program = program;
  kept.since_ns = now_ns();
}

void ShmCommunicator::start_from_backlog() {
  Waiting& oldest = backlog_.front();
  Collective collective = oldest.collective;
  if (collective.counts != nullptr) collective.counts = oldest.counts.data();
  if (collective.receive_counts != nullptr)
    collective.receive_counts = oldest.receive_counts.data();
  oldest.layout.numbers = oldest.numbers.data();
  if (collective.layout != nullptr) collective.layout = &oldest.layout;
  collective.program = nullptr;  // oldest.program has it
  collective.site = oldest.site;
  start(collective, oldest.stats, oldest.program, now_ns() - oldest.since_ns);
  backlog_.pop_front();
  ++family_->moves();
}

// Flat, unless the caller or NGD_ALLREDUCE wants the ring: flat is the faster one throughout.
// All-reduce of float32 in the shared lane, on 2 cores (AMD EPYC 9005), in us:
//   bytes          8   64 Ki   1 Mi   16 Mi
//   2 ranks flat   0.5   3.3     34     541
//           ring   1.5   4.6     46    1666
//   4 ranks flat   2.4    26    318    7819
//           ring  12.7    57    682   10575
Algorithm ShmCommunicator::resolve(const Collective& collective) const {
  if (collective.kind != Kind::AllReduce) return Algorithm::Flat;
  const Algorithm wanted =
      collective.algorithm == Algorithm::Auto ? preferred_ : collective.algorithm;
  return wanted == Algorithm::Ring && group_.size() > 1 ? Algorithm::Ring : Algorithm::Flat;
}

void ShmCommunicator::prepare(Task& task, const Collective& collective) {
  task.kind = collective.kind;
  task.op = reduces(collective.kind) ? collective.op : ReduceOp::None;
  task.dtype = collective.dtype;
  task.algorithm = resolve(collective);
  task.root = has_root(collective.kind) ? collective.root : 0;
  task.count = collective.kind == Kind::Barrier ? 0 : collective.count;
  task.source = static_cast<const std::byte*>(collective.source);
  task.destination = static_cast<std::byte*>(collective.destination);
  task.need = group_.all(Need::Flag::Published, task.sequence, task.sequence);
  const bool reduced_by_parts = task.kind == Kind::AllReduce || task.kind == Kind::Reduce;
  if (!reduced_by_parts && task.kind != Kind::Barrier)
    plan_exchange(group_, task, collective);
  else if (task.bytes() <= kInlineBytes && task.algorithm == Algorithm::Flat)
    task.path = Path::Inline;
}

void ShmCommunicator::publish(Task& task, const Collective& collective,
                              const ProgramText& program) {
  const Segment& mine = group_.mine();
  Slot& slot = mine.slot(task.sequence);
  CallRecord& call = slot.call;
  call.assign(collective, group_.size());
  call.identity.algorithm = task.algorithm;
  call.identity.program_hash = program.hash;
  call.computation = program.computation;
  if (family_->checked()) slot.fingerprint = call.fingerprint(group_.id());
  slot.layout = Layout::Of::Row;
  if (collective.layout != nullptr) publish_layout(slot, task.sequence, *collective.layout);
  publish_source(task, slot, collective);
  slot.step.store(0, std::memory_order_relaxed);
  slot.taken.store(task.path == Path::Exchange && !task.takes ? kAll : 0,
                   std::memory_order_relaxed);
  slot.arrived_ns = now_ns();
  slot.program_offset = program.offset;
  slot.program_length = program.length;
  mine.control().sequence.store(task.sequence, std::memory_order_relaxed);
  group_.raise(slot.published, task.sequence);
}

void ShmCommunicator::publish_layout(Slot& slot, std::uint64_t sequence, const Layout& layout) {
  slot.layout = layout.of;
  slot.layout_entries = static_cast<std::uint32_t>(layout.entries);
  std::copy_n(layout.numbers, std::min(layout.known, kLayoutNumbers),
              group_.mine().layout_numbers(sequence));
}

// Where my peers find what they need of me, and the counts that I gave.
void ShmCommunicator::publish_source(Task& task, Slot& slot, const Collective& collective) {
  const Segment& mine = group_.mine();
  const auto ranks = static_cast<std::size_t>(group_.size());
  const std::size_t counts_bytes = task.uneven ? ranks * sizeof(std::uint64_t) : 0;
  if (task.uneven) std::memcpy(mine.payload(task.sequence), collective.counts, counts_bytes);
  const std::size_t bytes =
      source_elements(collective, group_.rank(), group_.size()) * size_of(task.dtype);
  const bool is_inline = task.path == Path::Exchange
                             ? counts_bytes + task.source_bytes <= kInlineBytes
                             : task.path == Path::Inline;
  slot.destination_offset = kPrivate;
  if (is_inline) {
    slot.source_offset = kInline;
    if (bytes > 0)
      std::memcpy(inline_payload(mine, task.sequence, bytes, counts_bytes), task.source, bytes);
    task.out_chunks = 0;
    return;
  }
  slot.source_offset = mine.offset_of(task.source, bytes);
  if (const std::uint64_t elements = destination_elements(collective, group_.rank(), group_.size());
      elements > 0)
    slot.destination_offset = mine.offset_of(task.destination, elements * size_of(task.dtype));
  if (task.path != Path::Exchange) return;
  task.may_be_together = may_be_together(group_, task, group_.rank());
  const bool shared = slot.source_offset != kPrivate && !task.in_place;
  task.shares = task.out_chunks > 0 && shared;
  task.staged = task.out_chunks > 0 && !shared;
  if (!task.staged) task.out_chunks = 0;
}

// A program's text is written to the shared lane once, for the message that a mismatch may need.
ShmCommunicator::ProgramText ShmCommunicator::text_of(const ProgramIdentity* program) {
  if (program == nullptr) [[likely]]
    return {};
  if (program->text == nullptr) return {program->hash, program->computation};
  const std::uint64_t name = mix(program->hash, program->computation);
  auto known = programs_.find(name);
  if (known == programs_.end()) {
    release_unused_texts();
    const auto length = static_cast<std::uint32_t>(std::strlen(program->text));
    std::uint64_t offset = kPrivate;
    try {
      offset = family_->heap().allocate(length);
      std::memcpy(group_.mine().at(offset), program->text, length);
    } catch (const Error&) {  // no memory: the message will do without
    }
    known =
        programs_.emplace(name, ProgramText{program->hash, program->computation, offset, length})
            .first;
    texts_.reserve(programs_.size());
  }
  known->second.used = submitted_ + backlog_.size() + 1;
  return known->second;
}

// Those of programs that this rank does not hold any more, when no peer can read a slot that points
// there: all have finished the sequence, for its slot is free.
void ShmCommunicator::release_unused_texts() noexcept {
  std::erase_if(programs_, [&](const auto& entry) {
    const ProgramText& text = entry.second;
    if (text.used + kSlots > slots_free_to_ || computations()->hold(text.computation)) return false;
    if (text.offset != kPrivate) family_->heap().release(text.offset);
    return true;
  });
}

// ---- advancing

bool ShmCommunicator::complete(std::uint64_t sequence) const noexcept {
  if ((sequence & kBetweenTwo) != 0) return streams_.over(sequence);
  return sequence <= finished_ || (sequence <= submitted_ && task(sequence).complete);
}

void ShmCommunicator::progress() {
  streams_.progress();
  advance_all();
  while (!backlog_.empty() && has_free_slot()) [[unlikely]] {
    do {
      start_from_backlog();
    } while (!backlog_.empty() && has_free_slot());
    advance_all();
  }
}

void ShmCommunicator::advance_all() {
  const std::uint64_t before = finished_;
  for (std::uint64_t sequence = finished_ + 1; sequence <= submitted_; ++sequence) {
    Task& each = task(sequence);
    if (!each.complete) advance(each);
    if (each.complete && sequence == finished_ + 1) ++finished_;
  }
  if (finished_ / kTold != before / kTold)
    group_.raise(group_.control(group_.rank()).finished, finished_);
}

void ShmCommunicator::advance(Task& task) {
  if (!task.arrived) {
    start_early(task);
    if (!group_.met(task.need)) return;
    task.arrived = true;
    task.need = {};
    if (task.path == Path::Exchange)
      meet_exchange(group_, task);
    else if (task.path == Path::Undecided)
      decide(task);
  }
  if (task.staged && !task.has_lane) take_lane(task);
  if (task.staged && !task.has_lane && task.path != Path::Exchange) return;
  task.complete = run(task);
  if (task.complete) count(task);
}

void ShmCommunicator::count(Task& task) noexcept {
  task.completed_ns = now_ns();
  const std::uint64_t ns = task.completed_ns - group_.mine().slot(task.sequence).arrived_ns;
  statistics_.add(task.stats, task.moved_bytes, ns + task.waited_ns, last_to_come(task.sequence));
}

std::vector<CallStats> ShmCommunicator::stats() const {
  if (family_->in_child()) return {};
  const Locked locked(family_->monitor(), family_->record());
  return statistics_.report();
}

int ShmCommunicator::last_to_come(std::uint64_t sequence) const noexcept {
  int last = 0;
  std::uint64_t latest = 0;
  for (int r = 0; r < group_.size(); ++r) {
    const std::uint64_t arrived = group_.segment(r).slot(sequence).arrived_ns;
    if (arrived > latest) {
      latest = arrived;
      last = r;
    }
  }
  return last;
}

// What I know to be staged begins before my peers have arrived.
void ShmCommunicator::start_early(Task& task) {
  if (task.path == Path::Exchange) {
    if (task.may_be_together) return;
    if (task.staged && !task.has_lane) take_lane(task);
    advance_exchange(group_, lane_, task);
  } else if (task.path == Path::Undecided && task.algorithm == Algorithm::Flat && task.phase == 0) {
    const Slot& slot = group_.mine().slot(task.sequence);
    task.staged = slot.source_offset == kPrivate ||
                  (slot.destination_offset == kPrivate && gets_result(group_, task));
    if (task.staged && (task.has_lane || take_lane(task))) {
      const auto begin = goes_by_nodes(group_, task) ? begin_nodes_staged : begin_flat_staged;
      begin(group_, lane_, task);
    }
  }
}

// From what all ranks have published: the same on all of them.
void ShmCommunicator::decide(Task& task) const {
  bool shared = true;
  for (int r = 0; r < group_.size(); ++r) {
    const Slot& slot = group_.segment(r).slot(task.sequence);
    const bool gets = task.kind == Kind::AllReduce || r == task.root;
    shared =
        shared && slot.source_offset != kPrivate && (!gets || slot.destination_offset != kPrivate);
  }
  if (task.algorithm == Algorithm::Ring) {
    task.path = Path::Ring;
    shared = shared && !is_half(task.dtype);
  } else if (goes_by_nodes(group_, task)) {
    task.path = Path::Nodes;
  } else {
    task.path = shared ? Path::FlatDirect : Path::FlatStaged;
  }
  task.staged = !shared;
}

// My lane serves one task at a time, in sequence; the next may have it when the one before will
// fill it no more.
bool ShmCommunicator::take_lane(Task& wanting) {
  for (std::uint64_t sequence = finished_ + 1; sequence < wanting.sequence; ++sequence) {
    const Task& earlier = task(sequence);
    const bool may_fill_it = earlier.path == Path::Undecided || earlier.staged;
    if (may_fill_it && !earlier.lane_done && !earlier.complete) return false;
  }
  if (wanting.algorithm == Algorithm::Ring) {  // it takes all of it
    const std::uint64_t busy = lane_.first_busy(group_);
    wanting.has_lane = busy == kBuffers;
    if (!wanting.has_lane) wanting.need = lane_.guard(busy);
    return wanting.has_lane;
  }
  wanting.has_lane = true;
  wanting.lane = lane_.reserve(wanting.path == Path::Exchange ? wanting.out_chunks
                                                              : flat_chunks(group_, wanting));
  group_.mine().slot(wanting.sequence).lane = wanting.lane;
  return true;
}

bool ShmCommunicator::run(Task& task) {
  switch (task.path) {
    case Path::Inline:
      combine_inline(group_, task);
      return true;
    case Path::FlatDirect:
      return advance_flat_direct(group_, task);
    case Path::FlatStaged:
      return advance_flat_staged(group_, lane_, task);
    case Path::Nodes:
      return advance_nodes(group_, lane_, task);
    case Path::Ring:
      return advance_ring(group_, task);
    case Path::Exchange:
      return advance_exchange(group_, lane_, task);
    case Path::Together:
      return advance_together(group_, task);
    case Path::Undecided:
      break;
  }
  fail(ErrorKind::Internal, "a collective of no known path");
}

// ---- memory

SharedBlock ShmCommunicator::allocate(std::size_t bytes) {
  check_not_child();
  const Locked locked(family_->monitor(), family_->record());
  return {group_.mine().at(family_->heap().allocate(bytes)), bytes};
}

void ShmCommunicator::release(SharedBlock block) noexcept {
  if (block.data == nullptr || family_->in_child()) return;
  const Locked locked(family_->monitor(), family_->record());
  family_->heap().release(
      static_cast<std::uint64_t>(static_cast<std::byte*>(block.data) - group_.mine().base()));
}

bool ShmCommunicator::is_over() const noexcept {
  if (family_->in_child()) return true;
  const Locked locked(family_->monitor(), family_->record());
  return closed_ || family_->closed() || family_->failed();
}

std::uint64_t ShmCommunicator::make_common(std::size_t bytes) {
  check_not_child();
  const Locked locked(family_->monitor(), family_->record());
  check_usable([] { return std::string("a collective"); });
  return family_->new_common(bytes);
}

std::shared_ptr<void> ShmCommunicator::open_common(int maker, std::uint64_t number) {
  check_not_child();
  Common& common = *reinterpret_cast<Common*>(group_.segment(maker).at(number));
  // Who gives it back must not ask for memory.
  const auto retired = std::make_shared<std::list<Family::Retired>>();
  if (maker == group_.rank()) retired->push_back({&common.departed, number, {}, group_.size()});
  const auto give_back = [family = family_, &common, retired](void*) {
    if (family->in_child()) return;
    const Locked locked(family->monitor(), family->record());
    common.departed.fetch_add(1);
    family->retire(std::move(*retired));
  };
  return {&common + 1, give_back};
}

std::unique_ptr<CopyOnWriteMapping> ShmCommunicator::map_common(int maker, std::uint64_t number,
                                                                std::size_t bytes) {
  check_not_child();
  const int fd = family_->memory().descriptor(group_.world(maker));
  if (fd < 0)
    fail(ErrorKind::Unsupported, "expected the descriptor of the shared memory of rank ", maker,
         ", which this process has had since ngd.init(); got a closed one. Do not close "
         "descriptors that your program has not opened");
  return std::make_unique<CopyOnWriteMapping>(fd, number + sizeof(Common), bytes);
}

std::unique_ptr<ShmCommunicator> make_world(std::unique_ptr<Memory> memory,
                                            std::unique_ptr<Liveness> liveness, Place place) {
  const auto family = std::make_shared<Family>(std::move(memory), std::move(liveness), place);
  std::vector<Group::Member> members;
  for (int r = 0; r < place.size; ++r) members.push_back({family->segment(r), r});
  return std::make_unique<ShmCommunicator>(family, std::move(members), place.rank, 0);
}

}  // namespace ngd::comm::shm
