#include "common/security/security_flags.h"

#include "absl/strings/str_cat.h"

namespace starring {

std::vector<std::string> SecurityFlagWords(const SecurityFiles& files) {
  std::vector<std::string> words;
  // An empty path is left out: for the other process, the flag was not written.
  if (!files.job_secret.empty()) words.push_back(absl::StrCat("--job_secret=", files.job_secret));
  if (files.tls) words.emplace_back("--tls");
  if (!files.tls_ca.empty()) words.push_back(absl::StrCat("--tls_ca=", files.tls_ca));
  if (!files.tls_certificate.empty()) words.push_back(absl::StrCat("--tls_certificate=", files.tls_certificate));
  if (!files.tls_key.empty()) words.push_back(absl::StrCat("--tls_key=", files.tls_key));
  return words;
}

absl::Status RefuseSecurityFlags(const SecurityFiles& files, absl::string_view job) {
  const std::vector<std::string> words = SecurityFlagWords(files);
  if (words.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("flag ", words.front(), " protects connections by gRPC or TCP, and ", job, " has none: drop it"));
}

absl::Status RefuseSiteCertificates(const SecurityFiles& files) {
  SecurityFiles site = files;
  site.job_secret.clear();
  site.tls = false;
  const std::vector<std::string> words = SecurityFlagWords(site);
  if (words.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("flag ", words.front(),
                   " is for connections by gRPC; over TCP --tls takes the certificate in --job_secret: drop it, or "
                   "choose --sync=star --transport=grpc"));
}

}  // namespace starring
