// SPDX-License-Identifier: Apache-2.0
// A device that tests the contract of device/device.hpp. Its memory may be separate from the
// host's, and its queues may be threads that run everything later.
//
// Pointers to separate memory are addresses that no process can have, so that host code that
// dereferences one dies at once. Memory starts as NaNs, so that a value that is read too early is
// detected.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "device/device.hpp"
#include "kernels/kernel.hpp"

namespace ngd::testing {

// Own: separate memory. Seen: the host can also address it. Host: its kernels address the host's
// memory.
enum class Memory { Own, Seen, Host };

class RemoteDevice final : public device::Device {
 public:
  // An asynchronous queue is a thread, which runs each task some time after the one before.
  RemoteDevice(Memory memory, bool asynchronous, std::chrono::microseconds delay)
      : memory_(memory), asynchronous_(asynchronous), delay_(delay) {}
  std::string_view name() const noexcept override { return "REMOTE"; }
  bool host_addressable() const noexcept override { return memory_ != Memory::Own; }
  bool addresses_host() const noexcept override { return memory_ == Memory::Host; }
  void* allocate(std::size_t bytes) override;
  void release(void* pointer) noexcept override;
  std::unique_ptr<device::Queue> make_queue() override;
  std::unique_ptr<device::Event> make_event() override;

  bool asynchronous() const noexcept { return asynchronous_; }
  std::size_t live_allocations() const noexcept { return live_; }
  std::size_t under_way() const noexcept { return under_way_; }  // the tasks in all queues

  // Only kernels and copies of this device may call these.
  static void* to_real(void* pointer) noexcept;
  static const void* to_real(const void* pointer) noexcept;

 private:
  const Memory memory_;
  const bool asynchronous_;
  const std::chrono::microseconds delay_;
  std::atomic<std::size_t> live_{0}, under_way_{0};
};

class RemoteQueue final : public device::Queue {
 public:
  RemoteQueue(bool asynchronous, std::chrono::microseconds delay,
              std::atomic<std::size_t>& under_way);
  ~RemoteQueue() override;
  bool asynchronous() const noexcept override { return asynchronous_; }
  void copy_from_host(void* destination, const void* source, std::size_t bytes) override;
  void copy_to_host(void* destination, const void* source, std::size_t bytes) override;
  void copy(void* destination, const void* source, std::size_t bytes) override;
  void clear(void* destination, std::size_t bytes) override;
  void record(device::Event& event) override;
  void wait(const device::Event& event) override;
  void synchronize() override;

  // The work of a kernel. It does not run if a task before it has failed.
  void enqueue(std::function<void()> work);
  // For the work: return true if other work is soon enqueued after it.
  bool is_followed();

 private:
  struct Task {
    std::function<void()> work;
    const void* origin;
    bool always;  // even if a task before it has failed
  };
  void put(Task task);
  void run_tasks();
  void run_task(const Task& task);
  std::optional<device::QueueError> failure();

  const bool asynchronous_;
  const std::chrono::microseconds delay_;
  std::atomic<std::size_t>& under_way_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // the first one is running
  std::optional<device::QueueError> failure_;
  bool ending_ = false;
  std::thread thread_;
};

// Kernels on f32 tensors of one shape, which all run in the queue:
//   add, copy; positive: if the first element is positive; nan: a copy with one NaN
//   fails: finds an index out of range; followed: a copy, which fails if no work comes after it
kernels::KernelTable remote_table();

}  // namespace ngd::testing
