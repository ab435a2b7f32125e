#include "common/wire/grpc_transport.h"

#include <grpc/grpc.h>
#include <grpcpp/support/slice.h>

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace starring {
namespace {

using v1::ExchangeMessage;

// The shortest deadlines of tests and of jobs are some 20 s. A server takes pings that come faster than it allows for
// an attack, and ends the connection.
TEST(GrpcTransportTest, PingsAreWellBelowADeadlineAndWellAboveWhatAServerAllows) {
  const auto list = TransportArguments();
  const std::map<std::string, int> arguments(list.begin(), list.end());
  const int ping_ms = arguments.at(GRPC_ARG_KEEPALIVE_TIME_MS);
  EXPECT_LE(ping_ms, 10'000);
  EXPECT_GE(ping_ms, 2 * arguments.at(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS));
}

// A pod that is started again has another address. Members of a job wait for it, and give it up after some seconds.
TEST(GrpcTransportTest, AnotherAddressOfANameIsFoundWithinSeconds) {
  const auto list = TransportArguments();
  const std::map<std::string, int> arguments(list.begin(), list.end());
  EXPECT_LE(arguments.at(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS), 2'000);
}

TEST(GrpcTransportTest, SendsThePayloadFromWhereItLies) {
  ExchangeMessage fields;
  fields.set_kind(ExchangeMessage::GRADIENT);
  fields.set_bucket(3);
  const std::vector<float> values(1000, 0.5f);
  const auto bytes = std::as_bytes(std::span(values));
  const grpc::ByteBuffer buffer = MakeByteBuffer(fields, bytes, std::make_shared<int>());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(static_cast<const void*>(slices[1].begin()), values.data());
  const auto message = DecodeByteBuffer(buffer);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->fields.bucket(), 3);
  EXPECT_EQ(message->payload_bytes, 4000);
}

TEST(GrpcTransportTest, HoldsTheKeeperAsLongAsTheMessage) {
  const std::vector<float> values(1000, 0.5f);
  const auto keeper = std::make_shared<int>();
  {
    const grpc::ByteBuffer buffer = MakeByteBuffer({}, std::as_bytes(std::span(values)), keeper);
    EXPECT_EQ(keeper.use_count(), 2);
    const grpc::ByteBuffer copy = buffer;
    EXPECT_EQ(keeper.use_count(), 2);
  }
  EXPECT_EQ(keeper.use_count(), 1);
}

TEST(GrpcTransportTest, AReceivedPayloadOutlivesItsBuffer) {
  ReceivedMessage message;
  {
    const std::vector<float> values(1000, 0.5f);
    ExchangeMessage whole;
    whole.set_payload(std::string(reinterpret_cast<const char*>(values.data()), 4000));
    const grpc::Slice slice(whole.SerializeAsString());
    const grpc::ByteBuffer buffer(&slice, 1);
    message = *DecodeByteBuffer(buffer);
  }
  std::vector<float> out(1000);
  CopyPieces(message.payload, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, std::vector<float>(1000, 0.5f));
}

// The texts are those of gRPC 1.51 for a port without a listener, and for one whose packets are dropped.
TEST(GrpcTransportTest, AServerWhosePacketsAreLostIsSaidToBeBehindAFirewall) {
  const std::string prefix = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.5:7077: ";
  const absl::Status lost = ExplainConnectionError(prefix + "tcp handshaker shutdown", {});
  EXPECT_TRUE(absl::IsUnavailable(lost));
  EXPECT_EQ(lost.message(), "nothing answers at its address (" + prefix +
                                "tcp handshaker shutdown): a firewall may drop the packets: start the processes with "
                                "--check instead, which shows between which hosts");
  const absl::Status refused =
      ExplainConnectionError(prefix + "Failed to connect to remote host: Connection refused", {});
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_EQ(refused.message(),
            prefix + "Failed to connect to remote host: Connection refused: start it, or correct --servers");
}

TEST(GrpcTransportTest, StatusesTravelBothWays) {
  ExchangeMessage fields;
  SetStatusFields(absl::DeadlineExceededError("rank 1 is late"), &fields);
  EXPECT_EQ(GetStatusFields(fields), absl::DeadlineExceededError("rank 1 is late"));
  fields.set_code(0);
  EXPECT_EQ(GetStatusFields(fields).code(), absl::StatusCode::kUnknown);
  fields.set_code(99);
  EXPECT_EQ(GetStatusFields(fields).code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(absl::NotFoundError("x"))), absl::NotFoundError("x"));
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
}

// A protobuf string that is not UTF-8 would make the peer refuse the whole message.
TEST(GrpcTransportTest, ATextThatIsNotUtf8Arrives) {
  ExchangeMessage fields;
  SetStatusFields(absl::NotFoundError("no file \xff\xfe.bin"), &fields);
  ExchangeMessage parsed;
  ASSERT_TRUE(parsed.ParseFromString(fields.SerializeAsString()));
  EXPECT_EQ(parsed.text(), "no file ??.bin");
}

// gRPC's clients take 8 KiB of metadata, and drop the whole status with more.
TEST(GrpcTransportTest, ALongStatusIsCut) {
  const absl::Status status = absl::NotFoundError(std::string(100'000, 'x'));
  EXPECT_EQ(ToGrpcStatus(status).error_message().size(), 4096u);
  ExchangeMessage fields;
  SetStatusFields(status, &fields);
  EXPECT_EQ(fields.text().size(), 4096u);
}

}  // namespace
}  // namespace starring
