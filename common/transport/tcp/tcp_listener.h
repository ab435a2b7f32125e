// A socket that listens for the other ranks of a job.
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_TRANSPORT_TCP_TCP_LISTENER_H_
#define STARRING_COMMON_TRANSPORT_TCP_TCP_LISTENER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/network/dial.h"
#include "common/network/port_range.h"

namespace starring {

class TcpListener {
 public:
  // `address` is host:port; port 0 takes a free one, of `ports`. With a numeric host, or localhost, only that address
  // is listened on; with a name every address of this machine, because a host's own name often means 127.0.1.1 on that
  // host. InvalidArgument if the port, or every one of `ports`, is taken, or the address is not this machine's.
  static absl::StatusOr<TcpListener> Listen(const std::string& address, const PortRange& ports = {});

  // A socket that listens at `address` already, or is bound to it and then listens. InvalidArgument if it is neither;
  // it is closed then.
  static absl::StatusOr<TcpListener> Adopt(Socket socket, const std::string& address);

  int fd() const { return socket_.fd(); }
  // For a program that forks its ranks: a child that is to lead finds the socket open. The default is closed.
  void KeepInChildren() { socket_.KeepInChildren(); }
  // As given to Listen or Adopt, with the port that was bound.
  const std::string& address() const { return address_; }

  // A connection that does not block; none, with errno, if there is none.
  Socket Accept();

 private:
  TcpListener(Socket socket, std::string address);

  Socket socket_;
  std::string address_;
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_TCP_LISTENER_H_
