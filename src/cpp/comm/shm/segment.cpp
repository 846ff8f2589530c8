// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "base/step.hpp"
#include "comm/messages.hpp"
#include "comm/shm/headroom.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kSmallest = std::size_t{256} << 20;
// Other ranks may allocate memory between a rank's check of the headroom (the free memory) and its
// allocation. To keep this time short, a rank allocates in pieces of this size, and checks the
// headroom before each piece.
constexpr std::size_t kPiece = std::size_t{4} << 20;
constexpr std::size_t kReserve = std::size_t{16} << 20;
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // from linux/mman.h, since Linux 5.14
#endif

// Return true if this process can map `bytes` bytes of contiguous address space now.
bool address_space_holds(std::size_t bytes) {
  void* base =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return false;
  ::munmap(base, bytes);
  return true;
}

// Throw OutOfMemory: `bytes` bytes cannot be mapped. `error`: the errno.
[[noreturn]] void fail_to_map(std::size_t bytes, int error) {
  const std::string limit = address_space_limit(bytes);
  fail(ErrorKind::OutOfMemory, "ngd.init: expected address space for ", bytes >> 20,
       " MiB of shared memory; got: ", error_text(error), ". ",
       limit.empty() ? "Start fewer ranks on this host" : limit);
}

// Return the size of a segment in bytes, by the rule in segment.hpp (create_segment()). `size`: the
// number of ranks on this host, each with one segment.
std::size_t fitting_bytes(int size) {
  const auto pages = static_cast<std::size_t>(std::max(0l, ::sysconf(_SC_PHYS_PAGES)));
  const std::size_t physical = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::size_t bytes = std::max(4 * kGiB, round_up(physical, kGiB));
  while (!address_space_holds(bytes * static_cast<std::size_t>(size))) {
    if (bytes / 2 < kSmallest) fail_to_map(bytes * static_cast<std::size_t>(size), ENOMEM);
    bytes = round_up(bytes / 2, 64 << 10);
  }
  return bytes;
}

class ProcessMemory final : public Memory {
 public:
  ProcessMemory(std::vector<Mapping> mappings, int rank, std::vector<KeptDescriptor> descriptors)
      : mappings_(std::move(mappings)),
        own_base_(mappings_[static_cast<std::size_t>(rank)].base()),
        rank_(rank),
        descriptors_(std::move(descriptors)) {}

  Segment segment(int rank) const noexcept override {
    const Mapping& mapping = mappings_[static_cast<std::size_t>(rank)];
    return {mapping.base(), mapping.bytes()};
  }

  int descriptor(int rank) const noexcept override {
    return descriptors_[static_cast<std::size_t>(rank)].get();
  }

  void commit(std::size_t offset, std::size_t bytes) override {
    const std::size_t end = offset + bytes;
    for (std::size_t at = offset; at < end; at += kPiece) {
      try {
        commit_piece(at, std::min(kPiece, end - at));
      } catch (const Error&) {
        ::madvise(own_base_ + offset, at - offset, MADV_REMOVE);
        throw;
      }
    }
  }

 private:
  // Allocate the pages of a range and map them, after a check that there is enough memory. Pages of
  // a memfd that no process has mapped count as memory of the cgroup, but not of a process. If such
  // pages fill the cgroup, the kernel kills another process, such as the launcher, and that frees
  // none of the pages. So they are mapped when they are allocated (Linux 5.14 and later).
  void commit_piece(std::size_t offset, std::size_t bytes) {
    const Headroom available = headroom();
    if (available.bytes < bytes + kReserve)
      fail(ErrorKind::OutOfMemory, "no memory for ", bytes,
           " more bytes of the shared arena: ", available.limit, " has ", available.bytes >> 20,
           " MiB left, of which ", kReserve >> 20, " are kept free");
    int result = 0;
    do {
      result = ::madvise(own_base_ + offset, bytes, MADV_POPULATE_WRITE);
    } while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EINVAL) result = allocate(offset, bytes);
    if (result != 0)
      fail(ErrorKind::OutOfMemory, "no memory for ", bytes,
           " bytes of the shared arena: ", error_text(errno));
  }

  // Allocate pages on kernels before Linux 5.14. Return 0, or -1 with the reason in errno.
  int allocate(std::size_t offset, std::size_t bytes) {
    const int fd = descriptor(rank_);
    if (fd < 0)
      fail(ErrorKind::OutOfMemory, "no memory for ", bytes,
           " bytes of the shared arena: this process has closed the descriptor of its segment");
    int result = 0;
    do {
      result = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    return result;
  }

  std::vector<Mapping> mappings_;
  std::byte* own_base_;
  int rank_;
  std::vector<KeptDescriptor> descriptors_;
};

}  // namespace

RankSet set_of(std::span<const int> ranks) noexcept {
  RankSet set;
  for (const int rank : ranks)
    if (rank >= 0 && rank < kMaxRanks) set[static_cast<std::size_t>(rank)] = true;
  return set;
}

std::vector<int> ranks_of(const RankSet& set) {
  std::vector<int> ranks;
  for (int rank = 0; rank < kMaxRanks; ++rank)
    if (set[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  return ranks;
}

std::uint64_t Segment::offset_of(const void* pointer, std::size_t bytes) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto begin = reinterpret_cast<std::uintptr_t>(base_) + kHeapOffset;
  const auto end = reinterpret_cast<std::uintptr_t>(base_) + bytes_;
  if (address < begin || address > end || bytes > end - address) return kPrivate;
  return address - reinterpret_cast<std::uintptr_t>(base_);
}

Descriptor create_segment(int size) {
  const std::size_t bytes = fitting_bytes(size);
  Descriptor fd(::memfd_create("ngd", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() && errno == EMFILE) fail(ErrorKind::Init, "ngd.init: ", error_text(EMFILE));
  const auto resized = [&] {
    int result = 0;
    do {
      result = ::ftruncate(fd.get(), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    return result == 0;
  };
  if (!fd.valid() || !resized() ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fail(ErrorKind::OutOfMemory, "cannot make a shared memory segment of ", bytes >> 20,
         " MiB: ", error_text(errno), errno == EFBIG ? ": raise RLIMIT_FSIZE (ulimit -f)" : "");
  return fd;
}

Mapping map_segment(const Descriptor& fd, int job_rank) {
  struct stat status{};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);  // -1 if it is not a memfd
  if (::fstat(fd.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) < kHeapOffset ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    fail_of({job_rank}, ErrorKind::Init, "ngd.init: expected rank ", job_rank,
            " to send a file descriptor of shared memory; got one of another file. Start the job "
            "again, with one version of ngd on all ranks");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* base =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) fail_to_map(bytes, errno);
  ::madvise(base, bytes, MADV_DONTDUMP);
  return Mapping(base, bytes);
}

void initialise_segment(Memory& memory, int rank, int size, int node) {
  memory.commit(0, kHeapOffset);
  RankRecord& record = memory.segment(rank).record();
  record.magic = kMagic;
  record.version = kLayoutVersion;
  record.rank = rank;
  record.size = size;
  record.pid = ::getpid();
  record.node = node;
  protocol_step();
  record.state.store(State::Running);
  protocol_step();
}

void note_failure(RankRecord& mine, ErrorKind kind, std::string_view message,
                  std::span<const int> ranks) noexcept {
  const std::string_view excerpt =
      tail_of(message, kErrorBytes);  // the end of a traceback is the most useful part
  std::copy(excerpt.begin(), excerpt.end(), mine.error_text);
  mine.error_length = static_cast<std::uint32_t>(excerpt.size());
  mine.error_kind = static_cast<std::uint32_t>(kind);
  const std::size_t num_ranks = std::min(ranks.size(), std::size(mine.error_ranks));
  std::copy_n(ranks.begin(), num_ranks, mine.error_ranks);
  mine.num_error_ranks = static_cast<std::uint32_t>(num_ranks);
  protocol_step();
  mine.state.store(State::Failed);
  protocol_step();
}

std::vector<int> error_ranks_of(const RankRecord& record) {
  const auto num_ranks = std::min<std::size_t>(record.num_error_ranks, kMaxRanks);
  return {record.error_ranks, record.error_ranks + num_ranks};
}

void note_wait(RankRecord& mine, std::string_view what) noexcept {
  std::array<char, kWaitWords * sizeof(std::uint64_t)> text{};
  const std::string_view excerpt = head_of(what, text.size());
  std::copy(excerpt.begin(), excerpt.end(), text.begin());
  mine.wait_version.fetch_add(1);
  for (std::size_t i = 0; i < kWaitWords; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + i * sizeof word, sizeof word);
    mine.wait_text[i].store(word);
  }
  mine.wait_version.fetch_add(1);
}

std::string noted_wait(const RankRecord& record) {
  std::array<char, kWaitWords * sizeof(std::uint64_t)> text{};
  const std::uint64_t version = record.wait_version.load();
  for (std::size_t i = 0; i < kWaitWords; ++i) {
    const std::uint64_t word = record.wait_text[i].load();
    std::memcpy(text.data() + i * sizeof word, &word, sizeof word);
  }
  if (version % 2 != 0 || version != record.wait_version.load()) return "";
  return {text.begin(), std::find(text.begin(), text.end(), '\0')};
}

std::unique_ptr<Memory> make_process_memory(std::vector<Mapping> mappings, int rank,
                                            std::vector<KeptDescriptor> descriptors) {
  return std::make_unique<ProcessMemory>(std::move(mappings), rank, std::move(descriptors));
}

}  // namespace ngd::comm::shm
