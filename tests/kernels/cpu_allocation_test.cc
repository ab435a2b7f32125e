// Forward and backward allocate nothing, not even inside oneDNN: this program replaces malloc and its relatives by
// functions that count. They can also refuse, to test what happens when memory runs out.
//
// There is one exception. Every run of a oneDNN primitive fills a small hash map of its arguments (oneDNN 2.6,
// exec_args_t), which no setting avoids. So operations on oneDNN may make small allocations, whose number and size are
// bounded; for all other operations the count is zero on every instruction set.
#include <errno.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/arithmetic/instruction_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/square_conv2d.h"

// A sanitizer has its own allocator, which these functions would replace.
#if !defined(STARRING_ASAN) && !defined(STARRING_TSAN)
#define STARRING_COUNTS_ALLOCATIONS
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}
#endif

namespace {

std::atomic<int64_t> allocation_count{0};
std::atomic<int64_t> largest_bytes{0};
std::atomic<int64_t> granted_bytes_max{std::numeric_limits<int64_t>::max()};  // a longer allocation fails

#ifdef STARRING_COUNTS_ALLOCATIONS
// Whether the allocation is granted.
bool Count(size_t size) {
  ++allocation_count;
  if (static_cast<int64_t>(size) > largest_bytes) largest_bytes = static_cast<int64_t>(size);
  if (static_cast<int64_t>(size) <= granted_bytes_max) return true;
  errno = ENOMEM;
  return false;
}
#endif

}  // namespace

#ifdef STARRING_COUNTS_ALLOCATIONS
extern "C" {
void* malloc(size_t size) { return Count(size) ? __libc_malloc(size) : nullptr; }
void* calloc(size_t count, size_t size) { return Count(count * size) ? __libc_calloc(count, size) : nullptr; }
void* realloc(void* memory, size_t size) { return Count(size) ? __libc_realloc(memory, size) : nullptr; }
void* memalign(size_t alignment, size_t size) { return Count(size) ? __libc_memalign(alignment, size) : nullptr; }
void* aligned_alloc(size_t alignment, size_t size) { return Count(size) ? __libc_memalign(alignment, size) : nullptr; }
int posix_memalign(void** memory, size_t alignment, size_t size) {
  *memory = Count(size) ? __libc_memalign(alignment, size) : nullptr;
  return *memory == nullptr ? ENOMEM : 0;
}
}
#endif

namespace starring {
namespace {

struct Allocations {
  int64_t count = 0;
  int64_t largest_bytes = 0;
};

Allocations During(const std::function<void()>& step) {
  allocation_count = 0;
  largest_bytes = 0;
  step();
  return {allocation_count, largest_bytes};
}

class CpuAllocationTest : public testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
#ifndef STARRING_COUNTS_ALLOCATIONS
    GTEST_SKIP() << "SKIPPED: a sanitizer owns malloc, allocations are counted in the ordinary build";
#endif
    device_ = CreateCpuDevice({.threads = 2, .instruction_set = GetParam()}).value();
  }

  float* Floats(int64_t count) {
    buffers_.push_back(device_->Allocate(count * static_cast<int64_t>(sizeof(float))).value());
    return buffers_.back()->floats();
  }

  // The first step may allocate: OpenMP starts its threads.
  void ExpectNone(const std::function<void()>& step) {
    step();
    EXPECT_EQ(During(step).count, 0);
  }
  void ExpectOnlyArgumentMaps(const std::function<void()>& step) {
    step();
    const Allocations allocations = During(step);
    // Far above the maps of a step's few primitives, and far below any tensor or temporary memory.
    EXPECT_LE(allocations.largest_bytes, 512);
    EXPECT_LE(allocations.count, 150);
  }

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
};

INSTANTIATE_TEST_SUITE_P(Cpu, CpuAllocationTest, testing::ValuesIn(TestedInstructionSets()),
                         [](const auto& test) { return NameOf(test.param); });

TEST_P(CpuAllocationTest, TheCounterCounts) {
  volatile size_t size = 1000;
  const Allocations allocations = During([&] { std::vector<char> memory(size); });
  EXPECT_GE(allocations.count, 1);
  EXPECT_GE(allocations.largest_bytes, 1000);
  EXPECT_GE(During([&] { device_->Allocate(5000).value(); }).largest_bytes, 5000);
}

TEST_P(CpuAllocationTest, ConvolutionsAllocateNothingLarge) {
  // By oneDNN's Winograd; by our own code, with few channels, twice; by oneDNN with a stride.
  for (const Conv2dSpec& spec :
       {SpecOf({.batch = 8, .side = 26, .in_channels = 32, .out_channels = 64, .kernel = 3}),
        SpecOf({.batch = 8, .side = 14, .in_channels = 6, .out_channels = 16, .kernel = 5}),
        SpecOf({.batch = 8, .side = 28, .in_channels = 1, .out_channels = 6, .kernel = 5, .padding = 2}),
        SpecOf(
            {.batch = 8, .side = 32, .in_channels = 16, .out_channels = 32, .kernel = 3, .stride = 2, .padding = 1})}) {
    const int64_t in = spec.batch * spec.in_height * spec.in_width * spec.in_channels;
    const int64_t out = spec.batch * spec.out_height() * spec.out_width() * spec.out_channels;
    const int64_t weights = spec.out_channels * spec.kernel_height * spec.kernel_width * spec.in_channels;
    float *x = Floats(in), *weight = Floats(weights), *bias = Floats(spec.out_channels), *y = Floats(out);
    float *dx = Floats(in), *dweight = Floats(weights), *dbias = Floats(spec.out_channels), *dy = Floats(out);
    Conv2dSpec with_relu = spec;
    with_relu.activation = Activation::kRelu;
    const auto conv = device_->CreateOperation(with_relu).value();
    const auto step = [&] {
      conv->Forward(x, weight, bias, y);
      conv->Backward(x, weight, y, dy, dx, dweight, dbias);
    };
    if (spec.in_channels < 16 || GetParam() == InstructionSet::kBaseline) {
      ExpectNone(step);  // our own tiles
    } else {
      ExpectOnlyArgumentMaps(step);
    }
  }
}

TEST_P(CpuAllocationTest, DenseLayersAllocateNothing) {
  for (const DenseSpec& spec : std::vector<DenseSpec>{{.batch = 64, .in = 784, .out = 1024},
                                                      {.batch = 64, .in = 84, .out = 10},
                                                      {.batch = 63, .in = 401, .out = 121}}) {
    float *x = Floats(spec.batch * spec.in), *weight = Floats(spec.in * spec.out), *bias = Floats(spec.out);
    float *dx = Floats(spec.batch * spec.in), *dweight = Floats(spec.in * spec.out), *dbias = Floats(spec.out);
    float *y = Floats(spec.batch * spec.out), *dy = Floats(spec.batch * spec.out);
    const auto dense = device_->CreateOperation(spec).value();
    ExpectNone([&] {
      dense->Forward(x, weight, bias, y);
      dense->Backward(x, weight, y, dy, dx, dweight, dbias);
    });
  }
}

TEST_P(CpuAllocationTest, PoolsNormalisationDropoutLossAndElementwiseAllocateNothing) {
  const int64_t count = 8 * 12 * 12 * 16;
  float *x = Floats(count), *y = Floats(count), *dy = Floats(count), *dx = Floats(count), *channels = Floats(16 * 6);
  const auto halving =
      device_->CreateOperation(Pool2dSpec{.batch = 8, .in_height = 12, .in_width = 12, .channels = 16}).value();
  const auto overlapping =
      device_
          ->CreateOperation(Pool2dSpec{
              .batch = 8, .in_height = 12, .in_width = 12, .channels = 16, .kernel_height = 3, .kernel_width = 3})
          .value();
  const auto average =
      device_->CreateOperation(GlobalAveragePoolSpec{.batch = 8, .height = 12, .width = 12, .channels = 16}).value();
  const auto norm = device_->CreateBatchNorm({.batch = 8, .height = 12, .width = 12, .channels = 16}).value();
  const auto dropout = device_->CreateDropout({.batch = 8, .sample_elements = 12 * 12 * 16}).value();
  const auto loss = device_->CreateLoss({.batch = 64, .outputs = 10}).value();
  const auto mse = device_->CreateLoss({.kind = LossKind::kMse, .batch = 64, .outputs = 10}).value();
  const auto bce = device_->CreateLoss({.kind = LossKind::kBce, .batch = 64, .outputs = 10}).value();
  auto labels = device_->Allocate(64 * 4).value();
  ExpectNone([&] {
    for (LayerOperation* pool : {halving.get(), overlapping.get()}) {
      pool->Forward(x, nullptr, nullptr, y);
      pool->Backward(nullptr, nullptr, nullptr, dy, dx, nullptr, nullptr);
    }
    average->Forward(x, nullptr, nullptr, y);
    average->Backward(nullptr, nullptr, nullptr, dy, dx, nullptr, nullptr);
    norm->Forward(x, channels, channels + 16, channels + 32, channels + 48, y);
    norm->Infer(x, channels, channels + 16, channels + 32, channels + 48, y);
    norm->Backward(x, channels, y, dy, dx, channels + 64, channels + 80);
    dropout->Forward(x, 0, 0, y);
    dropout->Backward(dy, dx);
    loss->Run(x, static_cast<const int32_t*>(labels->data()), 1, dx);
    loss->Result();
    for (Loss* values : {mse.get(), bce.get()}) {
      values->Run(x, dy, 1, dx);
      values->Result();
    }
    device_->Relu(x, y, count);
    device_->ReluBackward(y, dy, dx, count);
    device_->Add(x, y, Activation::kRelu, y, count);
    device_->AddReluBackward(y, dy, x, dx, count);
  });
}

TEST_P(CpuAllocationTest, OtherOperationsAllocateNothing) {
  const Pool2dSpec window = {.batch = 8, .in_height = 12, .in_width = 12, .channels = 20};
  const int64_t count = 8 * 12 * 12 * 20;
  float *x = Floats(count), *y = Floats(count), *dy = Floats(count), *dx = Floats(count), *weights = Floats(400);
  for (const OperationSpec& spec : std::vector<OperationSpec>{
           ActivationSpec{.batch = 8, .sample_elements = 12 * 12 * 20, .function = ActivationFunction::kGelu},
           AveragePool2dSpec{window}, DepthwiseConv2dSpec{window},
           ConcatPartSpec{.batch = 8, .pixels = 144, .channels = 8, .out_channels = 20, .offset = 4},
           GroupNormSpec{.batch = 8, .pixels = 144, .channels = 20, .groups = 5}}) {
    const auto operation = device_->CreateOperation(spec).value();
    ExpectNone([&] {
      operation->Forward(x, weights, weights + 80, y);
      operation->Backward(x, weights, y, dy, dx, weights + 100, weights + 200);
    });
  }
}

// An operation that cannot run is refused when it is created. Those that were created before go on.
TEST_P(CpuAllocationTest, WithoutMemoryOperationsAreRefusedAndOthersGoOn) {
  float *x = Floats(64 * 84), *weight = Floats(84 * 10), *bias = Floats(10), *y = Floats(64 * 10);
  const auto dense = device_->CreateOperation(DenseSpec{.batch = 64, .in = 84, .out = 10}).value();
  std::vector<absl::Status> refused;
  granted_bytes_max = 4 << 20;
  // By oneDNN, if it is not the baseline, and by our own code.
  refused.push_back(
      device_
          ->CreateOperation(
              SpecOf({.batch = 1, .side = 8, .in_channels = 512, .out_channels = 512, .kernel = 3, .padding = 1}))
          .status());
  refused.push_back(
      device_->CreateOperation(SpecOf({.batch = 1, .side = 8, .in_channels = 8, .out_channels = 1 << 15, .kernel = 3}))
          .status());
  refused.push_back(device_->CreateOperation(DenseSpec{.batch = 64, .in = 1 << 15, .out = 16}).status());
  refused.push_back(device_->CreateBatchNorm({.batch = 1, .height = 32, .width = 32, .channels = 4096}).status());
  refused.push_back(device_->CreateLoss({.batch = 1 << 20, .outputs = 10}).status());
  granted_bytes_max = std::numeric_limits<int64_t>::max();
  for (const absl::Status& status : refused) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("no memory for ")) << status;
  }
  dense->Forward(x, weight, bias, y);
}

}  // namespace
}  // namespace starring
