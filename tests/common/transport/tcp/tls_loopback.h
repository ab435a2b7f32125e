// Certificates for the tests of encrypted connections between ranks.
#ifndef STARRING_TESTS_COMMON_TRANSPORT_TCP_TLS_LOOPBACK_H_
#define STARRING_TESTS_COMMON_TRANSPORT_TCP_TLS_LOOPBACK_H_

#include <cstdint>
#include <memory>

#include "common/transport/tcp/openssl_tls.h"
#include "common/transport/tcp/tls_session.h"

namespace starring {

// A process's context with a fresh certificate: those of two calls do not trust each other.
std::shared_ptr<const TlsContext> FreshTlsContext(int64_t records_per_key = kTlsRecordsPerKey);

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_TRANSPORT_TCP_TLS_LOOPBACK_H_
