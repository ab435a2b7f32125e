// A server's limits on strangers: connections, streams and first messages.
#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/limits.h"
#include "common/network/address.h"
#include "common/wire/exchange_message.h"
#include "common/wire/grpc_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"
#include "tests/server/stranger.h"
#include "tests/worker/exchange/star/star_fixture.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using v1::ExchangeMessage;

TEST(ServerLimitsTest, AStreamWithoutHelloEnds) {
  const auto server = StartServer({.hello_deadline = absl::Milliseconds(200)});
  Stranger stranger(server->address());
  Stream stream(stranger);
  const grpc::Status status = stream.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("no HELLO"));
}

TEST(ServerLimitsTest, AConnectionThatDoesNotShakeHandsEnds) {
  const auto server = StartServer({.hello_deadline = absl::Milliseconds(200)});
  const SilentConnection stranger(server->address());
  EXPECT_TRUE(stranger.IsClosed(absl::Seconds(5)));
}

TEST(ServerLimitsTest, AFirstMessageLongerThanHelloEndsTheStream) {
  const auto server = StartServer();
  Stranger stranger(server->address());
  ExchangeMessage hello;
  hello.set_kind(ExchangeMessage::HELLO);
  hello.set_text(std::string(kHelloBytesMax, 'x'));
  Stream stream(stranger);
  stream.Write(hello);
  const grpc::Status status = stream.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat(kHelloBytesMax)));
}

TEST(ServerLimitsTest, AConnectionHasNoMoreStreamsThanAllowed) {
  const auto server = StartServer();
  Stranger stranger(server->address());
  std::deque<Stream> streams;
  for (int i = 0; i < kStreamsPerConnectionMax; ++i) streams.emplace_back(stranger);
  // The server announces its limit, and gRPC's clients obey it.
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(300)));
  v1::GetStatusReply reply;
  EXPECT_EQ(stranger.stub().GetStatus(&context, {}, &reply).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  streams.pop_back();
  EXPECT_EQ(stranger.Status().state(), v1::GetStatusReply::WAITING);
}

// An HTTP/2 frame. `type` 1 is HEADERS, with the flag END_HEADERS; 4 is SETTINGS.
std::string Frame(char type, int stream, const std::string& payload) {
  const auto size = static_cast<char>(payload.size());
  const char flags = type == 1 ? 4 : 0;
  return std::string{0, 0, size, type, flags, 0, 0, static_cast<char>(stream >> 8), static_cast<char>(stream & 255)} +
         payload;
}

// A client that ignores the limit of streams of a connection is cut; one that obeys it is not.
void ExpectStreamsLimited(const ParameterServer& server, const std::string& method) {
  const auto literal = [](const std::string& name, const std::string& value) {
    return std::string{0, static_cast<char>(name.size())} + name + static_cast<char>(value.size()) + value;
  };
  // HPACK: the static entries ":method: POST" and ":scheme: http", then literals.
  const std::string headers = "\x83\x86" + literal(":path", method) + literal(":authority", "stranger") +
                              literal("content-type", "application/grpc") + literal("te", "trailers");
  const auto open_streams = [&](int count) {
    std::string frames = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, "");
    for (int i = 0; i < count; ++i) frames += Frame(1, 2 * i + 1, headers);
    return frames;
  };
  SilentConnection modest(server.address());
  SilentConnection greedy(server.address());
  modest.Send(open_streams(kStreamsPerConnectionMax));
  greedy.Send(open_streams(kStreamsPerConnectionMax + 1));
  EXPECT_TRUE(greedy.IsClosed(absl::Seconds(5)));
  EXPECT_FALSE(modest.IsClosed(absl::Milliseconds(100)));
}

TEST(ServerLimitsTest, StreamsOfLanesAreLimited) {
  ExpectStreamsLimited(*StartServer(), "/starring.v1.ParameterServer/Exchange");
}

TEST(ServerLimitsTest, StreamsOfMembersAreLimited) {
  ParameterServer::Options options{.run_id = "run"};
  options.elastic = {.coordinator = "127.0.0.1:0"};
  ExpectStreamsLimited(*StartServer(std::move(options)), "/starring.v1.Coordinator/Attend");
}

TEST(ServerLimitsTest, CompressedMessagesAreRefused) {
  const auto server = StartServer();
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    Stranger stranger(server->address());
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    context.set_compression_algorithm(algorithm);
    v1::JoinRequest request;
    request.set_agreement(std::string(100'000, '.'));  // compressed, it is a thousandth of that on the wire
    v1::JoinReply reply;
    const grpc::Status status = stranger.stub().Join(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  }
}

TEST(ServerLimitsTest, StrangersDoNotKeepAWorkerOut) {
  const auto server = StartServer({.listen = "127.0.0.1:0"});
  const JobSpec job = MakeJob(0, 1, 1000, 1);
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  auto exchange = MakeStar({server->address()}, 2, SameHost::kSocket);
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  // More than the job's connections and all strangers that are allowed in addition.
  std::deque<Stranger> strangers;
  for (int i = 0; i < 2 * kStrangerConnectionsMax; ++i) {
    strangers.emplace_back(server->address());
    strangers.back().Status();
  }
  const absl::Status trained = TrainSteps(exchange.get(), job, 3, RoughGradientAt);
  EXPECT_TRUE(trained.ok()) << trained;
  EXPECT_TRUE(exchange->Finish().ok());
  EXPECT_EQ(parameters, ReferenceRun(job, 3, RoughGradientAt));
}

TEST(ServerLimitsTest, ShardsOverTheLimitAreRefused) {
  EXPECT_TRUE(ParameterServer::Start({.shard = 255, .shard_count = 256}).ok());
  EXPECT_EQ(ParameterServer::Start({.shard = 256, .shard_count = 257}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ServerLimitsTest, AHandshakeAndHelloHaveTenSeconds) {
  EXPECT_EQ(ParameterServer::Options().hello_deadline, absl::Seconds(10));
}

// Other tests reach these limits by their names, and would follow one that grows.
TEST(ServerLimitsTest, AStrangerHasWhatThePageSays) {
  EXPECT_EQ(kStrangerConnectionsMax, 64);
  EXPECT_EQ(kStrangerLifeMinMs, 250);
  EXPECT_EQ(kStrangerUnreadLifeMaxMs, 2000);
  EXPECT_EQ(kStrangerSeatMs, 1000);
  EXPECT_EQ(kStrangerBytesMax, 256 << 10);
  EXPECT_EQ(kStrangerBytesPerSecond, 8 << 10);
  EXPECT_EQ(kStreamsPerConnectionMax, 8);
  EXPECT_EQ(kHelloBytesMax, 4 << 10);
  EXPECT_EQ(kMessageBytesMax, (64 << 20) + (64 << 10));
  EXPECT_EQ(kJoinBytesMax, 64 << 10);
  EXPECT_EQ(kLogRefusalsMax, 20);
  EXPECT_EQ(kLogPeriodMs, 10'000);
  EXPECT_EQ(kLogLineBytesMax, 1024u);
}

}  // namespace
}  // namespace starring
