// SPDX-License-Identifier: Apache-2.0
#include "comm/grouped.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/config.hpp"
#include "base/error.hpp"
#include "comm/retry.hpp"

namespace ngd::comm {

namespace {

// A tensor of more than kAloneBytes is not packed with other tensors. A pack has at most
// kPackBytes, so that its data are still in the cache when the results are copied out of the pack.
// kAloneBytes is the largest measured size at which packing is faster. The time of one call for a
// list of 8 tensors, from Python, on 2 ranks, in us (AMD EPYC, two cores that other programs use
// too):
//   bytes of each   4 Ki  16 Ki  64 Ki  128 Ki  256 Ki
//   packed            24     32     65     139     312
//   one by one       162    164    189     220     291
constexpr std::uint64_t kAloneBytes = 128 << 10;
constexpr std::uint64_t kPackBytes = 1 << 20;

std::uint64_t bytes_of(const Tensor& tensor) noexcept {
  return tensor.count * size_of(tensor.dtype);
}

// The addresses [begin, end) of the source or destination of a tensor.
struct Span {
  std::uintptr_t begin, end;
  std::size_t number;  // the index of the tensor in the list of tensors
  bool operator<(const Span& other) const noexcept { return begin < other.begin; }
};

Span span_of(const void* data, const Tensor& tensor, std::size_t number) noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {begin, begin + bytes_of(tensor), number};
}

// Check that no result overlaps the result or the source of another tensor. If two results overlap,
// one of them is lost. If a result overlaps the source of another tensor, elements that are already
// reduced may be reduced again.
void check_disjoint(Kind kind, const std::vector<Tensor>& tensors) {
  const auto check_pair = [&](const Span& a, const Span& b) {
    if (a.number != b.number && a.begin < b.end && b.begin < a.end)
      fail(ErrorKind::InvalidArgument, name_of(kind),
           ": expected separate memory for each array of the list; numbers ",
           std::min(a.number, b.number), " and ", std::max(a.number, b.number), " overlap");
  };
  std::vector<Span> results;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].count > 0) results.push_back(span_of(tensors[i].destination, tensors[i], i));
  std::sort(results.begin(), results.end());
  for (std::size_t i = 1; i < results.size(); ++i) check_pair(results[i - 1], results[i]);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].count == 0) continue;
    const Span source = span_of(tensors[i].source, tensors[i], i);
    auto candidate = std::upper_bound(results.begin(), results.end(), source);
    // `candidate` is the first result that begins after the begin of the source. The result before
    // it may overlap the source too.
    if (candidate != results.begin()) --candidate;
    for (; candidate != results.end() && candidate->begin < source.end; ++candidate)
      check_pair(source, *candidate);
  }
}

}  // namespace

Grouped::Grouped(Communicator& communicator, const Collective& pattern,
                 const std::vector<Tensor>& tensors)
    : communicator_(communicator), pattern_(pattern) {
  check(pattern.kind == Kind::AllReduce || pattern.kind == Kind::Broadcast, name_of(pattern.kind),
        ": grouped submission is for all_reduce and broadcast");
  for (const Tensor& tensor : tensors) {
    pattern_.dtype = tensor.dtype;
    pattern_.count = tensor.count;
    validate(pattern_, communicator.rank(), communicator.size());
  }
  check_disjoint(pattern.kind, tensors);
  describe_list(tensors);
  plan(tensors);
  // Allocate the memory of all packs (the tensors of one collective) before the first collective
  // starts. If an allocation fails, no collective has started.
  for (Pack& pack : packs_)
    if (pack.tensors.size() > 1)
      pack.block = std::make_unique_for_overwrite<std::byte[]>(pack.count * size_of(pack.dtype));
  for (Pack& pack : packs_) start(pack);
}

Grouped::~Grouped() {
  if (!mpi_holds_memory()) return;
  for (Pack& pack : packs_) static_cast<void>(pack.block.release());
}

// Set layout_ to the layout of the list `tensors`: the element count, dtype and shape of each
// tensor. The ranks compare the hash of layout_, so that a rank with another list gets a
// CollectiveMismatch. For a list of one tensor, layout_ has only the hash of the shape, because
// every collective compares its own element count and dtype.
void Grouped::describe_list(const std::vector<Tensor>& tensors) {
  std::vector<std::uint64_t> layouts;
  for (const Tensor& tensor : tensors) {
    entries_.push_back(entry_of(tensor.dtype, tensor.count));
    layouts.push_back(tensor.layout);
  }
  layout_ = layout_of_list(entries_, layouts);
  if (tensors.size() == 1) layout_ = {Layout::Of::Shape, layouts.front()};
  pattern_.layout = layout_.hash == 0 ? nullptr : &layout_;
}

// Divide the tensors into packs: the tensors of a pack are sent in one collective. In the order of
// the list, each small tensor is added to the last pack of its dtype, until this pack is full. The
// packs depend only on dtypes and counts, so all ranks make the same packs.
void Grouped::plan(const std::vector<Tensor>& tensors) {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::array<std::size_t, kDTypeCount> open;
  open.fill(kNone);
  for (const Tensor& tensor : tensors) {
    const bool is_large = bytes_of(tensor) > kAloneBytes;
    std::size_t& index = open[static_cast<std::size_t>(tensor.dtype)];
    if (is_large || index == kNone ||
        packs_[index].count * size_of(tensor.dtype) + bytes_of(tensor) > kPackBytes) {
      if (!is_large) index = packs_.size();
      packs_.emplace_back().dtype = tensor.dtype;
    }
    Pack& pack = is_large ? packs_.back() : packs_[index];
    pack.count += tensor.count;
    pack.tensors.push_back(tensor);
  }
}

void Grouped::start(Pack& pack) {
  pattern_.dtype = pack.dtype;
  pattern_.count = pack.count;
  if (pack.tensors.size() == 1) {
    pattern_.source = pack.tensors.front().source;
    pattern_.destination = pack.tensors.front().destination;
  } else {
    pattern_.source = pattern_.destination = pack.block.get();
    const bool is_sender =
        pattern_.kind != Kind::Broadcast || pattern_.root == communicator_.rank();
    std::byte* to = pack.block.get();
    for (const Tensor& tensor : pack.tensors) {
      if (is_sender && tensor.count > 0) std::memcpy(to, tensor.source, bytes_of(tensor));
      to += bytes_of(tensor);
    }
  }
  const bool is_first = &pack == &packs_.front();
  pack.work = is_first ? communicator_.submit(pattern_)
                       : submit_retrying(communicator_, pattern_, config::timeout_seconds());
}

void Grouped::unpack(Pack& pack) {
  const std::byte* from = pack.block.get();
  if (from == nullptr) return;
  for (const Tensor& tensor : pack.tensors) {
    if (tensor.count > 0) std::memcpy(tensor.destination, from, bytes_of(tensor));
    from += bytes_of(tensor);
  }
  pack.block.reset();
}

template <class Limits>
Progress Grouped::try_wait(Limits&& limits) {
  for (; finished_ < packs_.size(); ++finished_) {
    const Progress progress = communicator_.try_wait(packs_[finished_].work, limits());
    if (progress != Progress::Done) return progress;
    unpack(packs_[finished_]);
  }
  return Progress::Done;
}

void Grouped::wait(double timeout_seconds) {
  const auto limits = [&] { return WaitLimits{timeout_seconds}; };
  if (try_wait(limits) == Progress::Busy) throw_busy();
}

void Grouped::wait_retrying(double timeout_seconds) {
  const auto limits = [&] { return WaitLimits{timeout_seconds}; };
  static_cast<void>(
      retry_while_busy(communicator_, timeout_seconds, [&] { return try_wait(limits); }));
}

bool Grouped::wait_for(double seconds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(std::min(seconds, 1e9)));
  const Progress progress = try_wait([&] {
    const double left = std::chrono::duration<double>(end - Clock::now()).count();
    return WaitLimits::patience(std::max(left, 0.0));
  });
  if (progress == Progress::Busy) throw_busy();
  return progress == Progress::Done;
}

}  // namespace ngd::comm
