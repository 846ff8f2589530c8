// SPDX-License-Identifier: Apache-2.0
// From ngd::Error to Python: the one translation that every `except +` names.
#pragma once

// `errors` is the module ngd.errors; called once when the extension is imported.
void ngd_set_error_module(struct _object* errors);
// Called inside a catch block: sets the Python error that stands for the C++ exception in flight.
void ngd_raise_python_error();
