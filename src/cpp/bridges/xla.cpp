// SPDX-License-Identifier: Apache-2.0
#include "bridges/xla.hpp"

#include <pthread.h>

#include <condition_variable>
#include <csignal>
#include <cstdint>
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
#include "bridges/xla_ffi.hpp"
#include "comm/collective.hpp"
#include "comm/retry.hpp"

namespace ngd::bridges {

using namespace xla_ffi;

namespace {

// The groups and call sites of the collectives that XLA calls. A call names its group by the index
// in `groups`, and points to the text of its call site in `sites`: the line of the user's program
// that calls the collective. The object is never destroyed, because threads of XLA and of this file
// may make a call while the process ends.
struct Registry {
  std::mutex guard;
  std::vector<comm::Communicator*> groups;
  std::set<std::string, std::less<>> sites;
};
Registry& registry() {
  static Registry& all = *new Registry;
  return all;
}

// Return a copy of the text of a call site (file and line of a collective). The copy exists until
// the process ends, because a Collective has only a pointer to it.
const char* intern(std::string_view site) {
  const std::scoped_lock lock(registry().guard);
  return registry().sites.emplace(site).first->c_str();
}

// Return the group with this index in Registry::groups. Throws std::out_of_range for other numbers.
comm::Communicator& group_of(std::int64_t number) {
  const std::scoped_lock lock(registry().guard);
  return *registry().groups.at(static_cast<std::size_t>(number));
}

// Return the dtype for a type of XLA. Throws InvalidArgument for a type that ngd does not support.
DType dtype_of(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_PRED:
      return DType::Bool;
    case XLA_FFI_DataType_S8:
      return DType::I8;
    case XLA_FFI_DataType_S16:
      return DType::I16;
    case XLA_FFI_DataType_S32:
      return DType::I32;
    case XLA_FFI_DataType_S64:
      return DType::I64;
    case XLA_FFI_DataType_U8:
      return DType::U8;
    case XLA_FFI_DataType_U16:
      return DType::U16;
    case XLA_FFI_DataType_U32:
      return DType::U32;
    case XLA_FFI_DataType_U64:
      return DType::U64;
    case XLA_FFI_DataType_F16:
      return DType::F16;
    case XLA_FFI_DataType_F32:
      return DType::F32;
    case XLA_FFI_DataType_F64:
      return DType::F64;
    case XLA_FFI_DataType_BF16:
      return DType::BF16;
  }
  fail(ErrorKind::InvalidArgument, "ngd.jax: collectives do not support XLA's type ",
       static_cast<int>(type));
}

std::uint64_t elements(const XLA_FFI_Buffer& buffer) {
  std::uint64_t count = 1;
  for (std::int64_t axis = 0; axis < buffer.rank; ++axis)
    count *= static_cast<std::uint64_t>(buffer.dims[axis]);
  return count;
}

// One call by XLA: the collective to run, and the buffers. XLA keeps the memory of the pointers
// until the call is complete.
struct Request {
  comm::Communicator* group = nullptr;
  comm::Collective collective;
  XLA_FFI_Buffer result{}, token{}, next_token{};
  bool asynchronous = false;
};

// Return the value of attribute `name`. Throws Internal if it is not an int64.
std::int64_t integer_of(std::string_view name, const XLA_FFI_Scalar& scalar) {
  if (scalar.dtype != XLA_FFI_DataType_S64)
    fail(ErrorKind::Internal, "ngd.jax: attribute '", name, "': expected an int64; got XLA's type ",
         static_cast<int>(scalar.dtype));
  return *static_cast<const std::int64_t*>(scalar.value);
}

// Store the attributes of a call in `request`. Unknown names are ignored.
void read_attributes(const XLA_FFI_Attrs& attrs, Request& request) {
  for (std::int64_t i = 0; i < attrs.size; ++i) {
    const std::string_view name(attrs.names[i]->ptr, attrs.names[i]->len);
    const void* value = attrs.attrs[i];
    if (attrs.types[i] == XLA_FFI_AttrType_STRING) {
      const auto& span = *static_cast<const XLA_FFI_ByteSpan*>(value);
      const std::string_view text(span.ptr, span.len);
      if (name == "kind") request.collective.kind = comm::kind_named(text);
      if (name == "op") request.collective.op = comm::reduce_op_named(text);
      if (name == "site") request.collective.site = intern(text);
    } else if (attrs.types[i] == XLA_FFI_AttrType_SCALAR) {
      const std::int64_t n = integer_of(name, *static_cast<const XLA_FFI_Scalar*>(value));
      if (name == "group") request.group = &group_of(n);
      if (name == "root") request.collective.root = static_cast<int>(n);
      if (name == "tag") request.collective.tag = static_cast<int>(n);
      if (name == "asynchronous") request.asynchronous = n != 0;
    }
  }
}

// Read XLA's call frame into `request`. The attributes are read first, because they name the group.
// If the function then fails on the operands or results, the ranks of the group can be notified.
void read(const XLA_FFI_CallFrame& call, Request& request) {
  read_attributes(call.attrs, request);
  if (call.args.size != 2 || call.rets.size != 2)
    fail(
        ErrorKind::Internal,
        "ngd.jax: expected the operands and results that the call was registered with; got others");
  if (request.group == nullptr) fail(ErrorKind::Internal, "ngd.jax: a call without a group");
  const auto& operand = *static_cast<const XLA_FFI_Buffer*>(call.args.args[0]);
  request.result = *static_cast<const XLA_FFI_Buffer*>(call.rets.rets[0]);
  request.token = *static_cast<const XLA_FFI_Buffer*>(call.args.args[1]);
  request.next_token = *static_cast<const XLA_FFI_Buffer*>(call.rets.rets[1]);
  comm::Collective& collective = request.collective;
  const auto source_part = comm::row_of(collective.kind).source;
  const XLA_FFI_Buffer& sized_buffer =
      source_part == comm::Part::Nothing ? request.result : operand;
  collective.dtype = dtype_of(sized_buffer.dtype);
  collective.count = elements(sized_buffer);
  const int size = request.group->size();
  if (source_part == comm::Part::Blocks) collective.count /= static_cast<std::uint64_t>(size);
  if (source_part != comm::Part::Nothing) collective.source = operand.data;
  if (collective.kind != comm::Kind::Send) collective.destination = request.result.data;
  comm::validate(collective, request.group->rank(), size);
}

// Run the collective, and wait until it is complete. Then copy the token operand to the token
// result, which the next call takes. After a send, set the first element of the result to zero.
void run(const Request& request) {
  const double timeout_seconds = config::timeout_seconds();
  comm::Communicator& group = *request.group;
  const comm::Work work = comm::submit_retrying(group, request.collective, timeout_seconds);
  comm::wait_retrying(group, work, timeout_seconds);
  if (request.collective.kind == comm::Kind::Send)
    std::memset(request.result.data, 0, size_of(request.collective.dtype));
  if (request.next_token.data != request.token.data)
    std::memcpy(request.next_token.data, request.token.data, sizeof(std::int32_t));
}

// Notify the ranks of the call's group that this rank has failed, or the ranks of all groups if the
// call names no group. A notified group accepts no more calls. Without this, if the rank failed
// before its collective began, the other ranks would match the failed collective with the next one
// of this rank. If the group has failed already, the function does nothing.
void notify_group(const Request& request, const char* message) noexcept {
  if (request.group != nullptr) return request.group->abort(message);
  const std::scoped_lock lock(registry().guard);
  for (comm::Communicator* each : registry().groups) each->abort(message);
}

// Make the error object that the handler returns to XLA.
XLA_FFI_Error* error_of(const XLA_FFI_Api& api, const char* message) {
  XLA_FFI_Error_Create_Args args{sizeof args, nullptr, message, XLA_FFI_Error_Code_INTERNAL};
  return api.XLA_FFI_Error_Create(&args);
}

// A thread that runs asynchronous calls in the order in which XLA makes them. XLA makes the calls
// of one program in order, because each call takes the token of the previous one. The thread and
// this object exist until the process ends.
class Background {
 public:
  // Return the only object. The first call starts the thread.
  static Background& get() {
    static Background* const background = new Background;
    return *background;
  }

  struct Pending {
    Request request;
    const XLA_FFI_Api* api;
    XLA_FFI_Future* future;
  };

  // Append `call`, a list of exactly one call, to calls_, the calls that the background thread will
  // run. The function must not fail, because the call's future exists already and XLA waits for
  // this future. It allocates no memory: the list's node is moved.
  void add(std::list<Pending>&& call) noexcept {
    {
      const std::scoped_lock lock(guard_);
      calls_.splice(calls_.end(), call);
    }
    arrived_.notify_one();
  }

 private:
  Background() {
    sigset_t all, previous_mask;  // block all signals: Python's threads handle them
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous_mask);
    struct Restore {
      const sigset_t& mask;
      ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } restore{previous_mask};
    std::thread([this] { serve(); }).detach();
  }

  // The main function of the thread: run the calls, one at a time, without end.
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

  // Run a call, and complete its future. If the call fails, the future gets the error, and the
  // ranks of the group are notified.
  static void complete(const Pending& call) {
    try {
      run(call.request);
    } catch (const std::exception& error) {
      notify_group(call.request, error.what());
      XLA_FFI_Future_SetError_Args args{sizeof args, nullptr, call.future,
                                        error_of(*call.api, error.what())};
      call.api->XLA_FFI_Future_SetError(&args);
      return;
    }
    XLA_FFI_Future_SetAvailable_Args args{sizeof args, nullptr, call.future};
    call.api->XLA_FFI_Future_SetAvailable(&args);
  }

  std::mutex guard_;
  std::condition_variable arrived_;
  std::list<Pending> calls_;
};

// Create the call's future, append the call to the background thread, and return true. The thread
// completes the future when the call is done. Return false if this XLA has no futures, or in a
// forked child, which has no background thread: the caller then runs the call itself. All other
// steps that may fail come before the future is created, because XLA waits for a future even if the
// call returns an error.
bool run_in_background(const Request& request, XLA_FFI_CallFrame& call) {
  const XLA_FFI_Api& api = *call.api;
  if (!has_futures(api) || request.group->in_child()) return false;
  Background& background = Background::get();
  std::list<Background::Pending> pending{{request, &api, nullptr}};
  XLA_FFI_Future_Create_Args args{sizeof args, nullptr, nullptr};
  if (api.XLA_FFI_Future_Create(&args) != nullptr)
    fail(ErrorKind::Internal, "ngd.jax: XLA has not made a future");
  pending.front().future = call.future = args.future;
  background.add(std::move(pending));
  return true;
}

// If XLA only asks for the interface version of the handler, store the version in the call frame
// and return true. Otherwise, return false. XLA asks when the handler is registered.
bool answer_metadata(const XLA_FFI_CallFrame& call) {
  for (XLA_FFI_Extension_Base* each = call.extension_start; each != nullptr; each = each->next)
    if (each->type == XLA_FFI_Extension_Metadata) {
      XLA_FFI_Metadata& metadata = *reinterpret_cast<XLA_FFI_Metadata_Extension*>(each)->metadata;
      metadata.api_version.major_version = XLA_FFI_API_MAJOR;
      metadata.api_version.minor_version = XLA_FFI_API_MINOR;
      metadata.traits = 0;
      return true;
    }
  return false;
}

extern "C" XLA_FFI_Error* handle(XLA_FFI_CallFrame* call) {
  if (answer_metadata(*call)) return nullptr;
  Request request;
  try {
    read(*call, request);
    if (!request.asynchronous || !run_in_background(request, *call)) run(request);
    return nullptr;
  } catch (const std::exception& error) {
    notify_group(request, error.what());
    return error_of(*call->api, error.what());
  }
}

}  // namespace

std::int64_t register_group(comm::Communicator& group) {
  const std::scoped_lock lock(registry().guard);
  registry().groups.push_back(&group);
  return static_cast<std::int64_t>(registry().groups.size()) - 1;
}

std::uintptr_t xla_handler() noexcept { return reinterpret_cast<std::uintptr_t>(&handle); }

}  // namespace ngd::bridges
