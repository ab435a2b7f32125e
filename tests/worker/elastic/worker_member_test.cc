#include "worker/elastic/worker_member.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/progress_state.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"

namespace starring {
namespace {

// Orders whoever attends to train generation 1, and then gives the orders that the test wants.
class FakeCoordinator final : public v1::Coordinator::Service {
 public:
  FakeCoordinator() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeCoordinator() override { Die(); }

  const std::string& address() const { return address_; }
  void Send(const v1::MemberOrder& order) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ASSERT_NE(stream_, nullptr);
    EXPECT_TRUE(stream_->Write(order));
  }
  void Die() { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  using Stream = grpc::ServerReaderWriter<v1::MemberOrder, v1::MemberReport>;

  grpc::Status Attend(grpc::ServerContext* /*context*/, Stream* stream) override {
    v1::MemberReport report;
    if (!stream->Read(&report)) return grpc::Status::OK;
    v1::MemberOrder train;
    train.set_kind(v1::MemberOrder::TRAIN);
    train.set_number(1);
    train.add_workers(report.hello().member_id());
    train.add_leaf_owners(0);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stream_ = stream;
      stream_->Write(train);
    }
    while (stream->Read(&report)) {
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    stream_ = nullptr;
    return grpc::Status::OK;
  }

  std::mutex mutex_;
  Stream* stream_ = nullptr;
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
    const auto order = member_.Next("");
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

}  // namespace
}  // namespace starring
