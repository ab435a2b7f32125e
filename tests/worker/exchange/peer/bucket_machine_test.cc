// Tests the machine of the control, mpi; ring_machine_test.cc tests the ring's.
#include "worker/exchange/peer/bucket_machine.h"

#include <memory>
#include <vector>

#include "common/base/check.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/worker/exchange/peer/example_job.h"

namespace starring {
namespace {

// Every rank of a job on one thread.
class Ranks {
 public:
  Ranks(const ExampleJob& job, uint64_t seed) : buckets_(job.Buckets()), network_(job.world_size, seed) {
    for (int rank = 0; rank < job.world_size; ++rank) {
      std::vector<std::vector<ElementRange>> slices;
      for (int b = 0; b < buckets_.bucket_count(); ++b) slices.push_back({buckets_.bucket(b)});
      auto owned = OwnedSlices::Create({.slices = std::move(slices),
                                        .element_count = job.element_count,
                                        .optimizer = job.optimizer,
                                        .schedule = job.Spec(rank).schedule});
      CHECK_OK(owned);
      owners_.push_back(std::make_unique<HostSliceOwner>(*std::move(owned)));
      parameters_.push_back(job.InitialParameters());
      transports_.push_back(network_.CreateTransport(rank));
      machines_.push_back(
          std::make_unique<AllreduceMachine>(AllreduceMachine::Options{.buckets = &buckets_,
                                                                       .owner = owners_[rank].get(),
                                                                       .parameters = parameters_[rank],
                                                                       .transport = transports_[rank].get()}));
    }
  }

  const BucketMap& buckets() const { return buckets_; }
  AllreduceMachine& machine(int rank) { return *machines_[rank]; }
  const std::vector<float>& parameters(int rank) const { return parameters_[rank]; }

  void PollAll() {
    for (const auto& transport : transports_) {
      std::vector<Transport::Token> completed;
      CHECK_OK(transport->Poll(completed));
      for (const Transport::Token& token : completed) token.poster->OnCompletion(token.operation);
    }
  }

 private:
  const BucketMap buckets_;
  InMemoryNetwork network_;
  std::vector<std::unique_ptr<SliceOwner>> owners_;
  std::vector<std::vector<float>> parameters_;
  std::vector<std::unique_ptr<MpiTransport>> transports_;
  std::vector<std::unique_ptr<AllreduceMachine>> machines_;
};

TEST(AllreduceMachine, EveryRankAppliesTheOptimizerToTheSum) {
  for (const int world_size : {1, 2, 3}) {
    const ExampleJob job = {
        .element_count = 300'000, .bucket_bytes = 1, .world_size = world_size, .values = GradientValues::kIntegers};
    Ranks ranks(job, 7);
    const int bucket_count = ranks.buckets().bucket_count();
    ASSERT_GT(bucket_count, 1);
    for (int64_t step = 0; step < 3; ++step) {
      std::vector<std::vector<float>> gradients;
      for (int rank = 0; rank < world_size; ++rank) gradients.push_back(job.Gradient(rank, step));
      for (int rank = 0; rank < world_size; ++rank) {
        EXPECT_TRUE(ranks.machine(rank).IsIdle());
        for (int b = 0; b < bucket_count; ++b) {
          const ElementRange range = ranks.buckets().bucket(b);
          ranks.machine(rank).Submit(step, b,
                                     std::span<const float>(gradients[rank]).subspan(range.begin, range.size()));
        }
        EXPECT_EQ(ranks.machine(rank).IsIdle(), world_size == 1);
        if (world_size == 1) continue;
        EXPECT_EQ(ranks.machine(rank).Oldest().step, step);
        EXPECT_EQ(ranks.machine(rank).Oldest().bucket, 0);
      }
      for (int rank = 0; rank < world_size; ++rank) {
        for (int rounds = 0; !ranks.machine(rank).IsIdle(); ++rounds) {
          ASSERT_LT(rounds, 100'000);
          ranks.PollAll();
        }
        for (int b = 0; b < bucket_count; ++b) EXPECT_TRUE(ranks.machine(rank).IsReady(b));
      }
    }
    const std::vector<float> expected = job.Reference(3);
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(ranks.parameters(rank), expected) << "rank " << rank << " of " << world_size;
      // The least that an allreduce moves.
      EXPECT_EQ(ranks.machine(rank).counters().bytes_sent,
                3 * 2 * job.element_count * 4 * (world_size - 1) / world_size);
    }
  }
}

}  // namespace
}  // namespace starring
