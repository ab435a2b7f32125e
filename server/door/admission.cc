#include "server/door/admission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/security/hmac_sha256.h"
#include "common/wire/exchange_message.h"

namespace starring {

Admission::Admission(std::string key, int shard)
    : key_(std::move(key)), shard_(shard), nonce_key_(DrawBytes(kProofNonceBytes)) {}

absl::StatusOr<v1::ChallengeReply> Admission::Answer(const v1::ChallengeRequest& request,
                                                     absl::string_view peer) const {
  if (request.nonce().size() != kProofNonceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a nonce of ", request.nonce().size(), " bytes, it must have ", kProofNonceBytes));
  }
  v1::ChallengeReply reply;
  reply.set_shard(shard_);
  if (key_.empty()) return reply;
  reply.set_nonce(NonceFor(request.nonce(), peer));
  reply.set_code(ServerCode(key_, request, reply));
  return reply;
}

// Bound to the connection: what is heard on the network is worth nothing on another one. The client's nonce has a fixed
// length, so no two pairs make one text.
std::string Admission::NonceFor(absl::string_view client_nonce, absl::string_view peer) const {
  return HmacSha256(nonce_key_, absl::StrCat(client_nonce, peer));
}

absl::Status Admission::CheckSender(const Sender& sender) const {
  const bool is_old = sender.version == 0 && !sender.says_version;
  // A person may ask a server without a secret by any client.
  if (is_old && !key_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(sender.who, " speaks version ", kProofWireVersion - 1,
                                                   " of the wire or an older one, this server version ", kWireVersion,
                                                   ": start servers and workers of one build"));
  }
  if (!is_old && sender.version != kWireVersion) {
    return absl::InvalidArgumentError(absl::StrCat(sender.who, " speaks version ", sender.version,
                                                   " of the wire, this server version ", kWireVersion,
                                                   ": start servers and workers of one build"));
  }
  // A stranger must not make this server compute the code of a long text.
  if (sender.bytes <= kProvedBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a request of ", sender.bytes, " bytes, at most ", kProvedBytesMax, " are allowed"));
}

absl::Status Admission::CheckProof(absl::string_view method, const v1::RequestProof& proof, const std::string& text,
                                   absl::string_view peer) {
  if (key_.empty() || proof.code().empty() || proof.client_nonce().size() != kProofNonceBytes) return Refuse(peer);
  // The client has proved nothing yet, and learns nothing. It may have a new connection, or this may be a new process.
  if (!SameToken(proof.server_nonce(), NonceFor(proof.client_nonce(), peer))) {
    return absl::UnavailableError("the request's proof is for another connection: it is asked for again");
  }
  // The comparison takes the same time for any code of the right length, so that its duration does not tell how many
  // bytes are right.
  if (!SameToken(proof.code(), RequestCode(key_, method, proof, text))) return Refuse(peer);
  return absl::OkStatus();
}

absl::Status Admission::Refuse(absl::string_view peer) {
  // Refusals are counted for DescribeRefusals: a worker that is missing may be one that was started with another
  // secret.
  ++refused_count_;
  last_refused_ = std::string(peer);
  // Neither message says anything about the job.
  if (key_.empty()) {
    return absl::UnauthenticatedError(
        "this server was given no secret, and the request proves one: start servers and workers with the same "
        "--job_secret");
  }
  return absl::UnauthenticatedError(
      "the request does not prove that its sender has the secret of this server's job: start servers and workers with "
      "the same --job_secret");
}

std::string Admission::DescribeRefusals() const {
  if (refused_count_ == 0) return "";
  return absl::StrCat(" (", refused_count_, refused_count_ == 1 ? " request" : " requests",
                      " without the job's secret ", refused_count_ == 1 ? "was" : "were", " refused, the last from ",
                      last_refused_, ")");
}

void RefusalLog::Add(const std::string& line, Clock::time_point now) {
  // A new period begins with the number of lines that the last one left out.
  if (now - since_ >= std::chrono::milliseconds(kLogPeriodMs)) {
    if (count_ > kLogRefusalsMax) log_(absl::StrCat(count_ - kLogRefusalsMax, " more refusals are not shown"));
    since_ = now;
    count_ = 0;
  }
  if (++count_ <= kLogRefusalsMax) log_(line);
}

}  // namespace starring
