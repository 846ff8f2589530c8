// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/details.hpp"

#include <cstring>
#include <utility>

namespace ngd::comm::mpi {

std::string encode_details(const Collective& collective) {
  if (collective.program != nullptr && collective.program->text != nullptr)
    return collective.program->text;
  if (collective.layout == nullptr) return {};
  const Layout& layout = *collective.layout;
  std::string bytes(1, static_cast<char>(layout.of));
  if (layout.known > 0)
    bytes.append(reinterpret_cast<const char*>(layout.numbers),
                 layout.known * sizeof *layout.numbers);
  return bytes;
}

DecodedDetails::DecodedDetails(const Header& header, std::optional<std::string> bytes)
    : header_(header), bytes_(std::move(bytes)) {
  if (!bytes_ || header.has_program_text || bytes_->empty()) return;
  layout_.of = static_cast<Layout::Of>(bytes_->front());
  numbers_.resize((bytes_->size() - 1) / sizeof numbers_.front());
  if (!numbers_.empty())
    std::memcpy(numbers_.data(), bytes_->data() + 1, numbers_.size() * sizeof numbers_.front());
  layout_.entries = layout_.known = numbers_.size();
  layout_.numbers = numbers_.data();
}

CallDetails DecodedDetails::of(int world_rank) const {
  CallDetails details{world_rank, header_.call, {}, {}};
  if (bytes_) details.layout = layout_;
  if (bytes_ && header_.has_program_text) details.program_text = *bytes_;
  return details;
}

}  // namespace ngd::comm::mpi
