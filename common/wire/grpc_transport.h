// What both ends of the star need of gRPC: settings, messages that refer to memory of ours, events, statuses. Only
// server/ and worker/exchange/star may include this file.
//
// Thread safety: pure functions, and types for one thread.
#ifndef STARRING_COMMON_WIRE_GRPC_TRANSPORT_H_
#define STARRING_COMMON_WIRE_GRPC_TRANSPORT_H_

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

// The one place where gRPC's credentials are made: of a port of a server, and of a channel to one. The second also
// sets what `arguments` need for it.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TransportSecurity& security);
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TransportSecurity& security,
                                                                 grpc::ChannelArguments* arguments);

// What gRPC says of a connection that failed, in words that name the flag to look at. kUnavailable: it may come up yet;
// kInvalidArgument: the two sides are protected differently, and waiting is in vain.
absl::Status ExplainConnectionError(const std::string& error, const TransportSecurity& security);

// The message `fields` + `payload` that refers to `payload` where it lies. gRPC holds `keeper` until it has no further
// use for the bytes. REQUIRES: fields.payload() is empty; a non-empty payload has a keeper.
grpc::ByteBuffer MakeByteBuffer(const v1::ExchangeMessage& fields, std::span<const std::byte> payload,
                                std::shared_ptr<const void> keeper);

// The message in `buffer`, whose payload is views of gRPC's own slices; its keeper holds them.
absl::StatusOr<ReceivedMessage> DecodeByteBuffer(const grpc::ByteBuffer& buffer);

// What a completion queue returns as its tag.
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

// A status as the fields code and text of a message, and back. An unknown code becomes kUnknown, an OK one too.
void SetStatusFields(const absl::Status& status, v1::ExchangeMessage* fields);
absl::Status GetStatusFields(const v1::ExchangeMessage& fields);

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_GRPC_TRANSPORT_H_
