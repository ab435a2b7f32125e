#include "common/wire/run_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/wire/challenge.h"
#include "common/wire/grpc_transport.h"
#include "common/wire/request_proof.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"

namespace starring {

struct RunClient::Channel {
  std::unique_ptr<v1::ParameterServer::Stub> server;  // of the same process
  std::unique_ptr<v1::Coordinator::Stub> stub;
};

RunClient::RunClient(const std::string& coordinator, TransportSecurity security)
    : coordinator_(coordinator), security_(std::move(security)), channel_(std::make_unique<Channel>()) {
  const std::shared_ptr<grpc::Channel> channel = OpenChannel(coordinator_, security_);
  channel_->server = v1::ParameterServer::NewStub(channel);
  channel_->stub = v1::Coordinator::NewStub(channel);
}

RunClient::~RunClient() = default;

absl::StatusOr<RunStatus> RunClient::Ask(std::chrono::milliseconds deadline) {
  // gRPC takes deadlines of the system's clock.
  const auto end = std::chrono::system_clock::now() + deadline;
  v1::GetRunRequest request;
  // Made for each question: a proof is for one connection, and gRPC may have made a new one since.
  RequestSigner signer(security_.request_key);
  // gRPC takes a context for one call only.
  grpc::ClientContext first, second;
  for (grpc::ClientContext* const context : {&first, &second}) {
    context->set_deadline(end);
    context->set_wait_for_ready(true);  // a coordinator that is being started again comes soon
  }
  absl::Status why = Challenge(*channel_->server, &first, &signer);
  v1::GetRunReply reply;
  if (why.ok()) {
    signer.Sign(kGetRunMethod, &request);
    why = FromGrpcStatus(channel_->stub->GetRun(&second, request, &reply));
  }
  if (!why.ok()) {
    return absl::Status(why.code(), absl::StrCat("coordinator ", coordinator_, ": ", std::string(why.message())));
  }
  RunStatus run{.generation = reply.generation(),
                .first_step = reply.first_step(),
                .step = reply.step(),
                .end_step = reply.end_step(),
                .changing = reply.changing(),
                .cause = reply.cause(),
                .missing_shards = {reply.missing_shards().begin(), reply.missing_shards().end()},
                .snapshots = {reply.snapshots().begin(), reply.snapshots().end()}};
  for (const v1::GetRunReply::Member& member : reply.members()) {
    run.members.push_back({.name = member.name(), .what = member.what()});
  }
  return run;
}

}  // namespace starring
