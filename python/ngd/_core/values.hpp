// SPDX-License-Identifier: Apache-2.0
// Conversions of Python values to C++. Cython's own conversions copy outside of any try block, so they
// end the process if there is no memory. These throw std::bad_alloc, or set a Python error and throw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// A str in UTF-8. A path that is not UTF-8 gives its original bytes.
std::string ngd_bytes_of(struct _object* text);
// From any sequence of ints.
std::vector<int> ngd_ints_of(struct _object* numbers);
std::vector<std::int64_t> ngd_int64s_of(struct _object* numbers);
std::vector<std::uint64_t> ngd_uint64s_of(struct _object* numbers);
// From any sequence of numbers, or of str.
std::vector<double> ngd_doubles_of(struct _object* numbers);
std::vector<std::string> ngd_texts_of(struct _object* texts);
