// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4). The hash is used in the names of Unix domain sockets. Every user of the
// host can see these names, but the names do not reveal the text that was hashed.
#pragma once

#include <string>

namespace ngd {

// Return the hash of the bytes of `text` as 64 lowercase hexadecimal digits.
std::string sha256_hex(const std::string& text);

}  // namespace ngd
