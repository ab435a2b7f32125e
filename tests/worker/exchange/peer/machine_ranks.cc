#include "tests/worker/exchange/peer/machine_ranks.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "worker/exchange/peer/ring_machine.h"
#include "worker/exchange/peer/star_machine.h"

namespace starring {
namespace {

OwnedSlices SlicesOf(const ExampleJob& job, const BucketMap& buckets, MachineKind kind, int rank) {
  const OwnerMap owners =
      kind == MachineKind::kRing ? OwnerMap::SplitChunks(job.world_size) : OwnerMap::JoinedChunks(job.world_size);
  std::vector<std::vector<ElementRange>> slices;
  for (int b = 0; b < buckets.bucket_count(); ++b) slices.push_back(owners.SliceOf(buckets.sum(b), rank));
  LearningRateSchedule schedule;
  schedule.base = 0.125;
  auto owned = OwnedSlices::Create({.slices = std::move(slices),
                                    .element_count = job.element_count,
                                    .optimizer = job.optimizer,
                                    .schedule = schedule});
  CHECK_OK(owned);
  return *std::move(owned);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, MachineKind kind) {
  return out << (kind == MachineKind::kRing ? "Ring" : kind == MachineKind::kStar ? "Star" : "Nodes");
}

// Counts what the machine allocates. Says that `own_parameters` are a GPU's, unless they are empty.
class MachineRanks::CountingOwner final : public SliceOwner {
 public:
  CountingOwner(OwnedSlices owned, std::span<float> own_parameters)
      : inner_(std::move(owned)), own_parameters_(own_parameters) {}

  int64_t allocated() const { return allocated_; }

  std::span<float> Allocate(int64_t count) override {
    allocated_ += count;
    return inner_.Allocate(count);
  }
  std::span<float> own_parameters() override { return own_parameters_; }
  void Add(std::span<const float> own, std::span<float> sum) override { inner_.Add(own, sum); }
  void Apply(const ApplyArgs& args) override { inner_.Apply(args); }
  absl::Status status() const override { return inner_.status(); }
  void CopyState(int bucket, int vector, std::span<float> out) override { inner_.CopyState(bucket, vector, out); }
  void CopyStateOut(std::span<const std::span<float>> whole) override { inner_.CopyStateOut(whole); }
  void CopyStateIn(std::span<const std::span<const float>> whole) override { inner_.CopyStateIn(whole); }

 private:
  HostSliceOwner inner_;
  const std::span<float> own_parameters_;
  int64_t allocated_ = 0;
};

MachineRanks::MachineRanks(const ExampleJob& job, const Options& options)
    : job_(job), buckets_(job.Buckets()), network_(job.world_size, options.seed), random_(options.seed) {
  parameters_.assign(job.world_size, job.InitialParameters());
  for (int rank = 0; rank < job.world_size; ++rank) {
    owners_.push_back(
        std::make_unique<CountingOwner>(SlicesOf(job, buckets_, options.kind, rank),
                                        options.is_on_gpu ? std::span(parameters_[rank]) : std::span<float>()));
    transports_.push_back(network_.CreateTransport(rank));
  }
  for (int rank = 0; rank < job.world_size; ++rank) {
    const RankMachineOptions machine = {.buckets = &buckets_,
                                        .owner = owners_[rank].get(),
                                        .parameters = parameters_[rank],
                                        .transport = transports_[rank].get(),
                                        .track = AddTrack(options.trace, {.name = "exchange"}),
                                        .first_tag = options.first_tag,
                                        .groups_in_flight_max = options.groups_in_flight_max};
    if (options.kind == MachineKind::kRing) {
      machines_.push_back(std::make_unique<RingMachine>(machine));
    } else {
      machines_.push_back(std::make_unique<StarMachine>(
          machine, StarMachine::Job{.sum_order = job.sum_order, .micro_batches = job.micro_batches}));
    }
  }
}

MachineRanks::~MachineRanks() = default;

int64_t MachineRanks::scratch_elements(int rank) const { return owners_[rank]->allocated(); }

void MachineRanks::Submit(int rank, int64_t step, std::span<const float> gradient) {
  for (int b = 0; b < bucket_count(); ++b) {
    const ElementRange range = buckets_.bucket(b);
    machines_[rank]->Submit(step, b, gradient.subspan(range.begin, range.size()));
  }
}

void MachineRanks::SubmitNode(int rank, int64_t step, int node, std::span<const float> gradient) {
  for (int b = 0; b < bucket_count(); ++b) {
    const ElementRange range = buckets_.bucket(b);
    machines_[rank]->SubmitNode(step, b, node, gradient.subspan(range.begin, range.size()));
  }
}

void MachineRanks::Poll(int rank) {
  std::vector<Transport::Token> completed;
  CHECK_OK(transports_[rank]->Poll(completed));
  for (const Transport::Token& token : completed) token.poster->OnCompletion(token.operation);
}

bool MachineRanks::IsReady(int rank) const {
  for (int b = 0; b < bucket_count(); ++b) {
    if (!machines_[rank]->IsReady(b)) return false;
  }
  return true;
}

void MachineRanks::Run(int64_t step_count) {
  struct Trainer {
    int64_t step = 0;
    int node = 0;       // of its share
    int submitted = 0;  // buckets of that node
    std::vector<std::vector<float>> nodes;
  };
  std::vector<Trainer> trainers(machines_.size());
  size_t finished = 0;
  int64_t rounds = 0;
  while (finished < trainers.size()) {
    CHECK_LT(++rounds, 10'000'000) << "the machines make no progress";
    const int rank = static_cast<int>(random_() % machines_.size());
    Trainer& trainer = trainers[rank];
    Poll(rank);
    if (trainer.step == step_count) continue;
    if (trainer.node == 0 && trainer.submitted == 0) trainer.nodes = job_.Contributions(rank, trainer.step);
    const bool is_last = trainer.node + 1 == std::ssize(trainer.nodes);
    if (trainer.submitted < bucket_count()) {
      if (random_() % 3 == 0) continue;  // still computing
      const ElementRange range = buckets_.bucket(trainer.submitted);
      const auto gradient = std::span<const float>(trainer.nodes[trainer.node]).subspan(range.begin, range.size());
      if (is_last) {
        machines_[rank]->Submit(trainer.step, trainer.submitted, gradient);
      } else {
        machines_[rank]->SubmitNode(trainer.step, trainer.submitted, trainer.node, gradient);
      }
      ++trainer.submitted;
      continue;
    }
    if (!is_last) {
      ++trainer.node;
      trainer.submitted = 0;
      continue;
    }
    if (!IsReady(rank)) continue;
    // Now the trainer may write to the gradients again.
    for (std::vector<float>& gradient : trainer.nodes) std::ranges::fill(gradient, 1e30f);
    trainer.node = trainer.submitted = 0;
    if (++trainer.step == step_count) ++finished;
  }
  PollUntilIdle();
}

void MachineRanks::PollUntilIdle(const std::set<int>& except) {
  int64_t rounds = 0;
  for (bool idle = false; !idle;) {
    CHECK_LT(++rounds, 1'000'000) << "the machines do not get idle";
    idle = true;
    for (int rank = 0; rank < static_cast<int>(machines_.size()); ++rank) {
      if (except.contains(rank)) continue;
      Poll(rank);
      idle = idle && machines_[rank]->IsIdle();
    }
  }
}

}  // namespace starring
