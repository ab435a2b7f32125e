#include "tests/kernels/cuda_device_suite.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/philox.h"
#include "gmock/gmock.h"
#include "tests/kernels/device_test_suite.h"
#include "worker/data/crop_flip.h"
#include "worker/data/normalization.h"

namespace starring {

// Without a GPU nothing instantiates this suite, and the instantiating test says so.
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

// A formula with another order of operations, or a contracted one, shows after three updates of many elements. Counts
// and offsets reach the packs, the elements after them and the path without packs.
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

// `count` values of type Value, which begin `offset` values after an aligned address.
template <class Value>
void ExpectNormalisedAsOnTheCpu(CudaDevice* device, int64_t channels, int64_t offset, int64_t count) {
  std::vector<Value> values(static_cast<size_t>(offset + count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Value>(static_cast<uint8_t>(i * 37));
  const std::vector<float> shift = RandomFloats(1, channels), scale = RandomFloats(2, channels);
  auto on_device = device->Allocate(std::ssize(values) * static_cast<int64_t>(sizeof(Value)));
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  device->CopyToDevice(values.data(), (*on_device)->data(), (*on_device)->size_bytes());
  DeviceTensor shifts(device, shift), scales(device, scale), out(device, count);
  device->NormalizeValues({.values = static_cast<const Value*>((*on_device)->data()) + offset,
                           .value_bytes = sizeof(Value),
                           .count = count,
                           .channels = channels,
                           .offset = shifts.data(),
                           .scale = scales.data(),
                           .out = out.data()});
  const std::vector<float> got = out.Host();
  for (int64_t i = 0; i < count; ++i) {
    const auto c = static_cast<size_t>(i % channels);
    const float distance = static_cast<float>(values[static_cast<size_t>(offset + i)]) - shift[c];
    ASSERT_EQ(got[static_cast<size_t>(i)], distance * scale[c]) << "value " << i;
  }
}

TEST_P(CudaDeviceTest, ValuesAreNormalisedByTheFormulaOfTheCpu) {
  for (const int64_t channels : {1, 3, 4, 5}) {
    for (const int64_t offset : {0, 1}) {
      for (const int64_t count : {channels, 7 * channels, 1024 * channels + 3 * channels}) {
        SCOPED_TRACE(absl::StrCat(count, " values of ", channels, " channels from ", offset));
        ExpectNormalisedAsOnTheCpu<uint8_t>(device(), channels, offset, count);
        ExpectNormalisedAsOnTheCpu<float>(device(), channels, offset, count);
      }
    }
  }
}

struct GatherCase {
  int64_t height, width, channels, batch;
  int64_t crop_padding;
};

// The loader's functions on the host give the expected values.
template <class Value>
void ExpectGatherOfTheHost(CudaDevice* device, const GatherCase& c, int64_t offset) {
  constexpr int64_t kCount = 11, kEpoch = 3;
  constexpr uint64_t kSeed = 0x1234567890;
  const int64_t values = c.height * c.width * c.channels;
  std::vector<Value> images(static_cast<size_t>(kCount * values));
  std::vector<uint16_t> labels(kCount);
  for (size_t i = 0; i < images.size(); ++i) images[i] = static_cast<Value>(1 + i * 37 % 255);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<uint16_t>(i * 1007);
  std::vector<uint32_t> samples(static_cast<size_t>(c.batch));
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<uint32_t>(i * 5 % kCount);
  const auto upload = [device](const auto& host) {
    auto buffer = device->Allocate(static_cast<int64_t>(host.size() * sizeof(host[0]))).value();
    device->CopyToDevice(host.data(), buffer->data(), buffer->size_bytes());
    return buffer;
  };
  const auto gpu_images = upload(images), gpu_labels = upload(labels), gpu_samples = upload(samples);
  const Normalization normalization{.mean = RandomFloats(1, c.channels),
                                    .deviation = std::vector<float>(static_cast<size_t>(c.channels), 0.3f),
                                    .type = sizeof(Value) == 1 ? FieldType::kPixels : FieldType::kNumbers};
  const NormalizerConstants constants = NormalizerConstantsOf(normalization);
  DeviceTensor shift(device, constants.offset), scale(device, constants.scale), out(device, offset + c.batch * values);
  auto out_labels = device->Allocate(c.batch * static_cast<int64_t>(sizeof(int32_t))).value();
  device->GatherSamples({.batch = c.batch,
                         .height = c.height,
                         .width = c.width,
                         .channels = c.channels,
                         .samples = static_cast<const uint32_t*>(gpu_samples->data()),
                         .value_bytes = sizeof(Value),
                         .images = gpu_images->data(),
                         .labels = static_cast<const uint16_t*>(gpu_labels->data()),
                         .crop_padding = c.crop_padding,
                         .seed = kSeed,
                         .epoch = kEpoch,
                         .offset = shift.data(),
                         .scale = scale.data(),
                         .out_images = out.data() + offset,
                         .out_labels = static_cast<int32_t*>(out_labels->data())});
  const std::vector<float> got = out.Host();
  std::vector<int32_t> got_labels(static_cast<size_t>(c.batch));
  device->CopyToHost(out_labels->data(), got_labels.data(), out_labels->size_bytes());
  ASSERT_TRUE(device->Synchronize().ok());

  constexpr auto kValueBytes = static_cast<int64_t>(sizeof(Value));
  std::vector<uint8_t> cropped(static_cast<size_t>(values * kValueBytes));
  std::vector<float> want(static_cast<size_t>(values));
  for (int64_t b = 0; b < c.batch; ++b) {
    const uint32_t sample = samples[static_cast<size_t>(b)];
    const CropFlip crop = c.crop_padding == 0 ? CropFlip{} : DrawCropFlip(kSeed, kEpoch, sample);
    ApplyCropFlip(crop, {.height = c.height, .width = c.width, .channels = c.channels * kValueBytes},
                  reinterpret_cast<const uint8_t*>(images.data() + sample * values), cropped.data());
    Normalizer(normalization).Run(cropped.data(), values, want.data());
    ASSERT_EQ(got_labels[static_cast<size_t>(b)], labels[sample]) << "place " << b;
    ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin() + offset + b * values)) << "place " << b;
  }
}

TEST_P(CudaDeviceTest, SamplesAreGatheredAsTheLoaderDoes) {
  const GatherCase cases[] = {
      {.height = 28, .width = 28, .channels = 1, .batch = 5, .crop_padding = 0},
      {.height = 32, .width = 32, .channels = 3, .batch = 9, .crop_padding = kCropPadding},
      {.height = 5, .width = 3, .channels = 3, .batch = 40, .crop_padding = kCropPadding},  // no packs, and empty crops
      {.height = 2, .width = 5, .channels = 2, .batch = 40, .crop_padding = kCropPadding},  // packs across rows
      {.height = 1, .width = 1, .channels = 1, .batch = 300, .crop_padding = 0},
      {.height = 28, .width = 28, .channels = 1, .batch = 0, .crop_padding = kCropPadding},
  };
  for (const GatherCase& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.batch, " of ", c.height, "x", c.width, "x", c.channels));
    for (const int64_t offset : {0, 1}) {
      ExpectGatherOfTheHost<uint8_t>(device(), c, offset);
      ExpectGatherOfTheHost<float>(device(), c, offset);
    }
  }
}

// A view of a tensor from its second float on: the contract allows such addresses for the flat operations.
TEST_P(CudaDeviceTest, ElementwiseOperationsDoNotNeedAlignment) {
  const int64_t count = 1001;
  const std::vector<float> a_host = RandomFloats(1, count + 1), b_host = RandomFloats(2, count + 1);
  DeviceTensor a(device(), a_host), b(device(), b_host), y(device(), count + 1);
  device()->Add(a.data() + 1, b.data() + 1, Activation::kNone, y.data() + 1, count);
  const std::vector<float> got = y.Host();
  EXPECT_TRUE(std::isnan(got[0]));
  for (size_t i = 1; i < got.size(); ++i) ASSERT_EQ(got[i], a_host[i] + b_host[i]) << i;
}

// Channels that fill no pack, and tensors that are not aligned for one, give the same numbers as packs.
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

// The host reads pinned memory without a copy, once an event after the kernel has been reached.
TEST_P(CudaDeviceTest, WhatIsNotFiniteMayBeWrittenToPinnedMemory) {
  auto memory = device()->AllocatePinned(sizeof(CudaStepResult)).value();
  auto* const result = new (memory->data()) CudaStepResult;
  auto event = device()->CreateEvent().value();
  DeviceTensor good(device(), std::vector<float>(5, 1)), bad(device(), {1, 2, std::nanf(""), 4, 5});
  for (const auto& [tensor, want] : {std::pair(&good, -1), std::pair(&bad, 2)}) {
    device()->FindNonFinite(tensor->data(), 5, result);
    ASSERT_TRUE(device()->stream()->Record(event.get()).ok());
    ASSERT_TRUE(event->Wait().ok());
    EXPECT_EQ(result->non_finite_element, want);
  }
}

TEST_P(CudaDeviceTest, OptimizersFindWhatIsNotFiniteWhereAResultIsBound) {
  auto memory = device()->Allocate(sizeof(CudaStepResult)).value();
  auto* const result = static_cast<CudaStepResult*>(memory->data());
  const int64_t count = 1031;
  for (const OptimizerConfig& config : Optimizers()) {
    for (const int64_t at : {int64_t{-1}, int64_t{0}, int64_t{1027}, count - 1}) {
      std::vector<float> gradient_host = RandomFloats(1, count);
      if (at >= 0) gradient_host[static_cast<size_t>(at)] = at % 2 == 0 ? INFINITY : NAN;
      DeviceTensor gradient(device(), gradient_host), parameters(device(), RandomFloats(2, count));
      std::vector<DeviceTensor> state;
      std::vector<std::span<float>> spans;
      for (int i = 0; i < StateVectorCount(config); ++i) {
        state.emplace_back(device(), std::vector<float>(static_cast<size_t>(count)));
        spans.emplace_back(state.back().data(), static_cast<size_t>(count));
      }
      const std::span<float> in_place(parameters.data(), static_cast<size_t>(count));
      CudaStepResult host;
      device()->CopyToDevice(&host, result, sizeof(host));
      device()->BindStepResult(result);
      device()->ApplyOptimizer(config, {.learning_rate = 0.1f,
                                        .update = 1,
                                        .gradient = {gradient.data(), static_cast<size_t>(count)},
                                        .parameters_in = in_place,
                                        .parameters_out = in_place,
                                        .state = spans});
      device()->BindStepResult(nullptr);
      device()->CopyToHost(result, &host, sizeof(host));
      ASSERT_TRUE(device()->Synchronize().ok());
      EXPECT_EQ(host.non_finite_element, at);
    }
  }
}

// A kernel cannot fail: the trainer refuses results that are not finite.
TEST_P(CudaDeviceTest, LabelsThatDoNotExistMakeTheLossNan) {
  auto loss = device()->CreateLoss({.batch = 3, .outputs = 2});
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

TEST_P(CudaDeviceTest, MaxPoolPassesOneNanOfAWindowOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto pool = device()->CreateOperation(Pool2dSpec{.batch = 1, .in_height = 2, .in_width = 8, .channels = 1}).value();
  DeviceTensor x(device(), {nan, 1, 1, nan, 1, 2, 1, 2, 2, 3, 2, 3, nan, 3, 3, nan}), y(device(), 4), dx(device(), 16);
  DeviceTensor dy(device(), {1, 2, 3, 4});
  pool->Forward(x.data(), nullptr, nullptr, y.data());
  EXPECT_THAT(y.Host(), testing::Each(testing::IsNan()));
  pool->Backward(nullptr, nullptr, nullptr, dy.data(), dx.data(), nullptr, nullptr);
  EXPECT_EQ(dx.Host(), std::vector<float>({1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 4}));
}

// A tensor that begins `offset` floats after the start of its allocation.
class OffsetTensor {
 public:
  OffsetTensor(Device* device, std::vector<float> values, int64_t offset)
      : offset_(offset), memory_(device, [&] {
          values.insert(values.begin(), static_cast<size_t>(offset), 0.0f);
          return values;
        }()) {}
  float* data() { return memory_.data() + offset_; }
  std::vector<float> Host() {
    const std::vector<float> all = memory_.Host();
    return {all.begin() + offset_, all.end()};
  }

 private:
  const int64_t offset_;
  DeviceTensor memory_;
};

// Channels that fill packs, in tensors that are not aligned for them, give the same numbers.
TEST_P(CudaDeviceTest, OperationsOverChannelsDoNotNeedAlignment) {
  constexpr int64_t kChannels = 8, kPixels = 5 * 6, kCount = 2 * kPixels * kChannels, kWeights = 4 * 3 * 3 * kChannels;
  const Conv2dSpec conv_spec = {.batch = 2,
                                .in_height = 5,
                                .in_width = 6,
                                .in_channels = kChannels,
                                .out_channels = 4,
                                .kernel_height = 3,
                                .kernel_width = 3,
                                .padding_height = 1,
                                .padding_width = 1,
                                .activation = Activation::kRelu};
  constexpr int64_t kOutputs = 2 * kPixels * 4, kPooled = 2 * 2 * 3 * kChannels;
  // cuBLASLt reads and writes aligned tensors only; it gets x and dx as columns.
  const bool narrow = GetParam() == CudaMath::kFp32;
  const auto run = [&](int64_t offset) {
    std::vector<std::vector<float>> results;
    const auto tensor = [&](uint64_t seed, int64_t count, bool shifted = true) {
      return OffsetTensor(device(), RandomFloats(seed, count), shifted ? offset : 0);
    };
    auto x = tensor(1, kCount), y = tensor(2, kCount), dy = tensor(3, kCount), dx = tensor(4, kCount);
    auto pool =
        device()->CreateOperation(Pool2dSpec{.batch = 2, .in_height = 5, .in_width = 6, .channels = kChannels}).value();
    auto pooled = tensor(5, kPooled), dpooled = tensor(6, kPooled);
    pool->Forward(x.data(), nullptr, nullptr, pooled.data());
    pool->Backward(nullptr, nullptr, nullptr, dpooled.data(), dx.data(), nullptr, nullptr);
    results.insert(results.end(), {pooled.Host(), dx.Host()});

    auto mean = device()
                    ->CreateOperation(GlobalAveragePoolSpec{.batch = 2, .height = 5, .width = 6, .channels = kChannels})
                    .value();
    auto means = tensor(7, 2 * kChannels), dmeans = tensor(8, 2 * kChannels);
    mean->Forward(x.data(), nullptr, nullptr, means.data());
    mean->Backward(nullptr, nullptr, nullptr, dmeans.data(), dx.data(), nullptr, nullptr);
    results.insert(results.end(), {means.Host(), dx.Host()});

    auto norm = device()
                    ->CreateBatchNorm(
                        {.batch = 2, .height = 5, .width = 6, .channels = kChannels, .activation = Activation::kRelu})
                    .value();
    auto gamma = tensor(9, kChannels), beta = tensor(10, kChannels), running = tensor(11, kChannels);
    DeviceTensor variance(device(), std::vector<float>(kChannels, 1.0f));
    auto dgamma = tensor(12, kChannels), dbeta = tensor(13, kChannels);
    norm->Forward(x.data(), gamma.data(), beta.data(), running.data(), variance.data(), y.data());
    norm->Backward(x.data(), gamma.data(), y.data(), dy.data(), dx.data(), dgamma.data(), dbeta.data());
    results.insert(results.end(), {y.Host(), running.Host(), variance.Host(), dx.Host(), dgamma.Host(), dbeta.Host()});
    norm->Infer(x.data(), gamma.data(), beta.data(), running.data(), variance.data(), y.data());
    results.push_back(y.Host());

    auto conv = device()->CreateOperation(conv_spec).value();
    auto weight = tensor(14, kWeights, narrow), dweight = tensor(15, kWeights, narrow);
    auto bias = tensor(16, 4, narrow), dbias = tensor(17, 4);
    auto out = tensor(18, kOutputs, narrow), dout = tensor(19, kOutputs, narrow);
    conv->Forward(x.data(), weight.data(), bias.data(), out.data());
    conv->Backward(x.data(), weight.data(), out.data(), dout.data(), dx.data(), dweight.data(), dbias.data());
    results.insert(results.end(), {out.Host(), dx.Host(), dweight.Host(), dbias.Host()});
    return results;
  };
  const auto got = run(1), want = run(0);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(Near(got[i], ToDouble(want[i]))) << "result " << i;
}

// Several chunks of columns, the last one smaller, in tensors whose images are no multiple of a pack: only chunks of a
// multiple of four images are aligned for cuBLASLt.
TEST_P(CudaDeviceTest, ConvolutionsInChunksEqualThoseInOne) {
  constexpr int64_t kOut = 69;  // too many for narrow_convolution.h
  const Conv2dSpec spec = {.batch = 11,
                           .in_height = 5,
                           .in_width = 6,
                           .in_channels = 3,
                           .out_channels = kOut,
                           .kernel_height = 3,
                           .kernel_width = 2,
                           .stride_height = 2,
                           .padding_height = 1,
                           .padding_width = 1,
                           .activation = Activation::kRelu};
  const int64_t in = 11 * 5 * 6 * 3, out = 11 * spec.out_height() * spec.out_width() * kOut, kernel = kOut * 3 * 2 * 3;
  const auto run = [&](Device* device) {
    auto conv = device->CreateOperation(spec).value();
    DeviceTensor x(device, RandomFloats(1, in)), dy(device, RandomFloats(2, out)), y(device, out), dx(device, in);
    DeviceTensor weight(device, RandomFloats(3, kernel)), bias(device, RandomFloats(4, kOut));
    DeviceTensor dweight(device, kernel), dbias(device, kOut);
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
