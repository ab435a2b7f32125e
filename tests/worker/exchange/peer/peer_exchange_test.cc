#include "worker/exchange/peer/peer_exchange.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "tests/worker/exchange/peer/example_training.h"
#include "worker/exchange/local/local_exchange.h"

namespace starring {
namespace {

using Algorithm = PeerExchange::Algorithm;
using testing::AllOf;
using testing::HasSubstr;
using Training = ExampleTraining;
using Outcome = ExampleOutcome;

std::unique_ptr<PeerExchange> CreateExchange(InMemoryNetwork& network, int rank, PeerExchange::Options options = {}) {
  std::unique_ptr<MpiTransport> transport = network.CreateTransport(rank);
  options.mpi = transport.get();
  return std::make_unique<PeerExchange>(std::move(transport), std::move(options));
}

using Exchanges = std::vector<std::unique_ptr<PeerExchange>>;  // by rank

Exchanges MakeExchanges(InMemoryNetwork& network, int world_size, const PeerExchange::Options& options = {}) {
  Exchanges exchanges;
  for (int rank = 0; rank < world_size; ++rank) {
    exchanges.push_back(CreateExchange(network, rank, options));
  }
  return exchanges;
}

// Runs every rank on a thread of its own. REQUIRES: an outcome for each.
void RunRanks(const Training& training, const Exchanges& exchanges, std::vector<Outcome>& outcomes) {
  CHECK_EQ(outcomes.size(), exchanges.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < exchanges.size(); ++rank) {
    threads.emplace_back(
        [&, rank] { RunExampleTraining(training, *exchanges[rank], static_cast<int>(rank), outcomes[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<Outcome> RunAll(const Training& training, Algorithm algorithm, uint64_t seed) {
  const int world_size = training.job.world_size;
  InMemoryNetwork network(world_size, seed);
  std::vector<Outcome> outcomes(world_size);
  const Exchanges exchanges = MakeExchanges(network, world_size, {.algorithm = algorithm});
  RunRanks(training, exchanges, outcomes);
  return outcomes;
}

// Three ranks send a block's chunks one by one. With five, whose blocks are shorter, a message has those of several.
// rank_machines_test.cc has the bits of more ranks.
class PeerExchangeRanks : public testing::TestWithParam<int> {
 protected:
  static int64_t Block() { return ReductionBlockElements(GetParam()); }
  // The last block of a vector is short, and yet so long that every rank owns a part of it (common/reduce/owner_map.h).
  static int64_t Short() { return GetParam() * OwnerMap::kSliceBytesMin / static_cast<int64_t>(sizeof(float)); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, PeerExchangeRanks, testing::Values(1, 2, 3, 5));

TEST_P(PeerExchangeRanks, RingAndStarGiveTheReferencesBits) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    for (const int64_t element_count : {int64_t{16}, Block() + Short()}) {
      const uint64_t seed = element_count + GetParam();
      SCOPED_TRACE(testing::Message() << element_count << " elements, seed " << seed);
      Training training = {.job = {.element_count = element_count, .bucket_bytes = 1, .world_size = GetParam()}};
      training.job.optimizer.kind = kind;
      std::vector<std::vector<float>> state;
      const std::vector<float> expected = training.job.Reference(training.step_count, &state);
      for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
        const std::vector<Outcome> outcomes = RunAll(training, algorithm, seed);
        for (const Outcome& outcome : outcomes) {
          ASSERT_EQ(outcome.status, absl::OkStatus());
          EXPECT_EQ(outcome.parameters, expected);
        }
        EXPECT_EQ(outcomes[0].state, state);
      }
    }
  }
}

// Buckets of one block, of the whole vector, and of two blocks, with the state of the optimizer taken along.
TEST_P(PeerExchangeRanks, OtherBucketsChangeNoBit) {
  Training training = {.job = {.element_count = 2 * Block() + Short(),
                               .bucket_bytes = 1,
                               .world_size = GetParam(),
                               .optimizer = {.kind = OptimizerKind::kAdamW}},
                       .step_count = 5,
                       .bucket_bytes_from = {{1, 1 << 30}, {3, 2 * Block() * 4}, {4, 1}}};
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = training.job.Reference(training.step_count, &state);
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
    const std::vector<Outcome> outcomes = RunAll(training, algorithm, 11 + GetParam());
    const int64_t others = GetParam() - 1;
    // The bytes of all steps are counted. In a vector whose length is a multiple of the ranks' number, chunks are even.
    if (training.job.element_count % GetParam() == 0 && others > 0) {
      const int64_t bytes = 2 * others * training.job.element_count / GetParam() * 4;
      EXPECT_NEAR(outcomes[0].counters.bytes_sent, training.step_count * bytes, training.step_count * 64 * others);
    }
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.status, absl::OkStatus());
      EXPECT_EQ(outcome.parameters, expected);
    }
    EXPECT_EQ(outcomes[0].state, state);
  }
}

// A norm that every step has to be scaled to, and one that none has.
TEST_P(PeerExchangeRanks, AClippedGradientGivesTheReferencesBits) {
  for (const double clip_norm : {0.75, 1e30}) {
    Training training = {.job = {.element_count = 2 * Block() + Short(),
                                 .bucket_bytes = 1,
                                 .world_size = GetParam(),
                                 .optimizer = {.momentum = 0.9f, .clip_norm = clip_norm}},
                         .step_count = 4,
                         .bucket_bytes_from = {{2, 1 << 30}}};
    std::vector<std::vector<float>> state;
    const std::vector<float> expected = training.job.Reference(training.step_count, &state);
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
      const std::vector<Outcome> outcomes = RunAll(training, algorithm, 7 + GetParam());
      for (const Outcome& outcome : outcomes) {
        ASSERT_EQ(outcome.status, absl::OkStatus());
        EXPECT_EQ(outcome.parameters, expected);
        EXPECT_GT(outcome.counters.optimizer_seconds, 0);
      }
      EXPECT_EQ(outcomes[0].state, state);
    }
    training.job.optimizer.clip_norm = 0;
    EXPECT_EQ(training.job.Reference(training.step_count) == expected, clip_norm > 1);
  }
}

// What a checkpoint's manifest says. Two ranks or more: one rank owns everything.
TEST_P(PeerExchangeRanks, TheExchangeSaysWhoOwnsWhat) {
  const int rank_count = GetParam();
  const Training training = {.job = {.element_count = Block() + 16, .bucket_bytes = 1, .world_size = rank_count},
                             .step_count = 1};
  const BucketMap buckets = training.job.Buckets();
  const auto ring = rank_count == 1 ? OwnerMap() : OwnerMap::SplitChunks(rank_count);
  const auto star = rank_count == 1 ? OwnerMap() : OwnerMap::JoinedChunks(rank_count);
  for (const auto& [algorithm, expected] : {std::pair(Algorithm::kRing, ring), std::pair(Algorithm::kDirect, star),
                                            std::pair(Algorithm::kAllreduce, OwnerMap())}) {
    const OwnerMap owners = RunAll(training, algorithm, 3)[0].owners;
    ASSERT_EQ(owners.owner_count(), expected.owner_count());
    for (int b = 0; b < buckets.bucket_count(); ++b) {
      for (int owner = 0; owner < owners.owner_count(); ++owner) {
        EXPECT_EQ(owners.SliceOf(buckets.sum(b), owner), expected.SliceOf(buckets.sum(b), owner));
      }
    }
  }
}

TEST_P(PeerExchangeRanks, AStarAddsAsATree) {
  const Training training = {.job = {.element_count = Block() + Short(),
                                     .bucket_bytes = 1,
                                     .world_size = GetParam(),
                                     .sum_order = SumOrder::kTree}};
  const std::vector<float> expected = training.job.Reference(training.step_count);
  for (const Outcome& outcome : RunAll(training, Algorithm::kDirect, 7)) {
    ASSERT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.parameters, expected);
  }
}

TEST_P(PeerExchangeRanks, AllreduceGivesTheSameOnIntegers) {
  for (const double clip_norm : {0.0, 0.75}) {
    const Training training = {.job = {.element_count = Block() + Short(),
                                       .bucket_bytes = 1,
                                       .world_size = GetParam(),
                                       .values = GradientValues::kIntegers,
                                       .optimizer = {.momentum = 0.9f, .clip_norm = clip_norm}}};
    std::vector<std::vector<float>> state;
    const std::vector<float> expected = training.job.Reference(training.step_count, &state);
    const std::vector<Outcome> outcomes = RunAll(training, Algorithm::kAllreduce, 3);
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.status, absl::OkStatus());
      EXPECT_EQ(outcome.parameters, expected);
    }
    EXPECT_EQ(outcomes[0].state, state);
  }
}

// Two steps of a ring, a gathered state, and two more steps of a new job that starts there, be it a ring or a star,
// have the bits of four steps.
TEST_P(PeerExchangeRanks, GoesOnFromACheckpoint) {
  for (const double clip_norm : {0.0, 0.75}) {
    Training training = {.job = {.element_count = Block() + Short(),
                                 .bucket_bytes = 1,
                                 .world_size = GetParam(),
                                 .optimizer = {.kind = OptimizerKind::kAdamW, .clip_norm = clip_norm}},
                         .step_count = 2};
    const std::vector<Outcome> half = RunAll(training, Algorithm::kRing, 5);
    ASSERT_EQ(half[0].status, absl::OkStatus());
    training.first_step = 2;
    training.start = half[0].parameters;
    training.state = half[0].state;
    const std::vector<float> expected = training.job.Reference(4);
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
      for (const Outcome& outcome : RunAll(training, algorithm, 6)) {
        ASSERT_EQ(outcome.status, absl::OkStatus());
        EXPECT_EQ(outcome.parameters, expected);
      }
    }
  }
}

TEST(PeerExchange, LongStateTravelsInSegments) {
  const ExampleJob job = {.element_count = 1'200'000, .bucket_bytes = 8 << 20, .world_size = 2};
  InMemoryNetwork network(2, 11);
  std::vector<std::vector<float>> state;
  job.Reference(1, &state);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      PeerExchange exchange(network.CreateTransport(rank), PeerExchange::Options{});
      std::vector<float> parameters = job.InitialParameters();
      const std::vector<float> gradient = job.Gradient(rank, 0);
      CHECK_OK(exchange.Start(job.Spec(rank), parameters));
      exchange.Submit({.round = 0, .bucket = 0, .gradient = gradient});
      CHECK_OK(exchange.Await(0, 0));
      std::vector<std::vector<float>> gathered(state.size(), std::vector<float>(parameters.size()));
      const std::vector<std::span<float>> spans(gathered.begin(), gathered.end());
      CHECK_OK(exchange.GatherOptimizerState(spans));
      if (rank == 0) {
        EXPECT_EQ(gathered, state);
      }
      CHECK_OK(exchange.Finish());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(network.message_bytes_max(), std::max(kTransferSegmentBytes, kBroadcastSegmentBytes));
}

TEST(PeerExchange, ADeadlineThatIsInfiniteIsNotOver) {
  EXPECT_GT(DeadlineAfter(absl::InfiniteDuration()), MessagePump::Clock::now() + std::chrono::hours(24));
  EXPECT_GT(DeadlineAfter(absl::Hours(24 * 365 * 200)), MessagePump::Clock::now() + std::chrono::hours(24));
  EXPECT_LT(DeadlineAfter(absl::InfiniteDuration()), MessagePump::Clock::now() + std::chrono::hours(24 * 366));
}

TEST(PeerExchange, LocalIsARingOfOne) {
  const Training training = {.job = {.element_count = 20'000, .bucket_bytes = 30'000, .world_size = 1}};
  const std::vector<Outcome> ring = RunAll(training, Algorithm::kRing, 1);
  ASSERT_EQ(ring[0].status, absl::OkStatus());
  const std::unique_ptr<GradientExchange> exchange = CreateLocalExchange();
  Outcome local;
  RunExampleTraining(training, *exchange, 0, local);
  ASSERT_EQ(local.status, absl::OkStatus());
  EXPECT_EQ(local.parameters, ring[0].parameters);
  EXPECT_EQ(local.state, ring[0].state);
}

// A ring moves 2 (N - 1) / N of the vector in a step: all of it for two ranks.
TEST(PeerExchange, CountsGradientsAndParametersOnly) {
  const Training training = {.job = {.element_count = 16'384, .bucket_bytes = 1, .world_size = 2}, .step_count = 3};
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect, Algorithm::kAllreduce}) {
    for (const Outcome& outcome : RunAll(training, algorithm, 2)) {
      EXPECT_EQ(outcome.counters.bytes_sent, 3 * 16'384 * 4);
      EXPECT_EQ(outcome.counters.bytes_received, 3 * 16'384 * 4);
      EXPECT_GT(outcome.counters.optimizer_seconds, 0);
    }
  }
}

TEST(PeerExchange, RefusesDifferentFlagsOnAllRanks) {
  Training training = {.job = {.element_count = 64, .bucket_bytes = 1, .world_size = 3}};
  training.change_spec = [](int rank, JobSpec& spec) {
    if (rank == 2) spec.agreed_flags = {{"seed", "2"}};
  };
  for (const Outcome& outcome : RunAll(training, Algorithm::kRing, 1)) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(outcome.status.message()),
                AllOf(HasSubstr("rank 2"), HasSubstr("seed=2"), HasSubstr("seed=1")));
  }
}

TEST(PeerExchange, RefusesAnotherOrderOfSums) {
  Training training = {.job = {.element_count = 64, .bucket_bytes = 1, .world_size = 3}};
  training.change_spec = [](int rank, JobSpec& spec) {
    if (rank == 1) spec.sum_order = SumOrder::kTree;
  };
  for (const Outcome& outcome : RunAll(training, Algorithm::kDirect, 1)) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(outcome.status.message()),
                HasSubstr("rank 1 has sum_order=TREE, rank 0 has sum_order=CHAIN"));
  }
}

TEST(PeerExchange, RefusesARankThatTheLauncherDidNotGive) {
  Training training = {.job = {.element_count = 64, .bucket_bytes = 1, .world_size = 1}};
  training.change_spec = [](int, JobSpec& spec) { spec.rank = 1; };
  const std::vector<Outcome> outcomes = RunAll(training, Algorithm::kRing, 1);
  EXPECT_EQ(outcomes[0].status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(PeerExchange, AnAbortReachesEverybodyWithItsReason) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect, Algorithm::kAllreduce}) {
    Training training = {.job = {.element_count = 200'000, .bucket_bytes = 1, .world_size = 4}, .step_count = 5};
    training.before_step = [](int rank, int64_t step) {
      return rank == 2 && step == 3 ? absl::InternalError("gradient of fc1.weight is NaN") : absl::OkStatus();
    };
    const std::vector<Outcome> outcomes = RunAll(training, algorithm, 9);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == 2) continue;
      EXPECT_EQ(outcomes[rank].status.code(), absl::StatusCode::kInternal) << outcomes[rank].status;
      EXPECT_THAT(std::string(outcomes[rank].status.message()),
                  HasSubstr("rank 2 gave up: gradient of fc1.weight is NaN"));
    }
  }
}

// Submit does nothing after a failure, so the bucket is not in flight, and looks as if it were ready.
TEST(PeerExchange, AwaitReturnsAFailureThatCameBeforeItsSubmit) {
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2};
  InMemoryNetwork network(2, 4);
  const Exchanges exchanges = MakeExchanges(network, 2);
  const auto start = [&](int rank, std::vector<float>& parameters) {
    parameters = job.InitialParameters();
    CHECK_OK(exchanges[rank]->Start(job.Spec(rank), parameters));
  };
  std::thread other([&] {
    std::vector<float> parameters;
    start(1, parameters);
    exchanges[1]->Abort(absl::CancelledError("enough"));
  });
  std::vector<float> parameters;
  start(0, parameters);
  std::vector<double> value(1);
  EXPECT_FALSE(exchanges[0]->Sum(SumPurpose::kStopVote, value).ok());
  const std::vector<float> gradient = job.Gradient(0, 0);
  exchanges[0]->Submit({.round = 0, .bucket = 0, .gradient = gradient});
  EXPECT_THAT(std::string(exchanges[0]->Await(0, 0).message()), HasSubstr("rank 1 gave up: enough"));
  other.join();
}

TEST(PeerExchange, ALongReasonIsCut) {
  Training training = {.job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2}};
  training.before_step = [](int rank, int64_t step) {
    return rank == 1 && step == 1 ? absl::InternalError(std::string(8 * kAbortNoticeBytesMax, 'x')) : absl::OkStatus();
  };
  const std::string message(RunAll(training, Algorithm::kRing, 9)[0].status.message());
  EXPECT_THAT(message, HasSubstr("rank 1 gave up: " + std::string(kAbortNoticeBytesMax - 2, 'x')));
  EXPECT_THAT(message, testing::Not(HasSubstr(std::string(kAbortNoticeBytesMax - 1, 'x'))));
}

TEST(PeerExchange, LetsGoOfMemoryAfterAnOrderlyEndOnly) {
  for (const bool fails : {false, true}) {
    Training training = {.job = {.element_count = 200'000, .bucket_bytes = 1, .world_size = 2}, .step_count = 2};
    training.before_step = [&](int rank, int64_t step) {
      return fails && rank == 1 && step == 1 ? absl::CancelledError("enough") : absl::OkStatus();
    };
    InMemoryNetwork network(2, 6);
    std::vector<Outcome> outcomes(2);
    const Exchanges exchanges = MakeExchanges(network, 2);
    RunRanks(training, exchanges, outcomes);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(outcomes[rank].status.ok(), !fails) << outcomes[rank].status;
      EXPECT_EQ(exchanges[rank]->Release(), !fails) << rank;
    }
  }
}

// Ranks that are not at the same call must not add each other's numbers.
TEST(PeerExchange, RefusesASumOfDifferentThings) {
  const std::vector<double> few(2), many(20), most(30);
  struct Case {
    SumPurpose purpose;
    std::vector<double> values;
    std::string expected;
  };
  for (const Case& c : {Case{SumPurpose::kEpoch, few, "rank 2 adds 2 values for the end of an epoch"},
                        Case{SumPurpose::kStopVote, {1}, "rank 2 adds 1 value for a vote to stop"},
                        Case{SumPurpose::kStopVote, many, "rank 2 adds 20 values for a vote to stop"},
                        Case{SumPurpose::kStopVote, most, "rank 2 adds 30 values for a vote to stop"}}) {
    Training training = {.job = {.element_count = 64, .bucket_bytes = 1, .world_size = 3}};
    InMemoryNetwork network(3, 5);
    std::vector<std::vector<float>> parameters(3, std::vector<float>(64));
    const Exchanges exchanges = MakeExchanges(network, 3);
    std::vector<absl::Status> status(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        status[rank] = exchanges[rank]->Start(training.job.Spec(rank), parameters[rank]);
        EXPECT_TRUE(status[rank].ok()) << status[rank];
        std::vector<double> values = rank == 2 ? c.values : c.values.size() == 20 ? most : few;
        if (status[rank].ok())
          status[rank] = exchanges[rank]->Sum(rank == 2 ? c.purpose : SumPurpose::kStopVote, values);
        if (!status[rank].ok()) exchanges[rank]->Abort(status[rank]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_FALSE(status[rank].ok()) << rank;
      EXPECT_THAT(std::string(status[rank].message()), HasSubstr(c.expected)) << rank;
    }
  }
}

class PeerExchangeFaults : public testing::TestWithParam<Algorithm> {};

INSTANTIATE_TEST_SUITE_P(Algorithms, PeerExchangeFaults,
                         testing::Values(Algorithm::kRing, Algorithm::kDirect, Algorithm::kAllreduce));

// Runs a job of three ranks of which one stops without a message, and returns all ranks' outcomes.
std::vector<Outcome> RunWithASilentRank(Algorithm algorithm, int silent) {
  Training training = {.job = {.element_count = 100'000, .bucket_bytes = 1, .world_size = 3}};
  training.change_spec = [](int, JobSpec& spec) { spec.exchange_deadline = absl::Milliseconds(500); };
  InMemoryNetwork network(3, 4);
  std::vector<Outcome> outcomes(3);
  const Exchanges exchanges = MakeExchanges(network, 3, {.algorithm = algorithm});
  training.before_step = [&](int rank, int64_t step) {
    if (rank != silent || step != 1) return absl::OkStatus();
    network.Disconnect(silent);
    return absl::CancelledError("gone");
  };
  RunRanks(training, exchanges, outcomes);
  return outcomes;
}

// The first rank to notice names the silent one, and so does the message of every other rank. The jobs run at the same
// time: each waits for three seconds, for deadlines and for notices that do not leave.
TEST_P(PeerExchangeFaults, ASilentRankIsNamedAtTheDeadline) {
  std::vector<std::vector<Outcome>> jobs(3);
  std::vector<std::thread> threads;
  for (int silent = 0; silent < 3; ++silent) {
    threads.emplace_back([&jobs, silent] { jobs[silent] = RunWithASilentRank(GetParam(), silent); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int silent = 0; silent < 3; ++silent) {
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == silent) continue;
      const absl::Status& status = jobs[silent][rank].status;
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank " + std::to_string(silent) + " does not answer"));
    }
  }
}

// One rank is busy for a while. The others print its number and phase, and later that the job goes on. The result does
// not change.
TEST_P(PeerExchangeFaults, AStallNamesTheRankAndItsPhaseAndThenGoesOn) {
  Training training = {
      .job = {.element_count = 200'000, .bucket_bytes = 1, .world_size = 3, .values = GradientValues::kIntegers}};
  InMemoryNetwork network(3, 9);
  std::vector<ProgressState> progress(3);
  std::vector<std::vector<std::string>> lines(3);
  std::atomic<int> reports = 0;  // ranks that have said something
  std::vector<Outcome> outcomes(3);
  Exchanges exchanges;
  for (int rank = 0; rank < 3; ++rank) {
    exchanges.push_back(CreateExchange(network, rank,
                                       {.algorithm = GetParam(),
                                        .stall = {.times = {.report_after = std::chrono::milliseconds(800)},
                                                  .progress = &progress[rank],
                                                  .say = [&lines, &reports, rank](const std::string& line) {
                                                    lines[rank].push_back(line);
                                                    if (lines[rank].size() == 1) ++reports;
                                                  }}}));
  }
  training.before_step = [&](int rank, int64_t step) {
    progress[rank].set_step(step);
    progress[rank].Enter(WorkPhase::kForward, std::chrono::steady_clock::now());
    // Busy until both others have said so.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (rank == 1 && step == 1 && reports < 2 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return absl::OkStatus();
  };
  RunRanks(training, exchanges, outcomes);
  const std::vector<float> expected = training.job.Reference(training.step_count);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcomes[rank].status, absl::OkStatus());
    EXPECT_EQ(outcomes[rank].parameters, expected);
    if (rank == 1) continue;
    ASSERT_EQ(lines[rank].size(), 2u) << rank << ": " << testing::PrintToString(lines[rank]);
    EXPECT_THAT(lines[rank][0], HasSubstr("rank 1 answers, and has been in forward of step 1 for "));
    EXPECT_THAT(lines[rank][1], HasSubstr("the job goes on after "));
  }
  EXPECT_THAT(lines[1], testing::IsEmpty());
}

TEST(PeerExchange, ARankThatNeverStartsIsNamedAtTheJoinDeadline) {
  InMemoryNetwork network(3, 1);
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 3};
  std::vector<absl::Status> statuses(3);
  const Exchanges exchanges = MakeExchanges(network, 3);
  std::vector<std::vector<float>> parameters(3, job.InitialParameters());
  std::vector<std::thread> threads;
  for (const int rank : {0, 2}) {
    threads.emplace_back([&, rank] {
      JobSpec spec = job.Spec(rank);
      spec.join_deadline = absl::Milliseconds(300);
      statuses[rank] = exchanges[rank]->Start(spec, parameters[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 1 does not answer"));
  EXPECT_EQ(statuses[2].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(statuses[2].message()), HasSubstr("rank 1 does not answer"));
}

// The background thread completes a bucket while the trainer computes, and Await then returns at once.
TEST(PeerExchange, GetsOnWhileTheTrainerComputes) {
  const ExampleJob job = {.element_count = 200'000, .bucket_bytes = 1 << 20, .world_size = 2};
  InMemoryNetwork network(2, 8);
  std::vector<std::thread> threads;
  std::atomic<int> idle_ranks = 0;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      PeerExchange exchange(network.CreateTransport(rank), PeerExchange::Options{});
      std::vector<float> parameters = job.InitialParameters();
      const std::vector<float> gradient = job.Gradient(rank, 0);
      CHECK_OK(exchange.Start(job.Spec(rank), parameters));
      exchange.Submit({.round = 0, .bucket = 0, .gradient = gradient});
      // No call until the background threads have done all the work.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (exchange.counters().bytes_sent < job.element_count * 4 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      EXPECT_GE(exchange.counters().bytes_sent, job.element_count * 4);
      CHECK_OK(exchange.Await(0, 0));
      EXPECT_EQ(parameters, job.Reference(1));
      CHECK_OK(exchange.Finish());
      ++idle_ranks;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(idle_ranks, 2);
}

}  // namespace
}  // namespace starring
