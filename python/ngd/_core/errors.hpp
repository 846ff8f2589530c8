// SPDX-License-Identifier: Apache-2.0
// The translation of C++ exceptions to Python errors. Every `except +` in the .pxd file names it.
#pragma once

// `errors` is the module ngd.errors; called once when the extension is imported.
void ngd_set_error_module(struct _object* errors);
// Sets the Python error for the exception that is being handled. Call it in a catch block, with the
// GIL.
void ngd_raise_python_error();

// Records that the program ends. From now on, ngd_stay_if_ending() returns only in the main thread.
// So only the main thread returns to Python with an error.
void ngd_begin_end(unsigned long main_thread);
// Returns unless the program ends. The caller holds the GIL; otherwise it is released, and the
// thread sleeps.
void ngd_stay_if_ending();
