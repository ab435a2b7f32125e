#include "tests/worker/exchange/peer/example_training.h"

#include <algorithm>
#include <span>

#include "common/base/status.h"
#include "common/job/bucket_map.h"

namespace starring {
namespace {

absl::Status TrainStep(const ExampleTraining& training, const JobSpec& spec, int64_t step, GradientExchange& exchange,
                       ExampleOutcome& outcome) {
  RETURN_IF_ERROR(training.before_step(spec.rank, step));
  outcome.gradients = training.job.Contributions(spec.rank, step);
  const int last_node = static_cast<int>(outcome.gradients.size()) - 1;
  for (int node = 0; node <= last_node; ++node) {
    const bool is_last = node == last_node;
    // Gradients may be submitted from the exchange's memory and from any other.
    std::span<const float> gradient = outcome.gradients[node];
    const std::vector<std::span<float>>& memories = exchange.memory().gradients;
    if (!memories.empty() && step % 2 == 1) {
      const std::span<float> own = memories[node];
      std::ranges::copy(gradient, own.begin());
      gradient = own;
    }
    for (int b = 0; b < spec.buckets.bucket_count(); ++b) {
      const ElementRange range = spec.buckets.bucket(b);
      exchange.Submit({.round = step,
                       .bucket = b,
                       .gradient = gradient.subspan(range.begin, range.size()),
                       .node = is_last ? Submission::kLastNode : node});
    }
  }
  const int world_size = training.job.world_size;
  std::vector<double> values = {1.0, static_cast<double>(spec.rank)};
  RETURN_IF_ERROR(exchange.Sum(SumPurpose::kStopVote, values));  // buckets are in flight
  const std::vector<double> expected = {1.0 * world_size, world_size * (world_size - 1) / 2.0};
  if (values != expected) return absl::InternalError("wrong sum");
  for (int b = spec.buckets.bucket_count() - 1; b >= 0; --b) RETURN_IF_ERROR(exchange.Await(step, b));
  return absl::OkStatus();
}

absl::Status Train(const ExampleTraining& training, GradientExchange& exchange, int rank, ExampleOutcome& outcome) {
  const ExampleJob& job = training.job;
  JobSpec spec = job.Spec(rank);
  spec.first_step = training.first_step;
  for (const std::vector<float>& vector : training.state) {
    if (rank == 0) spec.optimizer_state.push_back(vector);
  }
  training.change_spec(rank, spec);
  outcome.parameters.assign(job.element_count, -7.0f);  // Start must replace them by rank 0's
  if (rank == 0) outcome.parameters = training.start.empty() ? job.InitialParameters() : training.start;
  RETURN_IF_ERROR(exchange.Start(spec, outcome.parameters));
  for (int64_t step = training.first_step; step < training.first_step + training.step_count; ++step) {
    if (const auto other = training.bucket_bytes_from.find(step); other != training.bucket_bytes_from.end()) {
      ASSIGN_OR_RETURN(spec.buckets, BucketMap::Create({.element_count = job.element_count,
                                                        .bucket_bytes = other->second,
                                                        .world_size = job.world_size}));
      RETURN_IF_ERROR(exchange.UseBuckets(spec.buckets, step));
    }
    RETURN_IF_ERROR(TrainStep(training, spec, step, exchange, outcome));
  }
  outcome.state.assign(StateVectorCount(job.optimizer), std::vector<float>(rank == 0 ? job.element_count : 0));
  const std::vector<std::span<float>> spans(outcome.state.begin(), outcome.state.end());
  RETURN_IF_ERROR(exchange.GatherOptimizerState(spans));
  RETURN_IF_ERROR(exchange.Finish());
  std::ranges::copy(exchange.memory().parameters, outcome.parameters.begin());
  outcome.counters = exchange.counters();
  outcome.choice = exchange.facts().choice;
  outcome.owners = exchange.facts().owners;
  return absl::OkStatus();
}

}  // namespace

void RunExampleTraining(const ExampleTraining& training, GradientExchange& exchange, int rank,
                        ExampleOutcome& outcome) {
  outcome.status = Train(training, exchange, rank, outcome);
  if (!outcome.status.ok()) exchange.Abort(outcome.status);
}

}  // namespace starring
