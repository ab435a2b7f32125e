#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/arithmetic/optimizer.h"
#include "gmock/gmock.h"
#include "tests/kernels/cuda_device_suite.h"
#include "tests/kernels/device_test_suite.h"

// Streams, graphs, memory and errors; operations are in cuda_device_suite.cc.

namespace starring {
namespace {

struct Step {
  explicit Step(CudaDevice* device)
      : dropout(
            device->CreateDropout({.batch = 4, .sample_elements = 10, .rate = 0.5f, .seed = 3, .stream = 1}).value()),
        loss(device->CreateLoss({.batch = 4, .outputs = 10}).value()),
        x(device, RandomFloats(1, 40)),
        logits(device, 40),
        dlogits(device, 40),
        dx(device, 40),
        parameters(device, RandomFloats(2, 40)),
        velocity(device, std::vector<float>(40)),
        labels(device->Allocate(16).value()) {
    const int32_t host[4] = {1, 5, 9, 0};
    device->CopyToDevice(host, labels->data(), 16);
  }

  void Run(CudaDevice* device, int64_t step, int64_t first_sample, float scale, float learning_rate) {
    dropout->Forward(x.data(), step, first_sample, logits.data());
    loss->Run(logits.data(), static_cast<const int32_t*>(labels->data()), scale, dlogits.data());
    dropout->Backward(dlogits.data(), dx.data());
    const std::span<float> state[] = {{velocity.data(), 40}};
    device->ApplyOptimizer(kConfig, {.learning_rate = learning_rate,
                                     .update = step + 1,
                                     .gradient = {dx.data(), 40},
                                     .parameters_in = {parameters.data(), 40},
                                     .parameters_out = {parameters.data(), 40},
                                     .state = state});
  }

  static constexpr OptimizerConfig kConfig = {.momentum = 0.9};
  std::unique_ptr<Dropout> dropout;
  std::unique_ptr<Loss> loss;
  DeviceTensor x, logits, dlogits, dx, parameters, velocity;
  std::unique_ptr<DeviceBuffer> labels;
};

TEST_P(CudaDeviceTest, OneGraphServesEveryStepWithBoundValues) {
  Step launched(device()), captured(device());
  auto values = device()->Allocate(sizeof(CudaStepValues));
  ASSERT_TRUE(values.ok()) << values.status();
  device()->BindStepValues(static_cast<const CudaStepValues*>((*values)->data()));
  ASSERT_TRUE(device()->BeginCapture().ok());
  captured.Run(device(), 0, 0, -1, -1);  // values of no step below: the graph must read the bound ones
  auto graph = device()->EndCapture();
  device()->BindStepValues(nullptr);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(captured.parameters.Host(), launched.parameters.Host()) << "a capture runs nothing";

  for (int64_t step = 0; step < 3; ++step) {
    const int64_t first_sample = 100 - 7 * step;
    const float scale = 0.25f / static_cast<float>(step + 1), rate = 0.1f * static_cast<float>(step + 1);
    launched.Run(device(), step, first_sample, scale, rate);
    const CudaStepValues now = {.step = step,
                                .first_sample = first_sample,
                                .loss_scale = scale,
                                .optimizer = MakeCudaOptimizerScalars(Step::kConfig, rate, step + 1)};
    device()->CopyToDevice(&now, (*values)->data(), sizeof(now));
    ASSERT_TRUE((*graph)->Launch().ok());
    EXPECT_EQ(captured.loss->Result().loss_sum, launched.loss->Result().loss_sum) << "step " << step;
    EXPECT_EQ(captured.dx.Host(), launched.dx.Host()) << "step " << step;
    EXPECT_EQ(captured.parameters.Host(), launched.parameters.Host()) << "step " << step;
  }
}

TEST_P(CudaDeviceTest, NothingAllocatesInACapture) {
  ASSERT_TRUE(device()->BeginCapture().ok());
  EXPECT_FALSE(device()->Allocate(16).ok());
  // On a GPU the refused allocation has ended the capture. The emulation has not. The device works on either.
  (void)device()->EndCapture();
  EXPECT_TRUE(device()->Allocate(16).ok());
}

// Two convolutions of one device: the second one grows the temporary memory whose address the first one's graph has.
TEST_P(CudaDeviceTest, AGraphOutlivesTheGrowthOfTemporaryMemory) {
  constexpr int64_t kOut = 65;  // enough for columns
  Conv2dSpec spec = {.batch = 2,
                     .in_height = 5,
                     .in_width = 5,
                     .in_channels = 3,
                     .out_channels = kOut,
                     .kernel_height = 3,
                     .kernel_width = 3};
  auto conv = device()->CreateOperation(spec).value();
  DeviceTensor x(device(), RandomFloats(1, 2 * 75)), weight(device(), RandomFloats(2, kOut * 27)),
      bias(device(), RandomFloats(3, kOut));
  DeviceTensor y(device(), 2 * 9 * kOut), again(device(), 2 * 9 * kOut);
  conv->Forward(x.data(), weight.data(), bias.data(), y.data());
  ASSERT_TRUE(device()->BeginCapture().ok());
  conv->Forward(x.data(), weight.data(), bias.data(), again.data());
  auto graph = device()->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  spec.batch = 64;
  auto larger = device()->CreateOperation(spec);
  ASSERT_TRUE(larger.ok()) << larger.status();
  ASSERT_TRUE((*graph)->Launch().ok());
  EXPECT_EQ(again.Host(), y.Host());
}

TEST_P(CudaDeviceTest, AnotherStreamWaitsForAnEventAndCopiesToPinnedMemory) {
  auto stream = device()->CreateStream();
  auto event = device()->CreateEvent();
  auto pinned = device()->AllocatePinned(400);
  ASSERT_TRUE(stream.ok() && event.ok() && pinned.ok());
  EXPECT_TRUE((*event)->HasPassed().value()) << "there was no Record";
  EXPECT_NE((*stream)->native(), device()->stream()->native());
  EXPECT_EQ((*pinned)->size_bytes(), 400);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*pinned)->data()) % 64, 0u);
  const std::vector<float> x_host = RandomFloats(1, 100);
  DeviceTensor x(device(), x_host), y(device(), 100);
  device()->Add(x.data(), x.data(), Activation::kNone, y.data(), 100);
  EXPECT_TRUE(device()->stream()->Record(event->get()).ok());
  EXPECT_TRUE((*stream)->Wait(event->get()).ok());
  EXPECT_TRUE((*stream)->CopyToHost(y.data(), (*pinned)->data(), 400).ok());
  EXPECT_TRUE((*stream)->Record(event->get()).ok());
  EXPECT_TRUE((*event)->Wait().ok());
  EXPECT_TRUE((*event)->HasPassed().value());
  const auto* const got = static_cast<const float*>((*pinned)->data());
  for (size_t i = 0; i < 100; ++i) ASSERT_EQ(got[i], 2 * x_host[i]);
  // And back.
  EXPECT_TRUE((*stream)->CopyToDevice((*pinned)->data(), x.data(), 400).ok());
  EXPECT_TRUE((*stream)->Synchronize().ok());
  EXPECT_EQ(x.Host(), y.Host());
  DeviceTensor z(device(), 100);
  EXPECT_TRUE((*stream)->CopyOnDevice(y.data(), z.data(), 400).ok());
  EXPECT_TRUE((*stream)->Synchronize().ok());
  EXPECT_EQ(z.Host(), y.Host());
}

TEST_P(CudaDeviceTest, AGraphWaitsForEventsAndRecordsThemWheneverItIsLaunched) {
  auto arrived = device()->CreateEvent(), complete = device()->CreateEvent();
  auto copies = device()->CreateStream();
  ASSERT_TRUE(arrived.ok() && complete.ok() && copies.ok());
  DeviceTensor x(device(), {1, 2, 3}), sum(device(), {0, 0, 0});
  ASSERT_TRUE(device()->BeginCapture().ok());
  EXPECT_TRUE(device()->stream()->Wait(arrived->get()).ok());
  device()->Add(x.data(), sum.data(), Activation::kNone, sum.data(), 3);
  EXPECT_TRUE(device()->stream()->Record(complete->get()).ok());
  auto graph = device()->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const float scale : {1.0f, 10.0f}) {
    const float host[3] = {scale, 2 * scale, 3 * scale};
    EXPECT_TRUE((*copies)->CopyToDevice(host, x.data(), sizeof(host)).ok());
    EXPECT_TRUE((*copies)->Record(arrived->get()).ok());
    EXPECT_TRUE((*graph)->Launch().ok());
    EXPECT_TRUE((*complete)->Wait().ok());
  }
  EXPECT_EQ(sum.Host(), std::vector<float>({11, 22, 33}));
}

// The graph records the event after some 50 ms of kernels. In every launch a wait for the event must last until then: a
// wait that ended with the launch before would let old gradients be sent. Only a GPU tests this. The emulation runs a
// graph when it is launched, and shows that the graph can be built and launched twice.
TEST_P(CudaDeviceTest, WaitingBehindALaunchWaitsForTheRecordOfThatLaunch) {
  using Clock = std::chrono::steady_clock;
  // One sample with one channel is summed by a few threads, which takes long.
  auto spin =
      device()->CreateOperation(GlobalAveragePoolSpec{.batch = 1, .height = 256, .width = 256, .channels = 1}).value();
  DeviceTensor pixels(device(), std::vector<float>(65536)), mean(device(), 1), x(device(), 3), y(device(), 3);
  const auto spin_times = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) spin->Forward(pixels.data(), nullptr, nullptr, mean.data());
  };
  spin_times(1);  // loads the kernel
  ASSERT_TRUE(device()->Synchronize().ok());
  const Clock::time_point begin = Clock::now();
  spin_times(8);
  ASSERT_TRUE(device()->Synchronize().ok());
  const int64_t spins = std::clamp<int64_t>(8 * std::chrono::milliseconds(50) / (Clock::now() - begin), 1, 5000);

  auto branch = device()->CreateStream().value();
  auto event = device()->CreateEvent().value();
  auto pinned = device()->AllocatePinned(12).value();
  auto* const got = static_cast<float*>(pinned->data());
  std::fill_n(got, 3, -1.0f);
  ASSERT_TRUE(device()->BeginCapture().ok());
  spin_times(spins);
  device()->Add(x.data(), x.data(), Activation::kNone, y.data(), 3);
  EXPECT_TRUE(device()->Fork(branch.get()).ok());
  EXPECT_TRUE(branch->CopyToHost(y.data(), got, 12).ok());
  EXPECT_TRUE(branch->Record(event.get()).ok());
  EXPECT_TRUE(device()->Join(branch.get()).ok());
  auto graph = device()->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const float scale : {1.0f, 10.0f}) {
    const float host[3] = {scale, 2 * scale, 3 * scale};
    device()->CopyToDevice(host, x.data(), sizeof(host));
    ASSERT_TRUE((*graph)->Launch().ok());
    const Clock::time_point launched = Clock::now();
    ASSERT_TRUE(event->Wait().ok());
    const auto waited = Clock::now() - launched;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(got[i], 2 * host[i]);
    if (device()->info().name != "emulated GPU") {
      EXPECT_GE(waited, std::chrono::milliseconds(10)) << "the kernels were too short for this test to show anything";
    }
    ASSERT_TRUE(device()->Synchronize().ok());
  }
}

TEST_P(CudaDeviceTest, AGraphHasABranch) {
  auto branch = device()->CreateStream();
  auto event = device()->CreateEvent();
  auto pinned = device()->AllocatePinned(12);
  ASSERT_TRUE(branch.ok() && event.ok() && pinned.ok());
  const auto* const got = static_cast<const float*>((*pinned)->data());
  DeviceTensor x(device(), {1, 2, 3}), y(device(), {5, 6, 7});
  const auto run = [&] {
    device()->Add(x.data(), x.data(), Activation::kNone, x.data(), 3);
    EXPECT_TRUE(device()->Fork(branch->get()).ok());
    EXPECT_TRUE((*branch)->CopyToHost(x.data(), (*pinned)->data(), 8).ok());
    EXPECT_TRUE((*branch)->Record(event->get()).ok());
    device()->Add(y.data(), y.data(), Activation::kNone, y.data(), 3);
    EXPECT_TRUE(device()->Fork(branch->get()).ok());
    EXPECT_TRUE((*branch)->CopyToHost(y.data() + 2, static_cast<float*>((*pinned)->data()) + 2, 4).ok());
    EXPECT_TRUE(device()->Join(branch->get()).ok());
  };
  ASSERT_TRUE(device()->BeginCapture().ok());
  run();
  auto graph = device()->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(x.Host(), std::vector<float>({1, 2, 3})) << "a capture runs nothing";
  ASSERT_TRUE((*graph)->Launch().ok());
  ASSERT_TRUE((*event)->Wait().ok());
  EXPECT_EQ(got[0], 2);
  ASSERT_TRUE(device()->Synchronize().ok());
  EXPECT_EQ(got[2], 14);
  run();  // once more, without a capture
  ASSERT_TRUE(device()->Synchronize().ok());
  EXPECT_EQ(got[1], 8);
  EXPECT_EQ(got[2], 28);

  ASSERT_TRUE(device()->BeginCapture().ok());
  EXPECT_TRUE(device()->Fork(branch->get()).ok());
  EXPECT_TRUE((*branch)->Record(event->get()).ok());
  EXPECT_FALSE(device()->EndCapture().ok()) << "the branch was not joined";
}

TEST_P(CudaDeviceTest, MemoryOfTheCallerIsPinnedForAWhile) {
  std::vector<float> host = {1, 2, 3};
  const auto both = CudaDevice::PinFor::kReadAndWrite;
  {
    auto pinned = device()->Pin(host.data(), 12, both);
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    EXPECT_EQ((*pinned)->data(), host.data());
    EXPECT_EQ((*pinned)->size_bytes(), 12);
  }
  EXPECT_TRUE(device()->Pin(host.data(), 12, both).ok()) << "again, after the first has ended";
  EXPECT_FALSE(device()->Pin(nullptr, 12, both).ok());
  EXPECT_TRUE(device()->Synchronize().ok()) << "the refusal must not become the error of a later call";
}

TEST_P(CudaDeviceTest, MemoryThatIsMappedForReadingIsPinnedOrRefused) {
  const size_t bytes = 1 << 20;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::fill_n(static_cast<float*>(memory), bytes / sizeof(float), 2.5f);
  ASSERT_EQ(mprotect(memory, bytes, PROT_READ), 0);
  {
    auto pinned = device()->Pin(memory, static_cast<int64_t>(bytes), CudaDevice::PinFor::kRead);
    if (!pinned.ok()) std::printf("not pinned: %s\n", std::string(pinned.status().message()).c_str());
    DeviceTensor x(device(), 4);
    device()->CopyToDevice(memory, x.data(), 16);
    EXPECT_EQ(x.Host(), std::vector<float>(4, 2.5f));
  }
  munmap(memory, bytes);
}

TEST_P(CudaDeviceTest, VectorMathGivesTheBitsOfTheDeviceOnAnotherThread) {
  const int64_t count = 1031, bytes = 4 * count;
  const std::vector<float> a_host = RandomFloats(1, count), b_host = RandomFloats(2, count);
  DeviceTensor a(device(), a_host), b(device(), b_host), sum(device(), count), want(device(), a_host);
  DeviceTensor velocity(device(), std::vector<float>(static_cast<size_t>(count)));
  DeviceTensor other_velocity(device(), std::vector<float>(static_cast<size_t>(count)));
  const auto span = [&](DeviceTensor& tensor) { return std::span<float>(tensor.data(), static_cast<size_t>(count)); };
  const OptimizerConfig config = {.momentum = 0.9, .nesterov = true};
  const std::span<float> state[] = {span(velocity)}, other_state[] = {span(other_velocity)};
  device()->ApplyOptimizer(config, {.learning_rate = 0.1f,
                                    .gradient = span(b),
                                    .parameters_in = span(want),
                                    .parameters_out = span(want),
                                    .state = other_state});
  ASSERT_TRUE(device()->Synchronize().ok());
  auto math = device()->CreateVectorMath();
  ASSERT_TRUE(math.ok()) << math.status();
  std::vector<float> got(static_cast<size_t>(count));
  std::thread([&] {
    (*math)->Add(a.data(), b.data(), sum.data(), count);
    (*math)->CopyToHost(sum.data(), got.data(), bytes);
    EXPECT_TRUE((*math)->Synchronize().ok());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], a_host[i] + b_host[i]);
    (*math)->Add(a.data() + 1, sum.data() + 1, sum.data() + 1, count - 1);  // in place, and not aligned
    (*math)->CopyToHost(sum.data(), got.data(), bytes);
    EXPECT_TRUE((*math)->Synchronize().ok());
    for (size_t i = 1; i < got.size(); ++i) ASSERT_EQ(got[i], a_host[i] + (a_host[i] + b_host[i]));
    (*math)->ApplyOptimizer(config, {.learning_rate = 0.1f,
                                     .gradient = span(b),
                                     .parameters_in = span(a),
                                     .parameters_out = span(a),
                                     .state = state});
    EXPECT_TRUE((*math)->Synchronize().ok());
  }).join();
  EXPECT_EQ(a.Host(), want.Host());
  EXPECT_EQ(velocity.Host(), other_velocity.Host());
}

TEST_P(CudaDeviceTest, VectorMathPacksRows) {
  // The last row ends with the memory. Lengths in whole packs of 16 bytes, and others.
  for (const CudaRows& rows :
       {CudaRows{.count = 5, .length = 32, .step = 96}, CudaRows{7, 33, 50}, CudaRows{3, 8, 8}}) {
    const int64_t apart_count = (rows.count - 1) * rows.step + rows.length;
    const std::vector<float> apart_host = RandomFloats(3, apart_count);
    DeviceTensor apart(device(), apart_host), packed(device(), rows.count * rows.length);
    DeviceTensor again(device(), std::vector<float>(static_cast<size_t>(apart_count), -1.0f));
    auto math = device()->CreateVectorMath().value();
    math->PackRows(rows, apart.data(), packed.data());
    math->UnpackRows(rows, packed.data(), again.data());
    EXPECT_TRUE(math->Synchronize().ok());
    std::vector<float> want_packed, want_again(apart_host.size(), -1.0f);
    for (int64_t row = 0; row < rows.count; ++row) {
      for (int64_t i = row * rows.step; i < row * rows.step + rows.length; ++i) {
        want_packed.push_back(apart_host[static_cast<size_t>(i)]);
        want_again[static_cast<size_t>(i)] = apart_host[static_cast<size_t>(i)];
      }
    }
    EXPECT_EQ(packed.Host(), want_packed);
    EXPECT_EQ(again.Host(), want_again);
  }
}

TEST_P(CudaDeviceTest, VectorMathKeepsItsFirstError) {
  auto math = device()->CreateVectorMath().value();
  std::vector<float> host(4);
  math->CopyToHost(nullptr, host.data(), 16);
  const absl::Status status = math->Synchronize();
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("copying from the GPU: "));
  EXPECT_EQ(math->Synchronize(), status);
  EXPECT_TRUE(device()->Synchronize().ok()) << "it must not become the error of a later call";
}

// To device memory and to pinned memory, at once and whenever a graph is launched.
TEST_P(CudaDeviceTest, StampsFollowEachOther) {
  const auto pinned = device()->AllocatePinned(2 * sizeof(uint64_t)).value();
  const auto own = device()->Allocate(sizeof(uint64_t)).value();
  auto* const stamps = static_cast<uint64_t*>(pinned->data());
  stamps[0] = stamps[1] = 0;
  device()->Stamp(stamps);
  device()->Stamp(static_cast<uint64_t*>(own->data()));
  ASSERT_TRUE(device()->BeginCapture().ok());
  device()->Stamp(stamps + 1);
  const auto graph = device()->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  uint64_t second = 0, last = 0;
  for (int launch = 0; launch < 2; ++launch) {
    ASSERT_TRUE((*graph)->Launch().ok());
    device()->CopyToHost(own->data(), &second, sizeof(second));
    ASSERT_TRUE(device()->Synchronize().ok());
    EXPECT_GT(stamps[0], 0u);
    EXPECT_LE(stamps[0], second);
    EXPECT_LE(second, stamps[1]);
    EXPECT_LT(last, stamps[1]);
    last = stamps[1];
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the clock may move in steps
  }
}

TEST_P(CudaDeviceTest, TheLossGoesWhereAResultIsBound) {
  Step bound(device()), unbound(device());
  auto memory = device()->Allocate(sizeof(CudaStepResult)).value();
  const CudaStepResult before = {.non_finite_element = 17};
  device()->CopyToDevice(&before, memory->data(), sizeof(before));
  device()->BindStepResult(static_cast<CudaStepResult*>(memory->data()));
  bound.Run(device(), 1, 0, 0.5f, 0.1f);
  device()->BindStepResult(nullptr);
  unbound.Run(device(), 1, 0, 0.5f, 0.1f);
  const LossResult want = unbound.loss->Result();
  CudaStepResult got;
  device()->CopyToHost(memory->data(), &got, sizeof(got));
  ASSERT_TRUE(device()->Synchronize().ok());
  EXPECT_EQ(got.loss_sum, want.loss_sum);
  EXPECT_EQ(got.correct, want.correct);
  EXPECT_EQ(got.non_finite_element, 17);
}

TEST_P(CudaDeviceTest, TheFirstErrorIsKeptForSynchronize) {
  std::vector<float> host(4);
  EXPECT_TRUE(device()->Synchronize().ok());
  // From a null pointer.
  device()->CopyToHost(nullptr, host.data(), 16);
  const absl::Status status = device()->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("copying from the GPU: "));
  EXPECT_EQ(device()->Synchronize(), status);
}

}  // namespace
}  // namespace starring
