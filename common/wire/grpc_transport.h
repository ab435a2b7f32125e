// The parts of gRPC that both ends of the star use: settings, messages that refer to our memory, events, statuses. Only
// server/ and worker/exchange/star may include this file.
//
// Thread safety: pure functions, and types for one thread.
#ifndef STARRING_COMMON_WIRE_GRPC_TRANSPORT_H_
#define STARRING_COMMON_WIRE_GRPC_TRANSPORT_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/transport_security.h"
#include "common/wire/exchange_message.h"

namespace starring {

// Channel arguments of a client channel and of a server, the same for both.
std::vector<std::pair<std::string, int>> TransportArguments();

// The one place where gRPC's credentials are made: for a server's port, and for a channel.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TransportSecurity& security);

// A channel to the server at `address` (host:port), with the arguments above and `arguments` of its own. Connects with
// the first call.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const TransportSecurity& security,
                                           grpc::ChannelArguments arguments = {});

// Explains gRPC's text about a connection that failed and names the flag to look at. kUnavailable: the server may yet
// come up. kInvalidArgument: the two sides are protected differently, and waiting will not help.
absl::Status ExplainConnectionError(const std::string& error, const TransportSecurity& security);

// The message `fields` + `payload`, which refers to `payload` without copying it. gRPC holds `keeper` until it no
// longer needs the bytes. REQUIRES: fields.payload() is empty; a non-empty payload has a keeper.
grpc::ByteBuffer MakeByteBuffer(const v1::ExchangeMessage& fields, std::span<const std::byte> payload,
                                std::shared_ptr<const void> keeper);

// The message in `buffer`, whose payload is views of gRPC's own slices; its keeper holds them.
absl::StatusOr<ReceivedMessage> DecodeByteBuffer(const grpc::ByteBuffer& buffer);

// The tag that a completion queue returns: one kind of event of one object.
class CompletionTag {
 public:
  explicit CompletionTag(std::function<void(bool ok)> on_event) : on_event_(std::move(on_event)) {}
  CompletionTag(const CompletionTag&) = delete;
  CompletionTag& operator=(const CompletionTag&) = delete;

  void Run(bool ok) { on_event_(ok); }

 private:
  const std::function<void(bool ok)> on_event_;
};

absl::Status FromGrpcStatus(const grpc::Status& status);
grpc::Status ToGrpcStatus(const absl::Status& status);

// A status as the fields `code` and `text` of a message, and back. An unknown code becomes kUnknown, and so does OK: a
// message that carries a status always reports an error.
void SetStatusFields(const absl::Status& status, v1::ExchangeMessage* fields);
absl::Status GetStatusFields(const v1::ExchangeMessage& fields);

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_GRPC_TRANSPORT_H_
