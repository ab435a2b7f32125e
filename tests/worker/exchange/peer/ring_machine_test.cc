#include "worker/exchange/peer/ring_machine.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/check.h"
#include "common/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "tests/worker/exchange/peer/in_memory_transport.h"
#include "worker/exchange/peer/slice_owner.h"

namespace starring {
namespace {

// All ranks of a ring in one thread, polled in random order.
class Ring {
 public:
  Ring(const ExampleJob& job, uint64_t seed, int blocks_in_flight_max = 0)
      : job_(job), buckets_(job.Buckets()), network_(job.world_size, seed), random_(seed) {
    for (int rank = 0; rank < job.world_size; ++rank) {
      std::vector<std::vector<ElementRange>> slices;
      for (int b = 0; b < buckets_.bucket_count(); ++b) {
        if (job.world_size == 1) {
          slices.push_back({buckets_.bucket(b)});
        } else {
          slices.push_back(buckets_.RingSlice(b, rank));
        }
      }
      LearningRateSchedule schedule;
      schedule.base = 0.125;
      auto owned = OwnedSlices::Create({.slices = std::move(slices),
                                        .element_count = job.element_count,
                                        .optimizer = job.optimizer,
                                        .schedule = schedule});
      CHECK_OK(owned);
      owners_.push_back(std::make_unique<HostSliceOwner>(*std::move(owned)));
      parameters_.push_back(job.InitialParameters());
      transports_.push_back(network_.CreateTransport(rank));
    }
    for (int rank = 0; rank < job.world_size; ++rank) {
      machines_.push_back(
          std::make_unique<RingMachine>(RingMachine::Options{.buckets = &buckets_,
                                                             .owner = owners_[rank].get(),
                                                             .parameters = parameters_[rank],
                                                             .transport = transports_[rank].get(),
                                                             .first_tag = 16,
                                                             .blocks_in_flight_max = blocks_in_flight_max}));
    }
  }

  int bucket_count() const { return buckets_.bucket_count(); }
  RingMachine& machine(int rank) { return *machines_[rank]; }
  const std::vector<float>& parameters(int rank) const { return parameters_[rank]; }
  InMemoryNetwork& network() { return network_; }

  void PollAnyRank() { Poll(static_cast<int>(random_() % machines_.size())); }

  void Poll(int rank) {
    std::vector<Transport::Token> completed;
    CHECK_OK(transports_[rank]->Poll(completed));
    for (const auto& [poster, operation] : completed) poster->OnCompletion(operation);
  }

  // Each rank goes through its steps at its own speed, as a trainer does: it submits one bucket after the other and
  // awaits all of them before the next step.
  void Run(int64_t step_count) {
    struct Trainer {
      int64_t step = 0;
      int submitted = 0;  // buckets of `step`
      std::vector<float> gradient;
    };
    std::vector<Trainer> trainers(machines_.size());
    size_t finished = 0;
    int64_t rounds = 0;
    while (finished < trainers.size()) {
      CHECK_LT(++rounds, 10'000'000) << "the ring makes no progress";
      const int rank = static_cast<int>(random_() % machines_.size());
      Trainer& trainer = trainers[rank];
      Poll(rank);
      if (trainer.step == step_count) continue;
      if (trainer.submitted == 0) trainer.gradient = job_.Gradient(rank, trainer.step);
      if (trainer.submitted < bucket_count()) {
        if (random_() % 3 == 0) continue;  // still computing
        const ElementRange range = buckets_.bucket(trainer.submitted);
        machines_[rank]->Submit(trainer.step, trainer.submitted,
                                std::span<const float>(trainer.gradient).subspan(range.begin, range.size()));
        ++trainer.submitted;
        continue;
      }
      bool ready = true;
      for (int b = 0; b < bucket_count(); ++b) ready = ready && machines_[rank]->IsReady(b);
      if (!ready) continue;
      // Now the trainer may write to the gradient again.
      std::fill(trainer.gradient.begin(), trainer.gradient.end(), 1e30f);
      trainer.submitted = 0;
      if (++trainer.step == step_count) ++finished;
    }
    // A rank that has all its results may still have to pass on chunks to others.
    for (bool idle = false; !idle;) {
      idle = true;
      for (size_t rank = 0; rank < machines_.size(); ++rank) {
        Poll(static_cast<int>(rank));
        idle = idle && machines_[rank]->IsIdle();
      }
    }
  }

 private:
  const ExampleJob job_;
  const BucketMap buckets_;
  InMemoryNetwork network_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<SliceOwner>> owners_;
  std::vector<std::vector<float>> parameters_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<RingMachine>> machines_;
};

void ExpectParameters(const std::vector<float>& expected, const Ring& ring, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    ASSERT_EQ(ring.parameters(rank), expected) << "rank " << rank;  // bit by bit: no NaN is among them
  }
}

class RingMachineSizes : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, RingMachineSizes, testing::Values(1, 2, 3, 4, 5));

TEST_P(RingMachineSizes, GivesTheBitsOfTheReductionOrder) {
  const int world_size = GetParam();
  const int64_t block = ReductionBlockElements(world_size);
  // Fewer elements than ranks, so that some chunks are empty; a block and one more; several blocks, the last one short.
  for (const int64_t element_count : {int64_t{1}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{16}, int64_t{1023}, block,
                                      block + 1, 3 * block / 2 + 1233}) {
    for (uint64_t seed = 1; seed <= (element_count < block ? 3 : 1); ++seed) {
      SCOPED_TRACE(testing::Message() << element_count << " elements, seed " << seed);
      const ExampleJob job = {
          .element_count = element_count, .bucket_bytes = 1, .world_size = world_size, .seed = seed};
      Ring ring(job, seed);
      ring.Run(3);
      ExpectParameters(job.Reference(3), ring, world_size);
    }
  }
}

TEST_P(RingMachineSizes, SumsIntegersExactly) {
  const ExampleJob job = {.element_count = 3 * ReductionBlockElements(GetParam()) / 2,
                          .bucket_bytes = 1,
                          .world_size = GetParam(),
                          .values = GradientValues::kIntegers,
                          .optimizer = {}};
  Ring ring(job, 7);
  ring.Run(1);
  std::vector<float> sum(job.element_count, 0.0f);
  for (int rank = 0; rank < job.world_size; ++rank) {
    const std::vector<float> gradient = job.Gradient(rank, 0);
    for (int64_t i = 0; i < job.element_count; ++i) sum[i] += gradient[i];
  }
  std::vector<float> expected = job.InitialParameters();
  for (int64_t i = 0; i < job.element_count; ++i) expected[i] -= 0.125f * sum[i];
  for (int rank = 0; rank < job.world_size; ++rank) ASSERT_EQ(ring.parameters(rank), expected) << "rank " << rank;
}

TEST_P(RingMachineSizes, SameBitsWhateverTheBucketAndTheWindow) {
  const int64_t block = ReductionBlockElements(GetParam());
  struct Cut {
    int64_t bucket_bytes;
    int blocks_in_flight_max;
  };
  ExampleJob job = {.element_count = 5 * block / 2,
                    .bucket_bytes = 1,
                    .world_size = GetParam(),
                    .optimizer = {.kind = OptimizerKind::kAdamW, .weight_decay = 0.01f}};
  const std::vector<float> expected = job.Reference(2);
  for (const Cut& cut : {Cut{1, 1}, Cut{1, 7}, Cut{2 * block * 4, 2}, Cut{1 << 30, 1}, Cut{1 << 30, 2}}) {
    SCOPED_TRACE(testing::Message() << cut.bucket_bytes << " bytes a bucket, window " << cut.blocks_in_flight_max);
    job.bucket_bytes = cut.bucket_bytes;
    Ring ring(job, 3, cut.blocks_in_flight_max);
    ring.Run(2);
    ExpectParameters(expected, ring, GetParam());
  }
}

TEST(RingMachine, KeepsOperationsInFlightBounded) {
  const ExampleJob job = {.element_count = 48 * ReductionBlockElements(2), .bucket_bytes = 1, .world_size = 2};
  Ring ring(job, 5);
  ring.Run(2);
  EXPECT_LE(ring.network().operations_in_flight_max(), kRingOperationsInFlightMax);
}

TEST(RingMachine, CountsTheBytesOfAReduceScatterAndAnAllgather) {
  const ExampleJob job = {.element_count = 4 * ReductionBlockElements(3), .bucket_bytes = 1, .world_size = 3};
  Ring ring(job, 5);
  ring.Run(2);
  const int64_t bytes = 2 * (2 * job.element_count * 4 / 3 * 2);  // steps * 2 (N - 1) / N of the vector
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ring.machine(rank).counters().bytes_sent, bytes);
    EXPECT_EQ(ring.machine(rank).counters().bytes_received, bytes);
    EXPECT_GT(ring.machine(rank).counters().optimizer_seconds, 0);
  }
}

TEST(RingMachine, TellsTheOldestBucketInFlight) {
  const ExampleJob job = {.element_count = 2 * ReductionBlockElements(3), .bucket_bytes = 1, .world_size = 3};
  Ring ring(job, 11);
  const std::vector<float> gradient = job.Gradient(0, 0);
  for (int b = 0; b < ring.bucket_count(); ++b) {
    const ElementRange range = job.Buckets().bucket(b);
    ring.machine(0).Submit(0, b, std::span<const float>(gradient).subspan(range.begin, range.size()));
  }
  // The other ranks have submitted nothing, so rank 0's buckets stay in flight however often all ranks poll.
  for (int i = 0; i < 1000; ++i) ring.PollAnyRank();
  EXPECT_FALSE(ring.machine(0).IsIdle());
  EXPECT_FALSE(ring.machine(0).IsReady(0));
  EXPECT_EQ(ring.machine(0).Oldest().step, 0);
  EXPECT_EQ(ring.machine(0).Oldest().bucket, 0);
}

TEST(RingMachineDeathTest, RefusesABucketTwice) {
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2};
  Ring ring(job, 1);
  const std::vector<float> gradient = job.Gradient(0, 0);
  ring.machine(0).Submit(0, 0, gradient);
  EXPECT_DEATH(ring.machine(0).Submit(0, 0, gradient), "submitted twice");
}

}  // namespace
}  // namespace starring
