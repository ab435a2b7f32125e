// Checks whether a worker reaches the servers of an elastic run, before it joins. Otherwise the other workers would
// wait for a worker that a firewall keeps from a server.
//
// Thread safety: a pure function.
#ifndef STARRING_WORKER_EXCHANGE_STAR_SHARD_REACH_H_
#define STARRING_WORKER_EXCHANGE_STAR_SHARD_REACH_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/security/transport_security.h"

namespace starring {

// For all servers together.
inline constexpr absl::Duration kReachDeadline = absl::Seconds(5);

// Opens a connection to each server, as a lane does, and closes it when the server has answered the handshake: TCP's,
// that of TLS if there is one, and HTTP/2's. Unavailable, naming the first server that has not answered by the
// deadline.
absl::Status Reach(const std::vector<std::string>& shards, const TransportSecurity& security,
                   absl::Duration deadline = kReachDeadline);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_SHARD_REACH_H_
