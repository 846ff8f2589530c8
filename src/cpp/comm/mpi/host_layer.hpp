// SPDX-License-Identifier: Apache-2.0
// The interface of a layer above MPI, for a group in which some ranks share a host: transfers over
// shared memory, memory that the ranks of a host share, and groups inside a host. A group without
// this layer uses only MPI.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/communicator.hpp"
#include "comm/mpi/family.hpp"
#include "comm/mpi/rank_set.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::mpi {

class HostLayer {
 public:
  virtual ~HostLayer() = default;

  // Return the name of the kind of a group that has this layer.
  virtual std::string_view name() const noexcept = 0;
  // Return the host group: the group of those ranks of this group that are on this host.
  virtual Communicator& local() noexcept = 0;
  // Return a transfer that uses the host group; null if the caller should use a transfer over MPI
  // only.
  virtual std::unique_ptr<Transfer> make_transfer(int tag, const Collective& collective) = 0;

  // Fail the host group, so that the collectives end that a failed transfer has submitted to it.
  virtual void fail(const Failure& failure) noexcept = 0;

  // Split the host group. Returns nothing while another thread uses the host group.
  [[nodiscard]] virtual std::optional<std::unique_ptr<Communicator>> try_split_local(int color,
                                                                                     int key) = 0;
  // Return the layer of a group that was split from this one; `local` is its host group.
  virtual std::unique_ptr<HostLayer> for_split(const RankSet& group,
                                               std::unique_ptr<Communicator> local) const = 0;

  // Return the layer of a group that only its own ranks make (make_group_of in communicator.hpp).
  // Its ranks on this host connect to each other over shared memory, at a rendezvous with this key.
  struct Rendezvous {
    const std::string& key;
    double timeout_seconds;
    const std::function<bool()>& interrupt;
  };
  virtual std::unique_ptr<HostLayer> for_members(const RankSet& group,
                                                 const Rendezvous& rendezvous) const = 0;
  // Return true if all ranks of `group` are on this host.
  virtual bool is_local(const RankSet& group) const = 0;

  // Return true if the rank is on this host.
  virtual bool is_here(int world_rank) const noexcept = 0;
  // Return the rank that a rank of this host has published that it waits for; -1: none.
  virtual int awaited_by(int world_rank) const noexcept = 0;

  // Return local() as a group of the family, for a group whose ranks are all on this host. This
  // moves the host group out of this object, which must not be used afterwards.
  virtual std::unique_ptr<Communicator> take_local(std::shared_ptr<Family> family) = 0;
};

}  // namespace ngd::comm::mpi
