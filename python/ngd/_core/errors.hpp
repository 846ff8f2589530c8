// SPDX-License-Identifier: Apache-2.0
// The translation of C++ exceptions to Python errors, which every `except +` names.
#pragma once

// `errors` is the module ngd.errors; called once when the extension is imported.
void ngd_set_error_module(struct _object* errors);
// Sets the Python error for the exception that is being handled. Call it in a catch block, with the
// GIL.
void ngd_raise_python_error();

// Note that the program ends. From now on only the main thread returns to Python with an error, or
// from ngd_stay_if_ending().
void ngd_begin_end(unsigned long main_thread);
void ngd_stay_if_ending();  // with the GIL, which it releases
