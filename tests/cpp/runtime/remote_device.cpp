// SPDX-License-Identifier: Apache-2.0
#include "remote_device.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace ngd::testing {

namespace {

constexpr std::uintptr_t kOffset = std::uintptr_t{1} << 61;  // not canonical on any CPU that we use
constexpr std::chrono::seconds kSoon{20};

using Lock = std::unique_lock<std::mutex>;

class RemoteEvent final : public device::Event {
 public:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t recorded = 0, reached = 0;  // the numbers of records and of arrivals
    std::optional<device::QueueError> failure;

    void await(std::uint64_t number) {
      Lock lock(mutex);
      changed.wait(lock, [&] { return reached >= number; });
    }
  };
  bool done() const override {
    const Lock lock(state->mutex);
    return state->reached >= state->recorded;
  }
  void wait() override {
    Lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->reached >= state->recorded; });
    if (state->failure) throw device::QueueError(*state->failure);
  }
  const std::shared_ptr<State> state = std::make_shared<State>();
};

// One of the kernels below, all of which are functions of f32 tensors.
class Function final : public kernels::Kernel {
 public:
  using Inputs = std::vector<const float*>;
  using Body = void (*)(RemoteQueue& queue, const Inputs& inputs, void* output, std::int64_t count);
  Function(Body body, const kernels::KernelQuery& query)
      : body_(body), inputs_(query.inputs.size()), count_(query.inputs.at(0).count()) {}
  void run(const kernels::KernelArgs& args) const override {
    auto& queue = static_cast<RemoteQueue&>(*args.queue);
    Inputs inputs;
    for (std::size_t i = 0; i < inputs_; ++i)
      inputs.push_back(static_cast<const float*>(RemoteDevice::to_real(args.inputs[i])));
    queue.enqueue([this, &queue, inputs, output = RemoteDevice::to_real(args.outputs[0])] {
      body_(queue, inputs, output, count_);
    });
  }

 private:
  Body body_;
  std::size_t inputs_;
  std::int64_t count_;
};

using Inputs = Function::Inputs;

void add(RemoteQueue&, const Inputs& in, void* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) static_cast<float*>(out)[i] = in[0][i] + in[1][i];
}
void copy(RemoteQueue&, const Inputs& in, void* out, std::int64_t count) {
  std::memmove(out, in[0], static_cast<std::size_t>(count) * sizeof(float));
}
void positive(RemoteQueue&, const Inputs& in, void* out, std::int64_t) {
  *static_cast<bool*>(out) = in[0][0] > 0;
}
void nan(RemoteQueue& queue, const Inputs& in, void* out, std::int64_t count) {
  copy(queue, in, out, count);
  *static_cast<float*>(out) = std::numeric_limits<float>::quiet_NaN();
}
void fails(RemoteQueue&, const Inputs&, void*, std::int64_t) {
  fail(ErrorKind::InvalidArgument, "index 7 is out of range");
}
void followed(RemoteQueue& queue, const Inputs& in, void* out, std::int64_t count) {
  if (!queue.is_followed()) fail(ErrorKind::Internal, "nothing is enqueued behind");
  copy(queue, in, out, count);
}

using Query = kernels::KernelQuery;
template <Function::Body body>
kernels::Offer offer(const Query& query, const kernels::Machine&) {
  return {std::make_unique<Function>(body, query)};
}

const kernels::KernelRow kRows[] = {
    {"add", "test", offer<add>},           {"copy", "test", offer<copy>},
    {"positive", "test", offer<positive>}, {"nan", "test", offer<nan>},
    {"fails", "test", offer<fails>},       {"followed", "test", offer<followed>},
};

}  // namespace

const void* RemoteDevice::to_real(const void* pointer) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return address >= kOffset ? reinterpret_cast<const void*>(address - kOffset) : pointer;
}
void* RemoteDevice::to_real(void* pointer) noexcept {
  return const_cast<void*>(to_real(static_cast<const void*>(pointer)));
}

void* RemoteDevice::allocate(std::size_t bytes) {
  ++live_;
  void* real = device::cpu().allocate(bytes);
  std::memset(real, 0xff, bytes);
  const std::uintptr_t offset = memory_ == Memory::Own ? kOffset : 0;
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(real) + offset);
}
void RemoteDevice::release(void* pointer) noexcept {
  --live_;
  device::cpu().release(to_real(pointer));
}
std::unique_ptr<device::Queue> RemoteDevice::make_queue() {
  return std::make_unique<RemoteQueue>(asynchronous_, delay_, under_way_);
}
std::unique_ptr<device::Event> RemoteDevice::make_event() {
  return std::make_unique<RemoteEvent>();
}

RemoteQueue::RemoteQueue(bool asynchronous, std::chrono::microseconds delay,
                         std::atomic<std::size_t>& under_way)
    : asynchronous_(asynchronous), delay_(delay), under_way_(under_way) {
  if (asynchronous_) thread_ = std::thread(&RemoteQueue::run_tasks, this);
}

RemoteQueue::~RemoteQueue() {
  {
    const Lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void RemoteQueue::run_tasks() {
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task& task = tasks_.front();  // new tasks at the end do not move it
    const bool runs = task.always || !failure_;
    lock.unlock();
    if (runs) run_task(task);
    lock.lock();
    tasks_.pop_front();
    --under_way_;
    changed_.notify_all();
  }
}

void RemoteQueue::run_task(const Task& task) {
  std::this_thread::sleep_for(delay_);
  const auto failed = [&](ErrorKind kind, const char* what) {
    const Lock lock(mutex_);
    failure_.emplace(kind, what, task.origin);
  };
  try {
    task.work();
  } catch (const Error& error) {
    failed(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    failed(ErrorKind::OutOfMemory, "out of memory");
  }
}

void RemoteQueue::put(Task task) {
  if (!asynchronous_) return task.work();
  {
    const Lock lock(mutex_);
    tasks_.push_back(std::move(task));
    ++under_way_;
  }
  changed_.notify_all();
}

void RemoteQueue::enqueue(std::function<void()> work) { put({std::move(work), origin(), false}); }

bool RemoteQueue::is_followed() {
  Lock lock(mutex_);
  return changed_.wait_for(lock, kSoon, [&] {
    return std::any_of(tasks_.begin() + 1, tasks_.end(), [](const Task& t) { return !t.always; });
  });
}

std::optional<device::QueueError> RemoteQueue::failure() {
  const Lock lock(mutex_);
  return failure_;
}

void RemoteQueue::copy_from_host(void* destination, const void* source, std::size_t bytes) {
  copy(destination, source, bytes);
}
void RemoteQueue::copy_to_host(void* destination, const void* source, std::size_t bytes) {
  copy(destination, source, bytes);
}
void RemoteQueue::copy(void* destination, const void* source, std::size_t bytes) {
  enqueue([=] {
    if (bytes > 0)
      std::memcpy(RemoteDevice::to_real(destination), RemoteDevice::to_real(source), bytes);
  });
}
void RemoteQueue::clear(void* destination, std::size_t bytes) {
  enqueue([=] { std::memset(RemoteDevice::to_real(destination), 0, bytes); });
}

void RemoteQueue::record(device::Event& event) {
  const std::shared_ptr<RemoteEvent::State> state = static_cast<RemoteEvent&>(event).state;
  std::uint64_t number;
  {
    const Lock lock(state->mutex);
    number = ++state->recorded;
    state->failure.reset();
  }
  const auto reach = [this, state, number] {
    {
      const Lock lock(state->mutex);
      state->reached = number;
      state->failure = failure();
    }
    state->changed.notify_all();
  };
  put({reach, nullptr, true});
}

void RemoteQueue::wait(const device::Event& event) {
  const std::shared_ptr<RemoteEvent::State> state = static_cast<const RemoteEvent&>(event).state;
  std::uint64_t number;
  {
    const Lock lock(state->mutex);
    number = state->recorded;
  }
  put({[state, number] { state->await(number); }, nullptr, true});
}

void RemoteQueue::synchronize() {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty(); });
  if (const auto failed = std::exchange(failure_, std::nullopt)) throw device::QueueError(*failed);
}

kernels::KernelTable remote_table() { return kRows; }

}  // namespace ngd::testing
