#include "server/elastic/shard_member.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"
#include "tests/worker/exchange/star/star_job.h"

namespace starring {
namespace {

// Counts streams and reports, and gives no orders until the run ends.
class Listener final : public v1::Coordinator::Service {
 public:
  Listener() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~Listener() override { server_->Shutdown(); }

  const std::string& address() const { return address_; }
  int streams() const { return streams_; }
  int reports() const { return reports_; }
  void EndRun() { has_ended_ = true; }

 private:
  grpc::Status Attend(grpc::ServerContext* /*context*/,
                      grpc::ServerReaderWriter<v1::MemberOrder, v1::MemberReport>* stream) override {
    ++streams_;
    v1::MemberReport report;
    v1::MemberOrder end;
    end.set_kind(v1::MemberOrder::END);
    while (stream->Read(&report)) {
      ++reports_;
      if (has_ended_ && stream->Write(end)) break;
    }
    return grpc::Status::OK;
  }

  std::string address_;
  std::atomic<int> streams_ = 0;
  std::atomic<int> reports_ = 0;
  std::atomic<bool> has_ended_ = false;
  std::unique_ptr<grpc::Server> server_;
};

class ShardMemberTest : public testing::Test {
 protected:
  // The server's thread works until there are so many reports.
  bool Work(int reports) {
    for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end;) {
      member_.Tick();
      if (listener_.reports() >= reports) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }
  // The server's thread hangs. Returns how many reports come nevertheless, once it has been given up.
  int Hang() {
    absl::SleepFor(absl::Milliseconds(900));
    const int before = listener_.reports();
    absl::SleepFor(absl::Milliseconds(800));  // a report comes every quarter of a second
    return listener_.reports() - before;
  }

  Listener listener_;
  ShardMember member_{ShardMember::Options{
      .coordinator = listener_.address(), .address = "here", .stuck = std::chrono::milliseconds(300)}};
};

TEST_F(ShardMemberTest, AServerWhoseThreadHangsReportsNothing) {
  ASSERT_TRUE(Work(2));
  EXPECT_EQ(Hang(), 0);
  EXPECT_TRUE(Work(listener_.reports() + 2));
}

TEST_F(ShardMemberTest, AThreadThatMayReadALargeSnapshotHasLonger) {
  v1::RunTerms terms;
  terms.set_agreement(SerializeAgreement(MakeJob(0, 1, 50'000'000, 1 << 20)));
  ASSERT_TRUE(member_.Learn(terms).ok());
  ASSERT_TRUE(Work(2));
  EXPECT_GT(Hang(), 0);
}

// A coordinator that waits until all have heard of the end would not get there.
TEST_F(ShardMemberTest, AttendsNoMoreWhenTheRunHasEnded) {
  ASSERT_TRUE(Work(1));
  listener_.EndRun();
  const auto await = [this](const std::function<bool()>& condition) {
    for (const absl::Time end = absl::Now() + absl::Seconds(20); !condition() && absl::Now() < end;) {
      member_.Tick();
      absl::SleepFor(absl::Milliseconds(10));
    }
    return condition();
  };
  std::vector<v1::MemberOrder> orders;
  ASSERT_TRUE(await([&] {
    if (orders.empty()) orders = member_.TakeOrders();
    return !orders.empty();
  }));
  EXPECT_EQ(orders[0].kind(), v1::MemberOrder::END);
  EXPECT_TRUE(await([&] { return member_.disconnected_for() > absl::Milliseconds(500); }));
  EXPECT_EQ(listener_.streams(), 1);
}

}  // namespace
}  // namespace starring
