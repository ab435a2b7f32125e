#include "common/wire/run_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/wire/grpc_transport.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"

namespace starring {

struct RunClient::Channel {
  std::unique_ptr<v1::Coordinator::Stub> stub;
};

RunClient::RunClient(const std::string& coordinator, TransportSecurity security)
    : coordinator_(coordinator), security_(std::move(security)), channel_(std::make_unique<Channel>()) {
  grpc::ChannelArguments arguments;
  for (const auto& [name, value] : TransportArguments()) arguments.SetInt(name, value);
  const auto credentials = MakeChannelCredentials(security_, &arguments);
  channel_->stub = v1::Coordinator::NewStub(grpc::CreateCustomChannel(coordinator_, credentials, arguments));
}

RunClient::~RunClient() = default;

absl::StatusOr<RunStatus> RunClient::Ask(std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  context.set_wait_for_ready(true);  // a coordinator that is being started again comes soon
  v1::GetRunRequest request;
  request.set_token(security_.token);
  v1::GetRunReply reply;
  if (const grpc::Status status = channel_->stub->GetRun(&context, request, &reply); !status.ok()) {
    const absl::Status why = FromGrpcStatus(status);
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
