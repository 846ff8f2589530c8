// SPDX-License-Identifier: Apache-2.0
// A device: memory that its kernels can address, and queues that run its kernels and copies.
//
// The executor and the planner use only this interface. A pointer that a device returns may be used
// by its own kernels, its own copies, and communicators that reach the device
// (comm/communicator.hpp). Other host code may dereference it only if host_addressable() is true.
//
// A queue runs work in the order in which it was enqueued. An asynchronous queue runs it after the
// enqueuing call has returned. To wait for it, call synchronize(), or wait for an event. Until
// then, the queue may read and write all memory of the host and of the device that the work uses:
// do not change or free this memory, and do not read the results. A synchronous queue, such as the
// CPU's, runs the work inside the call, on the calling thread, and a wait does nothing.
//
// Work may fail when it runs, for example if a kernel finds an index out of range. In an
// asynchronous queue, a call that waits for this work then throws a QueueError that names the
// origin of the work. Later work of the queue may or may not run, and its results must not be used.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace ngd::device {

// The alignment of every buffer, and of every array that the compiler places in a buffer, in bytes.
inline constexpr std::size_t kAlignment = 64;

// The failure of enqueued work.
class QueueError : public Error {
 public:
  QueueError(ErrorKind kind, const std::string& message, const void* origin)
      : Error(kind, message), origin_(origin) {}
  // Return the pointer that was given to Queue::set_origin() before the work was enqueued; null if
  // the device does not know it.
  const void* origin() const noexcept { return origin_; }

 private:
  const void* origin_;
};

// A mark in a queue. Recording an event places the mark after all work that is enqueued so far. The
// queue reaches the event when this work is done.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() const = 0;  // true if the queue has reached the event
  // Wait until the queue has reached the event. Throws the failure of work that was enqueued before
  // the event.
  virtual void wait() = 0;
};

// A queue of work. Only one thread at a time may use it. A kernel gets the queue in its arguments,
// and may cast it to the queue class of the kernel's device.
class Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;  // waits for the enqueued work, and ignores its failure

  virtual bool asynchronous() const noexcept = 0;

  // The functions from copy_from_host() to wait() enqueue work. They throw only if they cannot
  // enqueue it. If the work itself fails, a later wait or synchronize() throws.
  virtual void copy_from_host(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void copy_to_host(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void copy(void* destination, const void* source, std::size_t bytes) = 0;
  virtual void clear(void* destination, std::size_t bytes) = 0;  // set the bytes to zero
  virtual void record(Event& event) = 0;
  // Make work that is enqueued from now on wait until another queue has reached the event. A
  // failure in that queue does not prevent the work.
  virtual void wait(const Event& event) = 0;

  // Wait until all enqueued work has ended. Then throw its first failure. After that, the queue is
  // usable again.
  virtual void synchronize() = 0;

  // Set the origin of the work that is enqueued from now on, such as a pointer to its instruction.
  // If the work fails, QueueError::origin() returns this pointer.
  void set_origin(const void* origin) noexcept { origin_ = origin; }
  const void* origin() const noexcept { return origin_; }

 private:
  const void* origin_ = nullptr;
};

// A device. Any thread may call these functions at any time.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const noexcept = 0;
  // True if host code may dereference the device's pointers.
  virtual bool host_addressable() const noexcept = 0;
  // True if the device's kernels may dereference all pointers of the host.
  virtual bool addresses_host() const noexcept = 0;
  virtual void* allocate(std::size_t bytes) = 0;     // aligned to kAlignment; bytes may be 0
  virtual void release(void* pointer) noexcept = 0;  // call it when no queue uses the memory
  virtual std::unique_ptr<Queue> make_queue() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;  // usable in all queues of this device
};

// Device memory that this object owns. It can be moved, but not copied.
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
  // Return the device of the memory; null if the object owns no memory.
  Device* device() const noexcept { return device_; }
  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

  // write() copies host memory to the whole buffer; read() copies the whole buffer to host memory.
  // Both wait until the copy is done. They are for callers without a queue.
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

Device& cpu();  // the device for the memory and cores of the host

}  // namespace ngd::device
