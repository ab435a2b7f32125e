#include "worker/check/host_network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace starring {
namespace {

// An address as it is on the wire. The prefix of a subnet is the first bits.
struct WireAddress {
  int family = AF_UNSPEC;
  std::array<uint8_t, sizeof(in6_addr)> bytes = {};  // of IPv4: the first four

  int bits() const { return family == AF_INET ? 32 : 128; }
  friend bool operator==(const WireAddress&, const WireAddress&) = default;
};

std::optional<WireAddress> Parse(absl::string_view address) {
  for (const int family : {AF_INET, AF_INET6}) {
    WireAddress parsed = {.family = family};
    if (inet_pton(family, std::string(address).c_str(), parsed.bytes.data()) == 1) return parsed;
  }
  return std::nullopt;
}

// The address without what follows the prefix.
WireAddress Masked(WireAddress address, int prefix_bits) {
  for (int bit = prefix_bits; bit < address.bits(); ++bit) {
    address.bytes[static_cast<size_t>(bit / 8)] &= static_cast<uint8_t>(~(0x80 >> bit % 8));
  }
  return address;
}

// Whether `word`, the name of an interface or a subnet, includes the address.
bool Names(absl::string_view word, const InterfaceAddress& address) {
  // Without a slash the second part is empty, which is no number, so the word is taken for a name.
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('/', 1));
  int bits = 0;
  const std::optional<WireAddress> net = Parse(parts.first);
  if (!net.has_value() || !absl::SimpleAtoi(parts.second, &bits) || bits < 0 || bits > net->bits()) {
    return word == address.interface;
  }
  const std::optional<WireAddress> parsed = Parse(address.address);
  return parsed.has_value() && Masked(*parsed, bits) == Masked(*net, bits);
}

bool AnyNames(absl::string_view words, const InterfaceAddress& address) {
  const std::vector<absl::string_view> list = absl::StrSplit(words, ',', absl::SkipWhitespace());
  return std::any_of(list.begin(), list.end(), [&](absl::string_view word) { return Names(word, address); });
}

std::string TextOf(int family, const void* address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, address, text, sizeof(text));
  return text;
}

// Sets the address and its prefix. False if Open MPI does not use such an address.
bool SetAddress(const ifaddrs& entry, InterfaceAddress& address) {
  const int family = entry.ifa_addr->sa_family;
  const uint8_t* mask = nullptr;
  size_t bytes = 0;
  if (family == AF_INET) {
    address.address = TextOf(family, &reinterpret_cast<const sockaddr_in*>(entry.ifa_addr)->sin_addr);
    mask = reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(entry.ifa_netmask)->sin_addr);
    bytes = sizeof(in_addr);
  } else if (family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&six)) return false;
    address.address = TextOf(family, &six);
    mask = reinterpret_cast<const sockaddr_in6*>(entry.ifa_netmask)->sin6_addr.s6_addr;
    bytes = sizeof(in6_addr);
  } else {
    return false;
  }
  // A mask's ones are contiguous, so their number is the prefix.
  for (size_t i = 0; i < bytes; ++i) address.prefix_bits += std::popcount(mask[i]);
  return true;
}

}  // namespace

std::vector<InterfaceAddress> ListInterfaceAddresses() {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    // An interface without any address has no ifa_addr.
    if (entry->ifa_addr == nullptr || entry->ifa_netmask == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    InterfaceAddress address = {.interface = entry->ifa_name, .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0};
    if (SetAddress(*entry, address)) addresses.push_back(std::move(address));
  }
  freeifaddrs(list);
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const InterfaceAddress& one) { return !absl::StrContains(one.address, ':'); });
  return addresses;
}

std::vector<InterfaceAddress> SelectAddresses(std::span<const InterfaceAddress> all, absl::string_view include,
                                              absl::string_view exclude) {
  std::vector<InterfaceAddress> selected;
  std::copy_if(all.begin(), all.end(), std::back_inserter(selected), [&](const InterfaceAddress& address) {
    if (!include.empty()) return AnyNames(include, address);
    // By default Open MPI excludes loopback alone. A list of the user replaces that, and must name loopback itself.
    return exclude.empty() ? !address.loopback : !AnyNames(exclude, address);
  });
  return selected;
}

std::string SubnetOf(absl::string_view address, int prefix_bits) {
  const std::optional<WireAddress> parsed = Parse(address);
  if (!parsed.has_value() || prefix_bits < 0 || prefix_bits > parsed->bits()) return "";
  return absl::StrCat(TextOf(parsed->family, Masked(*parsed, prefix_bits).bytes.data()), "/", prefix_bits);
}

std::string InterfaceWith(std::span<const InterfaceAddress> all, absl::string_view address) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const InterfaceAddress& one) { return one.address == address; });
  return found == all.end() ? "" : found->interface;
}

std::string AddressesText(std::span<const InterfaceAddress> addresses) {
  return absl::StrJoin(addresses, ", ", [](std::string* out, const InterfaceAddress& one) {
    absl::StrAppend(out, one.interface, " ", one.address, "/", one.prefix_bits);
  });
}

}  // namespace starring
