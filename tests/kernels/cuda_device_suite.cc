#include "tests/kernels/cuda_device_suite.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/optimizer.h"
#include "common/philox.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"

namespace starring {

// Where there is no GPU, nothing instantiates it, and that is the instantiating test's business.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaDeviceTest);

void CudaDeviceTest::SetUp() {
  auto device = CreateCudaDevice({.math = GetParam()});
  ASSERT_TRUE(device.ok()) << device.status();
  device_ = *std::move(device);
}

std::vector<float> RandomFloats(uint64_t seed, int64_t count) {
  const RandomKey key = {.seed = seed, .purpose = RandomPurpose::kSynthetic};
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * UnitFloat(key.At(i)[0]) - 1;
  return values;
}

namespace {

TEST_P(CudaDeviceTest, NamesTheGpuTheLibraryAndTheMath) {
  const char* const names[] = {"fp32", "tf32", "bf16"};
  EXPECT_THAT(
      device()->name(),
      testing::AllOf(testing::StartsWith("cuda:0 ("), testing::HasSubstr(", sm_"), testing::HasSubstr("cuBLASLt 1"),
                     testing::EndsWith(absl::StrCat(names[static_cast<int>(GetParam())], ")"))));
}

std::vector<OptimizerConfig> Optimizers() {
  return {{},
          {.weight_decay = 0.01},
          {.momentum = 0.9, .weight_decay = 1e-4},
          {.momentum = 0.9, .nesterov = true},
          {.momentum = 0.5, .nesterov = true, .weight_decay = 0.1},
          {.kind = OptimizerKind::kAdamW},
          {.kind = OptimizerKind::kAdamW, .weight_decay = 0.02, .beta1 = 0.8, .beta2 = 0.99, .epsilon = 1e-6}};
}

// Any formula with another order of operations, or one contracted, shows after three updates of many elements. Counts
// and offsets reach the packs, the rest behind them and the way without packs.
TEST_P(CudaDeviceTest, OptimizersGiveTheBitsOfTheCpu) {
  for (const OptimizerConfig& config : Optimizers()) {
    for (const int64_t count : {1, 3, 4, 1027, 5000}) {
      for (const int64_t offset : {0, 1}) {
        SCOPED_TRACE(absl::StrCat("kind ", static_cast<int>(config.kind), ", momentum ", config.momentum, ", ", count,
                                  " elements from ", offset));
        const auto states = static_cast<size_t>(StateVectorCount(config));
        std::vector<float> parameters = RandomFloats(1, count);
        std::vector<std::vector<float>> state(states, std::vector<float>(static_cast<size_t>(count)));
        std::vector<DeviceTensor> on_device;
        on_device.emplace_back(device(), std::vector<float>(static_cast<size_t>(offset + count)));
        on_device.emplace_back(device(), std::vector<float>(static_cast<size_t>(offset + count)));
        for (size_t i = 0; i < states; ++i) {
          on_device.emplace_back(device(), std::vector<float>(static_cast<size_t>(offset + count)));
        }
        const auto span = [&](size_t i) {
          return std::span<float>(on_device[i].data() + offset, static_cast<size_t>(count));
        };
        const auto bytes = static_cast<int64_t>(sizeof(float)) * count;
        device()->CopyToDevice(parameters.data(), span(1).data(), bytes);
        for (int64_t update = 1; update <= 3; ++update) {
          const std::vector<float> gradient = RandomFloats(static_cast<uint64_t>(10 + update), count);
          std::vector<std::span<float>> host_state(state.begin(), state.end()), device_state;
          for (size_t i = 0; i < states; ++i) device_state.push_back(span(2 + i));
          starring::ApplyOptimizer(config, {.learning_rate = 0.01f,
                                            .update = update,
                                            .gradient = gradient,
                                            .parameters_in = parameters,
                                            .parameters_out = parameters,
                                            .state = host_state});
          device()->CopyToDevice(gradient.data(), span(0).data(), bytes);
          device()->ApplyOptimizer(config, {.learning_rate = 0.01f,
                                            .update = update,
                                            .gradient = span(0),
                                            .parameters_in = span(1),
                                            .parameters_out = span(1),
                                            .state = device_state});
        }
        std::vector<float> got(static_cast<size_t>(count));
        device()->CopyToHost(span(1).data(), got.data(), bytes);
        ASSERT_TRUE(device()->Synchronize().ok());
        EXPECT_EQ(got, parameters);
        for (size_t i = 0; i < states; ++i) {
          device()->CopyToHost(span(2 + i).data(), got.data(), bytes);
          ASSERT_TRUE(device()->Synchronize().ok());
          EXPECT_EQ(got, state[i]) << "state " << i;
        }
      }
    }
  }
}

TEST_P(CudaDeviceTest, PixelsAreNormalisedByTheFormulaOfTheCpu) {
  for (const int64_t channels : {1, 3, 4, 5}) {
    for (const int64_t offset : {0, 1}) {
      for (const int64_t count : {channels, 7 * channels, 1024 * channels + 3 * channels}) {
        SCOPED_TRACE(absl::StrCat(count, " values of ", channels, " channels from ", offset));
        std::vector<uint8_t> pixels(static_cast<size_t>(offset + count));
        for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 37);
        const std::vector<float> shift = RandomFloats(1, channels), scale = RandomFloats(2, channels);
        auto on_device = device()->Allocate(offset + count);
        ASSERT_TRUE(on_device.ok()) << on_device.status();
        device()->CopyToDevice(pixels.data(), (*on_device)->data(), offset + count);
        DeviceTensor shifts(device(), shift), scales(device(), scale), out(device(), count);
        device()->NormalizePixels({.pixels = static_cast<const uint8_t*>((*on_device)->data()) + offset,
                                   .count = count,
                                   .channels = channels,
                                   .offset = shifts.data(),
                                   .scale = scales.data(),
                                   .out = out.data()});
        const std::vector<float> got = out.Host();
        for (int64_t i = 0; i < count; ++i) {
          const auto c = static_cast<size_t>(i % channels);
          const float distance = static_cast<float>(pixels[static_cast<size_t>(offset + i)]) - shift[c];
          ASSERT_EQ(got[static_cast<size_t>(i)], distance * scale[c]) << "value " << i;
        }
      }
    }
  }
}

// A view into a tensor, four bytes further: the contract allows it for the flat operations.
TEST_P(CudaDeviceTest, ElementwiseOperationsDoNotNeedAlignment) {
  const int64_t count = 1001;
  const std::vector<float> a_host = RandomFloats(1, count + 1), b_host = RandomFloats(2, count + 1);
  DeviceTensor a(device(), a_host), b(device(), b_host), y(device(), count + 1);
  device()->Add(a.data() + 1, b.data() + 1, Activation::kNone, y.data() + 1, count);
  const std::vector<float> got = y.Host();
  EXPECT_TRUE(std::isnan(got[0]));
  for (size_t i = 1; i < got.size(); ++i) ASSERT_EQ(got[i], a_host[i] + b_host[i]) << i;
}

// Channels that fill no pack, and tensors that are not aligned for one: the same numbers as with packs.
TEST_P(CudaDeviceTest, DropoutDoesNotNeedAlignment) {
  const int64_t count = 3 * 40;
  const std::vector<float> x_host = RandomFloats(1, count);
  auto dropout = device()->CreateDropout({.batch = 3, .sample_elements = 40, .rate = 0.3f, .seed = 4});
  ASSERT_TRUE(dropout.ok()) << dropout.status();
  DeviceTensor aligned(device(), x_host), want(device(), count), shifted(device(), count + 1), got(device(), count + 1);
  device()->CopyToDevice(x_host.data(), shifted.data() + 1, 4 * count);
  (*dropout)->Forward(aligned.data(), 7, 11, want.data());
  (*dropout)->Forward(shifted.data() + 1, 7, 11, got.data() + 1);
  const std::vector<float> all = got.Host();
  EXPECT_EQ(std::vector<float>(all.begin() + 1, all.end()), want.Host());
}

// The smallest network with everything that a step binds.
struct Step {
  explicit Step(CudaDevice* device)
      : dropout(
            device->CreateDropout({.batch = 4, .sample_elements = 10, .rate = 0.5f, .seed = 3, .stream = 1}).value()),
        loss(device->CreateSoftmaxCrossEntropy({.batch = 4, .classes = 10}).value()),
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
  std::unique_ptr<SoftmaxCrossEntropy> loss;
  DeviceTensor x, logits, dlogits, dx, parameters, velocity;
  std::unique_ptr<DeviceBuffer> labels;
};

TEST_P(CudaDeviceTest, OneGraphServesEveryStepWithBoundValues) {
  Step launched(device()), captured(device());
  auto values = device()->Allocate(sizeof(CudaStepValues));
  ASSERT_TRUE(values.ok()) << values.status();
  device()->BindStepValues(static_cast<const CudaStepValues*>((*values)->data()));
  ASSERT_TRUE(device()->BeginCapture().ok());
  captured.Run(device(), 0, 0, -1, -1);
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
  // On a GPU the capture is lost by that; on either, the device can go on.
  (void)device()->EndCapture();
  EXPECT_TRUE(device()->Allocate(16).ok());
}

// Two convolutions of one device: the second grows the temporary memory that the first one's graph has the address of.
TEST_P(CudaDeviceTest, AGraphOutlivesTheGrowthOfTemporaryMemory) {
  Conv2dSpec spec = {.batch = 2,
                     .in_height = 5,
                     .in_width = 5,
                     .in_channels = 3,
                     .out_channels = 4,
                     .kernel_height = 3,
                     .kernel_width = 3};
  auto conv = device()->CreateConv2d(spec).value();
  DeviceTensor x(device(), RandomFloats(1, 2 * 75)), weight(device(), RandomFloats(2, 108)),
      bias(device(), {1, 2, 3, 4});
  DeviceTensor y(device(), 2 * 36), again(device(), 2 * 36);
  conv->Forward(x.data(), weight.data(), bias.data(), y.data());
  ASSERT_TRUE(device()->BeginCapture().ok());
  conv->Forward(x.data(), weight.data(), bias.data(), again.data());
  auto graph = device()->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  spec.batch = 64;
  auto larger = device()->CreateConv2d(spec);
  ASSERT_TRUE(larger.ok()) << larger.status();
  ASSERT_TRUE((*graph)->Launch().ok());
  EXPECT_EQ(again.Host(), y.Host());
}

TEST_P(CudaDeviceTest, AnotherStreamWaitsForAnEventAndCopiesToPinnedMemory) {
  auto stream = device()->CreateStream();
  auto event = device()->CreateEvent();
  auto pinned = device()->AllocatePinned(400);
  ASSERT_TRUE(stream.ok() && event.ok() && pinned.ok());
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

// As a trainer does: parameters arrive on another stream before the graph reads them, gradients leave when it says so.
TEST_P(CudaDeviceTest, AGraphWaitsForEventsAndRecordsThemWheneverItIsLaunched) {
  auto arrived = device()->CreateEvent(), complete = device()->CreateEvent();
  auto copies = device()->CreateStream();
  ASSERT_TRUE(arrived.ok() && complete.ok() && copies.ok());
  DeviceTensor x(device(), {1, 2, 3}), sum(device(), {0, 0, 0});
  ASSERT_TRUE(device()->BeginCapture().ok());
  EXPECT_TRUE(device()->stream()->Wait(arrived->get()).ok());
  device()->Accumulate(x.data(), sum.data(), 3);
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

// A second stream that copies what is ready while the first goes on, as a trainer's buckets do.
TEST_P(CudaDeviceTest, AGraphHasABranch) {
  auto branch = device()->CreateStream();
  auto event = device()->CreateEvent();
  auto pinned = device()->AllocatePinned(12);
  ASSERT_TRUE(branch.ok() && event.ok() && pinned.ok());
  const auto* const got = static_cast<const float*>((*pinned)->data());
  DeviceTensor x(device(), {1, 2, 3}), y(device(), {5, 6, 7});
  const auto run = [&] {
    device()->Accumulate(x.data(), x.data(), 3);
    EXPECT_TRUE(device()->Fork(branch->get()).ok());
    EXPECT_TRUE((*branch)->CopyToHost(x.data(), (*pinned)->data(), 8).ok());
    EXPECT_TRUE((*branch)->Record(event->get()).ok());
    device()->Accumulate(y.data(), y.data(), 3);
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
  run();  // and without a capture
  ASSERT_TRUE(device()->Synchronize().ok());
  EXPECT_EQ(got[1], 8);
  EXPECT_EQ(got[2], 28);

  ASSERT_TRUE(device()->BeginCapture().ok());
  EXPECT_TRUE(device()->Fork(branch->get()).ok());
  EXPECT_TRUE((*branch)->Record(event->get()).ok());
  EXPECT_FALSE(device()->EndCapture().ok()) << "nobody joined the branch";
}

TEST_P(CudaDeviceTest, MemoryOfTheCallerIsPinnedForAWhile) {
  std::vector<float> host = {1, 2, 3};
  auto pinned = device()->Pin(host.data(), 12);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ((*pinned)->data(), host.data());
  EXPECT_EQ((*pinned)->size_bytes(), 12);
  EXPECT_FALSE(device()->Pin(nullptr, 12).ok());
  EXPECT_TRUE(device()->Synchronize().ok()) << "the refusal is nobody else's error";
}

TEST_P(CudaDeviceTest, FindsWhatIsNotFinite) {
  auto memory = device()->Allocate(sizeof(CudaStepResult)).value();
  auto* const result = static_cast<CudaStepResult*>(memory->data());
  const auto find = [&](const std::vector<float>& values, int64_t offset) {
    DeviceTensor tensor(device(), values);
    CudaStepResult host;
    device()->CopyToDevice(&host, result, sizeof(host));
    device()->FindNonFinite(tensor.data() + offset, std::ssize(values) - offset, result);
    device()->CopyToHost(result, &host, sizeof(host));
    EXPECT_TRUE(device()->Synchronize().ok());
    return host.non_finite_element;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t offset : {0, 1}) {
    std::vector<float> values(1031, std::numeric_limits<float>::max());
    values[5] = -std::numeric_limits<float>::max();
    values[6] = std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(find(values, offset), -1);
    for (const int64_t at : {1, 7, 1027, 1030}) {
      for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> wrong = values;
        wrong[static_cast<size_t>(at)] = bad;
        EXPECT_EQ(find(wrong, offset), at - offset) << bad;
      }
    }
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

// A kernel can stop nobody: the trainer refuses what is not finite.
TEST_P(CudaDeviceTest, LabelsThatDoNotExistMakeTheLossNan) {
  auto loss = device()->CreateSoftmaxCrossEntropy({.batch = 3, .classes = 2});
  ASSERT_TRUE(loss.ok()) << loss.status();
  DeviceTensor logits(device(), {1, 2, 3, 4, 5, 6}), dlogits(device(), 6);
  auto labels = device()->Allocate(12).value();
  for (const int32_t bad : {-1, 2, std::numeric_limits<int32_t>::max()}) {
    const int32_t host[3] = {0, bad, 1};
    device()->CopyToDevice(host, labels->data(), 12);
    (*loss)->Run(logits.data(), static_cast<const int32_t*>(labels->data()), 1, dlogits.data());
    EXPECT_TRUE(std::isnan((*loss)->Result().loss_sum)) << bad;
    EXPECT_TRUE(std::isnan(dlogits.Host()[2])) << bad;
    EXPECT_FALSE(std::isnan(dlogits.Host()[0])) << bad;
  }
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

TEST_P(CudaDeviceTest, MaxPoolPassesOneNanOfAWindowOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto pool = device()->CreateMaxPool2d({.batch = 1, .in_height = 2, .in_width = 8, .channels = 1}).value();
  DeviceTensor x(device(), {nan, 1, 1, nan, 1, 2, 1, 2, 2, 3, 2, 3, nan, 3, 3, nan}), y(device(), 4), dx(device(), 16);
  DeviceTensor dy(device(), {1, 2, 3, 4});
  pool->Forward(x.data(), y.data());
  EXPECT_THAT(y.Host(), testing::Each(testing::IsNan()));
  pool->Backward(dy.data(), dx.data());
  EXPECT_EQ(dx.Host(), std::vector<float>({1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 4}));
}

// Several chunks of columns, the last one smaller, in tensors whose images are no multiple of a pack: chunks of any
// number of images would not be aligned for cuBLASLt.
TEST_P(CudaDeviceTest, ConvolutionsInChunksEqualThoseInOne) {
  const Conv2dSpec spec = {.batch = 11,
                           .in_height = 5,
                           .in_width = 6,
                           .in_channels = 3,
                           .out_channels = 5,
                           .kernel_height = 3,
                           .kernel_width = 2,
                           .stride_height = 2,
                           .padding_height = 1,
                           .padding_width = 1,
                           .activation = Activation::kRelu};
  const int64_t in = 11 * 5 * 6 * 3, out = 11 * spec.out_height() * spec.out_width() * 5, kernel = 5 * 3 * 2 * 3;
  const auto run = [&](Device* device) {
    auto conv = device->CreateConv2d(spec).value();
    DeviceTensor x(device, RandomFloats(1, in)), dy(device, RandomFloats(2, out)), y(device, out), dx(device, in);
    DeviceTensor weight(device, RandomFloats(3, kernel)), bias(device, RandomFloats(4, 5));
    DeviceTensor dweight(device, kernel), dbias(device, int64_t{5});
    conv->Forward(x.data(), weight.data(), bias.data(), y.data());
    conv->Backward(x.data(), weight.data(), y.data(), dy.data(), dx.data(), dweight.data(), dbias.data());
    return std::vector<std::vector<float>>{y.Host(), dx.Host(), dweight.Host(), dbias.Host()};
  };
  auto in_chunks = CreateCudaDevice({.math = GetParam(), .columns_bytes_max = 1});
  ASSERT_TRUE(in_chunks.ok()) << in_chunks.status();
  const auto got = run(in_chunks->get()), want = run(device());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(Near(got[i], ToDouble(want[i]))) << "result " << i;
}

}  // namespace
}  // namespace starring
