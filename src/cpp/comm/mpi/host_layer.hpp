// SPDX-License-Identifier: Apache-2.0
// The interface of a layer above MPI, for a group in which some ranks share a host. The layer
// offers transfers over shared memory, memory that the ranks of a host share, and groups of the
// ranks of one host. A group without this layer uses only MPI.
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

  // Return the name of the group that uses this object: "hierarchical" if its large collectives use
  // shared memory inside a host, otherwise "mpi".
  virtual std::string_view name() const noexcept = 0;
  // Return the host group: the group of those ranks of this group that are on this host.
  virtual Communicator& local() noexcept = 0;
  // Return a transfer that uses shared memory inside a host and MPI between hosts; null if the
  // caller should use a transfer over MPI only.
  virtual std::unique_ptr<Transfer> make_transfer(int tag, const Collective& collective) = 0;

  // Fail the host group, which local() returns. This ends the collectives that a failed transfer
  // has submitted to that group.
  virtual void fail(const Failure& failure) noexcept = 0;

  // Split the host group, which local() returns, with the same rules as Communicator::try_split().
  // Returns nullopt if another thread uses the host group.
  [[nodiscard]] virtual std::optional<std::unique_ptr<Communicator>> try_split_local(int color,
                                                                                     int key) = 0;
  // Return a HostLayer for `group`, which a split of this object's group has made. `local` is the
  // group of those ranks of `group` that are on this host.
  virtual std::unique_ptr<HostLayer> for_split(const RankSet& group,
                                               std::unique_ptr<Communicator> local) const = 0;

  // The way in which the members of a new group on this host find each other. `key` is a text that
  // no other group has, and that all members pass to make_group_of() (communicator.hpp).
  struct Rendezvous {
    const std::string& key;
    double timeout_seconds;
    const std::function<bool()>& interrupt;
  };
  // Return a HostLayer for `group`, a new group that make_group_of() makes. Only the ranks of
  // `group` call this function. The ranks of `group` on one host connect over shared memory.
  virtual std::unique_ptr<HostLayer> for_members(const RankSet& group,
                                                 const Rendezvous& rendezvous) const = 0;
  // Return true if all ranks of `group` are on this host.
  virtual bool is_local(const RankSet& group) const = 0;

  // Return true if the rank is on this host.
  virtual bool is_here(int world_rank) const noexcept = 0;
  // Each rank publishes to its host the rank that it awaits. Return the rank that `world_rank` has
  // published; -1 if it waits for none, or is on another host.
  virtual int awaited_by(int world_rank) const noexcept = 0;

  // Take the host group, local(), out of this object, and return a group that uses it. All waits in
  // that group also make progress in the other groups of `family`. The caller has checked that all
  // ranks of the group are on this host, so no group over MPI is needed. This object must not be
  // used afterwards.
  virtual std::unique_ptr<Communicator> take_local(std::shared_ptr<Family> family) = 0;
};

}  // namespace ngd::comm::mpi
