// TLS 1.3 between ranks over TCP, by OpenSSL. Linked by programs with the flag --tls only.
//
// Mutual: both ends present the job's certificate, and trust no other. Connections are encrypted by AES-128-GCM. The
// keys change after 2^23 records, or 128 GiB: AES-GCM must not encrypt more than 2^24.5 (RFC 8446, 5.5). A session is
// never resumed.
//
// Cost. A handshake has one round trip; each end signs and verifies once, some 0.3 ms. A record of 16 KiB is encrypted
// by OpenSSL and copied to memory of the session; four of them leave by one system call. Received records, each by a
// call, are decrypted where OpenSSL has them and copied once.
#ifndef STARRING_COMMON_TRANSPORT_TCP_OPENSSL_TLS_H_
#define STARRING_COMMON_TRANSPORT_TCP_OPENSSL_TLS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/security/transport_security.h"
#include "common/transport/tcp/tls_session.h"

namespace starring {

inline constexpr int64_t kTlsRecordsPerKey = int64_t{1} << 23;

// InvalidArgument if OpenSSL does not take key and certificate. A certificate counts whatever name it has.
// Shared: every connection that is being opened keeps it.
absl::StatusOr<std::shared_ptr<const TlsContext>> MakeTlsContext(const TransportSecurity::Tls& tls,
                                                                 int64_t records_per_key = kTlsRecordsPerKey);
// The same for connections by `security`; null if they are not encrypted.
absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContextOf(const TransportSecurity& security);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_OPENSSL_TLS_H_
