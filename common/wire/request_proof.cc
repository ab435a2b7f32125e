#include "common/wire/request_proof.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/security/hmac_sha256.h"
#include "common/wire/exchange_message.h"

namespace starring {
namespace {

// Each ends with a zero byte, which no name has, and what follows the method has a fixed length up to the request's
// text. So no other values make the same bytes.
constexpr char kServer[] = "starring server";
constexpr char kClient[] = "starring client";

std::string Terminated(absl::string_view name) { return absl::StrCat(name, absl::string_view("\0", 1)); }

}  // namespace

std::string ServerCode(const std::string& key, const v1::ChallengeRequest& request, const v1::ChallengeReply& reply) {
  CHECK_EQ(request.nonce().size(), kProofNonceBytes);
  return HmacSha256(
      key, absl::StrCat(Terminated(kServer), Terminated(absl::StrCat(reply.shard())), request.nonce(), reply.nonce()));
}

std::string RequestCode(const std::string& key, absl::string_view method, const v1::RequestProof& proof,
                        const std::string& text) {
  return HmacSha256(
      key, absl::StrCat(Terminated(kClient), Terminated(method), proof.client_nonce(), proof.server_nonce(), text));
}

v1::ChallengeRequest RequestSigner::Ask() {
  client_nonce_ = DrawBytes(kProofNonceBytes);
  server_nonce_.clear();
  v1::ChallengeRequest request;
  request.set_nonce(client_nonce_);
  return request;
}

absl::Status RequestSigner::Take(const v1::ChallengeReply& reply) {
  if (reply.code().empty()) {
    return absl::UnauthenticatedError(
        "was given no secret, and this process has one: start servers and workers with the same --job_secret");
  }
  v1::ChallengeRequest request;
  request.set_nonce(client_nonce_);
  // A nonce of another length could move bytes between the parts of a code.
  if (reply.nonce().size() != kProofNonceBytes || !SameToken(reply.code(), ServerCode(key_, request, reply))) {
    return absl::UnauthenticatedError(
        "does not prove that it has this job's secret: it is another job's or another program, or was started with "
        "another --job_secret than this process");
  }
  server_nonce_ = reply.nonce();
  shard_ = reply.shard();
  return absl::OkStatus();
}

void RequestSigner::Fill(v1::RequestProof* proof) const {
  CHECK(!needs_challenge());
  proof->set_wire_version(kWireVersion);
  proof->set_client_nonce(client_nonce_);
  proof->set_server_nonce(server_nonce_);
}

absl::Status NoChallengeError() {
  return absl::InvalidArgumentError(absl::StrCat("speaks version ", kProofWireVersion - 1,
                                                 " of the wire or an older one, this process version ", kWireVersion,
                                                 ": start servers and workers of one build"));
}

}  // namespace starring
