// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

#include <Python.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "base/error.hpp"

namespace {

PyObject* error_module = nullptr;
std::atomic<bool> ending{false};
std::atomic<unsigned long> main_thread{0};

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
    case ngd::ErrorKind::NotFinite:
      return "NotFiniteError";
    case ngd::ErrorKind::DType:
      return "DTypeError";
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

// A message may contain a path that is not UTF-8, or the text of another rank.
PyObject* text_of(const char* message) {
  return PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)),
                              "backslashreplace");
}

void set_error(PyObject* type, const char* message) {
  PyObject* text = text_of(message);
  if (text == nullptr) return;
  PyErr_SetObject(type, text);
  Py_DECREF(text);
}

struct Drop {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Drop>;

// Sets the Python error for an error of the core. If a call fails here, its Python error is set
// instead.
void set(const ngd::Error& error) {
  const char* name = class_name(error.kind());
  if (name == nullptr || error_module == nullptr) {
    set_error(builtin_class(error.kind()), error.what());
    return;
  }
  const Owned type(PyObject_GetAttrString(error_module, name));
  const Owned text(type ? text_of(error.what()) : nullptr);
  const Owned raised(text ? PyObject_CallFunctionObjArgs(type.get(), text.get(), nullptr)
                          : nullptr);
  const Owned ranks(raised ? PyTuple_New(static_cast<Py_ssize_t>(error.ranks().size())) : nullptr);
  if (!ranks) return;
  for (std::size_t i = 0; i < error.ranks().size(); ++i) {
    PyObject* number = PyLong_FromLong(error.ranks()[i]);
    if (number == nullptr) return;
    PyTuple_SetItem(ranks.get(), static_cast<Py_ssize_t>(i), number);
  }
  if (PyObject_SetAttrString(raised.get(), "ranks", ranks.get()) == 0)
    PyErr_SetObject(type.get(), raised.get());
}

// Sets an error of a class of ngd.errors, without ranks.
void set_named(const char* name, const char* message) {
  const Owned type(error_module ? PyObject_GetAttrString(error_module, name) : nullptr);
  set_error(type ? type.get() : PyExc_IndexError, message);
}

}  // namespace

void ngd_set_error_module(PyObject* errors) {
  Py_XINCREF(errors);
  Py_XDECREF(error_module);
  error_module = errors;
}

void ngd_begin_end(unsigned long thread) {
  main_thread = thread;
  ending = true;
}

// The main thread needs the GIL, so it is released before the sleep.
void ngd_stay_if_ending() {
  if (!ending || PyThread_get_thread_ident() == main_thread) return;
  PyEval_SaveThread();
  for (;;) ::pause();
}

void ngd_raise_python_error() {
  ngd_stay_if_ending();
  if (PyErr_Occurred()) return;  // keep an error that is set already, such as KeyboardInterrupt
  try {
    throw;
  } catch (const ngd::Error& error) {
    set(error);
  } catch (const std::out_of_range& error) {  // a kernel found an index out of range
    set_named("OutOfRangeError", error.what());
  } catch (const std::invalid_argument& error) {
    set_error(PyExc_ValueError, error.what());
  } catch (const std::bad_alloc&) {
    set_error(PyExc_MemoryError, "out of memory");
  } catch (const std::exception& error) {
    set_error(PyExc_RuntimeError, error.what());
  }
}
