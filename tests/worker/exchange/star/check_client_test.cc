#include "worker/exchange/star/check_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/steady_time.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"

namespace starring {
namespace {

// Counts what a check sends.
class CountingServer : public v1::ParameterServer::Service {
 public:
  CountingServer() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(-1);
    server_ = builder.BuildAndStart();
    address = absl::StrCat("127.0.0.1:", port);
  }
  grpc::Status Check(grpc::ServerContext*, const v1::CheckRequest* request, v1::CheckReply*) override {
    const std::lock_guard lock(mutex_);
    const auto bytes = static_cast<int64_t>(request->payload().size());
    if (request->worker_id() != 0) knows_worker_ = true;
    if (!knows_worker_) stranger_bytes += bytes;
    all_bytes += bytes;
    largest_bytes = std::max(largest_bytes, bytes);
    return grpc::Status::OK;
  }

  std::string address;
  int64_t all_bytes = 0;  // read when no call is in flight
  int64_t largest_bytes = 0;
  int64_t stranger_bytes = 0;  // before the first request that has a worker's number

 private:
  bool knows_worker_ = false;
  std::mutex mutex_;
  std::unique_ptr<grpc::Server> server_;
};

// Even if it has much time: a test must not fill a fast link for long.
TEST(CheckClientTest, ABandwidthTestSendsNoMoreThanAllowed) {
  CountingServer server;
  StarCheckClient client({.address = server.address});
  const auto rate = client.MeasureBandwidth(15, SteadyNow() + absl::Seconds(20));
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_EQ(server.largest_bytes, kCheckPayloadBytesMax);
  EXPECT_EQ(server.all_bytes, kCheckBandwidthBytesMax);
}

// A server cuts a stranger's connection at kStrangerBytesMax, and a worker puts its notes on a few servers only.
TEST(CheckClientTest, TheServerKnowsTheWorkerBeforeTheFirstPayload) {
  CountingServer server;
  StarCheckClient client({.address = server.address, .worker_id = 7});
  const auto rate = client.MeasureBandwidth(0, SteadyNow() + absl::Seconds(20));
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_EQ(server.all_bytes, kCheckPayloadBytesMax);
  EXPECT_EQ(server.stranger_bytes, 0);
}

}  // namespace
}  // namespace starring
