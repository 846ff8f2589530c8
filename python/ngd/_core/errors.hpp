// SPDX-License-Identifier: Apache-2.0
// From ngd::Error to Python: the one translation that every `except +` names.
#pragma once

// `errors` is the module ngd.errors; called once when the extension is imported.
void ngd_set_error_module(struct _object* errors);
// Called inside a catch block, with the GIL: sets the Python error that stands for the C++ exception in flight.
void ngd_raise_python_error();

// The program is ending: from now on no thread but this one comes back to Python with an error, or
// from ngd_stay_if_ending().
void ngd_begin_end(unsigned long main_thread);
void ngd_stay_if_ending();  // with the GIL, which it lets go
