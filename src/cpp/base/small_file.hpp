// SPDX-License-Identifier: Apache-2.0
// A small file of the operating system's kernel, such as those in /proc and /sys. It is read
// without allocating memory.
#pragma once

#include <string_view>

namespace ngd {

class SmallFile {
 public:
  explicit SmallFile(const char* path) noexcept;
  // The first 4096 bytes of the file. Empty if the file cannot be read.
  std::string_view text() const noexcept { return {text_, length_}; }
  // Return the next word of text(). After the last word, return an empty text.
  std::string_view next_word() noexcept;

 private:
  char text_[4096];
  std::size_t length_ = 0;
  std::size_t read_ = 0;
};

}  // namespace ngd
