// The GPU's operations in the shapes of the shipped models: time per call, and bytes/s or FLOP/s compared with a plain
// copy and with a large matrix product on this GPU.
//
//   bazel run //bench:cuda_kernels_bench [BATCH [fp32|tf32|bf16 [own|auto]]]          default: 64 fp32 own
//
// auto: convolutions by cuDNN, where it is found.
//
// Each operation is captured kCalls times into one graph, so that launches do not hide the time of kernels. The time is
// that of the fastest of kRounds launches of the graph, divided by kCalls. Bytes are those that an operation cannot
// avoid: each input read once, each output written once. Inputs that fit in the GPU's cache are read faster than a copy
// reads memory, so small shapes may show more than 100 %.
//
// Needs a GPU; says so and exits with 1 where there is none.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/check.h"
#include "kernels/cuda/cuda_device.h"

namespace starring {
namespace {

constexpr int kCalls = 20, kRounds = 10;
constexpr double kElementBytes = sizeof(float);

struct Work {
  double bytes = 0, flops = 0;
};

class Bench {
 public:
  explicit Bench(std::unique_ptr<CudaDevice> device) : device_(std::move(device)) {}
  CudaDevice* device() { return device_.get(); }

  float* Floats(int64_t count) {
    std::vector<float> host(static_cast<size_t>(count));
    // Small values of both signs keep sums finite, and take both branches of a ReLU.
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i * 7 % 13) * 0.01f - 0.06f;
    auto buffer = device_->Allocate(count * static_cast<int64_t>(sizeof(float)));
    CHECK_OK(buffer);
    device_->CopyToDevice(host.data(), (*buffer)->data(), (*buffer)->size_bytes());
    CHECK_OK(device_->Synchronize());
    buffers_.push_back(*std::move(buffer));
    return buffers_.back()->floats();
  }
  void* Zeros(int64_t size_bytes) {
    auto buffer = device_->Allocate(size_bytes);
    CHECK_OK(buffer);
    buffers_.push_back(*std::move(buffer));
    return buffers_.back()->data();
  }

  double Seconds(const std::function<void()>& call) {
    call();
    CHECK_OK(device_->Synchronize());
    // The call above has done what happens once, so the capture has kernels alone.
    CHECK_OK(device_->BeginCapture());
    for (int i = 0; i < kCalls; ++i) call();
    auto graph = device_->EndCapture();
    CHECK_OK(graph);
    // The fastest, because other work on the machine can only make a launch slower.
    double fastest = 1e9;
    for (int round = -1; round < kRounds; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      CHECK_OK((*graph)->Launch());
      CHECK_OK(device_->Synchronize());
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      if (round >= 0) fastest = std::min(fastest, seconds.count() / kCalls);  // the first launch uploads the graph
    }
    return fastest;
  }

  void MeasureGpu() {
    // 512 MiB are far more than a GPU's cache holds. The copy reads and writes each byte, hence the factor 2.
    const int64_t bytes = int64_t{512} << 20;
    void *from = Zeros(bytes), *to = Zeros(bytes);
    copy_ =
        2.0 * static_cast<double>(bytes) / Seconds([&] { CHECK_OK(device_->stream()->CopyOnDevice(from, to, bytes)); });
    const int64_t n = 4096;
    auto dense = device_->CreateOperation(DenseSpec{.batch = n, .in = n, .out = n, .bias = Bias::kNone});
    CHECK_OK(dense);
    float *x = Floats(n * n), *weight = Floats(n * n), *y = Floats(n * n);
    product_ = 2.0 * n * n * n / Seconds([&] { (*dense)->Forward(x, weight, nullptr, y); });
    std::printf("%s\ncopy of 512 MiB: %.0f GB/s, product of 4096 x 4096 matrices: %.1f TFLOP/s\n\n",
                device_->name().c_str(), copy_ * 1e-9, product_ * 1e-12);
    std::printf("%-44s %10s %8s %7s %9s %7s\n", "", "us", "GB/s", "of copy", "TFLOP/s", "of GEMM");
    buffers_.clear();
  }

  void Report(const std::string& name, const Work& work, const std::function<void()>& call) {
    const double seconds = Seconds(call);
    std::printf("%-44s %10.2f", name.c_str(), seconds * 1e6);
    std::printf(" %8.0f %6.0f%%", work.bytes / seconds * 1e-9, 100 * work.bytes / seconds / copy_);
    if (work.flops > 0) {
      std::printf(" %9.2f %6.0f%%", work.flops / seconds * 1e-12, 100 * work.flops / seconds / product_);
    }
    std::printf("\n");
  }

  void Clear() { buffers_.clear(); }

 private:
  std::unique_ptr<CudaDevice> device_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  double copy_ = 0, product_ = 0;  // bytes and operations per second
};

void RunConv2d(Bench& bench, const char* name, const Conv2dSpec& s) {
  auto conv = bench.device()->CreateOperation(s);
  CHECK_OK(conv);
  const int64_t in = s.batch * s.in_height * s.in_width * s.in_channels;
  const int64_t out = s.batch * s.out_height() * s.out_width() * s.out_channels;
  const int64_t patch = s.kernel_height * s.kernel_width * s.in_channels;
  float *x = bench.Floats(in), *w = bench.Floats(patch * s.out_channels), *b = bench.Floats(s.out_channels);
  float *dx = bench.Floats(in), *dw = bench.Floats(patch * s.out_channels), *db = bench.Floats(s.out_channels);
  float *y = bench.Floats(out), *dy = bench.Floats(out);
  const double flops = 2.0 * static_cast<double>(out) * static_cast<double>(patch);
  // Weights are small next to the tensors and not counted. Backward reads x, y and dy, and writes dx and the dy that it
  // has masked; its two products have the operations of forward each.
  const double tensors = kElementBytes * static_cast<double>(in + out);
  bench.Report(absl::StrCat("conv ", name, " forward"), {.bytes = tensors, .flops = flops},
               [&] { (*conv)->Forward(x, w, b, y); });
  bench.Report(absl::StrCat("conv ", name, " backward"),
               {.bytes = 2 * tensors + kElementBytes * static_cast<double>(out), .flops = 2 * flops},
               [&] { (*conv)->Backward(x, w, y, dy, dx, dw, db); });
  // The first layer of a network makes no dx.
  Conv2dSpec first = s;
  first.input_gradient = InputGradient::kNotNeeded;
  auto first_conv = bench.device()->CreateOperation(first);
  CHECK_OK(first_conv);
  bench.Report(absl::StrCat("conv ", name, " weights alone"),
               {.bytes = tensors + kElementBytes * static_cast<double>(2 * out), .flops = flops},
               [&] { (*first_conv)->Backward(x, w, y, dy, nullptr, dw, db); });
  bench.Clear();
}

void RunDense(Bench& bench, const DenseSpec& s) {
  auto dense = bench.device()->CreateOperation(s);
  CHECK_OK(dense);
  float *x = bench.Floats(s.batch * s.in), *w = bench.Floats(s.out * s.in), *b = bench.Floats(s.out);
  float *dx = bench.Floats(s.batch * s.in), *dw = bench.Floats(s.out * s.in), *db = bench.Floats(s.out);
  float *y = bench.Floats(s.batch * s.out), *dy = bench.Floats(s.batch * s.out);
  const double flops = 2.0 * static_cast<double>(s.batch * s.in) * static_cast<double>(s.out);
  // Here the weights count: with a batch of 64 they are most of a large layer's bytes.
  const double bytes = kElementBytes * static_cast<double>(s.batch * (s.in + s.out) + s.in * s.out);
  const std::string name = absl::StrCat("dense ", s.in, " -> ", s.out);
  bench.Report(name + " forward", {.bytes = bytes, .flops = flops}, [&] { (*dense)->Forward(x, w, b, y); });
  bench.Report(name + " backward", {.bytes = 2 * bytes, .flops = 2 * flops},
               [&] { (*dense)->Backward(x, w, y, dy, dx, dw, db); });
  bench.Clear();
}

void RunBatchNorm(Bench& bench, const BatchNormSpec& s) {
  auto norm = bench.device()->CreateBatchNorm(s);
  CHECK_OK(norm);
  const int64_t count = s.batch * s.height * s.width * s.channels;
  float *x = bench.Floats(count), *y = bench.Floats(count), *dy = bench.Floats(count), *dx = bench.Floats(count);
  float* c[6];
  for (float*& vector : c) vector = bench.Floats(s.channels);
  const double bytes = kElementBytes * static_cast<double>(count);
  const std::string name = absl::StrCat("batch norm + relu ", s.height, "x", s.width, "x", s.channels);
  // Forward: x and y. Backward: x, y, dy and dx.
  bench.Report(name + " forward", {.bytes = 2 * bytes}, [&] { (*norm)->Forward(x, c[0], c[1], c[2], c[3], y); });
  bench.Report(name + " backward", {.bytes = 4 * bytes}, [&] { (*norm)->Backward(x, c[0], y, dy, dx, c[4], c[5]); });
  bench.Clear();
}

void RunPools(Bench& bench, int64_t batch) {
  const Pool2dSpec s = {.batch = batch, .in_height = 28, .in_width = 28, .channels = 6};
  auto pool = bench.device()->CreateOperation(s);
  CHECK_OK(pool);
  const int64_t in = batch * 28 * 28 * 6, out = in / 4;
  float *x = bench.Floats(in), *y = bench.Floats(out);
  // The extra byte of an output says which input of its window was the largest.
  const double bytes = kElementBytes * static_cast<double>(in) + (kElementBytes + 1) * static_cast<double>(out);
  bench.Report("max pool 28x28x6 forward", {.bytes = bytes}, [&] { (*pool)->Forward(x, nullptr, nullptr, y); });
  bench.Report("max pool 28x28x6 backward", {.bytes = bytes},
               [&] { (*pool)->Backward(nullptr, nullptr, nullptr, y, x, nullptr, nullptr); });
  auto average =
      bench.device()->CreateOperation(GlobalAveragePoolSpec{.batch = batch, .height = 8, .width = 8, .channels = 64});
  CHECK_OK(average);
  float *wide = bench.Floats(batch * 4096), *mean = bench.Floats(batch * 64);
  const Work work = {.bytes = kElementBytes * static_cast<double>(batch * (4096 + 64))};
  bench.Report("global average pool 8x8x64 forward", work, [&] { (*average)->Forward(wide, nullptr, nullptr, mean); });
  bench.Report("global average pool 8x8x64 backward", work,
               [&] { (*average)->Backward(nullptr, nullptr, nullptr, mean, wide, nullptr, nullptr); });
  bench.Clear();
}

void RunFlat(Bench& bench, int64_t batch) {
  CudaDevice* const device = bench.device();
  const int64_t count = batch * 32 * 32 * 16;
  const double bytes = kElementBytes * static_cast<double>(count);
  float *a = bench.Floats(count), *b = bench.Floats(count), *y = bench.Floats(count);
  bench.Report("add + relu 32x32x16", {.bytes = 3 * bytes}, [&] { device->Add(a, b, Activation::kRelu, y, count); });
  bench.Report("relu backward 32x32x16", {.bytes = 3 * bytes}, [&] { device->ReluBackward(a, b, y, count); });
  float* const mask = bench.Floats(count);
  bench.Report("add + relu backward 32x32x16", {.bytes = 4 * bytes},
               [&] { device->AddReluBackward(mask, a, b, y, count); });
  auto dropout = device->CreateDropout({.batch = batch, .sample_elements = 32 * 32 * 16, .seed = 1});
  CHECK_OK(dropout);
  bench.Report("dropout 32x32x16", {.bytes = 2 * bytes}, [&] { (*dropout)->Forward(a, 1, 0, y); });
  auto loss = device->CreateLoss({.batch = batch, .outputs = 10});
  CHECK_OK(loss);
  const auto* const labels = static_cast<const int32_t*>(bench.Zeros(batch * 4));
  bench.Report("softmax cross entropy of 10", {.bytes = 2 * kElementBytes * static_cast<double>(batch) * 10},
               [&] { (*loss)->Run(a, labels, 1, b); });
  const auto* const pixels = static_cast<const uint8_t*>(bench.Zeros(batch * 32 * 32 * 3));
  float *offset = bench.Floats(3), *scale = bench.Floats(3);
  const CudaDevice::Values images = {
      .values = pixels, .count = batch * 32 * 32 * 3, .channels = 3, .offset = offset, .scale = scale, .out = y};
  bench.Report("normalize pixels 32x32x3", {.bytes = (1 + kElementBytes) * static_cast<double>(images.count)},
               [&] { device->NormalizeValues(images); });
  const CudaDevice::SampleGather gather = {.batch = batch,
                                           .height = 32,
                                           .width = 32,
                                           .channels = 3,
                                           .samples = static_cast<const uint32_t*>(bench.Zeros(batch * 4)),
                                           .images = pixels,
                                           .labels = static_cast<const uint16_t*>(bench.Zeros(batch * 2)),
                                           .crop_padding = 4,
                                           .offset = offset,
                                           .scale = scale,
                                           .out_images = y,
                                           .out_labels = static_cast<int32_t*>(bench.Zeros(batch * 4))};
  bench.Report("gather and crop 32x32x3", {.bytes = (1 + kElementBytes) * static_cast<double>(images.count)},
               [&] { device->GatherSamples(gather); });
  bench.Clear();
}

void RunOptimizers(Bench& bench) {
  const int64_t count = 1'199'882;  // mnist_cnn
  const auto span = [&] { return std::span<float>(bench.Floats(count), static_cast<size_t>(count)); };
  const std::span<float> parameters = span(), gradient = span(), states[] = {span(), span()};
  const double bytes = kElementBytes * static_cast<double>(count);
  const auto run = [&](const char* name, const OptimizerConfig& config, double accesses) {
    const auto state_count = static_cast<size_t>(StateVectorCount(config));
    bench.Report(absl::StrCat("optimizer ", name, " of ", count), {.bytes = accesses * bytes}, [&] {
      bench.device()->ApplyOptimizer(config, {.learning_rate = 1e-3f,
                                              .gradient = gradient,
                                              .parameters_in = parameters,
                                              .parameters_out = parameters,
                                              .state = std::span(states).first(state_count)});
    });
  };
  // Gradient and parameters are read, parameters written; each state vector is read and written.
  run("sgd", {}, 3);
  run("momentum", {.momentum = 0.9}, 5);
  run("adamw", {.kind = OptimizerKind::kAdamW}, 7);
  bench.Clear();
}

void RunAll(Bench& bench, int64_t batch) {
  bench.MeasureGpu();
  const auto conv = [&](int64_t size, int64_t in, int64_t out, int64_t kernel, int64_t padding) {
    const std::string name = absl::StrCat(kernel, "x", kernel, " ", size, "x", size, " ", in, " -> ", out);
    RunConv2d(bench, name.c_str(),
              {.batch = batch,
               .in_height = size,
               .in_width = size,
               .in_channels = in,
               .out_channels = out,
               .kernel_height = kernel,
               .kernel_width = kernel,
               .padding_height = padding,
               .padding_width = padding,
               .activation = Activation::kRelu});
  };
  // The convolutions of lenet5 (two), mnist_cnn (two) and resnet20 (three), then dense layers of mlp and lenet5, then
  // resnet20's norms, which have 16, 32 and 64 channels.
  conv(28, 1, 6, 5, 2);
  conv(14, 6, 16, 5, 0);
  conv(28, 1, 32, 3, 0);
  conv(26, 32, 64, 3, 0);
  conv(32, 16, 16, 3, 1);
  conv(16, 32, 32, 3, 1);
  conv(8, 64, 64, 3, 1);
  RunDense(bench, {.batch = batch, .in = 784, .out = 1024, .activation = Activation::kRelu});
  RunDense(bench, {.batch = batch, .in = 1024, .out = 1024, .activation = Activation::kRelu});
  RunDense(bench, {.batch = batch, .in = 84, .out = 10});
  for (const int64_t size : {32, 16, 8}) {
    RunBatchNorm(
        bench,
        {.batch = batch, .height = size, .width = size, .channels = 512 / size, .activation = Activation::kRelu});
  }
  RunPools(bench, batch);
  RunFlat(bench, batch);
  RunOptimizers(bench);
}

int Main(int argc, char** argv) {
  int64_t batch = 64;
  const std::string_view math = argc > 2 ? argv[2] : "fp32", conv = argc > 3 ? argv[3] : "own";
  if (argc > 4 || (conv != "own" && conv != "auto") ||
      (argc > 1 && (!absl::SimpleAtoi(argv[1], &batch) || batch < 1)) ||
      (math != "fp32" && math != "tf32" && math != "bf16")) {
    std::fprintf(stderr, "usage: cuda_kernels_bench [BATCH [fp32|tf32|bf16 [own|auto]]]\n");
    return 2;
  }
  auto device = CreateCudaDevice({.math = math == "tf32"   ? CudaMath::kTf32
                                          : math == "bf16" ? CudaMath::kBf16
                                                           : CudaMath::kFp32,
                                  .convolutions = conv == "auto" ? CudaConvolutions::kAuto : CudaConvolutions::kOwn});
  if (!device.ok()) {
    std::fprintf(stderr, "cuda_kernels_bench measures a GPU: %s\n", device.status().ToString().c_str());
    return 1;
  }
  Bench bench(*std::move(device));
  RunAll(bench, batch);
  return 0;
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) { return starring::Main(argc, argv); }
