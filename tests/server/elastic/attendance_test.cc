// Whom a coordinator admits, and what it tells strangers: a server of an elastic run, and raw gRPC clients.
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/limits.h"
#include "common/wire/exchange_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"
#include "tests/server/stranger.h"
#include "tests/worker/exchange/star/star_job.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kToken[] = "a token that the members have";

// One member's stream.
class Attendance {
 public:
  explicit Attendance(v1::Coordinator::Stub& stub) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    stream_ = stub.Attend(&context_);
  }
  Attendance(v1::Coordinator::Stub& stub, const v1::MemberReport& first) : Attendance(stub) { stream_->Write(first); }
  ~Attendance() {
    context_.TryCancel();
    if (stream_ != nullptr) stream_->Finish();
  }
  // The next order; UNKNOWN if the stream has ended.
  v1::MemberOrder Next() {
    v1::MemberOrder order;
    return stream_->Read(&order) ? order : v1::MemberOrder();
  }
  // How it ends, after all orders.
  grpc::Status End() {
    while (Next().kind() != v1::MemberOrder::UNKNOWN) {
    }
    grpc::Status status = stream_->Finish();
    stream_ = nullptr;
    return status;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MemberReport, v1::MemberOrder>> stream_;
};

class AttendanceTest : public testing::Test {
 protected:
  AttendanceTest() { Start(1); }

  // Members of these tests report once, and are given up after `silent`.
  void Start(int first_workers, std::chrono::milliseconds silent = std::chrono::seconds(5)) {
    std::string folder = absl::StrCat(testing::TempDir(), "/attendance.XXXXXX");
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    ParameterServer::Options options{.run_id = "run", .security = {.token = kToken}};
    options.elastic = {
        .coordinator = "127.0.0.1:0", .state_dir = folder, .first_workers = first_workers, .silent = silent};
    options.hello_deadline = absl::Milliseconds(300);
    server_ = StartServer(std::move(options));
    stub_ = v1::Coordinator::NewStub(OpenChannel(server_->address()));
  }

  v1::MemberReport Worker(uint64_t id, double learning_rate = 0.125) const {
    JobSpec job = MakeJob(0, 1, 1000, 1 << 10);
    job.micro_batches = leaves_;
    job.sum_order = SumOrder::kTree;
    job.schedule.base = learning_rate;
    v1::MemberReport report;
    v1::MemberReport::Hello* const hello = report.mutable_hello();
    hello->set_token(kToken);
    hello->set_wire_version(kWireVersion);
    hello->set_member_id(id);
    hello->set_name(absl::StrCat("worker ", id));
    hello->mutable_terms()->set_agreement(SerializeAgreement(job));
    hello->mutable_terms()->set_steps_per_epoch(10);
    hello->mutable_terms()->set_end_step(100);
    report.mutable_worker()->set_ready(true);
    return report;
  }
  // Why the report is refused.
  std::string Refusal(const v1::MemberReport& report, grpc::StatusCode code) {
    const grpc::Status status = Attendance(*stub_, report).End();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_message();
  }

  int leaves_ = 4;
  std::unique_ptr<ParameterServer> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(AttendanceTest, AWorkerGetsAGeneration) {
  Attendance worker(*stub_, Worker(7));
  const v1::MemberOrder order = worker.Next();
  ASSERT_EQ(order.kind(), v1::MemberOrder::TRAIN);
  EXPECT_EQ(order.number(), 1);
  EXPECT_THAT(order.workers(), testing::ElementsAre(7));
  EXPECT_THAT(order.leaf_owners(), testing::ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(order.text(), "run/1");
  v1::GetRunRequest request;
  request.set_token(kToken);
  v1::GetRunReply reply;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->GetRun(&context, request, &reply).ok());
  EXPECT_EQ(reply.generation(), 1);
  EXPECT_EQ(reply.end_step(), 100);
  EXPECT_EQ(reply.members_size(), 2);
}

// Each member has a connection, from before there is a job until the run ends.
TEST_F(AttendanceTest, MembersTakeNoPlacesOfLanesAndStrangers) {
  constexpr int kWorkers = kStrangerConnectionsMax;
  leaves_ = kWorkers;
  Start(kWorkers, std::chrono::seconds(60));
  std::deque<std::unique_ptr<v1::Coordinator::Stub>> stubs;
  std::deque<Attendance> workers;
  for (int i = 0; i < kWorkers; ++i) {
    stubs.push_back(v1::Coordinator::NewStub(OpenChannel(server_->address())));
    workers.emplace_back(*stubs.back(), Worker(static_cast<uint64_t>(i) + 1));
  }
  for (Attendance& worker : workers) ASSERT_EQ(worker.Next().kind(), v1::MemberOrder::TRAIN);
  v1::GetRunRequest request;
  request.set_token(kToken);
  v1::GetRunReply reply;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  const grpc::Status status = stub_->GetRun(&context, request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.members_size(), kWorkers + 1);
}

TEST_F(AttendanceTest, StrangersLearnNothing) {
  v1::MemberReport report = Worker(7);
  report.mutable_hello()->set_token("another");
  EXPECT_THAT(Refusal(report, grpc::StatusCode::UNAUTHENTICATED), HasSubstr("--job_secret"));
  report.mutable_hello()->set_wire_version(kWireVersion + 1);
  EXPECT_THAT(Refusal(report, grpc::StatusCode::UNAUTHENTICATED), HasSubstr("--job_secret"));
  EXPECT_THAT(Refusal(v1::MemberReport(), grpc::StatusCode::UNAUTHENTICATED), HasSubstr("--job_secret"));
  v1::GetRunReply reply;
  grpc::ClientContext context;
  EXPECT_EQ(stub_->GetRun(&context, v1::GetRunRequest(), &reply).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Attendance(*stub_).End().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << "says nothing";
}

TEST_F(AttendanceTest, AnotherBuildOrRunIsRefused) {
  v1::MemberReport report = Worker(7);
  report.mutable_hello()->set_wire_version(kWireVersion + 1);
  EXPECT_THAT(Refusal(report, grpc::StatusCode::INVALID_ARGUMENT),
              AllOf(HasSubstr(absl::StrCat("version ", kWireVersion + 1)), HasSubstr("one build")));
  report = Worker(7);
  report.mutable_hello()->set_run_id("another");
  EXPECT_THAT(Refusal(report, grpc::StatusCode::FAILED_PRECONDITION), HasSubstr("belongs to run \"another\""));
  report = Worker(7);
  report.mutable_hello()->mutable_terms()->set_agreement("no agreement");
  EXPECT_THAT(Refusal(report, grpc::StatusCode::INVALID_ARGUMENT), HasSubstr("terms"));
  report.clear_worker();
  EXPECT_THAT(Refusal(report, grpc::StatusCode::INVALID_ARGUMENT), HasSubstr("who it is"));
}

TEST_F(AttendanceTest, AWorkerOfAnotherJobIsRefusedAndDisturbsNobody) {
  Attendance worker(*stub_, Worker(7));
  EXPECT_EQ(worker.Next().kind(), v1::MemberOrder::TRAIN);
  EXPECT_THAT(Refusal(Worker(8, 0.5), grpc::StatusCode::INVALID_ARGUMENT), HasSubstr("0.5"));
  v1::MemberReport shard = Worker(9);
  shard.clear_worker();
  shard.mutable_hello()->set_shard_count(1);
  shard.mutable_shard()->set_shard(0);
  EXPECT_THAT(Refusal(shard, grpc::StatusCode::ALREADY_EXISTS), HasSubstr("shard 0 is server 0"));
  shard.mutable_hello()->set_shard_count(2);
  EXPECT_THAT(Refusal(shard, grpc::StatusCode::INVALID_ARGUMENT), HasSubstr("--shard_count=2"));
}

TEST_F(AttendanceTest, OfTwoProcessesWithOneNumberTheSecondIsRefused) {
  Attendance first(*stub_, Worker(7));
  EXPECT_EQ(first.Next().kind(), v1::MemberOrder::TRAIN);
  v1::MemberReport report = Worker(7);
  report.mutable_hello()->set_name("worker 8");
  EXPECT_THAT(Refusal(report, grpc::StatusCode::ALREADY_EXISTS),
              AllOf(HasSubstr("worker 7 has the number of worker 8"), HasSubstr("start the latter again")));
  // The same process again has lost its connection before the server has noticed.
  Attendance again(*stub_, Worker(7));
  EXPECT_EQ(first.End().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace starring
