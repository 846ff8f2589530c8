// SPDX-License-Identifier: Apache-2.0
// What the kernel says in a file of a line or two, read without asking for memory.
#pragma once

#include <string_view>

namespace ngd {

class SmallFile {
 public:
  explicit SmallFile(const char* path) noexcept;
  // Its beginning, as much as fits; nothing where there is no such file.
  std::string_view text() const noexcept { return {text_, length_}; }
  // The next word from there on; nothing at the end.
  std::string_view next_word() noexcept;

 private:
  char text_[4096];
  std::size_t length_ = 0;
  std::size_t read_ = 0;
};

}  // namespace ngd
