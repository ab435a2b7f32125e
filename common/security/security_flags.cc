#include "common/security/security_flags.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"

ABSL_FLAG(std::string, job_secret, "",
          "star: the secret of the job, the same file for servers and workers, mode 0600; who cannot read it cannot "
          "join; deploy/launch --make_secret=FILE makes one");
ABSL_FLAG(bool, tls, false,
          "star: connections are encrypted, and both sides authenticated by the certificate in --job_secret; the same "
          "on servers and workers");
ABSL_FLAG(std::string, tls_ca, "",
          "with --tls: certificates (PEM) that a peer's must be signed by, instead of --job_secret's");
ABSL_FLAG(std::string, tls_certificate, "",
          "with --tls_ca: this process's certificate (PEM); a server's must have the name that its address has");
ABSL_FLAG(std::string, tls_key, "", "with --tls_ca: the private key of --tls_certificate (PEM, mode 0600)");

namespace starring {

SecurityFiles SecurityFlags() {
  return {.job_secret = absl::GetFlag(FLAGS_job_secret),
          .tls = absl::GetFlag(FLAGS_tls),
          .tls_ca = absl::GetFlag(FLAGS_tls_ca),
          .tls_certificate = absl::GetFlag(FLAGS_tls_certificate),
          .tls_key = absl::GetFlag(FLAGS_tls_key)};
}

std::vector<std::string> SecurityFlagWords(const SecurityFiles& files) {
  std::vector<std::string> words;
  if (!files.job_secret.empty()) words.push_back(absl::StrCat("--job_secret=", files.job_secret));
  if (files.tls) words.emplace_back("--tls");
  if (!files.tls_ca.empty()) words.push_back(absl::StrCat("--tls_ca=", files.tls_ca));
  if (!files.tls_certificate.empty()) words.push_back(absl::StrCat("--tls_certificate=", files.tls_certificate));
  if (!files.tls_key.empty()) words.push_back(absl::StrCat("--tls_key=", files.tls_key));
  return words;
}

}  // namespace starring
