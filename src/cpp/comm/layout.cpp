// SPDX-License-Identifier: Apache-2.0
#include "comm/layout.hpp"

#include <algorithm>
#include <string_view>

#include "base/error.hpp"

namespace ngd::comm {

namespace {

constexpr std::size_t kShortList = 6;

// Return the text of an array, such as "6 float32" for 6 elements. `entry` is from entry_of().
std::string array_of(std::uint64_t entry) {
  return concat(entry >> 8, " ", name_of(static_cast<DType>(entry & 0xff)));
}

// Return the first index at which the numbers of two layouts differ. The numbers are the extents of
// an array, or one number per array of a list (entry_of() in layout.hpp). A layout may hold only
// the first Layout::known of them. If the numbers that both layouts hold are equal, return how many
// both hold.
std::size_t first_difference(const Layout& a, const Layout& b) noexcept {
  const std::size_t num_common = std::min(a.known, b.known);
  return static_cast<std::size_t>(
      std::mismatch(a.numbers, a.numbers + num_common, b.numbers).first - a.numbers);
}

std::string describe(const Layout& layout, std::size_t difference) {
  if (layout.of == Layout::Of::Row) return "an array of one axis";
  if (layout.entries == 0) return "an array of another shape";
  const bool shows_all = layout.of == Layout::Of::Shape || layout.entries <= kShortList;
  std::string numbers;
  for (std::size_t i = 0; shows_all && i < layout.known; ++i) {
    const std::uint64_t number = layout.numbers[i];
    numbers += concat(i == 0 ? "" : ", ",
                      layout.of == Layout::Of::Shape ? std::to_string(number) : array_of(number));
  }
  if (layout.of == Layout::Of::Shape) return concat("shape (", numbers, ")");
  if (shows_all) return concat("a list of ", numbers);
  if (difference < layout.known)
    return concat("a list of ", layout.entries, " arrays, number ", difference, " of ",
                  array_of(layout.numbers[difference]));
  return concat("a list of ", layout.entries, " arrays");
}

}  // namespace

Layout layout_of_shape(const std::int64_t* extents, int axes, std::uint64_t extra,
                       std::uint64_t* storage) noexcept {
  Layout layout;
  for (int i = 0; i < axes; ++i)
    if (extents[i] != 1) storage[layout.known++] = static_cast<std::uint64_t>(extents[i]);
  layout.entries = layout.known;
  layout.numbers = storage;
  if (extra == 0 && layout.known < 2) return {};
  layout.of = Layout::Of::Shape;
  layout.hash = extra + 1;
  for (std::size_t i = 0; i < layout.known; ++i) layout.hash = mix(layout.hash, storage[i]);
  layout.hash |= 1;
  return layout;
}

Layout layout_of_list(const std::vector<std::uint64_t>& entries,
                      const std::vector<std::uint64_t>& hashes) noexcept {
  Layout layout{Layout::Of::List, entries.size(), entries.size(), entries.size(), entries.data()};
  for (std::size_t i = 0; i < entries.size(); ++i)
    layout.hash = mix(mix(layout.hash, entries[i]), hashes[i]);
  layout.hash |= 1;
  return layout;
}

std::string layout_difference(int rank_a, const Layout& a, int rank_b, const Layout& b) {
  const std::size_t difference = first_difference(a, b);
  const std::string text_a = describe(a, difference), text_b = describe(b, difference);
  if (text_a != text_b)
    return concat("The arrays differ: rank ", rank_a, " gives ", text_a, ", rank ", rank_b, " ",
                  text_b);
  const std::string_view what = a.of == Layout::Of::Shape
                                    ? "along another axis or with other options"
                                : a.known < a.entries ? "some of which differ"
                                                      : "with other shapes";
  return concat("The arrays differ: rank ", rank_a, " and rank ", rank_b, " give ", text_a, ", ",
                what);
}

}  // namespace ngd::comm
