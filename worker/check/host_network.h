// The network as this host sees it: its interfaces, which of them Open MPI may use, and TCP connections with a
// deadline.
//
// Thread safety: free functions; any thread may call them.
#ifndef STARRING_WORKER_CHECK_HOST_NETWORK_H_
#define STARRING_WORKER_CHECK_HOST_NETWORK_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace starring {

struct InterfaceAddress {
  std::string interface;
  std::string address;  // IPv4
  int prefix_bits = 0;
  bool loopback = false;
};

// The IPv4 addresses of the interfaces that are up; empty if the system does not tell them.
std::vector<InterfaceAddress> ListInterfaceAddresses();

// Selects as Open MPI does by btl_tcp_if_include and btl_tcp_if_exclude, which are names or subnets (10.0.0.0/8)
// separated by commas. If `include` is not empty, only the addresses that it names are selected. Otherwise all
// addresses are but those that `exclude` names, or but loopback if that is empty too.
std::vector<InterfaceAddress> SelectAddresses(std::span<const InterfaceAddress> all, absl::string_view include,
                                              absl::string_view exclude);

// The subnet of an address, "10.77.0.0/24"; empty if `address` is not an IPv4 address.
std::string SubnetOf(absl::string_view address, int prefix_bits);

// The name of the interface with this address; empty if there is none.
std::string InterfaceWith(std::span<const InterfaceAddress> all, absl::string_view address);

// "eth0 10.77.0.1/24, lo 127.0.0.1/8"
std::string AddressesText(std::span<const InterfaceAddress> addresses);

// Owns a socket, and closes it in the destructor. -1: none.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct DialResult {
  Socket socket;              // connected and non-blocking; none after an error
  std::string local_address;  // numeric, without a port
  int error_number = 0;       // errno; 0 if a name did not resolve
  std::string error;          // empty: connected
};

// Dials all of `addresses` (host:port) at the same time. A name with several addresses is reachable by any of them.
// Returns after `timeout` at the latest, with ETIMEDOUT for the addresses that have not answered by then. A name that
// is not resolved after half of `timeout` is not dialled.
std::vector<DialResult> DialAll(std::span<const std::string> addresses, absl::Duration timeout);

// "connection refused (ECONNREFUSED)"
std::string ErrnoText(int error_number);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_HOST_NETWORK_H_
