// SPDX-License-Identifier: Apache-2.0
#include "values.hpp"

#include <Python.h>

#include <exception>
#include <limits>
#include <memory>

namespace {

// Thrown after Python has set an error.
struct PythonError : std::exception {};

struct Release {
  void operator()(PyObject* object) const noexcept { Py_DECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Release>;

Owned checked(PyObject* object) {
  if (object == nullptr) throw PythonError();
  return Owned(object);
}

template <class Number>
Number number_of(PyObject* object) {
  using Limits = std::numeric_limits<Number>;
  const Owned whole = checked(PyNumber_Index(object));
  if constexpr (Limits::is_signed) {
    const long long value = PyLong_AsLongLong(whole.get());
    if (value == -1 && PyErr_Occurred()) throw PythonError();
    if (value >= Limits::min() && value <= Limits::max()) return static_cast<Number>(value);
    PyErr_Format(PyExc_OverflowError, "%R is out of range", whole.get());
    throw PythonError();
  } else {
    const unsigned long long value = PyLong_AsUnsignedLongLong(whole.get());
    if (value == Limits::max() && PyErr_Occurred()) throw PythonError();
    return value;
  }
}

double double_of(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

template <class Convert>
auto list_of(PyObject* given, const char* expected, Convert convert) {
  if (!PySequence_Check(given)) {
    PyErr_SetString(PyExc_TypeError, expected);
    throw PythonError();
  }
  const Owned values = checked(PySequence_List(given));
  const Py_ssize_t size = PyList_Size(values.get());
  std::vector<decltype(convert(given))> result;
  result.reserve(static_cast<std::size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) result.push_back(convert(PyList_GetItem(values.get(), i)));
  return result;
}

template <class Number>
std::vector<Number> numbers_of(PyObject* given) {
  return list_of(given, "expected a sequence of ints", number_of<Number>);
}

}  // namespace

std::string ngd_bytes_of(PyObject* text) {
  Owned bytes(PyUnicode_AsUTF8String(text));
  for (const char* errors : {"surrogateescape", "surrogatepass"}) {
    if (bytes != nullptr || !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) break;
    PyErr_Clear();
    bytes.reset(PyUnicode_AsEncodedString(text, "utf-8", errors));
  }
  if (bytes == nullptr) throw PythonError();
  return {PyBytes_AsString(bytes.get()), static_cast<std::size_t>(PyBytes_Size(bytes.get()))};
}

std::vector<int> ngd_ints_of(PyObject* numbers) { return numbers_of<int>(numbers); }
std::vector<std::int64_t> ngd_int64s_of(PyObject* numbers) {
  return numbers_of<std::int64_t>(numbers);
}
std::vector<std::uint64_t> ngd_uint64s_of(PyObject* numbers) {
  return numbers_of<std::uint64_t>(numbers);
}
std::vector<double> ngd_doubles_of(PyObject* numbers) {
  return list_of(numbers, "expected a sequence of floats", double_of);
}
std::vector<std::string> ngd_texts_of(PyObject* texts) {
  return list_of(texts, "expected a sequence of texts", ngd_bytes_of);
}
