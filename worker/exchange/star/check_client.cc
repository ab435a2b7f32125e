#include "worker/exchange/star/check_client.h"

#include <grpcpp/grpcpp.h>

#include <array>
#include <atomic>
#include <thread>
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
#include "common/wire/request_proof.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"

namespace starring {
namespace {

// Several, so that the link is busy while an answer is on its way.
constexpr int kCallsInFlight = 4;

}  // namespace

class StarCheckClient::Calls {
 public:
  explicit Calls(Options options)
      : options_(std::move(options)),
        stub_(v1::ParameterServer::NewStub(OpenChannel(options_.address, options_.security))),
        signer_(options_.security.request_key) {}

  // For notes. Facts, pings and payloads go without: the server does not touch its board for a request without a
  // worker's number, and so does not count this worker among those that meet there. After a request with one the server
  // also exempts the connection from the limit on what strangers may send.
  v1::CheckRequest WithNumber() const {
    v1::CheckRequest request;
    request.set_rank(options_.rank);
    request.set_worker_id(options_.worker_id);
    return request;
  }

  absl::Status ToStatus(const grpc::Status& status) const {
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
  absl::Status Prove(absl::Time end) {
    grpc::ClientContext context;
    context.set_deadline(WallTimeOf(end));
    const absl::Status status = Challenge(*stub_, &context, &signer_);
    // These two lack a subject.
    if (absl::IsUnauthenticated(status) || absl::IsInvalidArgument(status)) {
      return absl::Status(status.code(), absl::StrCat("it ", std::string(status.message())));
    }
    return ToStatus(ToGrpcStatus(status));
  }

  absl::StatusOr<v1::CheckReply> Call(v1::CheckRequest request, absl::Time end) {
    RETURN_IF_ERROR(Prove(end));
    signer_.Sign(kCheckMethod, &request);
    grpc::ClientContext context;
    context.set_deadline(WallTimeOf(end));
    v1::CheckReply reply;
    const grpc::Status status = stub_->Check(&context, request, &reply);
    // Another connection needs another challenge.
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) signer_ = RequestSigner(options_.security.request_key);
    RETURN_IF_ERROR(ToStatus(status));
    peer_ = PeerNameOfUri(context.peer());
    return reply;
  }
  // A message of the bandwidth test, to a server that has answered a Call. Any thread may call it.
  absl::Status Send(const v1::CheckRequest& request, absl::Time end) const {
    grpc::ClientContext context;
    context.set_deadline(WallTimeOf(end));
    v1::CheckReply reply;
    return ToStatus(stub_->Check(&context, request, &reply));
  }
  void Sign(v1::CheckRequest* request) const { signer_.Sign(kCheckMethod, request); }

  // The server's address in the connection of the last call, as common/network/address.h spells it.
  const std::string& peer() const { return peer_; }

 private:
  const Options options_;
  const std::unique_ptr<v1::ParameterServer::Stub> stub_;
  RequestSigner signer_;
  std::string peer_;
};

StarCheckClient::StarCheckClient(Options options) : calls_(std::make_unique<Calls>(std::move(options))) {}

StarCheckClient::~StarCheckClient() = default;

absl::StatusOr<v1::ProcessFacts> StarCheckClient::Ask(absl::Time end, v1::LinkReport& link) {
  v1::CheckRequest request;
  request.set_facts(true);
  // This call also makes the connection, so that no ping below contains a handshake.
  ASSIGN_OR_RETURN(const v1::CheckReply first, calls_->Call(request, end));
  v1::ProcessFacts facts;
  if (!facts.ParseFromString(first.facts())) return absl::DataLossError("its answer cannot be read");
  const auto ping = [&]() -> absl::StatusOr<int64_t> {
    ASSIGN_OR_RETURN(const v1::CheckReply reply, calls_->Call({}, end));
    return reply.clock_us();
  };
  RETURN_IF_ERROR(MeasureRoundTrip(kPings, ping, link));
  return facts;
}

absl::StatusOr<double> StarCheckClient::MeasureBandwidth(double seconds, absl::Time end) {
  // Only some servers have this worker's notes. To the others its connection is still a stranger's, which they cut at
  // kStrangerBytesMax: less than one payload.
  RETURN_IF_ERROR(calls_->Call(calls_->WithNumber(), end).status());
  AvoidBbrTo({calls_->peer()});  // as the connections of an exchange
  v1::CheckRequest request;
  request.set_payload(std::string(kCheckPayloadBytesMax, '\0'));
  calls_->Sign(&request);
  const absl::Time start = SteadyNow();
  std::atomic<int64_t> bytes = 0;
  const auto send = [&](absl::Status& result) {
    // At least one message is sent, even if `seconds` is over at once. None is sent after an error.
    while (result.ok()) {
      const int64_t before = bytes.fetch_add(kCheckPayloadBytesMax);
      if (before == 0 || (before < kCheckBandwidthBytesMax && SteadyNow() - start < absl::Seconds(seconds))) {
        result = calls_->Send(request, end);
      } else {
        bytes -= kCheckPayloadBytesMax;
        break;
      }
    }
  };
  std::array<absl::Status, kCallsInFlight> results;
  std::vector<std::thread> threads;
  for (absl::Status& result : results) threads.emplace_back([&send, &result] { send(result); });
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return static_cast<double>(bytes.load()) / absl::ToDoubleSeconds(SteadyNow() - start);
}

absl::Status StarCheckClient::Put(int stage, const std::string& text, absl::Time end) {
  v1::CheckRequest request = calls_->WithNumber();
  request.set_put_stage(stage);
  request.set_put_text(text);
  return calls_->Call(request, end).status();
}

absl::StatusOr<std::optional<std::string>> StarCheckClient::Get(int rank, int stage, absl::Time end) {
  v1::CheckRequest request = calls_->WithNumber();
  request.set_get_rank(rank);
  request.set_get_stage(stage);
  ASSIGN_OR_RETURN(const v1::CheckReply reply, calls_->Call(request, end));
  if (!reply.found()) return std::optional<std::string>();
  return std::optional<std::string>(reply.text());
}

absl::StatusOr<int> StarCheckClient::Leave(absl::Time end) {
  v1::CheckRequest request = calls_->WithNumber();
  request.set_leave(true);
  ASSIGN_OR_RETURN(const v1::CheckReply reply, calls_->Call(request, end));
  return reply.note_count();
}

std::string GrpcVersion() { return grpc::Version(); }

int StarWireVersion() { return kWireVersion; }

}  // namespace starring
