#include "server/elastic/shard_member.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"
#include "tests/worker/exchange/star/star_job.h"

namespace starring {
namespace {

// Counts reports, and gives no orders.
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
  int reports() const { return reports_; }

 private:
  grpc::Status Attend(grpc::ServerContext* /*context*/,
                      grpc::ServerReaderWriter<v1::MemberOrder, v1::MemberReport>* stream) override {
    v1::MemberReport report;
    while (stream->Read(&report)) ++reports_;
    return grpc::Status::OK;
  }

  std::string address_;
  std::atomic<int> reports_ = 0;
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

}  // namespace
}  // namespace starring
