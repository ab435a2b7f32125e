#include "common/wire/grpc_transport.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/slice.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/network/dial.h"

namespace starring {
namespace {

constexpr int kReadBufferBytesMin = 16 << 10;
constexpr int kReadBufferBytesMax = 4 << 20;

void ReleaseKeeper(void* keeper) { delete static_cast<std::shared_ptr<const void>*>(keeper); }

// A protobuf string must be UTF-8, or the peer refuses the whole message; a status may quote any file name.
std::string PrintableAscii(absl::string_view text) {
  std::string result(text.substr(0, kStatusTextBytesMax));
  std::replace_if(
      result.begin(), result.end(), [](unsigned char c) { return (c < ' ' && c != '\n' && c != '\t') || c > '~'; },
      '?');
  return result;
}

// Sets also those of the channel's `arguments` that belong to the credentials.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TransportSecurity& security,
                                                                 grpc::ChannelArguments* arguments) {
  if (!security.tls.has_value()) return grpc::InsecureChannelCredentials();
  if (!security.tls->server_name.empty()) arguments->SetSslTargetNameOverride(security.tls->server_name);
  return grpc::SslCredentials({.pem_root_certs = security.tls->trusted,
                               .pem_private_key = security.tls->private_key,
                               .pem_cert_chain = security.tls->certificate});
}

}  // namespace

std::vector<std::pair<std::string, int>> TransportArguments() {
  return {
      {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, static_cast<int>(kMessageBytesMax)},
      {GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, static_cast<int>(kMessageBytesMax)},
      // A connection holds its read buffer before anything has arrived. The buffer begins small, because strangers and
      // small models have many connections, and doubles while a read fills it.
      {"grpc.experimental.tcp_read_chunk_size", kReadBufferBytesMin},
      {"grpc.experimental.tcp_min_read_chunk_size", kReadBufferBytesMin},
      {"grpc.experimental.tcp_max_read_chunk_size", kReadBufferBytesMax},
      // Windows and frames of about 4 MiB, or more by what gRPC measures: the exchange itself limits what is in flight.
      // Without the probe, a connection's window had 64 KiB at the beginning of each message, and the rest waited for a
      // round trip: 256 KiB on one host took 1.5 times as long, and 16 MiB over 1 Gbit/s with servers on hosts of their
      // own 1.16 times.
      {GRPC_ARG_HTTP2_BDP_PROBE, 1},
      {GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 << 20},
      // Messages are sent again by the exchange, which knows what was answered; gRPC's retries would only hold copies.
      {GRPC_ARG_ENABLE_RETRIES, 0},
      // A proxy that the environment names for web pages does not know a cluster's hosts.
      {GRPC_ARG_ENABLE_HTTP_PROXY, 0},
      // A process that is started again in another pod keeps its name and has another address. By default gRPC asks for
      // a name's address every 30 s at most.
      {GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1'000},
      // Each lane has a connection of its own: channels to one address otherwise share a socket.
      {GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1},
      // Pings find a connection that ended without a packet (power, cable, firewall), and one whose reset gRPC 1.51 has
      // overlooked: gRPC stops reading when Linux says (TCP_INQ) that no byte is left, which does not count a reset. If
      // one thread reads while another takes the event of the last data and the reset, that event is spent on the data,
      // and a call waits until this end writes again. So pings come well before a deadline.
      {GRPC_ARG_KEEPALIVE_TIME_MS, 10'000},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000},
  };
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TransportSecurity& security) {
  if (!security.tls.has_value()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = security.tls->trusted;
  options.pem_key_cert_pairs = {{security.tls->private_key, security.tls->certificate}};
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const TransportSecurity& security,
                                           grpc::ChannelArguments arguments) {
  for (const auto& [name, value] : TransportArguments()) arguments.SetInt(name, value);
  const auto credentials = MakeChannelCredentials(security, &arguments);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

absl::Status ExplainConnectionError(const std::string& error, const TransportSecurity& security) {
  // Texts of gRPC 1.51 and OpenSSL 3, which have no codes for these; an unknown text only loses the explanation.
  const bool is_tls = security.tls.has_value();
  const bool is_site = SecurityName(security) == absl::string_view("tls_ca");
  if (is_tls && absl::StrContains(error, "wrong version number")) {
    return absl::InvalidArgumentError("it does not speak TLS: start it with --tls, or this worker without");
  }
  // The second is a signature that another authority of the same name has made.
  if (is_tls && (absl::StrContains(error, "certificate verify failed") || absl::StrContains(error, "EVP lib"))) {
    return absl::InvalidArgumentError(is_site ? "its certificate is not signed by this worker's --tls_ca"
                                              : "its certificate is not that of this worker's --job_secret: give the "
                                                "same file to servers and workers");
  }
  if (is_tls && (absl::StrContains(error, "Peer name") || absl::StrContains(error, "Hostname Verification"))) {
    return absl::InvalidArgumentError(
        "its certificate is for another name than that of its address in --servers: name it as its --tls_certificate "
        "does");
  }
  for (const absl::string_view silent : {"tcp handshaker shutdown", "Timeout occurred", "Connection timed out"}) {
    if (!absl::StrContains(error, silent)) continue;
    return absl::UnavailableError(
        absl::StrCat("nothing answers at its address (", error, ")", kFirewallCause, kFirewallWayOut));
  }
  if (!absl::StrContains(error, "failed to connect") || !absl::StrContains(error, "Socket closed")) {
    return absl::UnavailableError(absl::StrCat(error, ": start it, or correct --servers"));
  }
  return absl::UnavailableError(
      is_tls ? "it ends every connection during the handshake, as a server does that does not trust this worker's "
               "certificate: give both the same --job_secret, or certificates of one --tls_ca"
             : "it ends every connection at once, as a server does that was started with --tls: start this worker with "
               "--tls, too");
}

grpc::ByteBuffer MakeByteBuffer(const v1::ExchangeMessage& fields, std::span<const std::byte> payload,
                                std::shared_ptr<const void> keeper) {
  grpc::Slice slices[2] = {grpc::Slice(EncodeBeforePayload(fields, static_cast<int64_t>(payload.size()))),
                           grpc::Slice()};
  if (payload.empty()) return grpc::ByteBuffer(slices, 1);
  // gRPC calls ReleaseKeeper when the last reference to the slice is gone, on whichever of its threads that happens.
  // Until then the keeper must hold the payload, also after the call has ended.
  CHECK(keeper != nullptr);
  // gRPC takes void* and reads only.
  slices[1] = grpc::Slice(const_cast<std::byte*>(payload.data()), payload.size(), ReleaseKeeper,
                          new std::shared_ptr<const void>(std::move(keeper)));
  return grpc::ByteBuffer(slices, 2);
}

namespace {

// The bytes of a message. The last reference to a slice must go by `buffer`, which is destroyed last: its destructor
// sets up an ExecCtx, that of a slice does not (gRPC 1.51). Without one, gRPC follows a null pointer when a server's
// memory limit is reached and the freed bytes wake up who waits for memory.
struct MessageBytes {
  explicit MessageBytes(const grpc::ByteBuffer& message) : buffer(message) {}
  grpc::ByteBuffer buffer;
  std::vector<grpc::Slice> slices;
};

}  // namespace

absl::StatusOr<ReceivedMessage> DecodeByteBuffer(const grpc::ByteBuffer& buffer) {
  // Dump copies references and not bytes, as a copy of a buffer does. A slice of a few bytes holds them inside itself,
  // so the pieces are taken when the vector no longer grows, and the message keeps the vector itself.
  auto bytes = std::make_shared<MessageBytes>(buffer);
  if (const grpc::Status status = bytes->buffer.Dump(&bytes->slices); !status.ok()) return FromGrpcStatus(status);
  std::vector<BytePiece> pieces;
  pieces.reserve(bytes->slices.size());
  for (const grpc::Slice& slice : bytes->slices) {
    pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
  ASSIGN_OR_RETURN(ReceivedMessage message, DecodeMessage(pieces));
  message.keeper = std::move(bytes);
  return message;
}

// gRPC and Abseil number status codes alike, so that the two functions below may cast one into the other.
template <grpc::StatusCode kGrpc, absl::StatusCode kAbsl>
constexpr bool kSameCode = static_cast<int>(kGrpc) == static_cast<int>(kAbsl);
static_assert(kSameCode<grpc::StatusCode::OK, absl::StatusCode::kOk>);
static_assert(kSameCode<grpc::StatusCode::CANCELLED, absl::StatusCode::kCancelled>);
static_assert(kSameCode<grpc::StatusCode::UNKNOWN, absl::StatusCode::kUnknown>);
static_assert(kSameCode<grpc::StatusCode::INVALID_ARGUMENT, absl::StatusCode::kInvalidArgument>);
static_assert(kSameCode<grpc::StatusCode::DEADLINE_EXCEEDED, absl::StatusCode::kDeadlineExceeded>);
static_assert(kSameCode<grpc::StatusCode::NOT_FOUND, absl::StatusCode::kNotFound>);
static_assert(kSameCode<grpc::StatusCode::ALREADY_EXISTS, absl::StatusCode::kAlreadyExists>);
static_assert(kSameCode<grpc::StatusCode::PERMISSION_DENIED, absl::StatusCode::kPermissionDenied>);
static_assert(kSameCode<grpc::StatusCode::UNAUTHENTICATED, absl::StatusCode::kUnauthenticated>);
static_assert(kSameCode<grpc::StatusCode::RESOURCE_EXHAUSTED, absl::StatusCode::kResourceExhausted>);
static_assert(kSameCode<grpc::StatusCode::FAILED_PRECONDITION, absl::StatusCode::kFailedPrecondition>);
static_assert(kSameCode<grpc::StatusCode::ABORTED, absl::StatusCode::kAborted>);
static_assert(kSameCode<grpc::StatusCode::OUT_OF_RANGE, absl::StatusCode::kOutOfRange>);
static_assert(kSameCode<grpc::StatusCode::UNIMPLEMENTED, absl::StatusCode::kUnimplemented>);
static_assert(kSameCode<grpc::StatusCode::INTERNAL, absl::StatusCode::kInternal>);
static_assert(kSameCode<grpc::StatusCode::UNAVAILABLE, absl::StatusCode::kUnavailable>);
static_assert(kSameCode<grpc::StatusCode::DATA_LOSS, absl::StatusCode::kDataLoss>);

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), PrintableAscii(status.message()));
}

void SetStatusFields(const absl::Status& status, v1::ExchangeMessage* fields) {
  fields->set_code(static_cast<int>(status.code()));
  fields->set_text(PrintableAscii(status.message()));
}

absl::Status GetStatusFields(const v1::ExchangeMessage& fields) {
  const bool known = fields.code() > 0 && fields.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(fields.code()) : absl::StatusCode::kUnknown, fields.text());
}

}  // namespace starring
