// SPDX-License-Identifier: Apache-2.0
// A device: memory that its kernels may address, and queues in which its kernels and copies run.
//
// The executor and the planner know no more about a device than this file says. A pointer that a
// device hands out is for its own kernels, its own copies, and communicators that reach the device
// (comm/communicator.hpp); other host code may dereference it only where host_addressable() is
// true.
//
// What is enqueued in a queue runs in the order in which it was enqueued. An asynchronous queue
// runs it after the call has returned. To know that it has run, call synchronize() or wait for an
// event. The queue owns the host memory and the device memory that it uses until then. A
// synchronous queue, as the CPU's, runs it inside the call, in the calling thread; a wait then does
// nothing.
//
// Work may fail when it runs: a kernel finds an index out of range. In an asynchronous queue, what
// waits for it then throws a QueueError that names the origin of that work. What stands behind it
// in the queue runs or does not run: nobody may use its results.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace ngd::device {

inline constexpr std::size_t kAlignment = 64;  // of every buffer and every planned offset, in bytes

// What went wrong in work that a queue had taken.
class QueueError : public Error {
 public:
  QueueError(ErrorKind kind, const std::string& message, const void* origin)
      : Error(kind, message), origin_(origin) {}
  const void* origin() const noexcept { return origin_; }  // null where the device cannot tell

 private:
  const void* origin_;
};

// A point in a queue: where the queue stood when it recorded the event last.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;  // whether the queue has come there
  // Returns when the queue has come there. Throws the failure of what was enqueued before it.
  virtual void wait() = 0;
};

// Used by one thread at a time. A kernel gets it in its arguments, and knows the class of its
// device's queues.
class Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;  // waits for what is enqueued; a failure of it is dropped

  virtual bool asynchronous() const noexcept = 0;

  // These enqueue, and throw only where that is impossible.
  virtual void copy_from_host(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void copy_to_host(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void copy(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void clear(void* destination, std::size_t bytes) = 0;  // to zeros
  virtual void record(Event& event) = 0;
  // What is enqueued from here on runs when the event's queue has come to where it recorded it
  // last, whether or not something failed there.
  virtual void wait(const Event& event) = 0;

  // Waits until all that is enqueued is over. Then throws the first failure of it, and is as good
  // as new.
  virtual void synchronize() = 0;

  // On whose behalf the following is enqueued: what a QueueError gives back.
  void set_origin(const void* origin) noexcept { origin_ = origin; }
  const void* origin() const noexcept { return origin_; }

 private:
  const void* origin_ = nullptr;
};

// Any thread may call these at any time.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const noexcept = 0;
  // Whether the host may dereference the device's pointers.
  virtual bool host_addressable() const noexcept = 0;
  // Whether the device's kernels may dereference any pointer of the host's.
  virtual bool addresses_host() const noexcept = 0;
  virtual void* allocate(std::size_t bytes) = 0;     // aligned to kAlignment; zero bytes is legal
  virtual void release(void* pointer) noexcept = 0;  // no queue uses it any more
  virtual std::unique_ptr<Queue> make_queue() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;  // for any queue of the device's
};

// Owned device memory. Moves, never copies.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, std::size_t bytes)
      : device_(&device), data_(device.allocate(bytes)), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) device_->release(data_);
  }
  Device* device() const noexcept { return device_; }
  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

  // Copy all of it from or to the host, at once: for who has no queue.
  void write(const void* source) {
    const std::unique_ptr<Queue> queue = device_->make_queue();
    queue->copy_from_host(data_, source, bytes_);
    queue->synchronize();
  }
  void read(void* destination) const {
    const std::unique_ptr<Queue> queue = device_->make_queue();
    queue->copy_to_host(destination, data_, bytes_);
    queue->synchronize();
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

Device& cpu();  // the host's memory and cores

}  // namespace ngd::device
