// What protects the connections of a star: a token that a worker must bring, and TLS. Knows nothing of gRPC.
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
    std::string certificate;  // and those between it and the trusted one
    std::string trusted;      // a peer's certificate is this, or signed by it
    std::string server_name;  // that a server's certificate must have; empty: the one that its address has
  };
  std::string token;  // JobSecret::token; empty: there is no secret
  std::optional<Tls> tls;
};

// As a run record says it: none, token, tls (by the job's secret) or tls_ca (by a site's own).
const char* SecurityName(const TransportSecurity& security);

// Values of the flags of the same names; see security_flags.cc.
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
