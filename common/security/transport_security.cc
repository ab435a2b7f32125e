#include "common/security/transport_security.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/security/job_secret.h"

namespace starring {
namespace {

absl::StatusOr<std::string> ReadCertificates(absl::string_view flag, const std::string& path) {
  // A certificate is public. Unlike a key, it may have any mode.
  ASSIGN_OR_RETURN(std::string content, ReadPemFile(path, FileReaders::kAny), "flag --", flag);
  RETURN_IF_ERROR(CheckCertificate(content), "flag --", flag, ": ", path);
  return content;
}

bool NamesSite(const SecurityFiles& files) {
  return !files.tls_ca.empty() || !files.tls_certificate.empty() || !files.tls_key.empty();
}

absl::Status CheckFlags(const SecurityFiles& files) {
  if (files.tls && files.job_secret.empty() && !NamesSite(files)) {
    return RefuseFlag(
        "tls", "true",
        "it needs --job_secret=FILE (deploy/launch --make_secret=FILE makes one), or a site's own --tls_ca, "
        "--tls_certificate and --tls_key");
  }
  const struct {
    absl::string_view flag;
    const std::string& path;
  } site[] = {{"tls_ca", files.tls_ca}, {"tls_certificate", files.tls_certificate}, {"tls_key", files.tls_key}};
  // The flags are checked one by one, so that the message names the flag that is missing.
  for (const auto& [flag, path] : site) {
    if (!path.empty() && !files.tls) return RefuseFlag(flag, path, "without --tls nothing is encrypted: give both");
    if (path.empty() && NamesSite(files)) {
      return RefuseFlag(flag, path,
                        "--tls_ca, --tls_certificate and --tls_key belong together: give all three or none");
    }
  }
  return absl::OkStatus();
}

// Reads and checks the three files here, at start: gRPC would report a wrong one only as a handshake that fails.
absl::StatusOr<TransportSecurity::Tls> LoadSite(const SecurityFiles& files) {
  TransportSecurity::Tls tls;
  ASSIGN_OR_RETURN(tls.trusted, ReadCertificates("tls_ca", files.tls_ca));
  ASSIGN_OR_RETURN(tls.certificate, ReadCertificates("tls_certificate", files.tls_certificate));
  ASSIGN_OR_RETURN(tls.private_key, ReadPemFile(files.tls_key, FileReaders::kOwnerOnly), "flag --tls_key");
  RETURN_IF_ERROR(CheckKeyAndCertificate(tls.private_key, tls.certificate), "--tls_key=", files.tls_key,
                  " --tls_certificate=", files.tls_certificate);
  return tls;
}

}  // namespace

const char* SecurityName(const TransportSecurity& security) {
  // A site's certificates have the names of its hosts; the secret's certificate has one name for all.
  if (security.tls.has_value()) return security.tls->server_name == kJobSecretName ? "tls" : "tls_ca";
  return security.request_key.empty() ? "none" : "token";
}

absl::StatusOr<TransportSecurity> LoadTransportSecurity(const SecurityFiles& files) {
  RETURN_IF_ERROR(CheckFlags(files));
  TransportSecurity security;
  if (!files.job_secret.empty()) {
    ASSIGN_OR_RETURN(const JobSecret secret, JobSecret::Load(files.job_secret), "flag --job_secret");
    security.request_key = secret.KeyFor(JobSecret::KeyUse::kRequests);
    security.rank_key = secret.KeyFor(JobSecret::KeyUse::kRanks);
    if (files.tls) {
      // Both sides present the same certificate and trust no other.
      security.tls = {.private_key = secret.private_key(),
                      .certificate = secret.certificate(),
                      .trusted = secret.certificate(),
                      .server_name = kJobSecretName};
    }
  }
  // A site's certificates replace the secret's. The keys stay: the authority may have signed certificates for others
  // than this job's members.
  if (NamesSite(files)) {
    ASSIGN_OR_RETURN(security.tls, LoadSite(files));
  }
  return security;
}

}  // namespace starring
