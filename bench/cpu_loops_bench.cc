// Measures the gain of each kind of our own CPU loops, in training steps of the shipped models. A step runs once as the
// device runs it, and once with one kind of operation computed by its plainest alternative. kernels/README.md has the
// result.
//
//   taskset -c 1 bazel-bin/bench/cpu_loops_bench --isa=avx512
//
// A step is forward, backward and an update with momentum, batch 64, one thread. Both variants of a model are in one
// process and take turns, so that other work on the machine slows both down; the time is the thread's CPU time. The
// gain is the median, over rounds, of the alternative's time over ours, with its quartiles.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/match.h"
#include "common/arithmetic/instruction_set.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/check.h"
#include "dnnl.hpp"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/cpu/onednn_primitive.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"

ABSL_FLAG(std::string, isa, "auto", "baseline, avx2 or avx512; auto: the best of this machine");
ABSL_FLAG(std::string, only, "", "run the pairs whose model and alternative contain this text");
ABSL_FLAG(int, rounds, 41, "rounds of every pair; each variant has one turn in a round");
ABSL_FLAG(double, turn_ms, 30, "a turn has as many steps as take about so long");

namespace starring {
namespace {

constexpr int64_t kBatch = 64;
using dnnl::memory;
using Tag = memory::format_tag;

InstructionSet ChosenInstructionSet() {
  const std::string name = absl::GetFlag(FLAGS_isa);
  if (name == "baseline") return InstructionSet::kBaseline;
  if (name == "avx2") return InstructionSet::kAvx2;
  CHECK(name == "auto" || name == "avx512") << "--isa=" << name;
  return name == "auto" ? BestInstructionSet() : InstructionSet::kAvx512;
}

memory::desc Describe(const memory::dims& dims, Tag tag) { return {dims, memory::data_type::f32, tag}; }

// A dense layer by oneDNN's inner product. The formats are those in which the model keeps its tensors. With others,
// weights would have to be reordered in every step.
class OnednnDense : public FloatOperation {
 public:
  OnednnDense(CpuContext* context, const DenseSpec& spec) : context_(context), spec_(spec) {
    const memory::desc x = Describe({spec.batch, spec.in}, Tag::nc), y = Describe({spec.batch, spec.out}, Tag::nc);
    const memory::desc weight = Describe({spec.out, spec.in}, Tag::oi), bias = Describe({spec.out}, Tag::x);
    dnnl::primitive_attr attributes = OnednnAttributes();
    if (spec.activation == Activation::kRelu) {
      dnnl::post_ops relu;
      relu.append_eltwise(1, dnnl::algorithm::eltwise_relu, 0, 0);
      attributes.set_post_ops(relu);
    }
    const dnnl::inner_product_forward::primitive_desc forward({dnnl::prop_kind::forward_training, x, weight, bias, y},
                                                              attributes, context->engine);
    forward_ = OnednnPrimitive(
        context, forward, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DST, y}, {DNNL_ARG_BIAS, bias}});
    // oneDNN takes the forward primitive as a hint for the formats of backward.
    const dnnl::inner_product_backward_weights::primitive_desc weights({x, weight, bias, y}, OnednnAttributes(),
                                                                       context->engine, forward);
    backward_weights_ = OnednnPrimitive(
        context, weights,
        {{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_DIFF_WEIGHTS, weight}, {DNNL_ARG_DIFF_BIAS, bias}});
    if (spec.input_gradient == InputGradient::kNeeded) {
      const dnnl::inner_product_backward_data::primitive_desc data({x, weight, y}, OnednnAttributes(), context->engine,
                                                                   forward);
      backward_data_ =
          OnednnPrimitive(context, data, {{DNNL_ARG_DIFF_DST, y}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DIFF_SRC, x}});
    }
    // All operations share the scratch memory, as they run one after another. It grows to the largest need.
    for (const OnednnPrimitive* p : {&forward_, &backward_weights_, &backward_data_}) {
      CHECK_OK(context->scratch.Reserve(p->scratch_bytes()));
    }
  }

  void Forward(const float* x, const float* weight, const float* bias, float* y) override {
    forward_.Run({x, weight, y, bias}, context_->scratch.data());
  }
  void Backward(const float* x, const float* weight, const float* y, float* dy, float* dx, float* dweight,
                float* dbias) override {
    void* const scratch = context_->scratch.data();
    // oneDNN's backward products know no activation: a pass of its own masks dy first.
    if (spec_.activation == Activation::kRelu) ReluBackward(*context_, y, dy, dy, spec_.batch * spec_.out);
    backward_weights_.Run({x, dy, dweight, dbias}, scratch);
    if (backward_data_) backward_data_.Run({dy, weight, dx}, scratch);
  }

 private:
  CpuContext* const context_;
  const DenseSpec spec_;
  OnednnPrimitive forward_, backward_weights_, backward_data_;
};

// Batch normalisation by oneDNN, in training only. oneDNN 2.6 wants scale and shift in one array, so both are copied,
// at most a few hundred floats. It returns the batch's statistics, so moving the running ones is part of the
// alternative.
class OnednnBatchNorm : public FloatBatchNorm {
 public:
  OnednnBatchNorm(CpuContext* context, const BatchNormSpec& spec)
      : context_(context),
        spec_(spec),
        mean_(static_cast<size_t>(spec.channels)),
        variance_(mean_.size()),
        factors_(2 * mean_.size()),
        gradients_(2 * mean_.size()) {
    const memory::desc data = Describe({spec.batch, spec.channels, spec.height, spec.width}, Tag::nhwc);
    const memory::desc channels = Describe({spec.channels}, Tag::x), factors = Describe({2, spec.channels}, Tag::nc);
    const auto flags = dnnl::normalization_flags::use_scale_shift;
    const dnnl::batch_normalization_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, data, spec.epsilon, flags}, OnednnAttributes(), context->engine);
    forward_ = OnednnPrimitive(context, forward,
                               {{DNNL_ARG_SRC, data},
                                {DNNL_ARG_SCALE_SHIFT, factors},
                                {DNNL_ARG_MEAN, channels},
                                {DNNL_ARG_VARIANCE, channels},
                                {DNNL_ARG_DST, data}});
    const dnnl::batch_normalization_backward::primitive_desc backward(
        {dnnl::prop_kind::backward, data, data, spec.epsilon, flags}, OnednnAttributes(), context->engine, forward);
    backward_ = OnednnPrimitive(context, backward,
                                {{DNNL_ARG_SRC, data},
                                 {DNNL_ARG_MEAN, channels},
                                 {DNNL_ARG_VARIANCE, channels},
                                 {DNNL_ARG_DIFF_DST, data},
                                 {DNNL_ARG_SCALE_SHIFT, factors},
                                 {DNNL_ARG_DIFF_SRC, data},
                                 {DNNL_ARG_DIFF_SCALE_SHIFT, factors}});
    CHECK_OK(context->scratch.Reserve(std::max(forward_.scratch_bytes(), backward_.scratch_bytes())));
  }

  void Forward(const float* x, const float* gamma, const float* beta, float* running_mean, float* running_variance,
               float* y) override {
    std::copy_n(gamma, spec_.channels, factors_.data());
    std::copy_n(beta, spec_.channels, factors_.data() + spec_.channels);
    forward_.Run({x, factors_.data(), mean_.data(), variance_.data(), y}, context_->scratch.data());
    for (size_t c = 0; c < mean_.size(); ++c) {
      running_mean[c] += spec_.momentum * (mean_[c] - running_mean[c]);
      running_variance[c] += spec_.momentum * (variance_[c] - running_variance[c]);
    }
    if (spec_.activation == Activation::kRelu) Relu(*context_, y, y, Count());
  }
  void Infer(const float*, const float*, const float*, const float*, const float*, float*) override {
    CHECK(false) << "only training steps are timed";
  }
  void Backward(const float* x, const float* gamma, const float* y, float* dy, float* dx, float* dgamma,
                float* dbeta) override {
    if (spec_.activation == Activation::kRelu) ReluBackward(*context_, y, dy, dy, Count());
    std::copy_n(gamma, spec_.channels, factors_.data());
    backward_.Run({x, mean_.data(), variance_.data(), dy, factors_.data(), dx, gradients_.data()},
                  context_->scratch.data());
    std::copy_n(gradients_.data(), spec_.channels, dgamma);
    std::copy_n(gradients_.data() + spec_.channels, spec_.channels, dbeta);
  }

 private:
  int64_t Count() const { return spec_.batch * spec_.height * spec_.width * spec_.channels; }

  CpuContext* const context_;
  const BatchNormSpec spec_;
  std::vector<float> mean_, variance_, factors_, gradients_;  // the last two: scale, then shift
  OnednnPrimitive forward_, backward_;
};

// The kind of operation that is computed by its alternative: kRowLanes by the loops of the next narrower instruction
// set, kMaxPool and kVectors (every plain loop) without AVX, the others by oneDNN.
enum class Replaced { kNothing, kConvolution, kRowLanes, kDense, kMaxPool, kBatchNorm, kVectors };

// A CpuDevice, but for the replaced kind. Operations that are made here, and not by `ours_`, point to one of the
// contexts, which therefore live as long as the device.
class ComparedDevice : public Device {
 public:
  ComparedDevice(InstructionSet set, Replaced replaced) : set_(set), replaced_(replaced) {
    ours_ =
        CreateCpuDevice({.instruction_set = replaced == Replaced::kVectors ? InstructionSet::kBaseline : set}).value();
    onednn_.instruction_set = set;
    // The next narrower instruction set has no lanes along rows, and without AVX a pool has no vectors of its own.
    narrower_.instruction_set = std::min(set, InstructionSet::kAvx2);
    plain_.instruction_set = InstructionSet::kBaseline;
  }

  std::string name() const override { return ours_->name(); }
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t size_bytes) override {
    return ours_->Allocate(size_bytes);
  }
  absl::StatusOr<std::unique_ptr<LayerOperation>> CreateOperation(const OperationSpec& spec) override {
    return std::visit([this](const auto& s) { return Create(s); }, spec);
  }
  absl::StatusOr<std::unique_ptr<BatchNorm>> CreateBatchNorm(const BatchNormSpec& spec) override {
    if (replaced_ == Replaced::kBatchNorm) return std::make_unique<OnednnBatchNorm>(&onednn_, spec);
    return ours_->CreateBatchNorm(spec);
  }
  absl::StatusOr<std::unique_ptr<Dropout>> CreateDropout(const DropoutSpec& spec) override {
    return ours_->CreateDropout(spec);
  }
  absl::StatusOr<std::unique_ptr<Loss>> CreateLoss(const LossSpec& spec) override { return ours_->CreateLoss(spec); }
  void Relu(ConstElements x, Elements y, int64_t count) override { ours_->Relu(x, y, count); }
  void ReluBackward(ConstElements y, ConstElements dy, Elements dx, int64_t count) override {
    ours_->ReluBackward(y, dy, dx, count);
  }
  void Add(ConstElements a, ConstElements b, Activation activation, Elements y, int64_t count) override {
    ours_->Add(a, b, activation, y, count);
  }
  void AddReluBackward(ConstElements y, ConstElements a, ConstElements b, Elements dx, int64_t count) override {
    ours_->AddReluBackward(y, a, b, dx, count);
  }
  void Cast(const float* from, Elements to, int64_t count) override { ours_->Cast(from, to, count); }
  void CopyToDevice(const void* host, void* device, int64_t size_bytes) override {
    ours_->CopyToDevice(host, device, size_bytes);
  }
  void CopyToHost(const void* device, void* host, int64_t size_bytes) override {
    ours_->CopyToHost(device, host, size_bytes);
  }
  absl::Status Synchronize() override { return ours_->Synchronize(); }

 private:
  absl::StatusOr<std::unique_ptr<LayerOperation>> Create(const Conv2dSpec& spec) {
    const bool tiled = TiledConv2dPays(spec, set_);
    if (replaced_ == Replaced::kConvolution) return CreateOnednnConv2d(&onednn_, spec);
    if (replaced_ == Replaced::kRowLanes && tiled) return CreateTiledConv2d(&narrower_, spec);
    // Only the plain loops are without AVX: products and pools are kinds of their own.
    if (replaced_ == Replaced::kVectors && tiled) return CreateTiledConv2d(&onednn_, spec);
    if (replaced_ == Replaced::kVectors) return CreateOnednnConv2d(&onednn_, spec);
    return ours_->CreateOperation(spec);
  }
  absl::StatusOr<std::unique_ptr<LayerOperation>> Create(const DenseSpec& spec) {
    if (replaced_ == Replaced::kDense) return std::make_unique<OnednnDense>(&onednn_, spec);
    if (replaced_ == Replaced::kVectors) return CreateCpuOperation(&onednn_, spec);
    return ours_->CreateOperation(spec);
  }
  absl::StatusOr<std::unique_ptr<LayerOperation>> Create(const Pool2dSpec& spec) {
    if (replaced_ == Replaced::kMaxPool) return CreateCpuOperation(&plain_, spec);
    if (replaced_ == Replaced::kVectors) return CreateCpuOperation(&onednn_, spec);
    return ours_->CreateOperation(spec);
  }
  template <typename Spec>
  absl::StatusOr<std::unique_ptr<LayerOperation>> Create(const Spec& spec) {
    return ours_->CreateOperation(spec);
  }

  const InstructionSet set_;
  const Replaced replaced_;
  std::unique_ptr<Device> ours_;
  CpuContext onednn_, narrower_, plain_;
};

// A model that is trained on one batch again and again.
class Training {
 public:
  Training(const std::string& model, Replaced replaced) : device_(ChosenInstructionSet(), replaced) {
    const bool color = model == "resnet20";
    const int64_t side = color ? 32 : 28, channels = color ? 3 : 1;
    network_ = Network::Create(
                   LayerFile::Load(model).value(),
                   {.height = side, .width = side, .channels = channels, .outputs = 10, .batch_max = kBatch}, &device_)
                   .value();
    const int64_t elements = network_->layout().element_count();
    parameters_ = Floats(elements), gradients_ = Floats(elements), momentum_ = Floats(elements);
    network_->InitializeParameters(1, {parameters_, static_cast<size_t>(elements)});
    images_ = Floats(kBatch * side * side * channels);
    // Values of both signs, the same in both variants.
    for (int64_t i = 0; i < kBatch * side * side * channels; ++i) {
      images_[i] = static_cast<float>(i * 7 % 13) * 0.1f - 0.6f;
    }
    for (int64_t i = 0; i < kBatch; ++i) labels_.push_back(static_cast<int32_t>(i % 10));
  }

  void Step() {
    const auto elements = static_cast<size_t>(network_->layout().element_count());
    const Network::TrainStep step = {.input = {.images = images_, .targets = labels_.data(), .batch = kBatch},
                                     .step = step_,
                                     .loss_scale = 1.0f / kBatch,
                                     .parameters = {parameters_, elements},
                                     .gradients = {gradients_, elements}};
    // There is no exchange: a layer waits for no parameters, and no gradient is sent.
    CHECK(network_->Forward(step, [](int) { return absl::OkStatus(); }).ok());
    CHECK(network_->Backward(step, [](int) { return absl::OkStatus(); }).ok());
    const std::span<float> state[1] = {{momentum_, elements}};
    ApplyOptimizer({.momentum = 0.9},
                   {.learning_rate = 1e-4f,
                    .update = ++step_,
                    .gradient = {gradients_, elements},
                    .parameters_in = {parameters_, elements},
                    .parameters_out = {parameters_, elements},
                    .state = state},
                   ChosenInstructionSet());
  }

 private:
  float* Floats(int64_t count) {
    buffers_.push_back(device_.Allocate(count * static_cast<int64_t>(sizeof(float))).value());
    return buffers_.back()->floats();
  }

  // The device is declared first, and so destroyed last: buffers and network refer to it.
  ComparedDevice device_;
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::unique_ptr<Network> network_;
  float *parameters_, *gradients_, *momentum_, *images_;
  std::vector<int32_t> labels_;
  int64_t step_ = 0;
};

double ThreadSeconds() {
  // Time of this thread: a step does not seem longer because another process had the core.
  timespec now = {};
  CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double SecondsOf(Training* training, int steps) {
  const double begin = ThreadSeconds();
  for (int i = 0; i < steps; ++i) training->Step();
  return (ThreadSeconds() - begin) / steps;
}

// The value next to the quantile's place; there are too few rounds to interpolate.
double At(std::vector<double> values, double quantile) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(quantile * static_cast<double>(values.size() - 1) + 0.5)];
}

struct Pair {
  const char* model;
  Replaced replaced;
  const char* alternative;
};

void Compare(const Pair& pair) {
  Training ours(pair.model, Replaced::kNothing), theirs(pair.model, pair.replaced);
  // The first steps find unmapped pages and cold caches. They are not counted.
  SecondsOf(&ours, 3), SecondsOf(&theirs, 3);
  const double turn_seconds = absl::GetFlag(FLAGS_turn_ms) * 1e-3;
  // Both variants take as many steps as ours need for a turn, so that a turn's fixed costs weigh alike.
  const int steps = std::max(1, static_cast<int>(turn_seconds / SecondsOf(&ours, 3)));
  std::vector<double> our_ms, their_ms, ratios;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    // The variant that comes second finds caches and clock as the first one left them, so the variants also take turns
    // in being first.
    double seconds[2];
    for (const int turn : {0, 1}) {
      const int which = (turn + round) % 2;
      seconds[which] = SecondsOf(which == 0 ? &ours : &theirs, steps);
    }
    our_ms.push_back(1e3 * seconds[0]), their_ms.push_back(1e3 * seconds[1]), ratios.push_back(seconds[1] / seconds[0]);
  }
  std::printf("| %s | %s | %.2f | %.2f | %+.1f %% (%+.1f to %+.1f) |\n", pair.model, pair.alternative, At(our_ms, 0.5),
              At(their_ms, 0.5), 100 * (At(ratios, 0.5) - 1), 100 * (At(ratios, 0.25) - 1),
              100 * (At(ratios, 0.75) - 1));
  std::fflush(stdout);
}

int Main() {
  // Before the first device: oneDNN takes a limit only until it has been used.
  if (absl::GetFlag(FLAGS_isa) != "auto") CHECK(LimitOnednn(ChosenInstructionSet()).ok());
  const InstructionSet set = ChosenInstructionSet();
  std::vector<Pair> pairs = {
      {"logreg", Replaced::kDense, "dense: oneDNN"},
      {"mlp", Replaced::kDense, "dense: oneDNN"},
      {"lenet5", Replaced::kDense, "dense: oneDNN"},
      {"mnist_cnn", Replaced::kDense, "dense: oneDNN"},
      {"lenet5", Replaced::kConvolution, "convolutions: all by oneDNN"},
      {"mnist_cnn", Replaced::kConvolution, "convolutions: all by oneDNN"},
      {"resnet20", Replaced::kConvolution, "convolutions: all by oneDNN"},
      {"resnet20", Replaced::kBatchNorm, "batch norm: oneDNN"},
  };
  // Narrower sets lack lanes along rows, and the plain one vectors of the pool's own: there is nothing to replace.
  if (set == InstructionSet::kAvx512) {
    for (const char* const model : {"lenet5", "mnist_cnn", "resnet20"}) {
      pairs.push_back({model, Replaced::kRowLanes, "lanes along rows: AVX2 tiles"});
    }
  }
  if (set != InstructionSet::kBaseline) {
    pairs.push_back({"lenet5", Replaced::kMaxPool, "pool's own vectors: the loop over channels"});
    pairs.push_back({"mnist_cnn", Replaced::kMaxPool, "pool's own vectors: the loop over channels"});
  }
  for (const char* const model : {"logreg", "mlp", "lenet5", "mnist_cnn", "resnet20"}) {
    pairs.push_back({model, Replaced::kVectors, "plain loops: without AVX"});
  }
  std::printf("| model | replaced by | step, ms | replaced, ms | more CPU time (quartiles) |\n|---|---|---|---|---|\n");
  for (const Pair& pair : pairs) {
    const std::string text = std::string(pair.model) + " " + pair.alternative;
    if (absl::StrContains(text, absl::GetFlag(FLAGS_only))) Compare(pair);
  }
  return 0;
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return starring::Main();
}
