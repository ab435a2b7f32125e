#include "worker/exchange/star/check_client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <future>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/base/wall_time.h"
#include "common/network/address.h"
#include "common/network/congestion_control.h"
#include "common/network/round_trip.h"
#include "common/wire/challenge.h"
#include "common/wire/exchange_message.h"
#include "common/wire/grpc_transport.h"

namespace starring {
namespace {

// Several, so that the link is busy while an answer is on its way.
constexpr int kCallsInFlight = 4;

constexpr absl::Duration kLeaveDeadline = absl::Seconds(1);

}  // namespace

StarCheckClient::StarCheckClient(Options options)
    : options_(std::move(options)),
      stub_(v1::ParameterServer::NewStub(OpenChannel(options_.address, options_.security))),
      signer_(options_.security.request_key) {}

StarCheckClient::~StarCheckClient() {
  if (!is_at_board_) return;
  v1::CheckRequest request;
  request.set_leave(true);
  // Without an answer the server forgets this worker by itself.
  UseBoard(request, SteadyNow() + kLeaveDeadline).IgnoreError();
}

absl::Status StarCheckClient::ToStatus(const grpc::Status& status) const {
  // The worker has just reached this address by TCP (worker/check/star_check.cc). So an error here has another cause
  // than the network's, and the messages begin with what has worked.
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return absl::OkStatus();
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::DeadlineExceededError("connected, but no server of Starring answers");
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::FailedPreconditionError("a server without --check: another version, or another program");
    case grpc::StatusCode::UNAVAILABLE: {
      const absl::Status explained = ExplainConnectionError(status.error_message(), options_.security);
      return absl::Status(explained.code(), absl::StrCat("connected, then closed: ", explained.message()));
    }
    default:
      return FromGrpcStatus(status);
  }
}

// Lets the server prove that it has the job's secret, once a connection.
absl::Status StarCheckClient::Prove(absl::Time end) {
  grpc::ClientContext context;
  context.set_deadline(WallTimeOf(end));
  const absl::Status status = Challenge(*stub_, &context, &signer_);
  // These two lack a subject.
  if (absl::IsUnauthenticated(status) || absl::IsInvalidArgument(status)) {
    return absl::Status(status.code(), absl::StrCat("it ", std::string(status.message())));
  }
  return ToStatus(ToGrpcStatus(status));
}

// Any thread may call it for messages of the bandwidth test, to a server that has answered a Call.
absl::StatusOr<v1::CheckReply> StarCheckClient::Send(const v1::CheckRequest& request, absl::Time end,
                                                     std::string* peer) const {
  grpc::ClientContext context;
  context.set_deadline(WallTimeOf(end));
  v1::CheckReply reply;
  RETURN_IF_ERROR(ToStatus(stub_->Check(&context, request, &reply)));
  if (peer != nullptr) *peer = PeerNameOfUri(context.peer());
  return reply;
}

absl::StatusOr<v1::CheckReply> StarCheckClient::Call(v1::CheckRequest request, absl::Time end) {
  RETURN_IF_ERROR(Prove(end));
  signer_.Sign(kCheckMethod, &request);
  absl::StatusOr<v1::CheckReply> reply = Send(request, end, &peer_);
  // The next call may have another connection, which needs another challenge.
  if (!reply.ok()) signer_ = RequestSigner(options_.security.request_key);
  return reply;
}

absl::StatusOr<v1::ProcessFacts> StarCheckClient::Ask(absl::Time end, v1::LinkReport& link) {
  v1::CheckRequest request;
  request.set_facts(true);
  // This call also makes the connection, so that no ping below contains a handshake.
  ASSIGN_OR_RETURN(const v1::CheckReply first, Call(request, end));
  v1::ProcessFacts facts;
  if (!facts.ParseFromString(first.facts())) return absl::DataLossError("its answer cannot be read");
  const auto ping = [&]() -> absl::StatusOr<int64_t> {
    ASSIGN_OR_RETURN(const v1::CheckReply reply, Call({}, end));
    return reply.clock_us();
  };
  RETURN_IF_ERROR(MeasureRoundTrip(kPings, ping, link));
  return facts;
}

absl::StatusOr<double> StarCheckClient::MeasureBandwidth(double seconds, absl::Time end) {
  // Only some servers have this worker's notes. To the others its connection is still a stranger's, which they cut at
  // kStrangerBytesMax: less than one payload.
  RETURN_IF_ERROR(UseBoard({}, end).status());
  AvoidBbrTo({peer_});  // as the connections of an exchange
  v1::CheckRequest request;
  request.set_payload(std::string(kCheckPayloadBytesMax, '\0'));
  signer_.Sign(kCheckMethod, &request);
  const absl::Time start = SteadyNow();
  std::atomic<int64_t> bytes = 0;
  const auto send = [&]() -> absl::Status {
    while (true) {
      const int64_t before = bytes.fetch_add(kCheckPayloadBytesMax);
      // At least one message is sent, even if `seconds` is over at once.
      if (before > 0 && (before >= kCheckBandwidthBytesMax || SteadyNow() - start >= absl::Seconds(seconds))) {
        bytes -= kCheckPayloadBytesMax;
        return absl::OkStatus();
      }
      RETURN_IF_ERROR(Send(request, end).status());
    }
  };
  std::vector<std::future<absl::Status>> calls;
  for (int i = 0; i < kCallsInFlight; ++i) calls.push_back(std::async(std::launch::async, send));
  absl::Status status;
  for (std::future<absl::Status>& call : calls) status.Update(call.get());
  RETURN_IF_ERROR(status);
  return static_cast<double>(bytes.load()) / absl::ToDoubleSeconds(SteadyNow() - start);
}

// Facts, pings and payloads go without the worker's number: the server does not touch its board for them, and so does
// not count this worker among those that meet there. After a request with the number the server also exempts the
// connection from the limit on what strangers may send.
absl::StatusOr<v1::CheckReply> StarCheckClient::UseBoard(v1::CheckRequest request, absl::Time end) {
  request.set_rank(options_.rank);
  request.set_worker_id(options_.worker_id);
  is_at_board_ = true;
  return Call(std::move(request), end);
}

std::string GrpcVersion() { return grpc::Version(); }

int StarWireVersion() { return kWireVersion; }

}  // namespace starring
