// The network as this host sees it: its interfaces, and which of them Open MPI may use.
//
// Thread safety: free functions; any thread may call them.
#ifndef STARRING_WORKER_CHECK_HOST_NETWORK_H_
#define STARRING_WORKER_CHECK_HOST_NETWORK_H_

#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace starring {

struct InterfaceAddress {
  std::string interface;
  std::string address;  // IPv4 or IPv6
  int prefix_bits = 0;
  bool loopback = false;
};

// The addresses of the interfaces that are up, those of IPv4 first; empty if the system does not tell them. Without
// link-local ones of IPv6 (fe80::), which Open MPI does not use.
std::vector<InterfaceAddress> ListInterfaceAddresses();

// Selects as Open MPI does by btl_tcp_if_include and btl_tcp_if_exclude, which are names or subnets (10.0.0.0/8)
// separated by commas. If `include` is not empty, only the addresses that it names are selected. Otherwise all
// addresses are but those that `exclude` names, or but loopback if that is empty too.
std::vector<InterfaceAddress> SelectAddresses(std::span<const InterfaceAddress> all, absl::string_view include,
                                              absl::string_view exclude);

// The subnet of an address, "10.77.0.0/24" or "fd77::/64"; empty if `address` is no address.
std::string SubnetOf(absl::string_view address, int prefix_bits);

// The name of the interface with this address; empty if there is none.
std::string InterfaceWith(std::span<const InterfaceAddress> all, absl::string_view address);

// "eth0 10.77.0.1/24, lo 127.0.0.1/8"
std::string AddressesText(std::span<const InterfaceAddress> addresses);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_HOST_NETWORK_H_
