// The network interfaces of this machine, and which of them Open MPI may use.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_CHECK_INTERFACES_H_
#define STARRING_WORKER_CHECK_INTERFACES_H_

#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace starring {

struct InterfaceAddress {
  std::string interface;
  std::string address;  // IPv4
  int prefix_bits = 0;
  bool loopback = false;
};

// IPv4 addresses of the interfaces that are up; empty if the system does not say.
std::vector<InterfaceAddress> ListInterfaceAddresses();

// As Open MPI reads btl_tcp_if_include and btl_tcp_if_exclude: names or subnets (10.0.0.0/8), separated by commas. A
// non-empty `include` counts alone; else everything counts but `exclude`, or but loopback where that is empty too.
std::vector<InterfaceAddress> SelectAddresses(std::span<const InterfaceAddress> all, absl::string_view include,
                                              absl::string_view exclude);

// The subnet of an address, "10.77.0.0/24"; empty if it is none.
std::string SubnetOf(absl::string_view address, int prefix_bits);

// Name of the interface with this address; empty if there is none.
std::string InterfaceWith(std::span<const InterfaceAddress> all, absl::string_view address);

// "eth0 10.77.0.1/24, lo 127.0.0.1/8"
std::string AddressesText(std::span<const InterfaceAddress> addresses);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_INTERFACES_H_
