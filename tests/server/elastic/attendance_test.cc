// Whom a coordinator admits, and what it tells strangers: a server of an elastic run, or its service alone, and raw
// gRPC clients.
#include <errno.h>
#include <grpcpp/grpcpp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/checkpoint/checkpoint.h"
#include "common/wire/challenge.h"
#include "common/wire/exchange_message.h"
#include "common/wire/grpc_transport.h"
#include "common/wire/request_proof.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"
#include "server/door/admission.h"
#include "server/elastic/coordinator_service.h"
#include "server/elastic/generation_log.h"
#include "tests/common/security/site_certificates.h"
#include "tests/server/stranger.h"
#include "tests/worker/exchange/star/star_job.h"

namespace starring {
namespace {

// The errno that flock reports; 0: the system's own flock runs.
std::atomic<int> lock_errno = 0;

}  // namespace
}  // namespace starring

// In place of the C library's: the file systems of a build machine have locks.
extern "C" int flock(int file, int operation) {
  if (starring::lock_errno == 0) return static_cast<int>(syscall(SYS_flock, file, operation));
  errno = starring::lock_errno;
  return -1;
}

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr char kKey[] = "a key that the members have";
constexpr absl::Duration kStartDeadline = absl::Hours(1);
constexpr absl::Duration kHelloDeadline = absl::Milliseconds(300);

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
  bool Write(const v1::MemberReport& report) { return stream_->Write(report); }
  void EndWriting() { stream_->WritesDone(); }
  // The next order; UNKNOWN if the stream has ended. One to reach the shards is obeyed on the way.
  v1::MemberOrder Next() {
    v1::MemberOrder order;
    while (stream_->Read(&order)) {
      if (order.kind() != v1::MemberOrder::REACH) return order;
      SayReached(order.number());
    }
    return {};
  }
  // Obeys that order, which comes next.
  void Reach() {
    v1::MemberOrder order;
    ASSERT_TRUE(stream_->Read(&order));
    ASSERT_EQ(order.kind(), v1::MemberOrder::REACH);
    SayReached(order.number());
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
  void SayReached(int64_t number) {
    v1::MemberReport report;
    report.mutable_worker()->set_ready(true);
    report.mutable_worker()->set_reached(number);
    stream_->Write(report);
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MemberReport, v1::MemberOrder>> stream_;
};

v1::MemberReport Worker(uint64_t id, double learning_rate = 0.125, int leaves = 4) {
  JobSpec job = MakeJob(0, 1, 1000, 1 << 10);
  job.micro_batches = leaves;
  job.sum_order = SumOrder::kTree;
  job.schedule.base = learning_rate;
  v1::MemberReport report;
  v1::MemberReport::Hello* const hello = report.mutable_hello();
  hello->set_wire_version(kWireVersion);
  hello->set_member_id(id);
  hello->set_name(absl::StrCat("worker ", id));
  hello->mutable_terms()->set_agreement(SerializeAgreement(job));
  hello->mutable_terms()->set_steps_per_epoch(10);
  hello->mutable_terms()->set_end_step(100);
  report.mutable_worker()->set_ready(true);
  return report;
}

// One of two shards.
v1::MemberReport Shard(uint64_t id, int shard) {
  v1::MemberReport report = Worker(id);
  report.clear_worker();
  report.mutable_hello()->set_name(absl::StrCat("server ", shard));
  report.mutable_hello()->set_shard_count(2);
  report.mutable_shard()->set_shard(shard);
  return report;
}

class AttendanceTest : public testing::Test {
 protected:
  AttendanceTest() { Start(1); }

  // Members of these tests report once, and are given up after `silent`.
  void Start(int first_workers, std::chrono::milliseconds silent = std::chrono::seconds(5),
             const std::string& announce = "", const TransportSecurity& security = {}) {
    std::string folder = absl::StrCat(testing::TempDir(), "/attendance.XXXXXX");
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    ParameterServer::Options options{.run_id = "run", .security = security};
    // No worker could dial it.
    if (!announce.empty()) options.listen = "0.0.0.0:0";
    options.insecure = true;
    options.elastic = {.coordinator = options.listen,
                       .announce = announce,
                       .state_dir = folder,
                       .first_workers = first_workers,
                       .silent = silent};
    options.hello_deadline = kHelloDeadline;
    server_ = StartServer(std::move(options));
    stub_ = v1::Coordinator::NewStub(OpenChannel(server_->address()));
  }

  // Why the report is refused.
  std::string Refusal(const v1::MemberReport& report, grpc::StatusCode code) {
    const grpc::Status status = Attendance(*stub_, report).End();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_message();
  }

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
  EXPECT_THAT(order.shards(), testing::ElementsAre(server_->address()));
  v1::GetRunRequest request;
  v1::GetRunReply reply;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->GetRun(&context, request, &reply).ok());
  EXPECT_EQ(reply.generation(), 1);
  EXPECT_EQ(reply.end_step(), 100);
  EXPECT_EQ(reply.members_size(), 2);
}

// The shard itself does not dial it: the way back from outside may not be there.
TEST_F(AttendanceTest, WorkersAreToldTheAddressThatAShardAnnounces) {
  Start(1, std::chrono::seconds(5), "node7.example:7077");
  Attendance worker(*stub_, Worker(7));
  const v1::MemberOrder order = worker.Next();
  ASSERT_EQ(order.kind(), v1::MemberOrder::TRAIN);
  EXPECT_THAT(order.shards(), testing::ElementsAre("node7.example:7077"));
}

// The certificate of the site has the name that is announced, and no other.
TEST_F(AttendanceTest, AShardFindsItselfByTheNameThatItAnnounces) {
  const SiteCertificates site;
  const KeyAndCertificate pair = site.Issue("node7.example");
  TransportSecurity security{.tls = TransportSecurity::Tls{.private_key = pair.private_key,
                                                           .certificate = pair.certificate,
                                                           .trusted = site.authority(),
                                                           .server_name = ""}};
  Start(1, std::chrono::seconds(5), "node7.example:7077", security);
  security.tls->server_name = "node7.example";
  const auto stub = v1::Coordinator::NewStub(OpenChannel(server_->address(), security));
  Attendance worker(*stub, Worker(7));
  EXPECT_EQ(worker.Next().kind(), v1::MemberOrder::TRAIN);
}

// Each member has a connection, from before there is a job until the run ends.
TEST_F(AttendanceTest, MembersTakeNoPlacesOfLanesAndStrangers) {
  constexpr int kWorkers = kStrangerConnectionsMax;
  Start(kWorkers, std::chrono::seconds(60));
  std::deque<std::unique_ptr<v1::Coordinator::Stub>> stubs;
  std::deque<Attendance> workers;
  for (int i = 0; i < kWorkers; ++i) {
    stubs.push_back(v1::Coordinator::NewStub(OpenChannel(server_->address())));
    workers.emplace_back(*stubs.back(), Worker(static_cast<uint64_t>(i) + 1, 0.125, kWorkers));
  }
  for (Attendance& worker : workers) worker.Reach();
  for (Attendance& worker : workers) ASSERT_EQ(worker.Next().kind(), v1::MemberOrder::TRAIN);
  v1::GetRunRequest request;
  v1::GetRunReply reply;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  const grpc::Status status = stub_->GetRun(&context, request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.members_size(), kWorkers + 1);
}

TEST_F(AttendanceTest, StrangersLearnNothing) {
  Start(1, std::chrono::seconds(5), "", {.request_key = kKey});
  v1::MemberReport report = Worker(7);
  EXPECT_THAT(Refusal(report, grpc::StatusCode::UNAUTHENTICATED), HasSubstr("--job_secret"));
  v1::GetRunRequest request;
  request.mutable_proof()->set_wire_version(kWireVersion);
  v1::GetRunReply reply;
  grpc::ClientContext context;
  EXPECT_EQ(stub_->GetRun(&context, request, &reply).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Attendance(*stub_).End().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << "says nothing";
}

// The shard attends by a proof itself, and a worker that brings one is trained with.
TEST_F(AttendanceTest, MembersProveThatTheyHaveTheSecret) {
  Start(1, std::chrono::seconds(5), "", {.request_key = kKey});
  const std::shared_ptr<grpc::Channel> channel = OpenChannel(server_->address());
  const auto server = v1::ParameterServer::NewStub(channel);
  const auto stub = v1::Coordinator::NewStub(channel);
  RequestSigner signer(kKey);
  grpc::ClientContext context;
  ASSERT_EQ(Challenge(*server, &context, &signer), absl::OkStatus());
  v1::MemberReport report = Worker(7);
  signer.Sign(kAttendMethod, &report);
  EXPECT_EQ(Attendance(*stub, report).Next().kind(), v1::MemberOrder::TRAIN);
  // The same report is worth nothing to who has recorded it.
  EXPECT_THAT(Refusal(report, grpc::StatusCode::UNAVAILABLE), HasSubstr("another connection"));
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

TEST_F(AttendanceTest, AWorkerThatWouldBeginElsewhereIsRefusedAndDisturbsNobody) {
  Start(2);
  Attendance first(*stub_, Worker(7));
  const auto member_count = [&] {
    v1::GetRunRequest request;
    v1::GetRunReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->GetRun(&context, request, &reply).ok());
    return reply.members_size();
  };
  const absl::Time end = absl::Now() + kPatience;
  while (member_count() < 2) ASSERT_LT(absl::Now(), end);
  v1::MemberReport resumed = Worker(8);
  resumed.mutable_hello()->mutable_terms()->set_first_step(10);
  Attendance second(*stub_, resumed);
  const v1::MemberOrder refusal = second.Next();
  EXPECT_EQ(refusal.kind(), v1::MemberOrder::END);
  EXPECT_EQ(refusal.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(refusal.text(), AllOf(HasSubstr("began at step 0"), HasSubstr("begin at step 10: drop --resume")));
  EXPECT_TRUE(second.End().ok());
  Attendance third(*stub_, Worker(9));
  third.Reach();
  const v1::MemberOrder order = first.Next();
  ASSERT_EQ(order.kind(), v1::MemberOrder::TRAIN);
  EXPECT_THAT(order.workers(), testing::ElementsAre(7, 9));
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

TEST_F(AttendanceTest, AReportThatCannotBeRightEndsItsStream) {
  Attendance worker(*stub_, Worker(7));
  EXPECT_EQ(worker.Next().kind(), v1::MemberOrder::TRAIN);
  v1::MemberReport report;
  report.mutable_worker()->set_seconds_per_leaf(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(worker.Write(report));
  grpc::Status status = worker.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("seconds_per_leaf is inf"));

  Attendance other(*stub_, Worker(8));
  report.Clear();
  report.mutable_shard()->set_shard(0);
  EXPECT_TRUE(other.Write(report));
  status = other.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("worker 8 is a worker"));
}

TEST_F(AttendanceTest, AReportHasALimit) {
  Attendance worker(*stub_, Worker(7));
  EXPECT_EQ(worker.Next().kind(), v1::MemberOrder::TRAIN);
  v1::MemberReport report;
  report.mutable_worker()->set_trouble(std::string(kJoinBytesMax, 't'));
  EXPECT_TRUE(worker.Write(report));
  const grpc::Status status = worker.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("a member's report of 65"));
}

TEST_F(AttendanceTest, ARunThatEndsWithAnErrorWaitsUntilAllHaveHeardOfIt) {
  Attendance worker(*stub_, Worker(7));
  ASSERT_EQ(worker.Next().kind(), v1::MemberOrder::TRAIN);
  const auto begin = std::chrono::steady_clock::now();
  Attendance newcomer(*stub_);  // has not said yet who it is, and never will
  v1::MemberReport stranger = Worker(8);
  stranger.mutable_hello()->set_wire_version(kWireVersion + 1);
  Refusal(stranger, grpc::StatusCode::INVALID_ARGUMENT);  // streams are accepted in their order
  v1::MemberReport failing;
  failing.mutable_worker()->set_generation(1);
  failing.mutable_worker()->set_ready(true);
  failing.mutable_worker()->set_trouble("a gradient is not finite");
  failing.mutable_worker()->set_origin(v1::MemberReport::Worker::NOT_FINITE);
  EXPECT_TRUE(worker.Write(failing));
  EXPECT_EQ(server_->Wait().code(), absl::StatusCode::kInternal);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, absl::ToChronoMilliseconds(kHelloDeadline));
}

// The service of a run with two shards, and its queue in the test's hands: an event happens when the test lets it.
// Clients are in threads of their own.
class CoordinatorServiceTest : public testing::Test {
 protected:
  struct Event {
    CompletionTag* tag = nullptr;
    bool ok = false;
    void Happen() const { tag->Run(ok); }
  };

  CoordinatorServiceTest() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    Start();
  }
  ~CoordinatorServiceTest() override { Stop(); }

  void Start() {
    service_ = std::make_unique<CoordinatorService>(
        CoordinatorService::Options{.state_dir = folder_,
                                    .run_id = "run",
                                    .shard_count = 2,
                                    .start_deadline = kStartDeadline,
                                    .loss_deadline = kPatience,
                                    .hello_deadline = kPatience,
                                    .admission = &admission_,
                                    .keep = [](const std::string&) {},
                                    .log = [this](const std::string& line) { said_.push_back(line); }});
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_->service());
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    service_->Listen(queue_.get());
    stub_ = v1::Coordinator::NewStub(OpenChannel(absl::StrCat("127.0.0.1:", port)));
  }
  void Stop() {
    const std::future<void> down =
        std::async(std::launch::async, [this] { server_->Shutdown(std::chrono::system_clock::now()); });
    Serve([&] { return IsReady(down) && service_->is_idle(); });
    queue_->Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) {
    }
  }

  // As a process that is started again.
  void StartAgain() {
    Stop();
    server_.reset();
    queue_.reset();
    service_.reset();
    Start();
  }

  Event NextEvent() {
    void* tag = nullptr;
    bool ok = false;
    const auto end = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kPatience);
    CHECK(queue_->AsyncNext(&tag, &ok, end) == grpc::CompletionQueue::GOT_EVENT);
    return {.tag = static_cast<CompletionTag*>(tag), .ok = ok};
  }
  void Serve(const std::function<bool()>& until) {
    const absl::Time end = absl::Now() + kPatience;
    while (!until()) {
      ASSERT_LT(absl::Now(), end);
      void* tag = nullptr;
      bool ok = false;
      const auto wait = std::chrono::system_clock::now() + std::chrono::milliseconds(5);
      if (queue_->AsyncNext(&tag, &ok, wait) == grpc::CompletionQueue::GOT_EVENT) {
        static_cast<CompletionTag*>(tag)->Run(ok);
      }
    }
  }
  template <typename Result>
  static bool IsReady(const std::future<Result>& future) {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  // Serves a client until it is done.
  template <typename Client>
  auto Served(const Client& client) {
    auto result = std::async(std::launch::async, client);
    Serve([&] { return IsReady(result); });
    return result.get();
  }
  // The first order that a member gets.
  v1::MemberOrder OrderFor(const v1::MemberReport& report) {
    return Served([&] {
      Attendance member(*stub_, report);
      v1::MemberOrder order = member.Next();
      EXPECT_TRUE(member.End().ok());
      return order;
    });
  }

  // Worker 7 attends, and loses its connection. Then the run ends with an error, of which all others hear.
  void EndWithoutWorker7() {
    auto attending = std::async(std::launch::async, [this] { return std::make_unique<Attendance>(*stub_, Worker(7)); });
    for (int event = 0; event < 2; ++event) NextEvent().Happen();  // the stream, its report
    attending.get().reset();
    for (int event = 0; event < 2; ++event) NextEvent().Happen();     // the end of its reports, and of the stream
    EXPECT_TRUE(service_->EndRun(std::chrono::steady_clock::now()));  // before its first step
    for (const v1::MemberReport& report : {Worker(8), Shard(9, 0), Shard(10, 1)}) {
      EXPECT_EQ(OrderFor(report).kind(), v1::MemberOrder::END);
    }
  }

  std::string folder_ = absl::StrCat(testing::TempDir(), "/service.XXXXXX");
  std::vector<std::string> said_;
  Admission admission_{"", 0};
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(CoordinatorServiceTest, AProcessMayComeBackBeforeItsOldStreamIsGone) {
  const auto first = std::async(std::launch::async, [this] {
    auto worker = std::make_unique<Attendance>(*stub_, Worker(7));
    worker->EndWriting();
    return worker;
  });
  // The stream, its report, the end of its reports.
  for (int event = 0; event < 3; ++event) NextEvent().Happen();
  const Event old_stream_is_gone = NextEvent();
  const auto second =
      std::async(std::launch::async, [this] { return std::make_unique<Attendance>(*stub_, Worker(7)); });
  for (int event = 0; event < 2; ++event) NextEvent().Happen();
  old_stream_is_gone.Happen();
  const auto members = Served([this] {
    v1::GetRunRequest request;
    v1::GetRunReply reply;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->GetRun(&context, request, &reply).ok());
    return reply.members_size();
  });
  EXPECT_EQ(members, 1);
}

TEST_F(CoordinatorServiceTest, ASecondCoordinatorEndsBeforeAnyoneComes) {
  const absl::StatusOr<FolderLock> other = FolderLock::Take(folder_, absl::ZeroDuration());
  ASSERT_TRUE(other.ok()) << other.status();
  const auto now = std::chrono::steady_clock::now();
  service_->Tick(now);
  EXPECT_FALSE(service_->ended().has_value()) << "the other one may be about to end";
  service_->Tick(now + std::chrono::seconds(3));
  ASSERT_TRUE(service_->ended().has_value());
  EXPECT_EQ(service_->ended()->code(), absl::StatusCode::kFailedPrecondition);
  // Others are of the coordinator that has the log.
  for (const v1::MemberReport& report : {Shard(8, 1), Worker(7)}) {
    const grpc::Status status = Served([&] { return Attendance(*stub_, report).End(); });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  }
  // Its own shard ends by this.
  const v1::MemberOrder order = OrderFor(Shard(9, 0));
  EXPECT_EQ(order.kind(), v1::MemberOrder::END);
  EXPECT_THAT(order.text(), HasSubstr("another coordinator runs with --state_dir"));
}

TEST_F(CoordinatorServiceTest, EndsIfNoWorkerComes) {
  const auto now = std::chrono::steady_clock::now();
  service_->Tick(now + absl::ToChronoSeconds(kStartDeadline) / 2);
  EXPECT_FALSE(service_->ended().has_value());
  service_->Tick(now + absl::ToChronoSeconds(kStartDeadline));
  ASSERT_TRUE(service_->ended().has_value());
  EXPECT_EQ(service_->ended()->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(OrderFor(Shard(9, 0)).text(), "no worker has come within 1h");
}

TEST_F(CoordinatorServiceTest, WaitsForAllThatTheFirstGenerationNeedsAsLongAsForItsFirstWorker) {
  const auto worker =
      std::async(std::launch::async, [this] { return std::make_unique<Attendance>(*stub_, Worker(7)); });
  for (int event = 0; event < 2; ++event) NextEvent().Happen();  // the stream, its report
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::milliseconds age{0};
  // By steps that are too short for the coordinator to take itself for one that was stopped.
  const auto tick_until = [&](absl::Duration end) {
    for (; age < absl::ToChronoMilliseconds(end); age += std::chrono::milliseconds(400)) service_->Tick(begin + age);
  };
  tick_until(2 * kPatience);  // the deadline for what a run has lost is over
  EXPECT_FALSE(service_->ended().has_value());
  tick_until(kStartDeadline + absl::Seconds(1));
  ASSERT_TRUE(service_->ended().has_value());
  EXPECT_THAT(std::string(service_->ended()->message()), HasSubstr("shard 0 of 2 has not come within 3600.0 s"));
}

TEST_F(CoordinatorServiceTest, KeepsOtherCoordinatorsOutFromItsStart) {
  service_->Tick(std::chrono::steady_clock::now());
  EXPECT_EQ(FolderLock::Take(folder_, absl::ZeroDuration()).status().code(), absl::StatusCode::kFailedPrecondition);
  // The log is opened nevertheless when the first worker comes.
  v1::MemberReport failing = Worker(7);
  failing.mutable_worker()->set_failure_code(static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_EQ(OrderFor(failing).code(), static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_EQ(FolderLock::Take(folder_, absl::ZeroDuration()).status().code(), absl::StatusCode::kFailedPrecondition);
}

// As NFS may be. Then a second coordinator finds out only when both write.
TEST_F(CoordinatorServiceTest, AFileSystemWithoutLocksIsSaid) {
  v1::MemberReport failing = Worker(7);
  failing.mutable_worker()->set_failure_code(static_cast<int>(absl::StatusCode::kInternal));
  lock_errno = ENOLCK;
  OrderFor(failing);
  lock_errno = 0;
  EXPECT_THAT(said_, Contains(absl::StrCat("the file system of --state_dir=", folder_, " has no locks: see to it that ",
                                           "no other coordinator uses that folder")));
}

// The folder's lock is held while the log is opened, also if the log turns out to be another run's.
TEST_F(CoordinatorServiceTest, ARefusedFirstWorkerLetsNoOtherCoordinatorIn) {
  ASSERT_TRUE(GenerationLog::Open(folder_, {.name = "run", .leaves = 8, .shards = 2}).ok());
  const grpc::Status status = Served([&] { return Attendance(*stub_, Worker(7)).End(); });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("the log of another run: its leaves is 8, this run's 4"));
  EXPECT_EQ(FolderLock::Take(folder_, absl::ZeroDuration()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CoordinatorServiceTest, ARunThatEndsWhileAnotherCoordinatorHasItHasEnded) {
  auto other = GenerationLog::Open(folder_, {.name = "run", .leaves = 4, .shards = 2});
  ASSERT_TRUE(other.ok()) << other.status();
  auto order = std::async(std::launch::async, [this] { return Attendance(*stub_, Shard(9, 0)).Next(); });
  for (int event = 0; event < 2; ++event) NextEvent().Happen();  // the stream, its report
  const auto now = std::chrono::steady_clock::now();
  service_->Tick(now);
  EXPECT_FALSE(service_->ended().has_value());
  EXPECT_EQ((*other)->End(0), absl::OkStatus());
  other->reset();
  service_->Tick(now);
  ASSERT_TRUE(service_->ended().has_value());
  EXPECT_EQ(*service_->ended(), absl::OkStatus());
  Serve([&] { return IsReady(order); });
  EXPECT_EQ(order.get().kind(), v1::MemberOrder::END);
}

TEST_F(CoordinatorServiceTest, WhatDiffersFromTheRunInTheLogIsNamed) {
  const auto worker = [](const std::string& name, const std::string& value) {
    JobSpec job = MakeJob(0, 1, 1000, 1 << 10);
    job.micro_batches = 4;
    job.sum_order = SumOrder::kTree;
    std::map<std::string, std::string> agreed = {{"seed", "1"}, {"data.train", "ab"}, {"arithmetic.libc", "2.36"}};
    agreed[name] = value;
    job.agreed_flags = {agreed.begin(), agreed.end()};
    v1::MemberReport report = Worker(7);
    report.mutable_hello()->mutable_terms()->set_agreement(SerializeAgreement(job));
    return report;
  };
  v1::MemberReport failing = worker("seed", "1");
  failing.mutable_worker()->set_failure_code(static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_EQ(OrderFor(failing).kind(), v1::MemberOrder::END);  // the log is written, and the run goes on later
  StartAgain();
  struct Case {
    const char *name, *value, *part;
  };
  for (const Case& c : {Case{"seed", "2", "flags"}, Case{"data.train", "cd", "data"},
                        Case{"arithmetic.libc", "2.37", "machine"}, Case{"known_answer.first_leaf", "ef", "answer"}}) {
    const grpc::Status status = Served([&] { return Attendance(*stub_, worker(c.name, c.value)).End(); });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat("its digest of ", c.part, " is ")));
  }
  EXPECT_EQ(OrderFor(failing).code(), static_cast<int>(absl::StatusCode::kInternal));
}

// It may have come just before the end, and would look for the coordinator until its deadline.
TEST_F(CoordinatorServiceTest, AMemberThatHasLostItsConnectionBeforeTheEndIsTold) {
  const auto begin = std::chrono::steady_clock::now();
  EndWithoutWorker7();
  const absl::Time soon = absl::Now() + absl::Milliseconds(100);
  Serve([&] { return absl::Now() > soon; });
  service_->Tick(begin + std::chrono::seconds(2));  // it was lost later, and has twice the second of MemberTimes::gone
  EXPECT_FALSE(service_->has_told_all());
  EXPECT_EQ(OrderFor(Worker(7)).kind(), v1::MemberOrder::END);
  Serve([&] { return service_->has_told_all(); });
}

TEST_F(CoordinatorServiceTest, AMemberThatDoesNotComeBackIsWaitedForOnlyForAMoment) {
  EndWithoutWorker7();
  service_->Tick(std::chrono::steady_clock::now() + std::chrono::seconds(3));
  Serve([&] { return service_->has_told_all(); });
}

TEST_F(CoordinatorServiceTest, AMemberThatDoesNotReadItsLastOrderIsCut) {
  v1::MemberReport failing = Worker(7);
  failing.mutable_worker()->set_failure_code(static_cast<int>(absl::StatusCode::kInternal));
  auto ended = std::async(std::launch::async, [&] { return Attendance(*stub_, failing).End(); });
  for (int event = 0; event < 2; ++event) NextEvent().Happen();  // the stream, its report
  const Event order_is_written = NextEvent();
  service_->Tick(std::chrono::steady_clock::now() + absl::ToChronoSeconds(kPatience + absl::Seconds(1)));
  order_is_written.Happen();
  Serve([&] { return IsReady(ended); });
  EXPECT_EQ(ended.get().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(CoordinatorServiceTest, WhoeverComesAfterTheEndIsTold) {
  v1::MemberReport failing = Worker(7);
  failing.mutable_worker()->set_failure_code(static_cast<int>(absl::StatusCode::kInternal));
  failing.mutable_worker()->set_failure_text("no memory");
  const v1::MemberOrder own = OrderFor(failing);
  EXPECT_EQ(own.kind(), v1::MemberOrder::END);
  EXPECT_EQ(own.text(), "no memory");
  EXPECT_FALSE(service_->ended().has_value()) << "that worker's error is its own";
  EXPECT_TRUE(service_->EndRun(std::chrono::steady_clock::now()));
  ASSERT_TRUE(service_->ended().has_value());
  const v1::MemberOrder order = OrderFor(Worker(8));
  EXPECT_EQ(order.kind(), v1::MemberOrder::END);
  EXPECT_EQ(order.code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_THAT(order.text(), HasSubstr("before the first step"));
  // A shard that comes again is the same one.
  for (int again = 0; again < 3; ++again) EXPECT_EQ(OrderFor(Shard(9, 0)).kind(), v1::MemberOrder::END);
  const absl::Time soon = absl::Now() + absl::Milliseconds(100);
  Serve([&] { return absl::Now() > soon; });
  EXPECT_FALSE(service_->has_told_all());
  EXPECT_EQ(OrderFor(Shard(10, 1)).kind(), v1::MemberOrder::END);
  Serve([&] { return service_->has_told_all(); });
  EXPECT_TRUE(service_->has_told_all());
}

}  // namespace
}  // namespace starring
