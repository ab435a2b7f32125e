#include "worker/elastic/worker_member.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/watch/progress_state.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"

namespace starring {
namespace {

// Orders whoever attends to train generation 1, and then gives the orders that the test wants. With `reaches` it first
// orders so often to reach two shards.
class FakeCoordinator final : public v1::Coordinator::Service {
 public:
  explicit FakeCoordinator(int reaches = 0, const std::string& address = "127.0.0.1:0") : reaches_(reaches) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeCoordinator() override { Die(); }

  const std::string& address() const { return address_; }
  // REQUIRES: a member attends.
  void Send(const v1::MemberOrder& order) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ASSERT_NE(stream_, nullptr);
    EXPECT_TRUE(stream_->Write(order));
  }
  // Returns when a member has its order to train.
  void AwaitMember() {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [this] { return trains_; }));
  }
  // The reports that said what came of an order to reach the shards.
  std::vector<v1::MemberReport::Worker> answers() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return answers_;
  }
  void Die() { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  using Stream = grpc::ServerReaderWriter<v1::MemberOrder, v1::MemberReport>;

  grpc::Status Attend(grpc::ServerContext* /*context*/, Stream* stream) override {
    SetStream(stream);
    Serve(stream);
    SetStream(nullptr);
    return grpc::Status::OK;
  }

  void Serve(Stream* stream) {
    v1::MemberReport report;
    if (!stream->Read(&report)) return;
    v1::MemberOrder train;
    train.set_kind(v1::MemberOrder::TRAIN);
    train.set_number(1);
    train.add_workers(report.hello().member_id());
    train.add_leaf_owners(0);
    for (int number = 1; number <= reaches_; ++number) {
      v1::MemberOrder reach;
      reach.set_kind(v1::MemberOrder::REACH);
      reach.set_number(number);
      for (const char* const shard : {"host:1", "host:2"}) reach.add_shards(shard);
      for (int repeat = 0; repeat < 2; ++repeat) Send(reach);
      do {
        if (!stream->Read(&report)) return;
      } while (report.worker().reached() != number && report.worker().unreached() != number);
      const std::lock_guard<std::mutex> lock(mutex_);
      answers_.push_back(report.worker());
    }
    Send(train);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      trains_ = true;
    }
    changed_.notify_all();
    while (stream->Read(&report)) {
    }
  }

  void SetStream(Stream* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    stream_ = stream;
  }

  const int reaches_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool trains_ = false;
  Stream* stream_ = nullptr;
  std::vector<v1::MemberReport::Worker> answers_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

v1::MemberOrder OrderOf(v1::MemberOrder::Kind kind, int64_t number = 0) {
  v1::MemberOrder order;
  order.set_kind(kind);
  order.set_number(number);
  return order;
}

// A worker that has finished the run in generation 1.
class AwaitEndTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto order = member_.Next(absl::OkStatus());
    ASSERT_TRUE(order.ok()) << order.status();
    ASSERT_TRUE(order->has_value());
    ASSERT_EQ((*order)->generation.number, 1);
  }

  FakeCoordinator coordinator_;
  ProgressState state_;
  WorkerMember member_{WorkerMember::Options{.coordinator = coordinator_.address(),
                                             .join_deadline = absl::Seconds(20),
                                             .stall_report = absl::Seconds(20),
                                             .state = &state_,
                                             .asked_to_leave = [] { return false; },
                                             .say = [](const std::string&) {},
                                             .end_patience = std::chrono::milliseconds(100)}};
};

// The order is repeated until it is obeyed, and obeyed once.
TEST(NextTest, ReachesTheShardsWhenItIsTold) {
  FakeCoordinator coordinator(/*reaches=*/2);
  ProgressState state;
  std::vector<std::vector<std::string>> asked;  // by the thread that calls Next
  WorkerMember member({.coordinator = coordinator.address(),
                       .join_deadline = absl::Seconds(20),
                       .stall_report = absl::Seconds(20),
                       .state = &state,
                       .asked_to_leave = [] { return false; },
                       .reach =
                           [&](const std::vector<std::string>& shards) {
                             asked.push_back(shards);
                             return asked.size() == 1 ? absl::UnavailableError("a firewall") : absl::OkStatus();
                           },
                       .say = [](const std::string&) {}});
  ASSERT_TRUE(member.Next(absl::OkStatus()).ok());
  EXPECT_EQ(asked, std::vector<std::vector<std::string>>(2, {"host:1", "host:2"}));
  const std::vector<v1::MemberReport::Worker> answers = coordinator.answers();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].unreached(), 1);
  EXPECT_EQ(answers[0].unreached_text(), "a firewall");
  EXPECT_EQ(answers[1].reached(), 2);
  EXPECT_EQ(answers[1].unreached(), 0);
}

// The coordinator has told why it waits. A report of a stall would send the user to look for another cause.
TEST(NextTest, ASpareReportsNoStall) {
  constexpr absl::Duration kStallReport = absl::Milliseconds(100);
  FakeCoordinator coordinator(/*reaches=*/1);
  v1::MemberOrder wait = OrderOf(v1::MemberOrder::WAIT);
  wait.set_text("a spare: all micro-batches have a worker");
  std::mutex mutex;
  std::vector<std::string> said;
  const auto says_wait = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return !said.empty() && said.back() == wait.text();
  };
  ProgressState state;
  WorkerMember member({.coordinator = coordinator.address(),
                       .join_deadline = absl::Seconds(20),
                       .stall_report = kStallReport,
                       .state = &state,
                       .asked_to_leave = [] { return false; },
                       .reach =
                           [&](const std::vector<std::string>& /*shards*/) {
                             coordinator.Send(wait);
                             const absl::Time end = absl::Now() + absl::Seconds(20);
                             while (!says_wait() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
                             absl::SleepFor(kStallReport);
                             return absl::OkStatus();
                           },
                       .say =
                           [&](const std::string& line) {
                             const std::lock_guard<std::mutex> lock(mutex);
                             said.push_back(line);
                           }});
  ASSERT_TRUE(member.Next(absl::OkStatus()).ok());
  // Before the order came, a slow connection may have been a stall.
  const auto told = std::find(said.begin(), said.end(), wait.text());
  ASSERT_NE(told, said.end());
  for (auto line = told; line != said.end(); ++line) EXPECT_EQ(line->find("waiting for a generation"), line->npos);
}

// A worker that has trained has the right address and secret.
TEST(NextTest, SaysWhatToDoWithoutACoordinator) {
  FakeCoordinator coordinator;
  ProgressState state;
  std::mutex mutex;
  std::string said;
  const WorkerMember::Options options = {.coordinator = coordinator.address(),
                                         .join_deadline = absl::Seconds(2),
                                         .stall_report = absl::Milliseconds(500),
                                         .state = &state,
                                         .asked_to_leave = [] { return false; },
                                         .say =
                                             [&](const std::string& line) {
                                               const std::lock_guard<std::mutex> lock(mutex);
                                               said += line;
                                             }};
  constexpr char kNewcomer[] = "start the elastic run, or give the address", kOther[] = "start the coordinator again";
  const auto expect = [&](WorkerMember& member, const char* wanted, const char* unwanted) {
    said.clear();
    const absl::Status status = member.Next(absl::OkStatus()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    const std::lock_guard<std::mutex> lock(mutex);
    for (const std::string& text : {std::string(status.message()), said}) {
      EXPECT_NE(text.find(wanted), text.npos) << text;
      EXPECT_EQ(text.find(unwanted), text.npos) << text;
    }
  };
  WorkerMember trained(options);
  ASSERT_TRUE(trained.Next(absl::OkStatus()).ok());
  coordinator.Die();
  expect(trained, kOther, kNewcomer);
  WorkerMember newcomer(options);
  expect(newcomer, kNewcomer, kOther);
}

TEST_F(AwaitEndTest, TheRunHasEndedWell) {
  coordinator_.Send(OrderOf(v1::MemberOrder::CUT, 1));  // generations below 1 are over
  coordinator_.Send(OrderOf(v1::MemberOrder::END));
  const absl::StatusOr<bool> has_ended = member_.AwaitEnd();
  ASSERT_TRUE(has_ended.ok()) << has_ended.status();
  EXPECT_TRUE(*has_ended);
}

TEST_F(AwaitEndTest, TheRunsErrorIsTheWorkers) {
  v1::MemberOrder end = OrderOf(v1::MemberOrder::END);
  end.set_code(static_cast<int>(absl::StatusCode::kDataLoss));
  end.set_text("the log is damaged");
  coordinator_.Send(end);
  EXPECT_EQ(member_.AwaitEnd().status(), absl::DataLossError("the log is damaged"));
}

// A shard died before it could tell the coordinator that the workers have finished.
TEST_F(AwaitEndTest, AnotherGenerationComesFirst) {
  coordinator_.Send(OrderOf(v1::MemberOrder::CUT, 2));
  const absl::StatusOr<bool> has_ended = member_.AwaitEnd();
  ASSERT_TRUE(has_ended.ok()) << has_ended.status();
  EXPECT_FALSE(*has_ended);
}

// It does not come back after the end of the run.
TEST_F(AwaitEndTest, ACoordinatorThatIsGoneHasEndedTheRun) {
  coordinator_.Die();
  const absl::StatusOr<bool> has_ended = member_.AwaitEnd();
  ASSERT_TRUE(has_ended.ok()) << has_ended.status();
  EXPECT_TRUE(*has_ended);
}

// It was killed before it had logged the end. The worker must not take that for the end: the run goes on.
TEST(AwaitEndPatienceTest, ACoordinatorThatComesBackIsAwaited) {
  FakeCoordinator killed;
  ProgressState state;
  const WorkerMember::Options options = {.coordinator = killed.address(),
                                         .join_deadline = absl::Seconds(20),
                                         .stall_report = absl::Seconds(20),
                                         .state = &state,
                                         .asked_to_leave = [] { return false; },
                                         .say = [](const std::string&) {}};
  // In this time a launcher starts it again even after several deaths, and it reads its log.
  EXPECT_GE(options.end_patience, std::chrono::seconds(20));
  WorkerMember member(options);
  ASSERT_TRUE(member.Next(absl::OkStatus()).ok());
  killed.Die();
  std::optional<FakeCoordinator> again;
  std::thread launcher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    again.emplace(0, killed.address());
    again->AwaitMember();
    again->Send(OrderOf(v1::MemberOrder::CUT, 2));
  });
  const absl::StatusOr<bool> has_ended = member.AwaitEnd();
  launcher.join();
  ASSERT_TRUE(has_ended.ok()) << has_ended.status();
  EXPECT_FALSE(*has_ended);
}

}  // namespace
}  // namespace starring
