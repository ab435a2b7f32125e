#include "server/admission.h"

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/security/hmac_sha256.h"
#include "common/status.h"
#include "common/wire/exchange_message.h"

namespace starring {

absl::Status Admission::Check(const v1::JoinRequest& request, absl::string_view peer) {
  // The token is compared first: a stranger learns nothing else.
  RETURN_IF_ERROR(CheckToken(request.token(), peer));
  if (request.wire_version() != kWireVersion) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", request.rank(), " speaks version ", request.wire_version(),
                                                   " of the wire, this server version ", kWireVersion,
                                                   ": start servers and workers of one build"));
  }
  if (request.run_id().size() > kRunIdBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", request.rank(), " has a run_id of ",
                                                   request.run_id().size(), " bytes, at most ", kRunIdBytesMax,
                                                   " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status Admission::Check(const v1::GetStatusRequest& request, absl::string_view peer) {
  return CheckToken(request.token(), peer);
}

absl::Status Admission::Check(const v1::CheckRequest& request, absl::string_view peer) {
  return CheckToken(request.token(), peer);
}

absl::Status Admission::CheckToken(absl::string_view token, absl::string_view peer) {
  // The comparison takes the same time for any token of the right length, so that its duration does not tell how many
  // bytes are right.
  if (SameToken(token, token_)) return absl::OkStatus();
  // Refusals are counted for DescribeRefusals: a worker that is missing may be one that was started with another
  // secret.
  ++refused_count_;
  last_refused_ = std::string(peer);
  // Neither message says anything about the job or its token.
  if (token_.empty()) {
    return absl::UnauthenticatedError(
        "this server was given no secret, and the request brings one: start servers and workers with the same "
        "--job_secret");
  }
  return absl::UnauthenticatedError(
      "the request does not bring the secret of this server's job: start servers and workers with the same "
      "--job_secret");
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
