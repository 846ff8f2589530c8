// SPDX-License-Identifier: Apache-2.0
#include "host_calls.hpp"

#include <Python.h>

#include <cstdint>
#include <span>

#include "errors.hpp"
#include "kernels/host_call.hpp"

namespace {

PyObject* host_invoke = nullptr;

// Returns a list of memoryviews, with None for an output that no op reads. Returns null and sets a
// Python error on failure.
PyObject* views_of(std::span<const ngd::kernels::HostBuffer> buffers, int flags) {
  PyObject* views = PyList_New(static_cast<Py_ssize_t>(buffers.size()));
  static char empty[1];
  for (std::size_t i = 0; views != nullptr && i < buffers.size(); ++i) {
    const auto bytes = static_cast<Py_ssize_t>(buffers[i].bytes);
    char* data = bytes == 0 ? empty : static_cast<char*>(buffers[i].data);
    PyObject* view = nullptr;
    if (data == nullptr) {
      view = Py_None;
      Py_INCREF(view);
    } else {
      view = PyMemoryView_FromMemory(data, bytes, flags);
    }
    if (view == nullptr) {
      Py_DECREF(views);
      return nullptr;
    }
    PyList_SetItem(views, static_cast<Py_ssize_t>(i), view);
  }
  return views;
}

// Calls the function and returns true on success. A Python error stays set in this thread, for
// ngd_raise_python_error.
bool call_host(std::int64_t function, std::span<const ngd::kernels::HostBuffer> inputs,
               std::span<const ngd::kernels::HostBuffer> outputs) noexcept {
  const PyGILState_STATE state = PyGILState_Ensure();
  ngd_stay_if_ending();
  PyObject* in = views_of(inputs, PyBUF_READ);
  PyObject* out = in == nullptr ? nullptr : views_of(outputs, PyBUF_WRITE);
  PyObject* result = nullptr;
  if (out != nullptr && host_invoke != nullptr)
    result = PyObject_CallFunction(host_invoke, "LOO", static_cast<long long>(function), in, out);
  const bool is_done = result != nullptr;
  Py_XDECREF(result);
  Py_XDECREF(out);
  Py_XDECREF(in);
  PyGILState_Release(state);
  return is_done;
}

}  // namespace

void ngd_set_host_invoke(PyObject* invoke) {
  Py_XINCREF(invoke);
  Py_XDECREF(host_invoke);
  host_invoke = invoke;
  ngd::kernels::set_host_callback(&call_host);
}
