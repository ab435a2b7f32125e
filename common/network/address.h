// Addresses: host:port as people write it, and the name of a connection's other end.
#ifndef STARRING_COMMON_NETWORK_ADDRESS_H_
#define STARRING_COMMON_NETWORK_ADDRESS_H_

#include <set>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starring {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};

// "host:port", with an IPv6 host in brackets. InvalidArgument, quoting `text`, if the host is empty or the port is no
// number from 0 to 65535.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// Whether `host`, as in host:port, can be reached from this machine alone. The only name for which this is true is
// localhost: no other name is looked up.
[[nodiscard]] bool IsLoopbackHost(std::string host);

// Whether `host`, without brackets, stands for every address of a machine: to listen on, and not to dial.
[[nodiscard]] bool IsAnyHost(absl::string_view host);

// The other end of a connection, in one spelling: "127.0.0.1:4711" or "[::1]:4711".

// `uri` is what gRPC's contexts say: "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711".
std::string PeerNameOfUri(absl::string_view uri);

// Empty if `fd` is no connected socket of IPv4 or IPv6. An IPv4 peer of an IPv6 socket is one of IPv4.
std::string PeerNameOfSocket(int fd);

// Calls visit(descriptor) for every connection of this process to one of `peers`, whichever object holds it. The
// descriptor is a duplicate, valid during the call: every change to it but closing is a change to the connection. Looks
// at every descriptor of the process, some microseconds each.
void ForEachConnectionTo(const std::set<std::string>& peers, absl::FunctionRef<void(int)> visit);

// The connections of this process: both ends of each.
std::set<std::string> OwnConnections();

// Shuts down the connections to `peers`, so that reads and writes that wait for them end at once; all but those of
// `others`, which OwnConnections has returned. The kernel may still send what it has accepted.
void CutConnectionsTo(const std::set<std::string>& peers, const std::set<std::string>& others = {});

}  // namespace starring

#endif  // STARRING_COMMON_NETWORK_ADDRESS_H_
