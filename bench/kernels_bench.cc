// The CPU device's operations in the shapes of the shipped models, batch 64, forward and backward apart: time per call
// and GFLOP/s of useful multiply-adds.
//
//   taskset -c 1 bazel-bin/bench/kernels_bench --benchmark_min_time=0.2
//
// --isa=baseline or avx2 restricts our own loops and tiles, and oneDNN, as the worker's flag does.
//
// Compare GFLOP/s with Peak: independent fused multiply-adds in a matrix product that fits in the cache.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "common/arithmetic/instruction_set.h"
#include "common/base/check.h"
#include "kernels/cpu/cpu_device.h"

ABSL_FLAG(std::string, isa, "auto", "baseline, avx2 or avx512; auto: the best of this machine");

namespace starring {
namespace {

constexpr int64_t kBatch = 64;

InstructionSet ChosenInstructionSet() {
  const std::string name = absl::GetFlag(FLAGS_isa);
  if (name == "baseline") return InstructionSet::kBaseline;
  if (name == "avx2") return InstructionSet::kAvx2;
  CHECK(name == "auto" || name == "avx512") << "--isa=" << name;
  return name == "auto" ? BestInstructionSet() : InstructionSet::kAvx512;
}

// One device and its buffers, filled with small numbers.
class Bench {
 public:
  Bench() : device_(CreateCpuDevice({.threads = 1, .instruction_set = ChosenInstructionSet()}).value()) {}
  Device* device() { return device_.get(); }
  float* Floats(int64_t count) {
    buffers_.push_back(device_->Allocate(count * static_cast<int64_t>(sizeof(float))).value());
    float* const floats = buffers_.back()->floats();
    for (int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(i * 7 % 13) * 0.01f - 0.06f;
    return floats;
  }

 private:
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
};

void Report(benchmark::State& state, double flops, const std::function<void()>& call) {
  call();
  // The call above is not timed: it finds unmapped pages.
  for (auto _ : state) call();
  if (flops > 0) {
    state.counters["GFLOP/s"] =
        benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
  }
}

enum class Pass { kForward, kBackward };

void RunConv2d(benchmark::State& state, const Conv2dSpec& s, Pass pass) {
  Bench bench;
  const auto conv = bench.device()->CreateOperation(s).value();
  const int64_t in = s.batch * s.in_height * s.in_width * s.in_channels;
  const int64_t out = s.batch * s.out_height() * s.out_width() * s.out_channels;
  const int64_t kernel = s.kernel_height * s.kernel_width * s.in_channels;
  float *x = bench.Floats(in), *w = bench.Floats(kernel * s.out_channels), *b = bench.Floats(s.out_channels);
  float *dx = bench.Floats(in), *dw = bench.Floats(kernel * s.out_channels), *db = bench.Floats(s.out_channels);
  float *y = bench.Floats(out), *dy = bench.Floats(out);
  const double flops = 2.0 * static_cast<double>(out) * static_cast<double>(kernel);
  if (pass == Pass::kForward) return Report(state, flops, [&] { conv->Forward(x, w, b, y); });
  const int products = s.input_gradient == InputGradient::kNeeded ? 2 : 1;
  Report(state, flops * products, [&] { conv->Backward(x, w, y, dy, products == 2 ? dx : nullptr, dw, db); });
}

void RunDense(benchmark::State& state, const DenseSpec& s, Pass pass) {
  Bench bench;
  const auto dense = bench.device()->CreateOperation(s).value();
  float *x = bench.Floats(s.batch * s.in), *w = bench.Floats(s.in * s.out), *b = bench.Floats(s.out);
  float *dx = bench.Floats(s.batch * s.in), *dw = bench.Floats(s.in * s.out), *db = bench.Floats(s.out);
  float *y = bench.Floats(s.batch * s.out), *dy = bench.Floats(s.batch * s.out);
  const double flops = 2.0 * static_cast<double>(s.batch) * static_cast<double>(s.in) * static_cast<double>(s.out);
  if (pass == Pass::kForward) return Report(state, flops, [&] { dense->Forward(x, w, b, y); });
  const int products = s.input_gradient == InputGradient::kNeeded ? 2 : 1;
  Report(state, flops * products, [&] { dense->Backward(x, w, y, dy, products == 2 ? dx : nullptr, dw, db); });
}

void RunMaxPool(benchmark::State& state, const Pool2dSpec& s, Pass pass) {
  Bench bench;
  const auto pool = bench.device()->CreateOperation(s).value();
  float* const x = bench.Floats(s.batch * s.in_height * s.in_width * s.channels);
  float* const y = bench.Floats(s.batch * s.out_height() * s.out_width() * s.channels);
  pool->Forward(x, nullptr, nullptr, y);
  // Backward reads the winners that the call above has noted.
  if (pass == Pass::kForward) return Report(state, 0, [&] { pool->Forward(x, nullptr, nullptr, y); });
  Report(state, 0, [&] { pool->Backward(nullptr, nullptr, nullptr, y, x, nullptr, nullptr); });
}

void RunBatchNorm(benchmark::State& state, const BatchNormSpec& s, Pass pass) {
  Bench bench;
  const auto norm = bench.device()->CreateBatchNorm(s).value();
  const int64_t count = s.batch * s.height * s.width * s.channels;
  float *x = bench.Floats(count), *y = bench.Floats(count), *dy = bench.Floats(count), *dx = bench.Floats(count);
  float* const c = bench.Floats(6 * s.channels);
  const auto channel = [&](int i) { return c + i * s.channels; };
  const auto forward = [&] { norm->Forward(x, channel(0), channel(1), channel(2), channel(3), y); };
  forward();
  // Backward reads the statistics that the call above has left.
  if (pass == Pass::kForward) return Report(state, 0, forward);
  Report(state, 0, [&] { norm->Backward(x, channel(0), y, dy, dx, channel(4), channel(5)); });
}

void RunDropout(benchmark::State& state, const DropoutSpec& s, Pass pass) {
  Bench bench;
  const auto dropout = bench.device()->CreateDropout(s).value();
  float* const x = bench.Floats(s.batch * s.sample_elements);
  float* const y = bench.Floats(s.batch * s.sample_elements);
  if (pass == Pass::kForward) return Report(state, 0, [&] { dropout->Forward(x, 1, 0, y); });
  Report(state, 0, [&] { dropout->Backward(x, y); });
}

void RunLoss(benchmark::State& state) {
  Bench bench;
  const auto loss = bench.device()->CreateLoss({.batch = kBatch, .outputs = 10}).value();
  const std::vector<int32_t> labels(kBatch, 3);
  float *logits = bench.Floats(kBatch * 10), *dlogits = bench.Floats(kBatch * 10);
  Report(state, 0, [&] { loss->Run(logits, labels.data(), 1.0f / kBatch, dlogits); });
}

template <typename Spec, typename Run>
void Register(const std::string& name, const Spec& spec, Run run) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    benchmark::RegisterBenchmark(absl::StrCat(name, pass == Pass::kForward ? " forward" : " backward").c_str(),
                                 [=](benchmark::State& state) { run(state, spec, pass); })
        ->Unit(benchmark::kMicrosecond);
  }
}

void RegisterAll() {
  constexpr Activation kRelu = Activation::kRelu;
  constexpr InputGradient kNone = InputGradient::kNotNeeded;
  // A model's first layer, which has 1 or 3 channels here, needs no gradient of its input.
  const auto conv = [](int64_t side, int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
    return Conv2dSpec{.batch = kBatch,
                      .in_height = side,
                      .in_width = side,
                      .in_channels = in,
                      .out_channels = out,
                      .kernel_height = kernel,
                      .kernel_width = kernel,
                      .stride_height = stride,
                      .stride_width = stride,
                      .padding_height = padding,
                      .padding_width = padding,
                      .activation = kRelu,
                      .input_gradient = in < 6 ? kNone : InputGradient::kNeeded};
  };
  Register("lenet5 conv1", conv(28, 1, 6, 5, 1, 2), RunConv2d);
  Register("lenet5 pool1", Pool2dSpec{.batch = kBatch, .in_height = 28, .in_width = 28, .channels = 6}, RunMaxPool);
  Register("lenet5 conv2", conv(14, 6, 16, 5, 1, 0), RunConv2d);
  Register("lenet5 pool2", Pool2dSpec{.batch = kBatch, .in_height = 10, .in_width = 10, .channels = 16}, RunMaxPool);
  Register("lenet5 fc1", DenseSpec{.batch = kBatch, .in = 400, .out = 120, .activation = kRelu}, RunDense);
  Register("lenet5 fc2", DenseSpec{.batch = kBatch, .in = 120, .out = 84, .activation = kRelu}, RunDense);
  Register("lenet5 fc3", DenseSpec{.batch = kBatch, .in = 84, .out = 10}, RunDense);
  benchmark::RegisterBenchmark("loss of 10 classes", RunLoss)->Unit(benchmark::kMicrosecond);
  Register("mnist_cnn conv1", conv(28, 1, 32, 3, 1, 0), RunConv2d);
  Register("mnist_cnn conv2", conv(26, 32, 64, 3, 1, 0), RunConv2d);
  Register("mnist_cnn pool", Pool2dSpec{.batch = kBatch, .in_height = 24, .in_width = 24, .channels = 64}, RunMaxPool);
  Register("mnist_cnn dropout1", DropoutSpec{.batch = kBatch, .sample_elements = 9216, .rate = 0.25f}, RunDropout);
  Register("mnist_cnn fc1", DenseSpec{.batch = kBatch, .in = 9216, .out = 128, .activation = kRelu}, RunDense);
  Register("mlp fc1", DenseSpec{.batch = kBatch, .in = 784, .out = 1024, .activation = kRelu, .input_gradient = kNone},
           RunDense);
  Register("mlp fc2", DenseSpec{.batch = kBatch, .in = 1024, .out = 1024, .activation = kRelu}, RunDense);
  Register("mlp fc3", DenseSpec{.batch = kBatch, .in = 1024, .out = 10}, RunDense);
  Register("resnet20 conv 3 -> 16", conv(32, 3, 16, 3, 1, 1), RunConv2d);
  Register("resnet20 conv 16 -> 16", conv(32, 16, 16, 3, 1, 1), RunConv2d);
  Register("resnet20 conv 16 -> 32 / 2", conv(32, 16, 32, 3, 2, 1), RunConv2d);
  Register("resnet20 conv 32 -> 32", conv(16, 32, 32, 3, 1, 1), RunConv2d);
  Register("resnet20 conv 64 -> 64", conv(8, 64, 64, 3, 1, 1), RunConv2d);
  Register("resnet20 batch norm 16",
           BatchNormSpec{.batch = kBatch, .height = 32, .width = 32, .channels = 16, .activation = kRelu},
           RunBatchNorm);
  // The three matrices together have 570 KB, so that they stay in a second-level cache of 1 MB.
  benchmark::RegisterBenchmark("Peak", [](benchmark::State& state) {
    RunDense(state, {.batch = kBatch, .in = 512, .out = 192}, Pass::kForward);
  })->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  starring::RegisterAll();
  // Takes the benchmark library's flags out of argv, which Abseil's parser would refuse.
  benchmark::Initialize(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  // Before the first device: oneDNN takes a limit only until it has been used.
  if (absl::GetFlag(FLAGS_isa) != "auto") CHECK(starring::LimitOnednn(starring::ChosenInstructionSet()).ok());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
