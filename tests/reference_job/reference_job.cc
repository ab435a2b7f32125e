// Computes the parameters that a job of N workers must end with, in one process and without an exchange: N gradients,
// one after the other, added in the order of common/arithmetic/reduction_order.h, and one update of the whole vector.
// It shares data, network and optimizer with a real job, and nothing of ring, star or their sums.
//
//   reference_job N FLAG...     the number of workers, and their flags
//
// Prints the SHA-256 of the final parameters, as a run record has it. Checkpoints are neither read nor written.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/security/sha256.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/data/normalization.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"
#include "worker/options/worker_options.h"

namespace starring {
namespace {

using Floats = std::vector<float>;

class ReferenceJob {
 public:
  ReferenceJob(const WorkerOptions& options, int world_size, const TrainAndTest& data, Device* device, Network* network)
      : options_(options), world_size_(world_size), device_(*device), network_(*network), schedule_(options.schedule) {
    const int64_t steps_per_epoch = (data.train.count + options.global_batch - 1) / options.global_batch;
    end_step_ = steps_per_epoch * options.epochs;
    if (options.max_steps > 0) end_step_ = std::min(end_step_, options.max_steps);
    if (schedule_.kind == ScheduleKind::kCosine && schedule_.total_steps == 0) {
      schedule_.total_steps = steps_per_epoch * options.epochs;
    }
  }

  absl::Status Prepare(const Dataset& train) {
    const Normalization normalization = NormalizationFromSums(PixelSums(train, 0, train.count));
    for (int rank = 0; rank < world_size_; ++rank) {
      // No prefetching: hundreds of loaders would have as many threads.
      ASSIGN_OR_RETURN(loaders_.emplace_back(), Loader::Create({.dataset = &train,
                                                                .sampler = {.sample_count = train.count,
                                                                            .global_batch = options_.global_batch,
                                                                            .rank = rank,
                                                                            .world_size = world_size_,
                                                                            .seed = options_.seed},
                                                                .normalization = normalization,
                                                                .augment = options_.augment,
                                                                .prefetch_depth = 0,
                                                                .end_step = end_step_}));
      ASSIGN_OR_RETURN(gradients_.emplace_back(), device_.Allocate(element_count() * 4));
    }
    ASSIGN_OR_RETURN(parameters_, device_.Allocate(element_count() * 4));
    network_.InitializeParameters(options_.seed, parameters());
    state_.assign(StateVectorCount(options_.optimizer), Floats(element_count()));
    return absl::OkStatus();
  }

  absl::Status Run() {
    for (int64_t step = 0; step < end_step_; ++step) {
      for (int rank = 0; rank < world_size_; ++rank) RETURN_IF_ERROR(ComputeGradient(step, rank));
      const Floats sum = SumInReductionOrder();
      std::vector<std::span<float>> state(state_.begin(), state_.end());
      ApplyOptimizer(options_.optimizer, {.learning_rate = LearningRateAt(schedule_, step),
                                          .update = step + 1,
                                          .gradient = sum,
                                          .parameters_in = parameters(),
                                          .parameters_out = parameters(),
                                          .state = state});
    }
    return absl::OkStatus();
  }

  std::string Digest() { return Sha256Hex(std::as_bytes(parameters())); }

 private:
  int64_t element_count() const { return network_.layout().element_count(); }
  std::span<float> WholeOf(DeviceBuffer& buffer) const {
    return {buffer.floats(), static_cast<size_t>(element_count())};
  }
  std::span<float> parameters() { return WholeOf(*parameters_); }

  absl::Status ComputeGradient(int64_t step, int rank) {
    ASSIGN_OR_RETURN(const Batch* batch, loaders_[rank]->Next());
    CHECK_EQ(batch->plan.step, step);
    const Network::TrainStep work{
        .input = {.images = batch->images.data(),
                  .targets = batch->labels.data(),
                  .batch = static_cast<int64_t>(batch->plan.samples.size())},
        .step = step,
        .first_sample = batch->plan.first_sample,
        .loss_scale = 1.0f / static_cast<float>(batch->plan.global_count),
        .parameters = parameters(),
        .gradients = WholeOf(*gradients_[rank]),
    };
    RETURN_IF_ERROR(network_.Forward(work, [](int) { return absl::OkStatus(); }));
    return network_.Backward(work, [](int) { return absl::OkStatus(); });
  }

  // Written as the definition is (common/arithmetic/reduction_order.h), without the tricks of SumAsTree.
  float TreeSum(int64_t element, int begin, int end) const {
    if (end - begin == 1) return gradients_[begin]->floats()[element];
    int left = 1;
    while (2 * left < end - begin) left *= 2;
    return TreeSum(element, begin, begin + left) + TreeSum(element, begin + left, end);
  }

  Floats SumInReductionOrder() {
    Floats sum(element_count());
    if (options_.sum_order == SumOrder::kTree) {
      for (int64_t e = 0; e < element_count(); ++e) sum[e] = TreeSum(e, 0, world_size_);
      return sum;
    }
    ForEachRun({0, element_count()}, element_count(), {.world_size = world_size_},
               [&](ElementRange run, int first_rank) {
                 for (int64_t e = run.begin; e < run.end; ++e) {
                   float value = gradients_[first_rank]->floats()[e];
                   for (int i = 1; i < world_size_; ++i)
                     value += gradients_[(first_rank + i) % world_size_]->floats()[e];
                   sum[e] = value;
                 }
               });
    return sum;
  }

  const WorkerOptions& options_;
  const int world_size_;
  Device& device_;
  Network& network_;
  LearningRateSchedule schedule_;
  int64_t end_step_ = 0;
  std::vector<std::unique_ptr<Loader>> loaders_;          // by rank
  std::vector<std::unique_ptr<DeviceBuffer>> gradients_;  // by rank
  std::unique_ptr<DeviceBuffer> parameters_;
  std::vector<Floats> state_;
};

absl::Status Main(int argc, const char* const* argv) {
  int world_size = 0;
  if (argc < 2 || !absl::SimpleAtoi(argv[1], &world_size) || world_size < 1 || world_size > kWorldSizeMax) {
    return absl::InvalidArgumentError("usage: reference_job WORKERS FLAG...");
  }
  // The flags after the number. The number is in the place of the program's name.
  ASSIGN_OR_RETURN(const WorkerOptions options, ParseWorkerOptions(argc - 1, argv + 1, LauncherEnvironment{}));
  CHECK(!options.resume) << "--resume is for real jobs";
  ASSIGN_OR_RETURN(const LayerFile layers, LayerFile::Load(options.model));
  ASSIGN_OR_RETURN(const TrainAndTest data, LoadDataset(options.dataset));
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, CreateCpuDevice({.threads = options.threads}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Network> network,
                   Network::Create(layers,
                                   {.height = data.train.height,
                                    .width = data.train.width,
                                    .channels = data.train.channels,
                                    .outputs = data.train.classes,
                                    .batch_max = (options.global_batch + world_size - 1) / world_size,
                                    .seed = options.seed},
                                   device.get()));
  ReferenceJob job(options, world_size, data, device.get(), network.get());
  RETURN_IF_ERROR(job.Prepare(data.train));
  RETURN_IF_ERROR(job.Run());
  std::printf("%s\n", job.Digest().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  const absl::Status status = starring::Main(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "reference_job: error: %s\n", std::string(status.message()).c_str());
  return 1;
}
