// A server of an elastic run, and a worker that the test plays: what a generation needs, and what it leaves behind.
#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/job/job_spec.h"
#include "common/wire/exchange_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"
#include "server/door/rendezvous.h"
#include "server/elastic/snapshot_store.h"
#include "tests/server/stranger.h"
#include "tests/worker/exchange/star/star_job.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using v1::ExchangeMessage;

// Large enough that the memory of a few snapshots is more than gRPC needs for itself.
JobSpec OneWorkersJob() {
  JobSpec job = MakeJob(0, 1, 1 << 18, 1 << 20);
  job.micro_batches = 1;
  job.sum_order = SumOrder::kTree;
  return job;
}

// The first report of a worker of that job.
v1::MemberReport FirstReport() {
  v1::MemberReport report;
  v1::MemberReport::Hello* const hello = report.mutable_hello();
  hello->set_wire_version(kWireVersion);
  hello->set_member_id(7);
  hello->set_name("worker 7");
  hello->mutable_terms()->set_agreement(SerializeAgreement(OneWorkersJob()));
  hello->mutable_terms()->set_steps_per_epoch(10);
  hello->mutable_terms()->set_end_step(100);
  report.mutable_worker()->set_ready(true);
  return report;
}

// A run of one shard and one worker, which attends.
class ElasticRun {
 public:
  explicit ElasticRun(ParameterServer::Options options = {}, const v1::MemberReport& first = FirstReport()) {
    std::string folder = absl::StrCat(testing::TempDir(), "/elastic.XXXXXX");
    CHECK(mkdtemp(folder.data()) != nullptr);
    options.run_id = "run";
    options.elastic = {.coordinator = "127.0.0.1:0", .state_dir = folder, .silent = std::chrono::minutes(1)};
    server_ = StartServer(std::move(options));
    stub_ = v1::Coordinator::NewStub(OpenChannel(server_->address()));
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    attendance_ = stub_->Attend(&context_);
    EXPECT_TRUE(attendance_->Write(first));
  }
  ~ElasticRun() {
    context_.TryCancel();
    if (attendance_ != nullptr) attendance_->Finish();
  }

  const std::string& address() const { return server_->address(); }

  // Whether the worker is told to train this generation. The shard has then left the one before.
  bool AwaitGeneration(int64_t number) {
    v1::MemberOrder order;
    while (attendance_->Read(&order)) {
      if (order.kind() == v1::MemberOrder::REACH) {
        v1::MemberReport report;
        report.mutable_worker()->set_ready(true);
        report.mutable_worker()->set_reached(order.number());
        EXPECT_TRUE(attendance_->Write(report));
      }
      if (order.kind() == v1::MemberOrder::TRAIN && order.number() == number) return true;
    }
    return false;
  }
  // How the worker's attendance ends, after all orders.
  grpc::Status End() {
    v1::MemberOrder order;
    while (attendance_->Read(&order)) {
    }
    grpc::Status status = attendance_->Finish();
    attendance_ = nullptr;
    return status;
  }
  // Joins generation 1. The worker may have heard of it before the shard.
  grpc::Status Join(std::optional<PendingJoin>& join) const {
    v1::JoinRequest request = RequestOf(OneWorkersJob(), 7);
    request.set_run_id("run/1");
    grpc::Status status;
    EXPECT_TRUE(Eventually([&] {
      join.emplace(address(), request);
      status = join->Wait();
      return status.error_code() != grpc::StatusCode::UNAVAILABLE;
    }));
    return status;
  }
  // The worker's exchange has failed in generation 1.
  void Fail() {
    v1::MemberReport report;
    report.mutable_worker()->set_generation(1);
    report.mutable_worker()->set_ready(true);
    report.mutable_worker()->set_trouble("the test wants another generation");
    EXPECT_TRUE(attendance_->Write(report));
  }

 private:
  std::unique_ptr<ParameterServer> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MemberReport, v1::MemberOrder>> attendance_;
};

TEST(ServerElasticTest, AGenerationNeedsTheMemoryOfEightSnapshots) {
  const absl::StatusOr<Agreement> agreement = ParseAgreement(SerializeAgreement(OneWorkersJob()));
  ASSERT_TRUE(agreement.ok()) << agreement.status();
  const int64_t needed = ShardMemoryNeeded(*agreement, 0, 1, 8);
  for (const bool suffices : {false, true}) {
    ElasticRun run(ParameterServer::Options{.memory_bytes_max = suffices ? needed : needed - 1});
    ASSERT_TRUE(run.AwaitGeneration(1));
    std::optional<PendingJoin> join;
    const grpc::Status status = run.Join(join);
    EXPECT_EQ(status.error_code(), suffices ? grpc::StatusCode::OK : grpc::StatusCode::RESOURCE_EXHAUSTED)
        << status.error_message();
  }
}

TEST(ServerElasticTest, AFirstReportAndItsNameAreBounded) {
  v1::MemberReport report = FirstReport();
  report.mutable_hello()->mutable_terms()->set_agreement(std::string(kJoinBytesMax, 'x'));
  grpc::Status status = ElasticRun({}, report).End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("a member's report of 65"));
  EXPECT_THAT(status.error_message(), HasSubstr("at most 65536"));
  report = FirstReport();
  report.mutable_hello()->set_name(std::string(513, 'x'));
  status = ElasticRun({}, report).End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("who it is"));
  report.mutable_hello()->set_name(std::string(512, 'x'));
  EXPECT_TRUE(ElasticRun({}, report).AwaitGeneration(1));
}

// Other tests reach these limits by their names, and would follow one that grows. No member of a test lets so many
// orders wait.
TEST(ServerElasticTest, AMemberHasWhatThePageSays) {
  EXPECT_EQ(kSnapshotsReportedMax, 256);
  EXPECT_EQ(kStatusTextBytesMax, 4 << 10);
  EXPECT_EQ(kOrdersWaitingMax, 64);
  EXPECT_EQ(SnapshotStore::kFilesMax, 16);
}

// All workers come again, so a seat must be free as soon as its stranger has had its time. Only the shortest attempt
// has a limit, because a busy machine delays some.
TEST(ServerElasticTest, StrangersHoldNoSeatsBetweenGenerations) {
  ElasticRun run;
  ASSERT_TRUE(run.AwaitGeneration(1));
  std::optional<PendingJoin> join;
  ASSERT_TRUE(run.Join(join).ok());
  Stranger worker(run.address());
  Stream lane(worker);
  ExchangeMessage message;
  message.set_kind(ExchangeMessage::HELLO);
  message.set_job_id(join->job_id());
  ASSERT_TRUE(lane.Write(message));
  ASSERT_TRUE(lane.Read(&message));  // from now on the job has all its connections
  run.Fail();
  ASSERT_TRUE(run.AwaitGeneration(2));
  absl::Duration shortest = absl::InfiniteDuration();
  for (int attempt = 0; attempt < 5 && shortest >= absl::Milliseconds(kStrangerSeatMs); ++attempt) {
    const absl::Time begin = absl::Now();
    std::deque<SilentConnection> strangers;
    for (int i = 0; i <= kStrangerConnectionsMax; ++i) strangers.emplace_back(run.address());
    EXPECT_TRUE(strangers[0].IsClosed(absl::Seconds(5)));
    shortest = std::min(shortest, absl::Now() - begin);
  }
  EXPECT_LT(shortest, absl::Milliseconds(kStrangerSeatMs));
}

}  // namespace
}  // namespace starring
