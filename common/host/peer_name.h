// Who is at the other end of a connection, in one spelling: "127.0.0.1:4711" or "[::1]:4711".
#ifndef STARRING_COMMON_HOST_PEER_NAME_H_
#define STARRING_COMMON_HOST_PEER_NAME_H_

#include <string>

#include "absl/strings/string_view.h"

namespace starring {

// `uri` is what gRPC's contexts say: "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711".
std::string PeerNameOfUri(absl::string_view uri);

// Empty if `fd` is no connected socket of IPv4 or IPv6. An IPv4 peer of an IPv6 socket is one of IPv4.
std::string PeerNameOfSocket(int fd);

// Shuts down every connection of this process to `peer`, whoever holds it. What still has data to be sent there, and
// would keep them until the kernel gives up, lets go of them.
void CutConnectionsTo(const std::string& peer);

}  // namespace starring

#endif  // STARRING_COMMON_HOST_PEER_NAME_H_
