// PeerExchange through memory that the ranks of one host share, and its choice of the fastest way.
#include <signal.h>
#include <sys/resource.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "tests/worker/exchange/peer/example_training.h"
#include "worker/exchange/peer/peer_exchange.h"

namespace starring {
namespace {

using Algorithm = PeerExchange::Algorithm;
using HostSharing = PeerExchange::HostSharing;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Outcome = ExampleOutcome;

constexpr int64_t kSteps = 3;

using OptionsOf = std::function<PeerExchange::Options(int rank)>;

std::vector<Outcome> RunAll(const ExampleTraining& training, const OptionsOf& options_of) {
  const int world_size = training.job.world_size;
  InMemoryNetwork network(world_size, 5);
  std::vector<Outcome> outcomes(world_size);
  std::vector<std::unique_ptr<PeerExchange>> exchanges;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    exchanges.push_back(std::make_unique<PeerExchange>(network.CreateTransport(rank), options_of(rank)));
  }
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] { RunExampleTraining(training, *exchanges[rank], rank, outcomes[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<Outcome> RunAll(const ExampleJob& job, const OptionsOf& options_of) {
  return RunAll(ExampleTraining{.job = job, .step_count = kSteps}, options_of);
}

OptionsOf Alike(Algorithm algorithm, HostSharing sharing) {
  return [=](int) { return PeerExchange::Options{.algorithm = algorithm, .sharing = sharing}; };
}

using RanksAndOrder = std::tuple<int, SumOrder>;

class HostExchangeRanks : public testing::TestWithParam<RanksAndOrder> {
 protected:
  // More than one bucket.
  ExampleJob Job() const {
    const auto& [world_size, order] = GetParam();
    return {.element_count = 9 * ReductionBlockElements(world_size) / 8,
            .bucket_bytes = 1,
            .world_size = world_size,
            .sum_order = order};
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, HostExchangeRanks,
                         testing::Combine(testing::Values(1, 2, 3, 5),
                                          testing::Values(SumOrder::kChain, SumOrder::kTree)));

TEST_P(HostExchangeRanks, SharedMemoryGivesTheReferencesBits) {
  const ExampleJob job = Job();
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = job.Reference(kSteps, &state);
  const std::vector<Outcome> outcomes = RunAll(job, Alike(Algorithm::kDirect, HostSharing::kRequired));
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.parameters, expected);
    EXPECT_EQ(outcome.counters.shared_memory, job.world_size > 1);
    EXPECT_FALSE(outcome.choice.has_value());
    // A sum of a few elements has one owner, in turn.
    const OwnerMap::Sum sum = {.elements = {0, 16}, .number = 1};
    ASSERT_EQ(outcome.owners.owner_count(), job.world_size);
    EXPECT_EQ(outcome.owners.SliceOf(sum, job.world_size > 1 ? 1 : 0), (std::vector<ElementRange>{{0, 16}}));
  }
  EXPECT_EQ(outcomes[0].state, state);
}

TEST(HostExchange, ARingInSharedMemoryGivesTheReferencesBits) {
  for (const int world_size : {1, 2, 3, 5, 17}) {
    const ExampleJob job = {
        .element_count = 9 * ReductionBlockElements(world_size) / 8, .bucket_bytes = 1, .world_size = world_size};
    std::vector<std::vector<float>> state;
    const std::vector<float> expected = job.Reference(kSteps, &state);
    const std::vector<Outcome> outcomes = RunAll(job, Alike(Algorithm::kRing, HostSharing::kRequired));
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.status, absl::OkStatus()) << world_size << " ranks";
      EXPECT_EQ(outcome.parameters, expected) << world_size << " ranks";
      EXPECT_EQ(outcome.counters.shared_memory, world_size > 1);
    }
    EXPECT_EQ(outcomes[0].state, state);
  }
}

// Through shared memory, by messages, and whichever is found the fastest.
TEST(HostExchange, MicroBatchesGiveTheReferencesBits) {
  for (const int world_size : {1, 2, 3, 5}) {
    const ExampleJob job = {.element_count = 9 * ReductionBlockElements(world_size) / 8,
                            .bucket_bytes = 1,
                            .world_size = world_size,
                            .optimizer = {.momentum = 0.9f, .clip_norm = world_size % 2 == 0 ? 0 : 0.75},
                            .sum_order = SumOrder::kTree,
                            .micro_batches = 8};
    const std::vector<float> expected = job.Reference(kSteps);
    for (const OptionsOf& options_of :
         {Alike(Algorithm::kDirect, HostSharing::kRequired), Alike(Algorithm::kDirect, HostSharing::kNever),
          Alike(Algorithm::kFastest, HostSharing::kIfPossible)}) {
      for (const Outcome& outcome : RunAll(job, options_of)) {
        ASSERT_EQ(outcome.status, absl::OkStatus()) << world_size << " ranks";
        EXPECT_EQ(outcome.parameters, expected) << world_size << " ranks";
      }
    }
  }
}

TEST_P(HostExchangeRanks, TheFastestWayGivesTheReferencesBits) {
  const ExampleJob job = Job();
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = job.Reference(kSteps, &state);
  for (const HostSharing sharing : {HostSharing::kIfPossible, HostSharing::kNever}) {
    const std::vector<Outcome> outcomes = RunAll(job, Alike(Algorithm::kFastest, sharing));
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.status, absl::OkStatus());
      EXPECT_EQ(outcome.parameters, expected);
      // Rank 0 has decided for all, from the ways that add in the job's order.
      ASSERT_TRUE(outcome.choice.has_value());
      EXPECT_EQ(outcome.choice->sync, outcomes[0].choice->sync);
      EXPECT_EQ(outcome.choice->reason, outcomes[0].choice->reason);
      EXPECT_EQ(outcome.counters.shared_memory, outcomes[0].counters.shared_memory);
      EXPECT_TRUE(job.sum_order == SumOrder::kChain || outcome.choice->sync == Sync::kStar);
    }
    EXPECT_EQ(outcomes[0].state, state);
    const std::string& reason = outcomes[0].choice->reason;
    if (job.world_size == 1) {
      EXPECT_EQ(reason, "one worker exchanges nothing");
      continue;
    }
    EXPECT_THAT(reason, HasSubstr("star "));
    EXPECT_EQ(reason.find("ring ") != std::string::npos, job.sum_order == SumOrder::kChain) << reason;
    EXPECT_EQ(reason.find("shared memory ") != std::string::npos, sharing == HostSharing::kIfPossible) << reason;
  }
}

// Buckets of one block, of the whole vector, and of two blocks: other ranks own the elements, and their state moves.
TEST_P(HostExchangeRanks, OtherBucketsChangeNoBit) {
  const auto& [world_size, order] = GetParam();
  const int64_t block = ReductionBlockElements(world_size);
  const ExampleTraining training = {.job = {.element_count = 17 * block / 8,
                                            .bucket_bytes = 1 << 30,
                                            .world_size = world_size,
                                            .optimizer = {.kind = OptimizerKind::kAdamW},
                                            .sum_order = order},
                                    .step_count = 5,
                                    .bucket_bytes_from = {{1, 1}, {3, 2 * block * 4}, {4, 1 << 30}}};
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = training.job.Reference(training.step_count, &state);
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
    if (algorithm == Algorithm::kRing && order == SumOrder::kTree) continue;
    const std::vector<Outcome> outcomes = RunAll(training, Alike(algorithm, HostSharing::kRequired));
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.status, absl::OkStatus());
      EXPECT_EQ(outcome.parameters, expected);
      EXPECT_EQ(outcome.counters.shared_memory, world_size > 1);
    }
    EXPECT_EQ(outcomes[0].state, state);
  }
}

// The ranks share the sums, and each has its own parameters.
TEST_P(HostExchangeRanks, AClippedGradientGivesTheReferencesBits) {
  ExampleTraining training = {.job = Job(), .step_count = 4, .bucket_bytes_from = {{2, 1 << 30}}};
  training.job.optimizer.clip_norm = 0.75;
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = training.job.Reference(training.step_count, &state);
  std::vector<Algorithm> algorithms = {Algorithm::kDirect, Algorithm::kFastest};
  if (training.job.sum_order == SumOrder::kChain) algorithms.push_back(Algorithm::kRing);
  for (const Algorithm algorithm : algorithms) {
    const auto sharing = algorithm == Algorithm::kFastest ? HostSharing::kIfPossible : HostSharing::kRequired;
    const std::vector<Outcome> outcomes = RunAll(training, Alike(algorithm, sharing));
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.status, absl::OkStatus());
      EXPECT_EQ(outcome.parameters, expected);
    }
    EXPECT_EQ(outcomes[0].state, state);
  }
}

// A rank that waits for messages that another one will not send would wait until the deadline.
TEST(HostExchange, RefusesRanksThatDisagree) {
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 3};
  for (const Outcome& outcome : RunAll(job, [](int rank) {
         return PeerExchange::Options{.algorithm = Algorithm::kDirect,
                                      .sharing = rank == 2 ? HostSharing::kNever : HostSharing::kRequired};
       })) {
    EXPECT_TRUE(absl::IsInvalidArgument(outcome.status)) << outcome.status;
    EXPECT_THAT(std::string(outcome.status.message()), AllOf(HasSubstr("rank 2"), HasSubstr("same_host")));
  }
}

// A process may have at most 4 KiB in a file, and so in shared memory: as on a host without enough memory.
TEST(HostExchange, WithoutSharedMemoryItRefusesOrSendsMessages) {
  const ExampleJob job = {.element_count = 4096, .bucket_bytes = 1, .world_size = 2};
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::vector<Outcome> refused = RunAll(job, Alike(Algorithm::kDirect, HostSharing::kRequired));
  const std::vector<Outcome> sent = RunAll(job, Alike(Algorithm::kFastest, HostSharing::kIfPossible));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  for (const Outcome& outcome : refused) {
    EXPECT_TRUE(absl::IsInvalidArgument(outcome.status)) << outcome.status;
    EXPECT_THAT(std::string(outcome.status.message()),
                AllOf(HasSubstr("--same_host=shared_memory: rank 0"), HasSubstr("--same_host=socket")));
  }
  for (const Outcome& outcome : sent) {
    ASSERT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.parameters, job.Reference(kSteps));
    EXPECT_FALSE(outcome.counters.shared_memory);
    EXPECT_THAT(outcome.counters.not_shared, HasSubstr("rank 0"));
    EXPECT_THAT(outcome.choice->reason, HasSubstr("no shared memory: rank 0"));
  }
}

}  // namespace
}  // namespace starring
