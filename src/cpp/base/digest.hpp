// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4). It makes names that every user of the host can see, and that do not reveal
// the text that they are made from.
#pragma once

#include <string>

namespace ngd {

std::string sha256_hex(const std::string& text);

}  // namespace ngd
