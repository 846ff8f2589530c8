// SPDX-License-Identifier: Apache-2.0
// See xla.hpp. XLA declares its interface in xla/ffi/api/c_api.h, version 0.3, which jaxlib ships.
// The structures below are those parts of it that a handler of the CPU reads. Each begins with its
// size, and grows at its end alone; so they fit later versions, too.
#include "bridges/xla.hpp"

#include <pthread.h>

#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "comm/collective.hpp"

namespace ngd::bridges {

namespace {

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};
constexpr int kMetadata = 1;

struct Version {
  std::size_t struct_size;
  Extension* extension_start;
  int major, minor;
};
struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct ErrorArguments {
  std::size_t struct_size;
  Extension* extension_start;
  const char* message;
  int code;
};
constexpr int kInternal = 13;  // XLA_FFI_Error_Code_INTERNAL

struct FutureArguments {
  std::size_t struct_size;
  Extension* extension_start;
  void* future;
};
struct FailedFutureArguments {
  std::size_t struct_size;
  Extension* extension_start;
  void *future, *error;  // XLA frees the error
};

struct Api {
  std::size_t struct_size;
  Extension* extension_start;
  Version version;
  const void* internal;
  void* (*create_error)(ErrorArguments*);
  const void* others[12];
  void* (*create_future)(FutureArguments*);  // these three give an error, or null
  void* (*complete)(FutureArguments*);
  void* (*complete_with_error)(FailedFutureArguments*);
};

struct Buffer {
  std::size_t struct_size;
  Extension* extension_start;
  int dtype;
  void* data;
  std::int64_t rank;
  const std::int64_t* extents;
};
struct Operands {
  std::size_t struct_size;
  Extension* extension_start;
  std::int64_t size;
  const int* types;
  Buffer* const* buffers;
};

struct Span {
  const char* data;
  std::size_t size;
};
struct Scalar {
  int dtype;
  const void* value;
};
constexpr int kScalarAttribute = 3, kStringAttribute = 4;
constexpr int kInt64 = 5;  // XLA_FFI_DataType_S64
struct Attributes {
  std::size_t struct_size;
  Extension* extension_start;
  std::int64_t size;
  const int* types;
  const Span* const* names;
  const void* const* values;
};

struct Call {
  std::size_t struct_size;
  Extension* extension_start;
  const Api* api;
  void* context;
  int stage;
  Operands operands, results;
  Attributes attributes;
  void* future;  // ours to set: the results are there when it is complete
};

// What calls refer to. It is never destroyed: XLA's threads, and ours, may make a call while the
// process ends.
struct Known {
  std::mutex guard;
  std::vector<comm::Communicator*> groups;
  std::set<std::string, std::less<>> sites;
};
Known& known() {
  static Known& all = *new Known;
  return all;
}

// A call site, for as long as the process lives.
const char* interned(std::string_view site) {
  const std::scoped_lock lock(known().guard);
  return known().sites.emplace(site).first->c_str();
}

comm::Communicator& group_of(std::int64_t number) {
  const std::scoped_lock lock(known().guard);
  return *known().groups.at(static_cast<std::size_t>(number));
}

DType dtype_of(int theirs) {
  switch (theirs) {  // XLA_FFI_DataType
    case 1:
      return DType::Bool;
    case 2:
      return DType::I8;
    case 3:
      return DType::I16;
    case 4:
      return DType::I32;
    case 5:
      return DType::I64;
    case 6:
      return DType::U8;
    case 7:
      return DType::U16;
    case 8:
      return DType::U32;
    case 9:
      return DType::U64;
    case 10:
      return DType::F16;
    case 11:
      return DType::F32;
    case 12:
      return DType::F64;
    case 16:
      return DType::BF16;
  }
  fail(ErrorKind::InvalidArgument, "ngd.jax: no collective takes elements of XLA's type ", theirs);
}

std::uint64_t elements(const Buffer& buffer) {
  std::uint64_t count = 1;
  for (std::int64_t axis = 0; axis < buffer.rank; ++axis)
    count *= static_cast<std::uint64_t>(buffer.extents[axis]);
  return count;
}

// What a call asks for. XLA keeps what the pointers point to until the call is complete.
struct Request {
  comm::Communicator* group = nullptr;
  comm::Collective collective;
  Buffer result{}, token{}, after{};
  bool asynchronous = false;
};

std::int64_t integer_of(std::string_view name, const Scalar& scalar) {
  if (scalar.dtype != kInt64)
    fail(ErrorKind::Internal, "ngd.jax: attribute '", name, "': expected an int64; got XLA's type ",
         scalar.dtype);
  return *static_cast<const std::int64_t*>(scalar.value);
}

void read_attributes(const Attributes& attributes, Request& request) {
  for (std::int64_t i = 0; i < attributes.size; ++i) {
    const std::string_view name(attributes.names[i]->data, attributes.names[i]->size);
    const void* value = attributes.values[i];
    if (attributes.types[i] == kStringAttribute) {
      const auto& span = *static_cast<const Span*>(value);
      const std::string_view text(span.data, span.size);
      if (name == "kind") request.collective.kind = comm::kind_named(text);
      if (name == "op") request.collective.op = comm::reduce_op_named(text);
      if (name == "site") request.collective.site = interned(text);
    } else if (attributes.types[i] == kScalarAttribute) {
      const std::int64_t n = integer_of(name, *static_cast<const Scalar*>(value));
      if (name == "group") request.group = &group_of(n);
      if (name == "root") request.collective.root = static_cast<int>(n);
      if (name == "tag") request.collective.tag = static_cast<int>(n);
      if (name == "asynchronous") request.asynchronous = n != 0;
    }
  }
}

// Reads the group first, so that its ranks can be notified if the rest is wrong.
void read(const Call& call, Request& request) {
  read_attributes(call.attributes, request);
  if (call.operands.size != 2 || call.results.size != 2)
    fail(ErrorKind::Internal, "ngd.jax: a call with other operands than it was registered for");
  if (request.group == nullptr) fail(ErrorKind::Internal, "ngd.jax: a call without a group");
  const Buffer& operand = *call.operands.buffers[0];
  request.result = *call.results.buffers[0];
  request.token = *call.operands.buffers[1];
  request.after = *call.results.buffers[1];
  comm::Collective& collective = request.collective;
  const auto gives = comm::row_of(collective.kind).source;
  const Buffer& counted = gives == comm::Part::Nothing ? request.result : operand;
  collective.dtype = dtype_of(counted.dtype);
  collective.count = elements(counted);
  const int size = request.group->size();
  if (gives == comm::Part::Blocks) collective.count /= static_cast<std::uint64_t>(size);
  if (gives != comm::Part::Nothing) collective.source = operand.data;
  if (collective.kind != comm::Kind::Send) collective.destination = request.result.data;
  comm::validate(collective, request.group->rank(), size);
}

void run(const Request& request) {
  const double timeout_seconds = config::timeout_seconds();
  comm::Communicator& group = *request.group;
  group.finish(group.submit_next(request.collective, timeout_seconds), timeout_seconds);
  if (request.collective.kind == comm::Kind::Send)
    std::memset(request.result.data, 0, size_of(request.collective.dtype));
  if (request.after.data != request.token.data)
    std::memcpy(request.after.data, request.token.data, sizeof(std::int32_t));
}

// A rank that fails before its collective has begun has left the ranks' common sequence: its next
// call would meet this one of theirs. A group that has failed already stays as it is.
void tell_group(const Request& request, const char* message) noexcept {
  if (request.group != nullptr) return request.group->abort(message);
  const std::scoped_lock lock(known().guard);
  for (comm::Communicator* each : known().groups) each->abort(message);
}

void* error_of(const Api& api, const char* message) {
  ErrorArguments arguments{sizeof(ErrorArguments), nullptr, message, kInternal};
  return api.create_error(&arguments);
}

// Runs calls while XLA goes on, one after the other: in a program, each takes the token of the one
// before. Its thread lives as long as the process, and so does this.
class Background {
 public:
  static Background& get() {
    static Background* const background = new Background;
    return *background;
  }

  struct Pending {
    Request request;
    const Api* api;
    void* future;
  };

  // Takes the one call of the list. Asks for no memory: its future must be completed.
  void add(std::list<Pending>&& call) noexcept {
    {
      const std::scoped_lock lock(guard_);
      calls_.splice(calls_.end(), call);
    }
    arrived_.notify_one();
  }

 private:
  Background() {
    sigset_t all, before;  // signals are for the threads of Python
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct Restore {
      const sigset_t& mask;
      ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } restore{before};
    std::thread([this] { serve(); }).detach();
  }

  [[noreturn]] void serve() {
    for (;;) {
      std::unique_lock lock(guard_);
      arrived_.wait(lock, [this] { return !calls_.empty(); });
      std::list<Pending> next;
      next.splice(next.end(), calls_, calls_.begin());
      lock.unlock();
      complete(next.front());
    }
  }

  static void complete(const Pending& call) {
    try {
      run(call.request);
    } catch (const std::exception& error) {
      tell_group(call.request, error.what());
      FailedFutureArguments arguments{sizeof(FailedFutureArguments), nullptr, call.future,
                                      error_of(*call.api, error.what())};
      call.api->complete_with_error(&arguments);
      return;
    }
    FutureArguments arguments{sizeof(FutureArguments), nullptr, call.future};
    call.api->complete(&arguments);
  }

  std::mutex guard_;
  std::condition_variable arrived_;
  std::list<Pending> calls_;
};

// Sets the call's future; false if this XLA has none, or a forked child has no thread for it. All
// that may fail comes before the future: XLA waits for a future even if the call is an error.
bool run_in_background(const Request& request, Call& call) {
  const Api& api = *call.api;
  if (api.struct_size < sizeof(Api) || request.group->in_child()) return false;
  Background& background = Background::get();
  std::list<Background::Pending> pending{{request, &api, nullptr}};
  FutureArguments arguments{sizeof(FutureArguments), nullptr, nullptr};
  if (api.create_future(&arguments) != nullptr)
    fail(ErrorKind::Internal, "ngd.jax: XLA has made no future");
  pending.front().future = call.future = arguments.future;
  background.add(std::move(pending));
  return true;
}

extern "C" void* handle(Call* call) {
  for (Extension* each = call->extension_start; each != nullptr; each = each->next)
    if (each->type == kMetadata) {  // asked when it is registered
      Metadata& metadata = *reinterpret_cast<MetadataExtension*>(each)->metadata;
      metadata.version.major = 0;
      metadata.version.minor = 1;
      metadata.traits = 0;
      return nullptr;
    }
  Request request;
  try {
    read(*call, request);
    if (!request.asynchronous || !run_in_background(request, *call)) run(request);
    return nullptr;
  } catch (const std::exception& error) {
    tell_group(request, error.what());
    return error_of(*call->api, error.what());
  }
}

}  // namespace

std::int64_t enlist(comm::Communicator& group) {
  const std::scoped_lock lock(known().guard);
  known().groups.push_back(&group);
  return static_cast<std::int64_t>(known().groups.size()) - 1;
}

std::uintptr_t xla_handler() noexcept { return reinterpret_cast<std::uintptr_t>(&handle); }

}  // namespace ngd::bridges
