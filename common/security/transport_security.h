// The protection of a job's connections: keys by which its processes prove that they have its secret, and TLS. Does not
// depend on gRPC.
//
// Thread safety: plain values.
#ifndef STARRING_COMMON_SECURITY_TRANSPORT_SECURITY_H_
#define STARRING_COMMON_SECURITY_TRANSPORT_SECURITY_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace starring {

struct TransportSecurity {
  // Mutual: servers and workers both present a certificate, and both check the other's. PEM text.
  struct Tls {
    std::string private_key;
    std::string certificate;  // followed by those between it and the trusted one
    std::string trusted;      // a peer's certificate is this one, or is signed by it
    std::string server_name;  // the name that a server's certificate must have; empty: the name in its address
  };
  // JobSecret::KeyFor of a star's requests and of ranks over TCP. Empty: there is no secret.
  std::string request_key;
  std::string rank_key;
  std::optional<Tls> tls;
};

// As the run record says it: none, token (proofs of the job's secret), tls (by its certificate) or tls_ca (by a site's
// own certificates).
const char* SecurityName(const TransportSecurity& security);

// Values of the flags of the same names; see security_flags.h.
struct SecurityFiles {
  std::string job_secret;
  bool tls = false;
  std::string tls_ca;
  std::string tls_certificate;
  std::string tls_key;
};
// InvalidArgument for flags that contradict; NotFound or InvalidArgument for a file that is missing or unfit.
absl::StatusOr<TransportSecurity> LoadTransportSecurity(const SecurityFiles& files);

}  // namespace starring

#endif  // STARRING_COMMON_SECURITY_TRANSPORT_SECURITY_H_
