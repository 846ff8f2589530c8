// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "base/step.hpp"
#include "comm/messages.hpp"

namespace ngd::comm::shm {

namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kSmallest = std::size_t{256} << 20;

bool address_space_holds(std::size_t bytes) {
  void* base =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return false;
  ::munmap(base, bytes);
  return true;
}

std::size_t fitting_bytes(int size) {
  const auto pages = static_cast<std::size_t>(std::max(0l, ::sysconf(_SC_PHYS_PAGES)));
  const std::size_t physical = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::size_t bytes = std::max(4 * kGiB, round_up(physical, kGiB));
  while (!address_space_holds(bytes * static_cast<std::size_t>(size))) {
    if (bytes / 2 < kSmallest)
      fail(ErrorKind::OutOfMemory, "no address space for the shared memory of ", size, " ranks (",
           bytes >> 20, " MiB each): raise RLIMIT_AS (ulimit -v)");
    bytes = round_up(bytes / 2, 64 << 10);
  }
  return bytes;
}

class ProcessMemory final : public Memory {
 public:
  ProcessMemory(std::vector<Mapping> mappings, Descriptor own)
      : mappings_(std::move(mappings)), own_(std::move(own)) {}

  Segment segment(int rank) const noexcept override {
    const Mapping& mapping = mappings_[static_cast<std::size_t>(rank)];
    return {mapping.base(), mapping.bytes()};
  }

  void commit(std::size_t offset, std::size_t bytes) override {
    int result = 0;
    do {
      result = ::fallocate(own_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result != 0)
      fail(ErrorKind::OutOfMemory, "no memory for ", bytes,
           " bytes of the shared lane: ", error_text(errno));
  }

 private:
  std::vector<Mapping> mappings_;
  Descriptor own_;
};

}  // namespace

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
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fail(ErrorKind::OutOfMemory, "no shared memory segment of ", bytes >> 20,
         " MiB: ", error_text(errno), errno == EFBIG ? ": raise RLIMIT_FSIZE (ulimit -f)" : "");
  return fd;
}

Mapping map_segment(const Descriptor& fd) {
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) < kHeapOffset ||
      (::fcntl(fd.get(), F_GET_SEALS) & F_SEAL_SHRINK) == 0)
    fail(ErrorKind::Init, "what a rank sent as its segment is none");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* base =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED)
    fail(ErrorKind::OutOfMemory, "a segment of ", bytes >> 20,
         " MiB cannot be mapped: ", error_text(errno));
  ::madvise(base, bytes, MADV_DONTDUMP);
  return Mapping(base, bytes);
}

void found(Memory& memory, int rank, int size, int node) {
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

void note_failure(RankRecord& mine, ErrorKind kind, const std::string& message) noexcept {
  const std::string_view kept = tail_of(message, kErrorBytes);  // a traceback's end says most
  std::copy(kept.begin(), kept.end(), mine.error_text);
  mine.error_length = static_cast<std::uint32_t>(kept.size());
  mine.error_kind = static_cast<std::uint32_t>(kind);
  protocol_step();
  mine.state.store(State::Failed);
  protocol_step();
}

std::unique_ptr<Memory> make_process_memory(std::vector<Mapping> mappings, Descriptor own) {
  return std::make_unique<ProcessMemory>(std::move(mappings), std::move(own));
}

}  // namespace ngd::comm::shm
