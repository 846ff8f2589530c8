// SPDX-License-Identifier: Apache-2.0
// The part of XLA's foreign function interface that a handler on the CPU uses, with the names of
// xla/ffi/api/c_api.h, which jaxlib ships. ngd is built without jaxlib;
// tests/bridges/jax/test_xla_layout.py compares this file with the header of the installed jaxlib.
//
// Each structure begins with its size. A minor version of the interface may add members at the end
// of a structure, so code compares the size before it uses a member that an older XLA may not have.
// A major version may rearrange members, and XLA refuses handlers for another major version. The
// members below have the same offsets in jaxlib 0.5.0 to 0.10.2 (versions 0.1 to 0.3).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ngd::bridges::xla_ffi {

constexpr int XLA_FFI_API_MAJOR = 0;
constexpr int XLA_FFI_API_MINOR = 1;  // ngd's handler reports version 0.1 to XLA

struct XLA_FFI_Api;
struct XLA_FFI_Error;
struct XLA_FFI_ExecutionContext;
struct XLA_FFI_Future;
struct XLA_FFI_InternalApi;

enum XLA_FFI_Extension_Type : std::uint32_t { XLA_FFI_Extension_Metadata = 1 };

struct XLA_FFI_Extension_Base {
  std::size_t struct_size;
  XLA_FFI_Extension_Type type;
  XLA_FFI_Extension_Base* next;
};

struct XLA_FFI_Api_Version {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  int major_version;
  int minor_version;
};

// The version and the traits of a handler, which XLA asks for. XLA's structure has more members
// after these. They are left out, because the handler does not set them.
struct XLA_FFI_Metadata {
  std::size_t struct_size;
  XLA_FFI_Api_Version api_version;
  std::uint32_t traits;
};

struct XLA_FFI_Metadata_Extension {
  XLA_FFI_Extension_Base extension_base;
  XLA_FFI_Metadata* metadata;
};

enum XLA_FFI_Error_Code : std::uint32_t { XLA_FFI_Error_Code_INTERNAL = 13 };

struct XLA_FFI_Error_Create_Args {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  const char* message;
  XLA_FFI_Error_Code errc;
};

struct XLA_FFI_Future_Create_Args {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_Future* future;  // out
};

struct XLA_FFI_Future_SetAvailable_Args {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_Future* future;
};

struct XLA_FFI_Future_SetError_Args {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_Future* future;
  XLA_FFI_Error* error;  // XLA frees it
};

enum XLA_FFI_DataType : std::uint32_t {
  XLA_FFI_DataType_PRED = 1,
  XLA_FFI_DataType_S8 = 2,
  XLA_FFI_DataType_S16 = 3,
  XLA_FFI_DataType_S32 = 4,
  XLA_FFI_DataType_S64 = 5,
  XLA_FFI_DataType_U8 = 6,
  XLA_FFI_DataType_U16 = 7,
  XLA_FFI_DataType_U32 = 8,
  XLA_FFI_DataType_U64 = 9,
  XLA_FFI_DataType_F16 = 10,
  XLA_FFI_DataType_F32 = 11,
  XLA_FFI_DataType_F64 = 12,
  XLA_FFI_DataType_BF16 = 16,
};

struct XLA_FFI_Buffer {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

enum XLA_FFI_ArgType : std::uint32_t { XLA_FFI_ArgType_BUFFER = 1 };
enum XLA_FFI_RetType : std::uint32_t { XLA_FFI_RetType_BUFFER = 1 };
enum XLA_FFI_AttrType : std::uint32_t { XLA_FFI_AttrType_SCALAR = 3, XLA_FFI_AttrType_STRING = 4 };

struct XLA_FFI_ByteSpan {
  const char* ptr;
  std::size_t len;
};

struct XLA_FFI_Scalar {
  XLA_FFI_DataType dtype;
  void* value;
};

enum XLA_FFI_ExecutionStage : std::uint32_t { XLA_FFI_ExecutionStage_EXECUTE = 3 };

struct XLA_FFI_Args {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  std::int64_t size;
  XLA_FFI_ArgType* types;
  void** args;
};

struct XLA_FFI_Rets {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  std::int64_t size;
  XLA_FFI_RetType* types;
  void** rets;
};

struct XLA_FFI_Attrs {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  std::int64_t size;
  XLA_FFI_AttrType* types;
  XLA_FFI_ByteSpan** names;
  void** attrs;
};

struct XLA_FFI_CallFrame {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_Args args;
  XLA_FFI_Rets rets;
  XLA_FFI_Attrs attrs;
  XLA_FFI_Future* future;  // out: XLA reads the results when the future is complete
};

// The type of the functions in XLA_FFI_Api that ngd does not call.
using XLA_FFI_Unused = void();

struct XLA_FFI_Api {
  std::size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_Api_Version api_version;
  const XLA_FFI_InternalApi* internal_api;
  XLA_FFI_Error* (*XLA_FFI_Error_Create)(XLA_FFI_Error_Create_Args*);
  XLA_FFI_Unused* XLA_FFI_Error_GetMessage;
  XLA_FFI_Unused* XLA_FFI_Error_Destroy;
  XLA_FFI_Unused* XLA_FFI_Handler_Register;
  XLA_FFI_Unused* XLA_FFI_Stream_Get;
  XLA_FFI_Unused* XLA_FFI_Type_Register;
  XLA_FFI_Unused* XLA_FFI_ExecutionContext_Get;
  XLA_FFI_Unused* XLA_FFI_State_Set;
  XLA_FFI_Unused* XLA_FFI_State_Get;
  XLA_FFI_Unused* XLA_FFI_DeviceMemory_Allocate;
  XLA_FFI_Unused* XLA_FFI_DeviceMemory_Free;
  XLA_FFI_Unused* XLA_FFI_ThreadPool_Schedule;
  XLA_FFI_Unused* XLA_FFI_ThreadPool_NumThreads;
  // Each of these functions returns null, or an error if it fails.
  XLA_FFI_Error* (*XLA_FFI_Future_Create)(XLA_FFI_Future_Create_Args*);
  XLA_FFI_Error* (*XLA_FFI_Future_SetAvailable)(XLA_FFI_Future_SetAvailable_Args*);
  XLA_FFI_Error* (*XLA_FFI_Future_SetError)(XLA_FFI_Future_SetError_Args*);
};

// Return true if this XLA completes calls by futures. The first releases of API version 0.1 do not:
// XLA_FFI_Api::struct_size, the number of bytes that XLA provides, ends before the functions of
// futures. XLA_FFI_CallFrame::struct_size cannot show this: no release counts the bytes of the
// member `future` in it.
inline bool has_futures(const XLA_FFI_Api& api) noexcept {
  constexpr std::size_t kEnd =
      offsetof(XLA_FFI_Api, XLA_FFI_Future_SetError) + sizeof(api.XLA_FFI_Future_SetError);
  return api.api_version.major_version == XLA_FFI_API_MAJOR && api.struct_size >= kEnd;
}

}  // namespace ngd::bridges::xla_ffi
