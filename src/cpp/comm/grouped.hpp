// SPDX-License-Identifier: Apache-2.0
// A collective over a list of tensors. Small tensors of one dtype are packed: they are copied into
// one block, one collective runs on the block, and wait() copies the results back. Each large
// tensor has its own collective.
//
// The block is private memory of this rank. If the block were in shared memory, peers could still
// read it after the wait of this rank has returned, so the block could not be reused then. The
// compiler can reuse shared memory, because it plans all collectives of a step; a caller of this
// class cannot.
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
  std::uint64_t layout = 0;  // a hash of the shape (layout_of_shape() in layout.hpp)
};

class Grouped {
 public:
  // Start the collective `pattern`, an all_reduce or a broadcast, on every tensor. All ranks pass
  // the same list. The communicator must outlive this object, and this object must exist until a
  // wait has returned or thrown. Throws InvalidArgument before anything is started.
  Grouped(Communicator& communicator, const Collective& pattern,
          const std::vector<Tensor>& tensors);
  ~Grouped();

  void wait(double timeout_seconds);           // throws Busy if another thread uses the group
  void wait_retrying(double timeout_seconds);  // retries until no other thread uses the group
  bool wait_for(double seconds);               // false if not complete after `seconds`; throws Busy

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
  // Submit the collective on the tensors of `pack`. Several tensors are first copied into
  // pack.block. If another thread uses the group, throw Busy for the first pack, and retry for a
  // later pack.
  void start(Pack& pack);
  // Wait for the packs, one after the other, and copy their results to the tensors. A pack is one
  // collective: on one tensor, or on several small tensors. limits() returns the WaitLimits for the
  // next pack: for example, the timeout. Return the first Progress that is not Done, and Done after
  // all packs. A later call continues with the first pack that is not complete.
  template <class Limits>
  Progress try_wait(Limits&& limits);
  // Copy the results from pack.block to the tensors of the pack, and free the block. Do nothing for
  // a pack of one tensor, which has no block.
  void unpack(Pack& pack);

  Communicator& communicator_;
  Collective pattern_;
  // The element count and dtype of each tensor (entry_of() in layout.hpp). layout_ points to these
  // numbers.
  std::vector<std::uint64_t> entries_;
  // The layout of the list of tensors: the element count, dtype and shape of each. The ranks
  // compare it in every collective.
  Layout layout_;
  // The packs: the tensors of each collective. Several tensors are copied into the block of their
  // pack. A pack of one tensor has no block: the collective uses the memory of the tensor.
  std::vector<Pack> packs_;
  std::size_t finished_ = 0;
};

}  // namespace ngd::comm
