// The flags --job_secret, --tls, --tls_ca, --tls_certificate and --tls_key, which worker, server and launcher share.
#ifndef STARRING_COMMON_SECURITY_SECURITY_FLAGS_H_
#define STARRING_COMMON_SECURITY_SECURITY_FLAGS_H_

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/flags/flag_table.h"
#include "common/security/transport_security.h"

namespace starring {

// For the table of flags of each program. kPath leads from the program's options to its SecurityFiles.
template <auto... kPath>
inline constexpr std::array<FlagRow, 5> kSecurityRows = {{
    {"job_secret", "security",
     "grpc, tcp: the file with the job's secret, the same for servers and workers, mode 0600; a process without it "
     "cannot join; deploy/launch --make_secret=FILE writes one",
     TextAt<kPath..., &SecurityFiles::job_secret>("file"), kNotRecorded},
    {"tls", "security",
     "grpc, tcp: encrypted connections, on which the certificate in --job_secret authenticates both sides; all servers "
     "and workers have this flag or none",
     SwitchAt<kPath..., &SecurityFiles::tls>(), kNotRecorded},
    {"tls_ca", "security",
     "grpc's --tls: certificates (PEM), one of which must have signed the peer's, instead of --job_secret's",
     TextAt<kPath..., &SecurityFiles::tls_ca>("file"), kNotRecorded},
    {"tls_certificate", "security",
     "with --tls_ca: this process's certificate (PEM); a server's must have the host name that workers dial",
     TextAt<kPath..., &SecurityFiles::tls_certificate>("file"), kNotRecorded},
    {"tls_key", "security", "with --tls_ca: the private key of --tls_certificate (PEM, mode 0600)",
     TextAt<kPath..., &SecurityFiles::tls_key>("file"), kNotRecorded},
}};

// The words of a command line that give another process the same values.
std::vector<std::string> SecurityFlagWords(const SecurityFiles& files);

// InvalidArgument, naming the first of these flags that is given: `job`, such as "--sync=ring", has no connections that
// they could protect.
absl::Status RefuseSecurityFlags(const SecurityFiles& files, absl::string_view job);

// InvalidArgument, naming the first flag for a site's certificates that is given: ranks over TCP dial each other at
// numeric addresses, which such certificates rarely name. They take the secret's certificate.
absl::Status RefuseSiteCertificates(const SecurityFiles& files);

}  // namespace starring

#endif  // STARRING_COMMON_SECURITY_SECURITY_FLAGS_H_
