// SPDX-License-Identifier: Apache-2.0
// Conversions of Python values to C++. They throw std::bad_alloc, or set a Python error and throw.
// Cython's own conversions copy outside of a try block, so they end the process if memory runs out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Returns a str as UTF-8. A path that is not valid UTF-8 gives its original bytes.
std::string ngd_bytes_of(struct _object* text);
// Return the elements of any sequence of ints.
std::vector<int> ngd_ints_of(struct _object* numbers);
std::vector<std::int64_t> ngd_int64s_of(struct _object* numbers);
std::vector<std::uint64_t> ngd_uint64s_of(struct _object* numbers);
// Return the elements of any sequence of numbers, or of str.
std::vector<double> ngd_doubles_of(struct _object* numbers);
std::vector<std::string> ngd_texts_of(struct _object* texts);
