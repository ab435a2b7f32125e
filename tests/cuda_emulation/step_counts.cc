#include "tests/cuda_emulation/step_counts.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/base/status.h"
#include "common/job/bucket_map.h"
#include "common/job/job_spec.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda_emulation/emulated_gpu.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/exchange/local/local_exchange.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"
#include "worker/step/cuda_training_step.h"
#include "worker/step/step_timer.h"

namespace starring::cuda_emulation {
namespace {

constexpr int64_t kMeasuredStep = 10;  // every slot has its graph by then
constexpr int64_t kBucketBytes = 1 << 20;
constexpr int64_t kGpuBytes = int64_t{60} << 30;  // fewer than counters.cc has addresses for

DatasetOptions ImagesOf(const CountedStep& step) {
  DatasetOptions options{
      .name = "synthetic", .synthetic_train_count = step.batch * (kMeasuredStep + 2), .synthetic_test_count = 1};
  if (step.model == "resnet20") {
    options.synthetic_height = options.synthetic_width = 32;
    options.synthetic_channels = 3;
  }
  return options;
}

// The counts of step `kMeasuredStep` of `training`.
absl::StatusOr<WorkCounts> Run(const CountedStep& step, const Dataset& images, TrainingStep* training) {
  const Normalization normalization = NormalizationFromSums(PixelSums(images, 0, 1));
  ASSIGN_OR_RETURN(const auto loader,
                   Loader::Create({.dataset = &images,
                                   .sampler = {.sample_count = images.count, .global_batch = step.batch},
                                   .normalization = normalization,
                                   .augment = Loader::Augment::kNone,
                                   .format = training->batch_format(),
                                   .prefetch_depth = 0,
                                   .end_step = kMeasuredStep + 2,
                                   .memory = training->batch_memory()}));
  StepTimer timer(0);
  timer.BeginStep();
  RETURN_IF_ERROR(training->Begin({.normalization = normalization, .timer = &timer, .end_step = kMeasuredStep + 2}));
  std::vector<FinishedStep> finished;
  for (int64_t s = 0; s <= kMeasuredStep; ++s) {
    // Only the measured step runs its kernels, which take long.
    Gpu().runs_work = s == kMeasuredStep && step.counts_bytes;
    TakeCounts();
    timer.BeginStep();
    RETURN_IF_ERROR(training->Run(s, loader.get(), &finished));
    timer.EndStep();
  }
  return TakeCounts();
}

}  // namespace

absl::StatusOr<WorkCounts> CountStep(const CountedStep& step) {
  Gpu() = {.memory_bytes = kGpuBytes, .cudnn_version = 91900, .runs_work = false, .counts_bytes = step.counts_bytes};
  const absl::Cleanup restore = [] { Gpu() = {}; };
  ASSIGN_OR_RETURN(const LayerFile layers, LayerFile::Load(step.model));
  ASSIGN_OR_RETURN(const TrainAndTest data, LoadDataset(ImagesOf(step)));
  const Dataset& images = data.train;
  const Element element = step.math == CudaMath::kBf16 ? Element::kBfloat16 : Element::kFloat32;
  ASSIGN_OR_RETURN(const auto device,
                   CreateCudaDevice({.math = step.math,
                                     .convolutions = step.math == CudaMath::kFp32 ? CudaConvolutions::kOwn
                                                                                  : CudaConvolutions::kCudnn}));
  ASSIGN_OR_RETURN(const auto network, Network::Create(layers,
                                                       {.height = images.height,
                                                        .width = images.width,
                                                        .channels = images.channels,
                                                        .outputs = images.classes,
                                                        .batch_max = step.batch,
                                                        .evaluation_batch_max = 1,
                                                        .element = element},
                                                       device.get()));
  const int64_t elements = network->layout().element_count();
  ASSIGN_OR_RETURN(const BucketMap buckets,
                   BucketMap::Create({.element_count = elements, .bucket_bytes = kBucketBytes, .world_size = 1}));
  const OptimizerConfig optimizer = {.momentum = 0.9, .weight_decay = 1e-4};

  const bool is_local = step.exchange == CountedStep::Exchange::kLocal;
  const std::unique_ptr<GradientExchange> exchange =
      CreateLocalExchange(nullptr, is_local ? LocalUpdates::kTrainingStep : LocalUpdates::kExchange);
  ASSIGN_OR_RETURN(
      const auto training,
      CreateCudaTrainingStep(
          {.network = network.get(), .exchange = exchange.get(), .buckets = &buckets, .world_size = is_local ? 1 : 2},
          {.device = device.get(),
           .optimizer = is_local ? std::optional(optimizer) : std::nullopt,
           .data = &data,
           .element = element,
           .batch_max = step.batch,
           .evaluation_batch_max = 1}));
  const JobSpec job{.optimizer = optimizer, .layout = network->layout(), .buckets = buckets};
  RETURN_IF_ERROR(exchange->Start(job, training->initial_parameters()));
  RETURN_IF_ERROR(training->StartOptimizer(job));
  return Run(step, images, training.get());
}

}  // namespace starring::cuda_emulation
