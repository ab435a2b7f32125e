#include "worker/train/known_answer.h"

#include <memory>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/security/sha256.h"
#include "worker/data/loader.h"
#include "worker/data/normalization.h"
#include "worker/data/sampler.h"

namespace starring {

absl::StatusOr<KnownAnswer> ComputeKnownAnswer(const WorkerOptions& worker, const TrainAndTest& data,
                                               Network* network) {
  // The sampler deals a step's samples to ranks. With as many ranks as micro-batches, rank 0 has leaf 0.
  const Sampler::Options sampler{.sample_count = data.train.count,
                                 .global_batch = worker.global_batch,
                                 .world_size = static_cast<int>(worker.micro_batches),
                                 .seed = worker.seed};
  ASSIGN_OR_RETURN(const std::unique_ptr<Loader> first,
                   Loader::Create({.dataset = &data.train,
                                   .sampler = sampler,
                                   .normalization = NormalizationOf(data.train, worker.normalize),
                                   .augment = worker.augment,
                                   .prefetch_depth = 0,
                                   .end_step = 1}));
  ASSIGN_OR_RETURN(const Batch* leaf, first->Next());
  AlignedFloats parameters(network->layout().element_count());
  AlignedFloats gradients(network->layout().element_count());
  std::vector<float> added_statistics(static_cast<size_t>(network->statistics_size()));
  // A worker that joins late has the same first parameters, so its answer is comparable with those before.
  network->InitializeParameters(worker.seed, parameters.span());
  const Network::TrainStep work{.input = {.images = leaf->images.data(),
                                          .targets = LossTargets(leaf->target_data()),
                                          .batch = static_cast<int64_t>(leaf->plan.samples.size())},
                                .first_sample = leaf->plan.first_sample,
                                .loss_scale = 1.0f / static_cast<float>(leaf->plan.global_count),
                                .parameters = parameters.span(),
                                .gradients = gradients.span(),
                                .added_statistics = added_statistics};
  // No exchange is under way, so no layer waits for its parameters.
  const auto no_wait = [](int) { return absl::OkStatus(); };
  RETURN_IF_ERROR(network->Forward(work, no_wait));
  RETURN_IF_ERROR(network->Backward(work, no_wait));
  const double loss = network->Result().loss_sum;
  KnownAnswer answer{.sha256 = Sha256()
                                   .Update(std::as_bytes(gradients.span()))
                                   .Update(std::as_bytes(std::span(&loss, 1)))
                                   .Update(std::as_bytes(std::span(added_statistics)))
                                   .HexDigest()};
  // The first pass warms caches and memory. Only a second one takes the time of a leaf in a run.
  const absl::Time begin = SteadyNow();
  RETURN_IF_ERROR(network->Forward(work, no_wait));
  RETURN_IF_ERROR(network->Backward(work, no_wait));
  answer.seconds = absl::ToDoubleSeconds(SteadyNow() - begin);
  return answer;
}

}  // namespace starring
