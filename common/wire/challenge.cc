#include "common/wire/challenge.h"

#include "common/wire/grpc_transport.h"

namespace starring {

absl::Status Challenge(v1::ParameterServer::Stub& server, grpc::ClientContext* context, RequestSigner* signer) {
  if (!signer->needs_challenge()) return absl::OkStatus();
  v1::ChallengeReply reply;
  const grpc::Status status = server.Challenge(context, signer->Ask(), &reply);
  return ChallengeOutcome(status, reply, signer);
}

absl::Status ChallengeOutcome(const grpc::Status& status, const v1::ChallengeReply& reply, RequestSigner* signer) {
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) return NoChallengeError();
  if (!status.ok()) return FromGrpcStatus(status);
  return signer->Take(reply);
}

}  // namespace starring
