#include "kernels/cuda/cuda_operations.h"

#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/channel_copy.h"
#include "kernels/cuda/channel_windows.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/group_norm.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/matrix_product.h"
#include "kernels/cuda/pool.h"
#include "kernels/shape_checks.h"

namespace starring {
namespace {

// `winners` must live from forward to backward, so it is memory of this layer's own and not scratch memory.
class CudaMaxPool2d : public LayerOperation {
 public:
  CudaMaxPool2d(CudaContext* context, const cuda::PatchShape& window, CudaMemory winners)
      : context_(context), window_(window), winners_(std::move(winners)) {}
  void Forward(ConstElements x, ConstElements, ConstElements, Elements y) override {
    context_->Keep(cuda::MaxPoolForward(context_->stream, window_, x, y, winners_.data()), "max pool");
  }
  void Backward(ConstElements, ConstElements, ConstElements, Elements dy, Elements dx, float*, float*) override {
    context_->Keep(cuda::MaxPoolBackward(context_->stream, window_, dy, winners_.data(), dx), "max pool backward");
  }

 private:
  CudaContext* const context_;
  const cuda::PatchShape window_;
  const CudaMemory winners_;
};

class CudaGlobalAveragePool : public LayerOperation {
 public:
  CudaGlobalAveragePool(CudaContext* context, const GlobalAveragePoolSpec& s)
      : context_(context), shape_{.images = s.batch, .pixels = s.height * s.width, .channels = s.channels} {}
  void Forward(ConstElements x, ConstElements, ConstElements, Elements y) override {
    context_->Keep(cuda::AveragePoolForward(context_->stream, shape_, x, y), "global average pool");
  }
  void Backward(ConstElements, ConstElements, ConstElements, Elements dy, Elements dx, float*, float*) override {
    context_->Keep(cuda::AveragePoolBackward(context_->stream, shape_, dy, dx), "global average pool backward");
  }

 private:
  CudaContext* const context_;
  const cuda::AveragePoolShape shape_;
};

class CudaActivation : public LayerOperation {
 public:
  CudaActivation(CudaContext* context, const ActivationSpec& s)
      : context_(context),
        args_{.count = s.batch * s.sample_elements, .function = s.function, .parameter = s.parameter} {}
  void Forward(ConstElements x, ConstElements, ConstElements, Elements y) override {
    context_->Keep(cuda::ActivationForward(context_->stream, args_, x, y), "activation");
  }
  // Some slopes follow from y alone. BackwardReadsInput tells which functions need x.
  void Backward(ConstElements x, ConstElements, ConstElements y, Elements dy, Elements dx, float*, float*) override {
    // The slope of a scale is constant: any readable number does.
    const ConstElements at = args_.function == ActivationFunction::kScale ? ConstElements(dy)
                             : BackwardReadsInput(args_.function)         ? x
                                                                          : y;
    context_->Keep(cuda::ActivationBackward(context_->stream, args_, at, dy, dx), "activation backward");
  }

 private:
  CudaContext* const context_;
  const cuda::ActivationArgs args_;
};

// An average pool is a depthwise convolution with equal weights, so both use one kernel. A null weight chooses the
// average.
class CudaAveragePool2d : public LayerOperation {
 public:
  CudaAveragePool2d(CudaContext* context, const AveragePool2dSpec& s)
      : context_(context), window_(cuda::PatchShapeOf(s, s.channels)) {}
  void Forward(ConstElements x, ConstElements, ConstElements, Elements y) override {
    context_->Keep(cuda::ChannelWindowsForward(context_->stream, window_, x, nullptr, nullptr, y), "average pool");
  }
  void Backward(ConstElements, ConstElements, ConstElements, Elements dy, Elements dx, float*, float*) override {
    context_->Keep(cuda::ChannelWindowsBackward(context_->stream, window_, dy, nullptr, dx), "average pool backward");
  }

 private:
  CudaContext* const context_;
  const cuda::PatchShape window_;
};

class CudaDepthwiseConv2d : public LayerOperation {
 public:
  CudaDepthwiseConv2d(CudaContext* context, const DepthwiseConv2dSpec& s)
      : context_(context), window_(cuda::PatchShapeOf(s, s.channels)) {}
  void Forward(ConstElements x, ConstElements weight, ConstElements bias, Elements y) override {
    context_->Keep(cuda::ChannelWindowsForward(context_->stream, window_, x, weight.floats(), bias.floats(), y),
                   "depthwise convolution");
  }
  void Backward(ConstElements x, ConstElements weight, ConstElements, Elements dy, Elements dx, float* dweight,
                float* dbias) override {
    // Before the weight gradient, because both use the scratch memory.
    ActivationGradient(context_, {.rows = window_.rows(),
                                  .channels = window_.channels,
                                  .activation = Activation::kNone,
                                  .y = {},
                                  .dy = dy,
                                  .dbias = dbias});
    context_->Keep(cuda::DepthwiseWeightGradient(context_->stream, window_, x, dy, context_->scratch.floats(), dweight),
                   "weight gradient of a depthwise convolution");
    // The first layer of a network has no use for the gradient of its input.
    if (dx.is_null()) return;
    context_->Keep(cuda::ChannelWindowsBackward(context_->stream, window_, dy, weight.floats(), dx),
                   "input gradient of a depthwise convolution");
  }

 private:
  CudaContext* const context_;
  const cuda::PatchShape window_;
};

class CudaConcatPart : public LayerOperation {
 public:
  CudaConcatPart(CudaContext* context, const ConcatPartSpec& s)
      : context_(context),
        part_{
            .pixels = s.batch * s.pixels, .channels = s.channels, .wide_channels = s.out_channels, .offset = s.offset} {
  }
  void Forward(ConstElements x, ConstElements, ConstElements, Elements y) override {
    context_->Keep(cuda::CopyIntoChannels(context_->stream, part_, x, y), "concat");
  }
  void Backward(ConstElements, ConstElements, ConstElements, Elements dy, Elements dx, float*, float*) override {
    context_->Keep(cuda::CopyFromChannels(context_->stream, part_, dy, dx), "concat backward");
  }

 private:
  CudaContext* const context_;
  const cuda::ChannelPart part_;
};

class CudaGroupNorm : public LayerOperation {
 public:
  // `statistics` holds mean and inverse deviation of each image's groups.
  CudaGroupNorm(CudaContext* context, const cuda::GroupNormShape& shape, CudaMemory statistics)
      : context_(context), shape_(shape), statistics_(std::move(statistics)) {}
  void Forward(ConstElements x, ConstElements gamma, ConstElements beta, Elements y) override {
    context_->Keep(cuda::GroupNormForward(context_->stream, shape_, Memory(), x, gamma.floats(), beta.floats(), y),
                   "group norm");
  }
  void Backward(ConstElements x, ConstElements gamma, ConstElements, Elements dy, Elements dx, float* dgamma,
                float* dbeta) override {
    context_->Keep(cuda::GroupNormBackward(
                       context_->stream, shape_, Memory(),
                       {.x = x, .gamma = gamma.floats(), .dy = dy, .dx = dx, .dgamma = dgamma, .dbeta = dbeta}),
                   "group norm backward");
  }

 private:
  cuda::GroupNormMemory Memory() const {
    return {.mean = statistics_.floats(),
            .inverse_deviation = statistics_.floats() + shape_.images * shape_.groups,
            .partial = context_->scratch.floats()};
  }

  CudaContext* const context_;
  const cuda::GroupNormShape shape_;
  const CudaMemory statistics_;
};

class CudaBatchNorm : public BatchNorm {
 public:
  // `statistics` holds mean and inverse deviation, each padded to whole packs of four: kernels then move both in packs.
  // Packs of eight are used only where eight divides the channels.
  CudaBatchNorm(CudaContext* context, const cuda::BatchNormShape& shape, CudaMemory statistics)
      : context_(context), shape_(shape), statistics_(std::move(statistics)) {}

  // The scratch memory has scale, shift and slope, each of that length, and then the tiles' sums.
  static int64_t PaddedChannels(int64_t channels) { return (channels + 3) / 4 * 4; }
  static int64_t StatisticsBytes(const cuda::BatchNormShape& s) { return kFloatBytes * 2 * PaddedChannels(s.channels); }
  static int64_t ScratchBytes(const cuda::BatchNormShape& s) {
    return kFloatBytes * (3 * PaddedChannels(s.channels) + cuda::BatchNormSumsFloats(s));
  }

  void Forward(ConstElements x, const float* gamma, const float* beta, float* running_mean, float* running_variance,
               Elements y) override {
    context_->Keep(cuda::BatchNormForward(context_->stream, shape_, Memory(),
                                          {.x = x,
                                           .gamma = gamma,
                                           .beta = beta,
                                           .running_mean = running_mean,
                                           .running_variance = running_variance,
                                           .y = y}),
                   "batch norm");
  }

  void Infer(ConstElements x, const float* gamma, const float* beta, const float* running_mean,
             const float* running_variance, Elements y) override {
    context_->Keep(cuda::BatchNormInfer(context_->stream, shape_, Memory(),
                                        {.x = x,
                                         .gamma = gamma,
                                         .beta = beta,
                                         .running_mean = running_mean,
                                         .running_variance = running_variance,
                                         .y = y}),
                   "batch norm inference");
  }

  void Backward(ConstElements x, const float* gamma, ConstElements y, Elements dy, Elements dx, float* dgamma,
                float* dbeta) override {
    context_->Keep(
        cuda::BatchNormBackward(context_->stream, shape_, Memory(),
                                {.x = x, .gamma = gamma, .y = y, .dy = dy, .dx = dx, .dgamma = dgamma, .dbeta = dbeta}),
        "batch norm backward");
  }

 private:
  // Only the statistics must live from forward to backward. The rest is in scratch memory, which the operations in
  // between overwrite. Its address is asked for at every call, because it changes when the scratch grows.
  cuda::BatchNormMemory Memory() const {
    const int64_t channels = PaddedChannels(shape_.channels);
    float* const scratch = context_->scratch.floats();
    return {.sums = scratch + 3 * channels,
            .counters = context_->counters.data(),
            .mean = statistics_.floats(),
            .inverse_deviation = statistics_.floats() + channels,
            .scale = scratch,
            .shift = scratch + channels,
            .slope = scratch + 2 * channels};
  }

  CudaContext* const context_;
  const cuda::BatchNormShape shape_;
  const CudaMemory statistics_;
};

class CudaDropout : public Dropout {
 public:
  CudaDropout(CudaContext* context, const DropoutSpec& s)
      : context_(context),
        args_{.count = s.batch * s.sample_elements,
              .sample_elements = s.sample_elements,
              .seed = s.seed,
              .stream = s.stream,
              // A random word has 24 bits that count, so the rate is rounded up to a multiple of 2^-24.
              .threshold = static_cast<uint32_t>(std::ceil(double{s.rate} * 0x1.0p24)),
              // The scale keeps the expected value of an element.
              .scale = 1.0f / (1.0f - s.rate)} {}

  // Philox's counter has 32 bits for the step.
  void Forward(ConstElements x, int64_t step, int64_t first_sample, Elements y) override {
    CHECK(step >= 0 && step <= std::numeric_limits<uint32_t>::max()) << "step " << step;
    CHECK_GE(first_sample, 0);
    // Both ways of passing the step are filled in: the kernel takes that of `bound`, if there is one, when it runs.
    args_.values.step = step;
    args_.values.first_sample = first_sample;
    args_.bound = context_->bound;
    context_->Keep(cuda::ApplyDropout(context_->stream, args_, x, y), "dropout");
  }
  void Backward(ConstElements dy, Elements dx) override {
    // With a binding the step is read from device memory again, where it must not have changed since Forward.
    context_->Keep(cuda::ApplyDropout(context_->stream, args_, dy, dx), "dropout backward");
  }

 private:
  CudaContext* const context_;
  cuda::DropoutArgs args_;  // those of the last Forward, from which Backward computes the same mask again
};

cuda::LossFunction FunctionOf(LossKind kind) {
  switch (kind) {
    case LossKind::kMse:
      return cuda::LossFunction::kMse;
    case LossKind::kBce:
      return cuda::LossFunction::kBce;
    case LossKind::kSoftmax:
      break;
  }
  return cuda::LossFunction::kSoftmax;
}

class CudaLoss : public Loss {
 public:
  // `sums` holds a pair of sums for each sample, then the total.
  CudaLoss(CudaContext* context, const LossSpec& s, CudaMemory sums, PinnedMemory result)
      : context_(context), spec_(s), sums_(std::move(sums)), result_(std::move(result)) {}

  void Run(const float* outputs, LossTargets targets, float scale, float* doutputs) override {
    auto* const samples = static_cast<cuda::LossSums*>(sums_.data());
    CudaStepResult* const bound = context_->bound_result;
    context_->Keep(cuda::RunLoss(context_->stream, {.function = FunctionOf(spec_.kind),
                                                    .batch = spec_.batch,
                                                    .outputs = spec_.outputs,
                                                    .label_smoothing = spec_.label_smoothing,
                                                    .y = outputs,
                                                    .labels = targets.labels(),
                                                    .values = targets.values(),
                                                    .dy = doutputs,
                                                    .samples = samples,
                                                    .total = samples + spec_.batch,
                                                    .counter = context_->counters.data(),
                                                    .result = bound,
                                                    .loss_scale = scale,
                                                    .bound = context_->bound}),
                   "loss");
    // A bound result is read by the caller, without a copy and a wait in every step.
    if (bound != nullptr) return;
    // This is an evaluation: Result reads the pinned copy when it has waited.
    context_->Keep(cudaMemcpyAsync(result_.data(), samples + spec_.batch, sizeof(cuda::LossSums),
                                   cudaMemcpyDeviceToHost, context_->stream),
                   "copying the loss");
  }

  // After an error the loss is NaN, because the memory may still hold the loss of the last step. Synchronize returns
  // the error.
  LossResult Result() override {
    const CudaWatch::Call call(context_->watch, "waiting for the loss");
    context_->Keep(cudaStreamSynchronize(context_->stream), "waiting for the loss");
    if (!context_->first_error.ok()) return {.loss_sum = std::numeric_limits<double>::quiet_NaN()};
    const auto* const total = static_cast<const cuda::LossSums*>(result_.data());
    return {.loss_sum = total->loss, .correct = total->correct};
  }

 private:
  CudaContext* const context_;
  const LossSpec spec_;
  const CudaMemory sums_;
  const PinnedMemory result_;  // pinned, so that the copy does not block the host
};

}  // namespace

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context, const Pool2dSpec& s) {
  // Memory is allocated when an operation is created, never when it runs: a capture forbids it.
  const cuda::PatchShape window = cuda::PatchShapeOf(s, s.channels);
  ASSIGN_OR_RETURN(CudaMemory winners, context->Allocate(cuda::WinnerBytes(window)), "max pool");
  return std::make_unique<CudaMaxPool2d>(context, window, std::move(winners));
}

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                    const GlobalAveragePoolSpec& s) {
  return std::make_unique<CudaGlobalAveragePool>(context, s);
}

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context, const ActivationSpec& s) {
  return std::make_unique<CudaActivation>(context, s);
}

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context, const AveragePool2dSpec& s) {
  return std::make_unique<CudaAveragePool2d>(context, s);
}

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context,
                                                                    const DepthwiseConv2dSpec& s) {
  const cuda::PatchShape window = cuda::PatchShapeOf(s, s.channels);
  RETURN_IF_ERROR(context->scratch.Reserve(kFloatBytes * cuda::DepthwisePartialFloats(window)), "depthwise conv2d");
  RETURN_IF_ERROR(ReserveForActivationGradient(context, window.rows(), window.channels), "depthwise conv2d");
  return std::make_unique<CudaDepthwiseConv2d>(context, s);
}

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context, const ConcatPartSpec& s) {
  return std::make_unique<CudaConcatPart>(context, s);
}

absl::StatusOr<std::unique_ptr<LayerOperation>> CreateCudaOperation(CudaContext* context, const GroupNormSpec& s) {
  const cuda::GroupNormShape shape = {
      .images = s.batch, .pixels = s.pixels, .channels = s.channels, .groups = s.groups, .epsilon = s.epsilon};
  RETURN_IF_ERROR(context->scratch.Reserve(kFloatBytes * cuda::GroupNormPartialFloats(shape)), "group norm");
  ASSIGN_OR_RETURN(CudaMemory statistics, context->Allocate(kFloatBytes * 2 * s.batch * s.groups), "group norm");
  return std::make_unique<CudaGroupNorm>(context, shape, std::move(statistics));
}

absl::StatusOr<std::unique_ptr<BatchNorm>> CreateCudaBatchNorm(CudaContext* context, const BatchNormSpec& s) {
  RETURN_IF_ERROR(CheckShape(s));
  const cuda::BatchNormShape shape = {.rows = s.batch * s.height * s.width,
                                      .channels = s.channels,
                                      .activation = MaskOf(s.activation),
                                      .epsilon = s.epsilon,
                                      .momentum = s.momentum};
  // Sums are written and read within one call, so all layers share one scratch memory; the statistics live until
  // backward.
  RETURN_IF_ERROR(context->scratch.Reserve(CudaBatchNorm::ScratchBytes(shape)), "batch norm");
  RETURN_IF_ERROR(context->counters.Reserve(context->stream, cuda::BatchNormCounters(shape)), "batch norm");
  ASSIGN_OR_RETURN(CudaMemory statistics, context->Allocate(CudaBatchNorm::StatisticsBytes(shape)), "batch norm");
  return std::make_unique<CudaBatchNorm>(context, shape, std::move(statistics));
}

absl::StatusOr<std::unique_ptr<Dropout>> CreateCudaDropout(CudaContext* context, const DropoutSpec& s) {
  RETURN_IF_ERROR(CheckShape(s));
  return std::make_unique<CudaDropout>(context, s);
}

absl::StatusOr<std::unique_ptr<Loss>> CreateCudaLoss(CudaContext* context, const LossSpec& s) {
  RETURN_IF_ERROR(CheckShape(s));
  const int64_t sums_bytes = static_cast<int64_t>(sizeof(cuda::LossSums)) * (s.batch + 1);
  ASSIGN_OR_RETURN(CudaMemory sums, context->Allocate(sums_bytes), "loss");
  ASSIGN_OR_RETURN(PinnedMemory result, PinnedMemory::Create(sizeof(cuda::LossSums), context->watch), "loss");
  // The whole grid is one group of blocks, so one counter is enough.
  RETURN_IF_ERROR(context->counters.Reserve(context->stream, 1), "loss");
  return std::make_unique<CudaLoss>(context, s, std::move(sums), std::move(result));
}

}  // namespace starring
