// SPDX-License-Identifier: Apache-2.0
// See xla.hpp. XLA declares its interface in xla/ffi/api/c_api.h, version 0.3, which jaxlib ships.
// The structures below are those parts of it that a handler of the CPU reads. Each begins with its
// size, and grows at its end alone; so they fit later versions, too.
#include "bridges/xla.hpp"

#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
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

struct Api {
  std::size_t struct_size;
  Extension* extension_start;
  Version version;
  const void* internal;
  void* (*create_error)(ErrorArguments*);
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
};

std::mutex guard;
std::vector<comm::Communicator*> groups;
std::set<std::string, std::less<>> sites;

// A call site, for as long as the process lives.
const char* interned(std::string_view site) {
  const std::scoped_lock lock(guard);
  return sites.emplace(site).first->c_str();
}

comm::Communicator& group_of(std::int64_t number) {
  const std::scoped_lock lock(guard);
  return *groups.at(static_cast<std::size_t>(number));
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

void run(const Call& call) {
  if (call.operands.size != 2 || call.results.size != 2)
    fail(ErrorKind::Internal, "ngd.jax: a call with other operands than it was registered for");
  comm::Collective collective;
  std::int64_t number = -1;
  for (std::int64_t i = 0; i < call.attributes.size; ++i) {
    const std::string_view name(call.attributes.names[i]->data, call.attributes.names[i]->size);
    const void* value = call.attributes.values[i];
    if (call.attributes.types[i] == kStringAttribute) {
      const auto& span = *static_cast<const Span*>(value);
      const std::string_view text(span.data, span.size);
      if (name == "kind") collective.kind = comm::kind_named(text);
      if (name == "op") collective.op = comm::reduce_op_named(text);
      if (name == "site") collective.site = interned(text);
    } else if (call.attributes.types[i] == kScalarAttribute) {
      const auto n = *static_cast<const std::int64_t*>(static_cast<const Scalar*>(value)->value);
      if (name == "group") number = n;
      if (name == "root") collective.root = static_cast<int>(n);
    }
  }
  comm::Communicator& group = group_of(number);
  const Buffer &source = *call.operands.buffers[0], &token = *call.operands.buffers[1];
  const Buffer &destination = *call.results.buffers[0], &after = *call.results.buffers[1];
  collective.dtype = dtype_of(source.dtype);
  collective.count = elements(source);
  const auto part = comm::row_of(collective.kind).source;
  if (part == comm::Part::Blocks) collective.count /= static_cast<std::uint64_t>(group.size());
  collective.source = source.data;
  collective.destination = destination.data;
  comm::validate(collective, group.rank(), group.size());
  const double timeout_seconds = config::timeout_seconds();
  group.finish(group.submit_next(collective, timeout_seconds), timeout_seconds);
  if (after.data != token.data) std::memcpy(after.data, token.data, sizeof(std::int32_t));
}

void* failed(const Call& call, const char* message) {
  ErrorArguments arguments{sizeof(ErrorArguments), nullptr, message, kInternal};
  return call.api->create_error(&arguments);
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
  try {
    run(*call);
    return nullptr;
  } catch (const std::exception& error) {
    return failed(*call, error.what());
  }
}

}  // namespace

std::int64_t enlist(comm::Communicator& group) {
  const std::scoped_lock lock(guard);
  groups.push_back(&group);
  return static_cast<std::int64_t>(groups.size()) - 1;
}

std::uintptr_t xla_handler() noexcept { return reinterpret_cast<std::uintptr_t>(&handle); }

}  // namespace ngd::bridges
