// PeerExchange through memory that the ranks of one host share, and its choice of the fastest way.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/check.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "tests/worker/exchange/peer/in_memory_transport.h"
#include "worker/exchange/peer/peer_exchange.h"

namespace starring {
namespace {

using Algorithm = PeerExchange::Algorithm;
using HostSharing = PeerExchange::HostSharing;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Outcome {
  absl::Status status;
  std::vector<float> given;               // what Start got; outlives the exchange
  std::vector<float> parameters;          // after the last step
  std::vector<std::vector<float>> state;  // rank 0
  ExchangeCounters counters;
  std::optional<ExchangeChoice> choice;
};

constexpr int64_t kSteps = 3;

absl::Status Train(const ExampleJob& job, int rank, PeerExchange& exchange, Outcome& outcome) {
  JobSpec spec = job.Spec(rank);
  spec.join_deadline = spec.exchange_deadline = absl::Seconds(30);
  outcome.given = rank == 0 ? job.InitialParameters() : std::vector<float>(job.element_count, -7.0f);
  RETURN_IF_ERROR(exchange.Start(spec, outcome.given));
  const std::span<float> own = exchange.gradient_memory();
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<float> gradient = job.Gradient(rank, step);
    // Gradients may be submitted from the exchange's memory and from any other.
    const bool in_place = !own.empty() && step > 0;
    if (in_place) std::ranges::copy(gradient, own.begin());
    const std::span<const float> submitted = in_place ? std::span<const float>(own) : gradient;
    for (int b = 0; b < spec.buckets.bucket_count(); ++b) {
      const ElementRange range = spec.buckets.bucket(b);
      exchange.Submit(step, b, submitted.subspan(range.begin, range.size()));
    }
    std::vector<double> values = {1.0};
    RETURN_IF_ERROR(exchange.Sum(SumPurpose::kStopVote, values));  // buckets are in flight
    for (int b = spec.buckets.bucket_count() - 1; b >= 0; --b) RETURN_IF_ERROR(exchange.Await(step, b));
  }
  const std::span<const float> parameters = exchange.parameter_memory();
  outcome.parameters = parameters.empty() ? outcome.given : std::vector<float>(parameters.begin(), parameters.end());
  outcome.state.assign(StateVectorCount(job.optimizer), std::vector<float>(rank == 0 ? job.element_count : 0));
  const std::vector<std::span<float>> spans(outcome.state.begin(), outcome.state.end());
  RETURN_IF_ERROR(exchange.GatherOptimizerState(spans));
  RETURN_IF_ERROR(exchange.Finish());
  outcome.counters = exchange.counters();
  outcome.choice = exchange.choice();
  return absl::OkStatus();
}

using OptionsOf = std::function<PeerExchange::Options(int rank)>;

std::vector<Outcome> RunAll(const ExampleJob& job, const OptionsOf& options_of) {
  InMemoryNetwork network(job.world_size, 5);
  std::vector<Outcome> outcomes(job.world_size);
  std::vector<std::unique_ptr<PeerExchange>> exchanges;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.world_size; ++rank) {
    exchanges.push_back(std::make_unique<PeerExchange>(network.CreateTransport(rank), options_of(rank)));
  }
  for (int rank = 0; rank < job.world_size; ++rank) {
    threads.emplace_back([&, rank] { outcomes[rank].status = Train(job, rank, *exchanges[rank], outcomes[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<Outcome> RunAll(const ExampleJob& job, Algorithm algorithm, HostSharing sharing) {
  return RunAll(job, [&](int) { return PeerExchange::Options{.algorithm = algorithm, .sharing = sharing}; });
}

using RanksAndOrder = std::tuple<int, SumOrder>;

class HostExchangeRanks : public testing::TestWithParam<RanksAndOrder> {
 protected:
  // More than one bucket.
  ExampleJob Job() const {
    const auto& [world_size, order] = GetParam();
    return {.element_count = 3 * ReductionBlockElements(world_size) / 2,
            .bucket_bytes = 1,
            .world_size = world_size,
            .sum_order = order};
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, HostExchangeRanks,
                         testing::Combine(testing::Values(1, 2, 3, 8),
                                          testing::Values(SumOrder::kChain, SumOrder::kTree)));

TEST_P(HostExchangeRanks, SharedMemoryGivesTheReferencesBits) {
  const ExampleJob job = Job();
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = job.Reference(kSteps, &state);
  const std::vector<Outcome> outcomes = RunAll(job, Algorithm::kDirect, HostSharing::kRequired);
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.parameters, expected);
    EXPECT_EQ(outcome.counters.shared_memory, job.world_size > 1);
    EXPECT_FALSE(outcome.choice.has_value());
  }
  EXPECT_EQ(outcomes[0].state, state);
}

TEST_P(HostExchangeRanks, TheFastestWayGivesTheReferencesBits) {
  const ExampleJob job = Job();
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = job.Reference(kSteps, &state);
  for (const HostSharing sharing : {HostSharing::kIfPossible, HostSharing::kNever}) {
    const std::vector<Outcome> outcomes = RunAll(job, Algorithm::kFastest, sharing);
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
  const std::vector<Outcome> refused = RunAll(job, Algorithm::kDirect, HostSharing::kRequired);
  const std::vector<Outcome> sent = RunAll(job, Algorithm::kFastest, HostSharing::kIfPossible);
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
    EXPECT_THAT(outcome.choice->reason, HasSubstr("no shared memory: rank 0"));
  }
}

}  // namespace
}  // namespace starring
