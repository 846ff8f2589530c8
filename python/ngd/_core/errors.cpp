// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

#include <Python.h>

#include <new>
#include <stdexcept>

#include "base/error.hpp"

namespace {

PyObject* error_module = nullptr;

const char* class_name(ngd::ErrorKind kind) {
  switch (kind) {
    case ngd::ErrorKind::Init:
      return "InitError";
    case ngd::ErrorKind::CollectiveMismatch:
      return "CollectiveMismatchError";
    case ngd::ErrorKind::CollectiveTimeout:
      return "CollectiveTimeoutError";
    case ngd::ErrorKind::RankLost:
      return "RankLostError";
    case ngd::ErrorKind::RemoteRank:
      return "RemoteRankError";
    case ngd::ErrorKind::GroupClosed:
      return "GroupClosedError";
    case ngd::ErrorKind::Busy:
      return "BusyError";
    default:
      return nullptr;
  }
}

PyObject* builtin_class(ngd::ErrorKind kind) {
  switch (kind) {
    case ngd::ErrorKind::InvalidArgument:
      return PyExc_ValueError;
    case ngd::ErrorKind::Unsupported:
      return PyExc_NotImplementedError;
    case ngd::ErrorKind::OutOfMemory:
      return PyExc_MemoryError;
    case ngd::ErrorKind::Interrupted:
      return PyExc_KeyboardInterrupt;
    default:
      return PyExc_RuntimeError;
  }
}

void set(ngd::ErrorKind kind, const char* message) {
  const char* name = class_name(kind);
  if (name == nullptr || error_module == nullptr) {
    PyErr_SetString(builtin_class(kind), message);
    return;
  }
  PyObject* type = PyObject_GetAttrString(error_module, name);
  if (type == nullptr) return;
  PyErr_SetString(type, message);
  Py_DECREF(type);
}

}  // namespace

void ngd_set_error_module(PyObject* errors) {
  Py_XINCREF(errors);
  Py_XDECREF(error_module);
  error_module = errors;
}

void ngd_raise_python_error() {
  const PyGILState_STATE state = PyGILState_Ensure();
  if (!PyErr_Occurred()) {  // a Python error raised inside, such as KeyboardInterrupt, stands
    try {
      throw;
    } catch (const ngd::Error& error) {
      set(error.kind(), error.what());
    } catch (const std::invalid_argument& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::bad_alloc&) {
      PyErr_SetString(PyExc_MemoryError, "out of memory");
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  }
  PyGILState_Release(state);
}
