#include "common/transport/tcp/tcp_listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/network/address.h"
#include "common/network/congestion_control.h"

namespace starring {
namespace {

// All ranks may dial at the same moment, twice each. The kernel lowers the number to net.core.somaxconn.
constexpr int kBacklog = 4096;

// The first address of `host`, with port 0, an IPv4 one before others. False if there is none.
bool Look(const std::string& host, int flags, sockaddr_storage& place) {
  const addrinfo hints = {.ai_flags = flags, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  const addrinfo* chosen = found;
  while (chosen->ai_next != nullptr && chosen->ai_family != AF_INET) chosen = chosen->ai_next;
  if (chosen->ai_family != AF_INET) chosen = found;
  std::memcpy(&place, chosen->ai_addr, chosen->ai_addrlen);
  freeaddrinfo(found);
  return true;
}

// The address to listen on, with port 0. A name means every address, but for localhost.
sockaddr_storage PlaceOf(const std::string& host) {
  sockaddr_storage place = {};
  if (host == "localhost") {
    // The other ranks look the name up too, and a machine may say that it is ::1 only.
    if (!Look(host, 0, place)) (void)Look("127.0.0.1", AI_NUMERICHOST, place);
  } else if (!Look(host, AI_NUMERICHOST, place)) {
    place.ss_family = AF_INET6;  // all zeros: every address
  }
  return place;
}

// -1, with errno, if this cannot be listened on. Sets the port of `place` to the one that was bound.
int Open(sockaddr_storage& place, int port) {
  const bool is_six = place.ss_family == AF_INET6;
  const socklen_t length = is_six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  auto* const six = reinterpret_cast<sockaddr_in6*>(&place);
  auto* const four = reinterpret_cast<sockaddr_in*>(&place);
  (is_six ? six->sin6_port : four->sin_port) = htons(static_cast<uint16_t>(port));
  Socket listening(socket(place.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (listening.fd() < 0) return -1;
  const int yes = 1, no = 0;
  // A job that is started again must not wait until the kernel has forgotten the last one's connections.
  setsockopt(listening.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  // The IPv6 address of zeros takes IPv4 connections, too, whatever the machine's default is.
  if (is_six) setsockopt(listening.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  socklen_t bound = length;
  if (bind(listening.fd(), reinterpret_cast<const sockaddr*>(&place), length) != 0 ||
      listen(listening.fd(), kBacklog) != 0 ||
      getsockname(listening.fd(), reinterpret_cast<sockaddr*>(&place), &bound) != 0) {
    return -1;
  }
  return listening.Release();
}

int PortOf(const sockaddr_storage& place) {
  return ntohs(place.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(place).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(place).sin_port);
}

// Whether the socket listens at `port` from now on.
bool ListensAt(int fd, int port) {
  int listens = 0;
  socklen_t length = sizeof(listens);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0) return false;
  if (listens != 0) return true;
  sockaddr_storage place = {};
  length = sizeof(place);
  // A socket that is bound to nothing would listen at any port.
  return getsockname(fd, reinterpret_cast<sockaddr*>(&place), &length) == 0 && PortOf(place) == port &&
         listen(fd, kBacklog) == 0;
}

}  // namespace

TcpListener::TcpListener(Socket socket, std::string address)
    : socket_(std::move(socket)), address_(std::move(address)) {
  AvoidBbr(socket_.fd());  // what it accepts inherits that
  socket_.CloseInChildren();
}

absl::StatusOr<TcpListener> TcpListener::Listen(const std::string& address, const PortRange& ports) {
  ASSIGN_OR_RETURN(const HostPort wanted, ParseHostPort(address));
  const std::string host = address.substr(0, address.rfind(':'));
  sockaddr_storage place = PlaceOf(wanted.host);
  int fd = -1;
  const auto listen_at = [&](int port) {
    fd = Open(place, port);
    if (fd < 0 && errno == EAFNOSUPPORT) {  // a machine without IPv6
      place = PlaceOf("0.0.0.0");
      fd = Open(place, port);
    }
    if (fd >= 0) return absl::OkStatus();
    // Saved now, because later calls may change errno.
    const int error = errno;
    const std::string text = absl::StrCat("cannot listen on ", host, ":", port, ": ", ErrnoText(error),
                                          ": is the port taken, or is the host not this machine's?");
    return error == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::InvalidArgumentError(text);
  };
  const absl::Status status = wanted.port == 0 ? ListenInRange(ports, listen_at) : listen_at(wanted.port);
  // AlreadyExists only tells ListenInRange to go on. For the caller a taken port is a wrong flag.
  if (!status.ok()) return absl::InvalidArgumentError(status.message());
  return TcpListener(Socket(fd), absl::StrCat(host, ":", PortOf(place)));
}

absl::StatusOr<TcpListener> TcpListener::Adopt(Socket socket, const std::string& address) {
  ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(address));
  // The process that has made the socket may have set neither flag.
  const int flags = fcntl(socket.fd(), F_GETFL);
  if (flags < 0 || fcntl(socket.fd(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(socket.fd(), F_SETFD, FD_CLOEXEC) != 0 || !ListensAt(socket.fd(), place.port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", socket.fd(), " is no socket that listens at ", address, " or is bound to it"));
  }
  return TcpListener(std::move(socket), address);
}

Socket TcpListener::Accept() {
  Socket accepted(accept4(fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  // The caller asks for errno if there is none. A connection may have come before this listener was made.
  if (accepted.fd() >= 0) {
    AvoidBbr(accepted.fd());
    accepted.CloseInChildren();
  }
  return accepted;
}

}  // namespace starring
