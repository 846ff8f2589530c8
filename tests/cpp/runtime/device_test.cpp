// SPDX-License-Identifier: Apache-2.0
// Tests the contract of device/device.hpp on the CPU and on the device of the tests. A new device
// joins the list.
#include "device/device.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "device_kinds.hpp"
#include "runtime/devices.hpp"

namespace ngd {
namespace {

using Floats = std::vector<float>;
constexpr std::size_t kBytes = 1000 * sizeof(float);

struct AnyDevice {
  const char* name;
  std::function<device::Device&()> device;
};

device::Device& remote(const testing::DeviceKind& kind) {
  static std::vector<std::unique_ptr<testing::RemoteDevice>> devices;
  devices.push_back(std::make_unique<testing::RemoteDevice>(kind.memory, kind.asynchronous,
                                                            std::chrono::milliseconds(1)));
  return *devices.back();
}

std::vector<AnyDevice> any_device() {
  std::vector<AnyDevice> all = {{"Cpu", device::cpu}};
  for (const testing::DeviceKind& kind : testing::kDeviceKinds)
    all.push_back({kind.name, [&kind]() -> device::Device& { return remote(kind); }});
  return all;
}

class DeviceContract : public ::testing::TestWithParam<AnyDevice> {
 protected:
  device::Device& device = GetParam().device();
  device::Buffer first{device, kBytes}, second{device, kBytes};  // must outlive the queue
  std::unique_ptr<device::Event> event = device.make_event();
  std::unique_ptr<device::Queue> queue = device.make_queue();
  Floats read(const device::Buffer& buffer) const {
    Floats values(kBytes / sizeof(float));
    buffer.read(values.data());
    return values;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContract, ::testing::ValuesIn(any_device()),
                         [](const auto& info) { return info.param.name; });

const Floats kThrees(1000, 3), kFives(1000, 5), kZeros(1000, 0);

TEST_P(DeviceContract, AlignsItsMemory) {
  for (const std::size_t bytes : {0, 1, 63, 65}) {
    const device::Buffer buffer(device, bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % device::kAlignment, 0u);
    EXPECT_EQ(buffer.device(), &device);
  }
}

TEST_P(DeviceContract, CopiesInTheOrderOfTheQueue) {
  Floats back(1000), cleared(1000, 1);
  queue->copy_from_host(first.data(), kThrees.data(), kBytes);
  queue->copy(second.data(), first.data(), kBytes);
  queue->copy_from_host(first.data(), kFives.data(), kBytes);
  queue->copy_to_host(back.data(), second.data(), kBytes);
  queue->clear(second.data(), kBytes);
  queue->copy_to_host(cleared.data(), second.data(), kBytes);
  queue->copy(second.data(), first.data(), 0);
  queue->synchronize();
  EXPECT_EQ(back, kThrees);
  EXPECT_EQ(cleared, kZeros);
  EXPECT_EQ(read(first), kFives);
  EXPECT_EQ(read(second), kZeros);
}

TEST_P(DeviceContract, ReachesAnEventRepeatedly) {
  EXPECT_TRUE(event->done());  // not recorded yet
  event->wait();
  for (const Floats* values : {&kThrees, &kFives}) {
    Floats back(1000);
    queue->copy_from_host(first.data(), values->data(), kBytes);
    queue->copy_to_host(back.data(), first.data(), kBytes);
    queue->record(*event);
    queue->clear(first.data(), kBytes);  // later work makes no difference
    event->wait();
    EXPECT_TRUE(event->done());
    EXPECT_EQ(back, *values);
  }
}

TEST_P(DeviceContract, MakesAQueueWaitForAnother) {
  const std::unique_ptr<device::Queue> other = device.make_queue();
  Floats back(1000);
  for (int i = 0; i < 5; ++i) queue->clear(first.data(), kBytes);
  queue->copy_from_host(first.data(), kFives.data(), kBytes);
  queue->record(*event);
  other->wait(*event);
  other->copy_to_host(back.data(), first.data(), kBytes);
  other->synchronize();
  EXPECT_EQ(back, kFives);
}

TEST_P(DeviceContract, EndsAQueueAfterItsWork) {
  Floats back(1000);
  for (int i = 0; i < 5; ++i) queue->clear(first.data(), kBytes);
  queue->copy_from_host(first.data(), kFives.data(), kBytes);
  queue->copy_to_host(back.data(), first.data(), kBytes);
  queue.reset();
  EXPECT_EQ(back, kFives);
}

// Only a kernel fails, and a kernel belongs to a device. So these tests use the tests' own device.
class FailingQueue : public ::testing::Test {
 protected:
  testing::RemoteDevice device{testing::Memory::Own, true, std::chrono::milliseconds(1)};
  std::unique_ptr<kernels::Kernel> kernel;  // must outlive the queue
  std::unique_ptr<device::Queue> queue = device.make_queue();
  std::unique_ptr<device::Event> before = device.make_event(), behind = device.make_event();
  const int origin = 0;
  void fail_between_the_events() {
    kernel = kernels::find(testing::remote_table(), {"fails", {{DType::F32, {}}}, {}, {}}, {})
                 .offer.kernel;
    queue->record(*before);
    queue->set_origin(&origin);
    const void* inputs[] = {nullptr};
    void* outputs[] = {nullptr};
    kernel->run({inputs, outputs, nullptr, queue.get()});
    queue->set_origin(nullptr);
    queue->record(*behind);
  }
  void expect_failure(const std::function<void()>& wait) const {
    try {
      wait();
      ADD_FAILURE() << "expected an error";
    } catch (const device::QueueError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
      EXPECT_STREQ(error.what(), "index 7 is out of range");
      EXPECT_EQ(error.origin(), &origin);
    }
  }
};

TEST_F(FailingQueue, ReportsTheFailureToWaitersAndCanBeUsedAgain) {
  const device::Buffer buffer(device, kBytes);
  for (int i = 0; i < 2; ++i) {
    fail_between_the_events();
    before->wait();
    expect_failure([&] { behind->wait(); });
    expect_failure([&] { queue->synchronize(); });
    queue->synchronize();
  }
  Floats back(1000);
  queue->copy_from_host(buffer.data(), kFives.data(), kBytes);
  queue->copy_to_host(back.data(), buffer.data(), kBytes);
  queue->record(*behind);
  behind->wait();
  EXPECT_EQ(back, kFives);
}

TEST_F(FailingQueue, DoesNotBlockAQueueThatWaitsForIt) {
  fail_between_the_events();
  const std::unique_ptr<device::Queue> other = device.make_queue();
  other->wait(*behind);
  other->synchronize();
}

TEST_F(FailingQueue, MayEndWithAFailureThatIsNeverReported) { fail_between_the_events(); }

TEST(Devices, AreFoundByName) {
  const runtime::DeviceRow& row = runtime::device_named("CPU");
  EXPECT_EQ(&row.device(), &device::cpu());
  EXPECT_EQ(row.table().data(), kernels::cpu_table().data());
  EXPECT_EQ(row.name, row.device().name());
  try {
    runtime::device_named("ABACUS");
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_STREQ(error.what(), "this build has no device called ABACUS");
  }
}

}  // namespace
}  // namespace ngd
