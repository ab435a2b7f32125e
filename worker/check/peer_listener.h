// Shows that a rank can be reached at an address, before MPI is tried: the rank listens, another one dials it and
// measures the round trip.
//
// The dialler sends the listener's nonce, which the job's launcher carries to the other ranks. The listener answers
// with the nonce and its clock, in its own byte order, and closes a connection that sends anything else. So another
// program, or another host with the same address, does not pass for the rank.
#ifndef STARRING_WORKER_CHECK_PEER_LISTENER_H_
#define STARRING_WORKER_CHECK_PEER_LISTENER_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/network/dial.h"
#include "common/network/port_range.h"
#include "common/transport/tcp/tcp_listener.h"
#include "proto/starring/v1/check.pb.h"

namespace starring {

// Measures the round trip of `link`. `socket` is connected to a listener with that nonce, and non-blocking. Fails with
// DeadlineExceeded if the peer has not answered at `end`, and with Unavailable if it closes the connection: then
// another program listens there.
absl::Status PingListener(const Socket& socket, uint64_t nonce, absl::Time end, v1::LinkReport& link);

// The end that is dialled. Its thread accepts connections on every interface, at a free port, and answers
// pings.
//
// Thread safety: any thread may call any method.
class PeerListener {
 public:
  // InvalidArgument if the system has no socket left, or no port of `ports`.
  static absl::StatusOr<std::unique_ptr<PeerListener>> Start(const PortRange& ports = {});
  // Closes all connections.
  ~PeerListener();

  int port() const { return port_; }
  uint64_t nonce() const { return nonce_; }

 private:
  PeerListener(TcpListener listener, int port);

  void Run();
  void Accept();
  // False if the connection must be closed.
  [[nodiscard]] bool OnReadable(const Socket& socket) const;

  TcpListener listener_;
  const int port_;
  const uint64_t nonce_;
  std::vector<Socket> connections_;  // only the thread uses them
  std::thread thread_;
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_PEER_LISTENER_H_
