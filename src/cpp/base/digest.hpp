// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): for names that everybody may see and that reveal nothing of what they are
// made of.
#pragma once

#include <string>

namespace ngd {

std::string sha256_hex(const std::string& text);

}  // namespace ngd
