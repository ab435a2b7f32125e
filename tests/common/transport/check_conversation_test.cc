#include "common/transport/check_conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "tests/common/transport/in_memory_transport.h"

namespace starring {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct World {
  int workers = 2;
  int servers = 0;
};

// Runs `part` for each process, in threads.
void RunAll(const World& world, InMemoryNetwork& network, const std::function<void(MessagePump& pump)>& part) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.workers + world.servers; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<Transport> transport = network.CreateTransport(rank);
      MessagePump pump(transport.get(), StallOptions(), world.servers);
      part(pump);
      transport.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

v1::ProcessReport ReportOf(const MessagePump& pump) {
  v1::ProcessReport report;
  const bool is_server = pump.rank() >= pump.worker_count();
  report.mutable_facts()->set_role(is_server ? v1::ProcessFacts::SERVER : v1::ProcessFacts::WORKER);
  report.mutable_facts()->set_number(is_server ? pump.rank() - pump.worker_count() : pump.rank());
  return report;
}

// "w1", "s0"
std::string Name(v1::ProcessFacts::Role role, int number) {
  return (role == v1::ProcessFacts::WORKER ? "w" : "s") + std::to_string(number);
}

// Which connections a check of `world` measures, by the reports that rank 0 gathers: "w0 w1".
std::vector<std::string> MeasuredLinks(const World& world) {
  InMemoryNetwork network(world.workers + world.servers, 5);
  std::vector<std::string> links;
  RunAll(world, network, [&](MessagePump& pump) {
    v1::ProcessReport report = ReportOf(pump);
    ASSERT_EQ(TestLinks(pump, {.means = v1::LinkReport::MPI, .bandwidth_seconds = 1e-3}, report), absl::OkStatus());
    const auto reports = GatherReports(pump, report);
    ASSERT_TRUE(reports.ok()) << reports.status();
    for (const v1::ProcessReport& one : *reports) {
      for (const v1::LinkReport& link : one.links()) {
        links.push_back(Name(one.facts().role(), one.facts().number()) + " " + Name(link.peer_role(), link.peer()));
        EXPECT_EQ(link.means(), v1::LinkReport::MPI);
        EXPECT_GT(link.round_trip_us(), 0);
        EXPECT_LT(std::abs(link.clock_ahead_s()), 1);
        EXPECT_GT(link.bytes_per_second(), 0);
      }
    }
    int exit_code = pump.rank() == 0 ? 3 : 0;
    EXPECT_EQ(TellVerdict(pump, exit_code), absl::OkStatus());
    EXPECT_EQ(exit_code, 3);
  });
  EXPECT_LE(network.message_bytes_max(), kCheckPayloadBytesMax);
  return links;
}

TEST(CheckConversationTest, ARankMeasuresTheConnectionToTheNext) {
  EXPECT_THAT(MeasuredLinks({.workers = 2}), ElementsAre("w0 w1", "w1 w0"));
  EXPECT_THAT(MeasuredLinks({.workers = 3}), ElementsAre("w0 w1", "w1 w2", "w2 w0"));
}

TEST(CheckConversationTest, AWorkerMeasuresTheConnectionsToAllServers) {
  EXPECT_THAT(MeasuredLinks({.workers = 1, .servers = 1}), ElementsAre("w0 s0"));
  EXPECT_THAT(MeasuredLinks({.workers = 2, .servers = 2}), ElementsAre("w0 s0", "w0 s1", "w1 s0", "w1 s1"));
}

// Even if it has much time: a test must not fill a fast link for long.
TEST(CheckConversationTest, ABandwidthTestSendsNoMoreThanAllowed) {
  InMemoryNetwork network(2, 5);
  RunAll({}, network, [&](MessagePump& pump) {
    v1::ProcessReport report;
    ASSERT_EQ(TestLinks(pump, {.bandwidth_seconds = pump.rank() == 0 ? 1e6 : 0}, report), absl::OkStatus());
    EXPECT_EQ(report.links(0).bytes_per_second() > 0, pump.rank() == 0);
  });
  EXPECT_LE(network.sends_in_flight_max(), kCheckBandwidthBytesMax / kCheckPayloadBytesMax);
}

TEST(CheckConversationTest, AConnectionThatFailsIsReported) {
  InMemoryNetwork network(2, 5);
  network.Lose({.from = 1, .to = 0});
  RunAll({}, network, [&](MessagePump& pump) {
    v1::ProcessReport report;
    const LinkTests tests = {.deadline = absl::Milliseconds(400), .own_deadline = absl::Milliseconds(200)};
    const absl::Status status = TestLinks(pump, tests, report);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    if (pump.rank() == 0) {
      ASSERT_EQ(report.links_size(), 1);
      EXPECT_EQ(report.links(0).error(), "rank 1 did not answer to rank 0 in time");
    } else {
      EXPECT_THAT(status.message(), HasSubstr("rank 0 did not answer to rank 1"));
      EXPECT_THAT(report.links(), IsEmpty()) << "its turn did not come";
    }
  });
}

}  // namespace
}  // namespace starring
