// Ring and co-located star over TCP give the bits that they give in memory: those of the example job's reference.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "common/arithmetic/reduction_order.h"
#include "common/job/job_spec.h"
#include "common/job/leaf_shares.h"
#include "common/transport/message_pump.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_loopback.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "tests/worker/exchange/peer/example_training.h"
#include "worker/exchange/peer/peer_exchange.h"

namespace starring {
namespace {

using Algorithm = PeerExchange::Algorithm;
using testing::AllOf;
using testing::HasSubstr;
using Training = ExampleTraining;
using Outcome = ExampleOutcome;

std::vector<Outcome> RunAll(const Training& training, Algorithm algorithm) {
  std::vector<std::unique_ptr<TcpTransport>> transports = ConnectedRanks(training.job.world_size);
  std::vector<Outcome> outcomes(transports.size());  // outlive the exchanges
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < transports.size(); ++rank) {
    threads.emplace_back([&, rank] {
      // As in a process of its own: a rank that is done leaves while others still work.
      PeerExchange exchange(std::move(transports[rank]), {.algorithm = algorithm});
      RunExampleTraining(training, exchange, static_cast<int>(rank), outcomes[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

using AlgorithmAndRanks = std::tuple<Algorithm, int>;

class TcpExchangeRanks : public testing::TestWithParam<AlgorithmAndRanks> {};

std::string NameOf(const testing::TestParamInfo<AlgorithmAndRanks>& info) {
  return (std::get<0>(info.param) == Algorithm::kRing ? "Ring" : "Star") + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Algorithms, TcpExchangeRanks,
                         testing::Combine(testing::Values(Algorithm::kRing, Algorithm::kDirect),
                                          testing::Values(1, 2, 3, 5, 8)),
                         NameOf);

TEST_P(TcpExchangeRanks, GivesTheReferencesBits) {
  const auto& [algorithm, world_size] = GetParam();
  const int64_t block = ReductionBlockElements(world_size);
  for (const int64_t element_count : {int64_t{16}, 5 * block / 2}) {
    for (const SumOrder order : {SumOrder::kChain, SumOrder::kTree}) {
      if (order == SumOrder::kTree && algorithm == Algorithm::kRing) continue;
      SCOPED_TRACE(testing::Message() << element_count << " elements, order " << static_cast<int>(order));
      const ExampleJob job = {
          .element_count = element_count, .bucket_bytes = 1, .world_size = world_size, .sum_order = order};
      std::vector<std::vector<float>> state;
      const std::vector<float> expected = job.Reference(3, &state);
      const std::vector<Outcome> outcomes = RunAll({.job = job}, algorithm);
      for (const Outcome& outcome : outcomes) {
        ASSERT_EQ(outcome.status, absl::OkStatus());
        EXPECT_EQ(outcome.parameters, expected);
      }
      EXPECT_EQ(outcomes[0].state, state);
    }
  }
}

// A rank's state and rank 0's parameters are longer than a transport keeps of one peer: senders must not run ahead.
TEST(TcpExchangeTest, LongStateDoesNotRunAhead) {
  const ExampleJob job = {.element_count = 4'000'000, .bucket_bytes = 4 << 20, .world_size = 3};
  ASSERT_GT(job.element_count * 4 / 3, TcpUnexpectedBytesMax(3));
  std::vector<std::vector<float>> state;
  const std::vector<float> expected = job.Reference(1, &state);
  const std::vector<Outcome> outcomes = RunAll({.job = job, .step_count = 1}, Algorithm::kRing);
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.parameters, expected);
  }
  EXPECT_EQ(outcomes[0].state, state);
}

// One step in which rank 1 waits for rank 0's messages before it posts the receives of a bucket.
void RunLateStep(const ExampleJob& job, PeerExchange& exchange, int rank, Outcome& outcome) {
  const JobSpec spec = job.Spec(rank);
  outcome.parameters = job.InitialParameters();
  outcome.gradients = job.Contributions(rank, 0);
  const auto submit = [&] {
    for (int node = 0; node < std::ssize(outcome.gradients); ++node) {
      const std::span<const float> gradient = outcome.gradients[node];
      for (int b = 0; b < spec.buckets.bucket_count(); ++b) {
        const ElementRange range = spec.buckets.bucket(b);
        exchange.Submit({.round = 0,
                         .bucket = b,
                         .gradient = gradient.subspan(range.begin, range.size()),
                         .node = node + 1 == std::ssize(outcome.gradients) ? Submission::kLastNode : node});
      }
    }
    return absl::OkStatus();
  };
  // The result of the sum follows rank 0's gradients on the same connection.
  const auto sum = [&] {
    std::vector<double> values = {1.0};
    return exchange.Sum(SumPurpose::kStopVote, values);
  };
  absl::Status& status = outcome.status;
  status = exchange.Start(spec, outcome.parameters);
  if (status.ok()) status = rank == 0 ? submit() : sum();
  if (status.ok()) status = rank == 0 ? sum() : submit();
  for (int b = 0; status.ok() && b < spec.buckets.bucket_count(); ++b) status = exchange.Await(0, b);
  if (status.ok()) status = exchange.Finish();
  if (!status.ok()) return exchange.Abort(status);
  std::ranges::copy(exchange.memory().parameters, outcome.parameters.begin());
}

// 127 leaves a rank are 7 nodes, and each node of a block is a message.
TEST(TcpExchangeTest, AShareOfManyNodesMayComeBeforeItsReceives) {
  const ExampleJob job = {.element_count = 8 * ReductionBlockElements(2),
                          .bucket_bytes = 1,
                          .world_size = 2,
                          .sum_order = SumOrder::kTree,
                          .micro_batches = 254};
  auto transports =
      ConnectedRanks(2, {.unexpected_bytes_max = TcpUnexpectedBytesMax(2, DealLeavesEvenly(job.micro_batches, 2))});
  std::vector<Outcome> outcomes(2);
  PeerExchange zero(std::move(transports[0]), {.algorithm = Algorithm::kDirect});
  PeerExchange one(std::move(transports[1]), {.algorithm = Algorithm::kDirect});
  std::thread other([&] { RunLateStep(job, one, 1, outcomes[1]); });
  RunLateStep(job, zero, 0, outcomes[0]);
  other.join();
  const std::vector<float> expected = job.Reference(1);
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.parameters, expected);
  }
}

TEST(TcpExchangeTest, AnAbortReachesAllRanksWithItsReason) {
  Training training = {.job = {.element_count = 200'000, .bucket_bytes = 1, .world_size = 4}, .step_count = 5};
  training.before_step = [](int rank, int64_t step) {
    return rank == 2 && step == 3 ? absl::InternalError("gradient of fc1.weight is NaN") : absl::OkStatus();
  };
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
    const std::vector<Outcome> outcomes = RunAll(training, algorithm);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_FALSE(outcomes[rank].status.ok());
      EXPECT_THAT(std::string(outcomes[rank].status.message()), HasSubstr("gradient of fc1.weight is NaN")) << rank;
    }
  }
}

// Rank 1 is played by bare sockets and has another seed. After an error the trainer's calls must not send a notice,
// which may overtake the verdict.
TEST(TcpExchangeTest, TheVerdictIsTheLastWord) {
  RankAndBarePeers it = ConnectBarePeers(1);
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2};
  JobSpec other = job.Spec(1);
  other.agreed_flags = {{"seed", "2"}};
  const std::string agreement = SerializeAgreement(other);
  const uint64_t size = agreement.size();
  ASSERT_TRUE(
      SendAll(it.peers[0].messages, WireMessage(static_cast<int>(ControlTag::kAgreementSize),
                                                std::string(reinterpret_cast<const char*>(&size), sizeof(size))) +
                                        WireMessage(static_cast<int>(ControlTag::kAgreement), agreement)));
  PeerExchange exchange(std::move(it.rank), {});
  JobSpec mine = job.Spec(0);
  mine.agreed_flags = {{"seed", "1"}};
  std::vector<float> parameters = job.InitialParameters();
  const absl::Status status = exchange.Start(mine, parameters);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  exchange.Abort(status);
  const std::string verdict = "rank 1 has --seed=2, rank 0 has --seed=1";
  EXPECT_THAT(ReceiveSome(it.peers[0].messages, 16 + sizeof(size) + 16 + verdict.size()), HasSubstr(verdict));
  EXPECT_EQ(ReceiveNow(it.peers[0].notices, 1), "");
}

// Rank 1 is played by bare sockets that close: as when its process is killed.
TEST(TcpExchangeTest, ARankThatIsKilledIsNamed) {
  RankAndBarePeers it = ConnectBarePeers(1);
  const std::string name = it.peers[0].name;
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    it.peers.clear();
  });
  const ExampleJob job = {.element_count = 64, .bucket_bytes = 1, .world_size = 2};
  std::vector<float> parameters = job.InitialParameters();
  PeerExchange exchange(std::move(it.rank), {});
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = exchange.Start(job.Spec(0), parameters);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(name), HasSubstr("has closed its connection")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));  // no deadline has to pass
  killer.join();
}

}  // namespace
}  // namespace starring
