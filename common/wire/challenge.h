// Lets a server prove over gRPC that it has the job's secret, before a request is signed for it (request_proof.h).
// Calls that wait in a queue do the same by themselves (member_link.cc).
//
// Thread safety: a free function; one thread at a time for each signer.
#ifndef STARRING_COMMON_WIRE_CHALLENGE_H_
#define STARRING_COMMON_WIRE_CHALLENGE_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "common/wire/request_proof.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"

namespace starring {

// Blocks until `server` has proved itself, if `signer` needs that, by a call with `context`. An error comes from a
// process that has proved nothing: Unavailable, DeadlineExceeded and Cancelled of gRPC, or as of ChallengeOutcome.
absl::Status Challenge(v1::ParameterServer::Stub& server, grpc::ClientContext* context, RequestSigner* signer);

// Interprets the end of such a call. InvalidArgument if the server is of an older build, Unauthenticated if it has no
// proof. These two complete a sentence that begins with the server's name.
absl::Status ChallengeOutcome(const grpc::Status& status, const v1::ChallengeReply& reply, RequestSigner* signer);

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_CHALLENGE_H_
