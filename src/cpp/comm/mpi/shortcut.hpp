// SPDX-License-Identifier: Apache-2.0
// What a layer above MPI may offer to a group of which some ranks share a host: a way for long
// data, memory, and groups of one host. Without it all goes over MPI.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/family.hpp"
#include "comm/mpi/transfer.hpp"

namespace ngd::comm::mpi {

class Shortcut {
 public:
  virtual ~Shortcut() = default;

  // What a group that has it is called.
  virtual std::string_view name() const noexcept = 0;
  // The ranks of my host.
  virtual Communicator& local() noexcept = 0;
  // A transfer by this way; null where this collective has none.
  virtual std::unique_ptr<Transfer> make_transfer(int tag, const Collective& collective) = 0;

  // Fail the group of my host, so collectives that a failed transfer has submitted there end.
  virtual void fail(const Failure& failure) noexcept = 0;

  // Splits the ranks of my host.
  virtual std::unique_ptr<Communicator> split_local(int color, int key) = 0;
  // That of a group which was split from this one; `local` are its ranks on my host.
  virtual std::unique_ptr<Shortcut> among(const Channel& group,
                                          std::unique_ptr<Communicator> local) const = 0;

  // That of a group whose members make it by themselves: those on my host meet.
  struct Meeting {
    const std::string& key;
    double timeout_seconds;
    const std::function<bool()>& interrupt;
  };
  virtual std::unique_ptr<Shortcut> meet(const Channel& group, const Meeting& meeting) const = 0;
  // Whether all ranks of such a group are on my host.
  virtual bool is_local(const Channel& group) const = 0;

  // Whether a rank is on my host, and which rank it has said that it waits for; -1 = none.
  virtual bool is_here(int world_rank) const noexcept = 0;
  virtual int awaited_by(int world_rank) const noexcept = 0;

  // local() as a group of the family, where it is all ranks; takes it from here, which ends this.
  virtual std::unique_ptr<Communicator> take_local(std::shared_ptr<Family> family) = 0;
};

}  // namespace ngd::comm::mpi
