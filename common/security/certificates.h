// X.509 by OpenSSL, as far as the connections of a job need it. Keys and certificates are PEM text.
//
// Thread safety: pure functions.
#ifndef STARRING_COMMON_SECURITY_CERTIFICATES_H_
#define STARRING_COMMON_SECURITY_CERTIFICATES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace starring {

struct KeyAndCertificate {
  std::string private_key;
  std::string certificate;
};

// A fresh key (ECDSA, P-256) and a certificate that it signs itself. The certificate is valid for ten years, for the
// host name `name`, and cannot sign others.
absl::StatusOr<KeyAndCertificate> MakeSelfSigned(const std::string& name);

// The first private key and the first certificate in `pem`. InvalidArgument if one is missing, or they do not belong
// together, or the certificate is not valid now.
absl::StatusOr<KeyAndCertificate> ParseKeyAndCertificate(const std::string& pem);

// InvalidArgument unless `private_key` belongs to the first certificate in `certificates`, which must be valid now.
absl::Status CheckKeyAndCertificate(const std::string& private_key, const std::string& certificates);

// InvalidArgument if there is no certificate in `pem`.
absl::Status CheckCertificate(const std::string& pem);

}  // namespace starring

#endif  // STARRING_COMMON_SECURITY_CERTIFICATES_H_
