// SPDX-License-Identifier: Apache-2.0
// Many tensors, one hand-off: small ones of a dtype are packed into one block that travels as one
// collective and is unpacked by wait; large ones travel each by itself.
//
// The block is private memory: peers may read a shared one after my wait has returned, and only a
// plan of all calls to come, which a graph has and a caller has not, says when it may be rewritten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.hpp"
#include "comm/communicator.hpp"

namespace ngd::comm {

struct Tensor {
  DType dtype = DType::U8;
  std::uint64_t count = 0;
  const void* source = nullptr;
  void* destination = nullptr;
  std::uint64_t layout = 0;  // the hash of its own (layout.hpp)
};

class Grouped {
 public:
  // Starts `pattern`, an all_reduce or a broadcast, on every tensor. The ranks give the same list.
  // The communicator outlives this, which ends after a wait that returned or threw. Throws
  // InvalidArgument before anything is started.
  Grouped(Communicator& communicator, const Collective& pattern,
          const std::vector<Tensor>& tensors);
  ~Grouped();

  void wait(double timeout_seconds);           // throws Busy
  void wait_retrying(double timeout_seconds);  // for a caller that has just started it
  bool wait_for(double seconds);               // false if that was not enough; throws Busy

 private:
  struct Pack {
    DType dtype = DType::U8;
    std::uint64_t count = 0;
    std::vector<Tensor> tensors;
    std::unique_ptr<std::byte[]> block;
    Work work;
  };

  void describe_list(const std::vector<Tensor>& tensors);
  void plan(const std::vector<Tensor>& tensors);
  void start(Pack& pack);
  // limits() returns the limits of the next wait.
  template <class Limits>
  Progress try_wait(Limits&& limits);
  void unpack(Pack& pack);

  Communicator& communicator_;
  Collective pattern_;
  std::vector<std::uint64_t> entries_;  // of layout_
  Layout layout_;                       // of the whole list: each pack says it
  std::vector<Pack> packs_;             // of one tensor: not packed
  std::size_t finished_ = 0;
};

}  // namespace ngd::comm
