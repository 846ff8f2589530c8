// SPDX-License-Identifier: Apache-2.0
// Python's values as C++'s. Cython's own conversions return copies, outside of any try block: where
// there is no memory for one, they end the process. These throw, each with Python's error set or
// std::bad_alloc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// A str in UTF-8. Of a path that is no UTF-8: the bytes that it was.
std::string ngd_bytes_of(struct _object* text);
// Of any sequence of ints.
std::vector<int> ngd_ints_of(struct _object* numbers);
std::vector<std::int64_t> ngd_int64s_of(struct _object* numbers);
std::vector<std::uint64_t> ngd_uint64s_of(struct _object* numbers);
// Of any sequence of what has a float's value, or of str.
std::vector<double> ngd_doubles_of(struct _object* numbers);
std::vector<std::string> ngd_texts_of(struct _object* texts);
