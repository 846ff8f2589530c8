// SPDX-License-Identifier: Apache-2.0
#include "base/small_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ngd {

SmallFile::SmallFile(const char* path) noexcept {
  int file = 0;
  do {
    file = ::open(path, O_RDONLY | O_CLOEXEC);
  } while (file < 0 && errno == EINTR);
  if (file < 0) return;
  for (ssize_t num_read = 1; num_read != 0 && length_ < sizeof text_;) {
    num_read = ::read(file, text_ + length_, sizeof text_ - length_);
    if (num_read < 0 && errno != EINTR) break;
    length_ += static_cast<std::size_t>(std::max<ssize_t>(num_read, 0));
  }
  ::close(file);
}

std::string_view SmallFile::next_word() noexcept {
  constexpr std::string_view kBlanks = " \t\n";
  const std::size_t begin = std::min(text().find_first_not_of(kBlanks, read_), length_);
  read_ = std::min(text().find_first_of(kBlanks, begin), length_);
  return text().substr(begin, read_ - begin);
}

}  // namespace ngd
