// The congestion control of a job's connections.
//
// BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016) sends no faster than a
// connection has delivered before. In an exchange, connections send, wait for their peers and send again, so that this
// rate is too low: 4 MiB between 2 workers and a server on one host take 1.8 times as long over TCP, and 1.5 times over
// gRPC, as with CUBIC. Some systems have BBR as their default, for the internet.
#ifndef STARRING_COMMON_NETWORK_CONGESTION_CONTROL_H_
#define STARRING_COMMON_NETWORK_CONGESTION_CONTROL_H_

#include <set>
#include <string>

namespace starring {

// If the system gives the TCP socket `fd` BBR, gives it CUBIC, or Reno where this process may not have CUBIC. Every
// other choice stays, such as that of DCTCP for a cluster. Does nothing for other files. Best before the socket listens
// or is connected: Linux goes on pacing a connection that has begun with BBR, though less.
void AvoidBbr(int fd);

// For the sockets of a library, once they are connected: does the same to every connection of this process to one of
// `peers` (see ForEachConnectionTo).
void AvoidBbrTo(const std::set<std::string>& peers);

}  // namespace starring

#endif  // STARRING_COMMON_NETWORK_CONGESTION_CONTROL_H_
