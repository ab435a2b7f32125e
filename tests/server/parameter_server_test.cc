// How a server admits workers, and which Joins it refuses. server_limits_test.cc and server_lanes_test.cc test its
// other limits.
#include "server/parameter_server.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/job.pb.h"
#include "tests/server/stranger.h"
#include "tests/worker/exchange/star/star_fixture.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

TEST(ParameterServerTest, ARepeatedJoinReplacesTheOneBeforeForGood) {
  std::atomic<int> joins = 0;
  const auto server =
      StartServer({.log = [&](const std::string& line) { joins += absl::StrContains(line, "joined;"); }});
  Stranger monitor(server->address());
  PendingJoin first(server->address(), RequestOf(MakeJob(0, 2, 1000, 1), 10));
  ASSERT_TRUE(Eventually([&] { return joins == 1; }));
  PendingJoin second(server->address(), RequestOf(MakeJob(0, 2, 1000, 1), 10));
  ASSERT_TRUE(Eventually([&] { return joins == 2; }));
  // The first call waits no longer, and its end does not count as the worker's.
  EXPECT_EQ(first.Wait().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(Joined(monitor.Status(), 0));
  PendingJoin other(server->address(), RequestOf(MakeJob(1, 2, 1000, 1), 11));
  EXPECT_TRUE(second.Wait().ok());
  EXPECT_TRUE(other.Wait().ok());
  EXPECT_EQ(second.job_id(), other.job_id());
}

TEST(ParameterServerTest, ConnectionsOfAJobComeOnTopOfThoseOfStrangers) {
  std::atomic<int> joins = 0;
  const auto server =
      StartServer({.log = [&](const std::string& line) { joins += absl::StrContains(line, "joined;"); }});
  std::deque<SilentConnection> strangers;
  while (strangers.size() < kStrangerConnectionsMax) strangers.emplace_back(server->address());
  EXPECT_FALSE(strangers[0].IsClosed(absl::Milliseconds(50)));
  v1::JoinRequest request = RequestOf(MakeJob(0, 2, 1000, 1), 10);
  request.set_lanes(3);
  PendingJoin join(server->address(), request);  // waits for a seat until the server knows that it is a worker's
  EXPECT_TRUE(strangers[0].IsClosed(absl::Seconds(5)));
  ASSERT_TRUE(Eventually([&] { return joins == 1; }));
  strangers.emplace_back(server->address());  // the worker has given its seat back
  EXPECT_FALSE(strangers[1].IsClosed(absl::Milliseconds(50)));
  strangers.emplace_back(server->address());
  EXPECT_TRUE(strangers[1].IsClosed(absl::Seconds(5)));
}

TEST(ParameterServerTest, AWorkerThatGivesUpIsForgotten) {
  const auto server = StartServer();
  Stranger monitor(server->address());
  PendingJoin join(server->address(), RequestOf(MakeJob(0, 2, 1000, 1), 10));
  ASSERT_TRUE(Eventually([&] { return Joined(monitor.Status(), 0); }));
  join.Cancel();
  EXPECT_TRUE(Eventually([&] { return !Joined(monitor.Status(), 0); }));
}

// The process that has the rank may have died with its machine, and the server has not noticed yet.
TEST(ParameterServerTest, ARankThatIsTakenIsTriedAgainUntilItIsFree) {
  std::atomic<int> joins = 0;
  std::atomic<int> refusals = 0;
  const auto server = StartServer({.log = [&](const std::string& line) {
    joins += absl::StrContains(line, "joined;");
    refusals += absl::StrContains(line, "refused rank 0: another process");
  }});
  const JobSpec job = MakeJob(0, 2, 1000, 1);
  PendingJoin dead(server->address(), RequestOf(job, 99));
  ASSERT_TRUE(Eventually([&] { return joins == 1; }));
  absl::Status started;
  std::thread worker([&] {
    std::vector<float> parameters(job.layout.element_count());
    started = MakeStar({server->address()}, 1, SameHost::kSocket)->Start(job, parameters);
  });
  EXPECT_TRUE(Eventually([&] { return refusals > 0; }));
  dead.Cancel();
  EXPECT_TRUE(Eventually([&] { return joins == 2; }));
  EXPECT_TRUE(PendingJoin(server->address(), RequestOf(MakeJob(1, 2, 1000, 1), 11)).Wait().ok());
  worker.join();
  EXPECT_TRUE(started.ok()) << started;
}

v1::JoinRequest HugeRequest() {
  v1::JobAgreement agreement;
  agreement.set_world_size(1);
  agreement.set_element_count(kElementCountMax);
  agreement.set_bucket_bytes(kBucketBytesMax);
  agreement.set_chunk_bytes(ChunkBytesFor(1));
  agreement.mutable_optimizer()->set_kind(v1::OptimizerConfig::ADAMW);
  agreement.mutable_optimizer()->set_beta1(0.9);
  agreement.mutable_optimizer()->set_beta2(0.999);
  agreement.mutable_optimizer()->set_epsilon(1e-8);
  agreement.mutable_schedule()->set_base(0.1);
  v1::JoinRequest request = RequestOf(MakeJob(0, 1, 1000, 1), 10);
  request.set_agreement(agreement.SerializeAsString());
  return request;
}

TEST(ParameterServerTest, AJobThatDoesNotFitIsRefusedAndTheServerWaitsForAnother) {
  for (const int64_t limit : {int64_t{1'000'000'000}, int64_t{0}}) {  // as given, and as this machine has it
    const auto server = StartServer({.memory_bytes_max = limit});
    const grpc::Status status = PendingJoin(server->address(), HugeRequest()).Wait();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    // 7 times 256 GiB: three buffers and a shared one, two vectors of AdamW's state, and one contribution.
    EXPECT_THAT(status.error_message(), HasSubstr("needs 1924.1"));
    if (limit > 0) {
      EXPECT_THAT(status.error_message(), HasSubstr("may use 1.000 GB"));
    }
    EXPECT_EQ(Stranger(server->address()).Status().world_size(), 0);
    EXPECT_TRUE(PendingJoin(server->address(), RequestOf(MakeJob(0, 1, 1000, 1), 11)).Wait().ok());
  }
}

// The servers of a job that run on one machine share its memory; other jobs' servers on it do not count.
TEST(ParameterServerTest, ServersOnOneMachineDivideItsFreeMemory) {
  v1::JoinRequest request = HugeRequest();
  request.set_shard_count(2);
  const std::pair<int, std::string> kParts[] = {
      {1, "may use 1.000 GB"}, {2, "may use 0.500 GB"}, {3, "may use 0.500 GB"}};
  for (const auto& [servers, part] : kParts) {
    const auto server = StartServer({.shard_count = 2,
                                     .available_memory = [] { return int64_t{1'000'000'000}; },
                                     .servers_here = [here = servers] { return here; }});
    const grpc::Status status = PendingJoin(server->address(), request).Wait();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << servers;
    EXPECT_THAT(status.error_message(), HasSubstr(part)) << servers;
  }
}

// Other processes may take memory between the Joins of two workers.
TEST(ParameterServerTest, AJobThatCannotBeginIsToldToAllAndInTheStatus) {
  std::atomic<int64_t> free_bytes = 1 << 30;
  const auto server = StartServer({.available_memory = [&] { return free_bytes.load(); }});
  PendingJoin first(server->address(), RequestOf(MakeJob(0, 2, 4 << 20, 1 << 20), 10));
  Stranger monitor(server->address());
  ASSERT_TRUE(Eventually([&] { return Joined(monitor.Status(), 0); }));
  free_bytes = 64 << 20;
  v1::JoinRequest request = RequestOf(MakeJob(1, 2, 4 << 20, 1 << 20), 11);
  request.set_lanes(2);  // more than before, so the server counts again
  EXPECT_EQ(PendingJoin(server->address(), request).Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  request.set_lanes(1);
  EXPECT_EQ(PendingJoin(server->address(), request).Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(first.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const v1::GetStatusReply status = monitor.Status();
  EXPECT_EQ(status.state(), v1::GetStatusReply::FAILED);
  EXPECT_THAT(status.message(), HasSubstr("this server may use"));
  EXPECT_EQ(server->Wait().code(), absl::StatusCode::kResourceExhausted);
}

// As next to a server that is a rank of the workers' world.
TEST(ParameterServerTest, OneThatOnlyTellsAStateHasNoWorkers) {
  ParameterServer::Options options;
  options.describe = [] {
    v1::GetStatusReply reply;
    reply.set_state(v1::GetStatusReply::RUNNING);
    reply.set_steps_complete(7);
    return reply;
  };
  auto server = ParameterServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(Stranger((*server)->address()).Status().steps_complete(), 7);
  const grpc::Status status = PendingJoin((*server)->address(), RequestOf(MakeJob(0, 1, 1000, 1), 10)).Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("--transport=tcp"));
}

TEST(ParameterServerTest, ALongJoinIsRefused) {
  const auto server = StartServer();
  v1::JoinRequest request = RequestOf(MakeJob(0, 1, 1000, 1), 10);
  request.set_agreement(std::string(kJoinBytesMax, 'x'));
  const grpc::Status status = PendingJoin(server->address(), request).Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat(kJoinBytesMax)));
}

TEST(ParameterServerTest, LanesOverTheLimitAreRefused) {
  const auto server = StartServer();
  v1::JoinRequest request = RequestOf(MakeJob(0, 1, 1000, 1), 10);
  for (const int lanes : {-1, kLanesMax + 1}) {
    request.set_lanes(lanes);
    EXPECT_EQ(PendingJoin(server->address(), request).Wait().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST(ParameterServerTest, TheLogIsPrintableShortAndRare) {
  std::mutex mutex;
  std::vector<std::string> lines;
  const auto server = StartServer({.log = [&](const std::string& line) {
    const std::lock_guard<std::mutex> lock(mutex);
    lines.push_back(line);
  }});
  JobSpec job = MakeJob(0, 2, 1000, 1);
  job.agreed_flags = {{"seed", "1"}};
  PendingJoin first(server->address(), RequestOf(job, 10));
  Stranger monitor(server->address());
  ASSERT_TRUE(Eventually([&] { return Joined(monitor.Status(), 0); }));
  job.rank = 1;
  job.agreed_flags = {{"seed", "\x1b[2J\n" + std::string(10'000, 'x')}};  // quoted in the refusal
  for (int i = 0; i < 2 * kLogRefusalsMax; ++i) {
    EXPECT_EQ(PendingJoin(server->address(), RequestOf(job, 11)).Wait().error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  const std::lock_guard<std::mutex> lock(mutex);
  int refusals = 0;
  for (const std::string& line : lines) {
    refusals += absl::StrContains(line, "refused");
    EXPECT_LE(line.size(), kLogLineBytesMax + 100);
    EXPECT_TRUE(std::all_of(line.begin(), line.end(), absl::ascii_isprint)) << line;
  }
  EXPECT_EQ(refusals, kLogRefusalsMax);
}

// A worker with --tls tries again twice a second at a server without.
TEST(ParameterServerTest, ConnectionsThatEndBeforeARequestAreALineAMinute) {
  std::mutex mutex;
  int line_count = 0;
  const auto server = StartServer({.log = [&](const std::string& line) {
    const std::lock_guard<std::mutex> lock(mutex);
    line_count += absl::StrContains(line, "ended before a request");
  }});
  const auto count = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return line_count;
  };
  for (int i = 0; i < 3; ++i) {
    const SilentConnection other(server->address());
    other.Send("this is not HTTP/2, and longer than its preface");
    EXPECT_TRUE(other.IsClosed(kPatience));
    EXPECT_TRUE(Eventually([&] { return count() > 0; }));
  }
  absl::SleepFor(absl::Milliseconds(400));  // the server looks ten times a second
  EXPECT_EQ(count(), 1);
}

TEST(ParameterServerTest, ADeadlineBeyondAllMeasureIsNotOver) {
  const auto server = StartServer();
  v1::JoinRequest request = RequestOf(MakeJob(0, 1, 1000, 1), 10);
  request.set_join_deadline_ms(INT64_MAX);
  request.set_exchange_deadline_ms(INT64_MAX);
  ASSERT_TRUE(PendingJoin(server->address(), request).Wait().ok());
  absl::SleepFor(absl::Milliseconds(300));  // deadlines are looked at twice in this time
  const v1::GetStatusReply status = Stranger(server->address()).Status();
  EXPECT_EQ(status.state(), v1::GetStatusReply::RUNNING) << status.message();
}

}  // namespace
}  // namespace starring
