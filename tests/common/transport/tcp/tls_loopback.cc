#include "tests/common/transport/tcp/tls_loopback.h"

#include <utility>

#include "common/base/check.h"
#include "common/security/job_secret.h"

namespace starring {

std::shared_ptr<const TlsContext> FreshTlsContext(int64_t records_per_key) {
  const absl::StatusOr<KeyAndCertificate> pair = MakeSelfSigned(kJobSecretName);
  CHECK_OK(pair);
  auto context =
      MakeTlsContext({.private_key = pair->private_key, .certificate = pair->certificate, .trusted = pair->certificate},
                     records_per_key);
  CHECK_OK(context);
  return *std::move(context);
}

}  // namespace starring
