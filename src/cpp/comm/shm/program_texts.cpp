// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/program_texts.hpp"

#include <cstring>

#include "base/error.hpp"

namespace ngd::comm::shm {

ProgramText ProgramTexts::text_of(const ProgramIdentity* program, std::uint64_t sequence,
                                  std::uint64_t slots_free_to) {
  if (program == nullptr) [[likely]]
    return {};
  if (program->text == nullptr) return {program->hash, program->computation};
  const std::uint64_t name = mix(program->hash, program->computation);
  auto stored = texts_.find(name);
  if (stored == texts_.end()) {
    release_unused(slots_free_to);
    const auto length = static_cast<std::uint32_t>(std::strlen(program->text));
    std::uint64_t offset = kPrivate;
    try {
      offset = heap_.allocate(length);
      std::memcpy(group_.mine().at(offset), program->text, length);
    } catch (const Error&) {  // no memory: mismatch messages do not list the step's collectives
    }
    stored = texts_.emplace(name, ProgramText{program->hash, program->computation, offset, length})
                 .first;
    blocks_.reserve(texts_.size());
  }
  stored->second.used = sequence;
  return stored->second;
}

// Release the texts of compiled steps that this rank has unloaded, if no peer can still read them.
// A peer reads the text of a step only during the step's collectives, the last of which is number
// `used`.
// Number used + kSlots overwrites the record (slot) of number `used`. So if used + kSlots <=
// slots_free_to, all ranks have finished number `used`.
void ProgramTexts::release_unused(std::uint64_t slots_free_to) noexcept {
  std::erase_if(texts_, [&](const auto& entry) {
    const ProgramText& text = entry.second;
    if (text.used + kSlots > slots_free_to || held_.hold(text.computation)) return false;
    if (text.offset != kPrivate) heap_.release(text.offset);
    return true;
  });
}

std::vector<std::uint64_t> ProgramTexts::take_blocks() noexcept {
  blocks_.clear();
  for (const auto& [name, text] : texts_)
    if (text.offset != kPrivate) blocks_.push_back(text.offset);
  return std::move(blocks_);
}

}  // namespace ngd::comm::shm
