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
#include <cstring>
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

// No value for families that Open MPI does not use.
std::optional<WireAddress> FromSocket(int family, const sockaddr* address) {
  WireAddress wire = {.family = family};
  if (family == AF_INET) {
    std::memcpy(wire.bytes.data(), &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, sizeof(in_addr));
  } else if (family == AF_INET6) {
    std::memcpy(wire.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, sizeof(in6_addr));
  } else {
    return std::nullopt;
  }
  return wire;
}

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
  return std::ranges::any_of(list, [&](absl::string_view word) { return Names(word, address); });
}

std::string TextOf(const WireAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(address.family, address.bytes.data(), text, sizeof(text));
  return text;
}

}  // namespace

std::vector<InterfaceAddress> ListInterfaceAddresses() {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    // An interface without any address has no ifa_addr.
    if (entry->ifa_addr == nullptr || entry->ifa_netmask == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    const std::optional<WireAddress> wire = FromSocket(family, entry->ifa_addr);
    if (!wire.has_value() || Masked(*wire, 10) == Parse("fe80::")) continue;
    int prefix_bits = 0;  // a mask's ones are contiguous, so their number is the prefix
    const std::optional<WireAddress> mask = FromSocket(family, entry->ifa_netmask);
    for (const uint8_t byte : mask->bytes) prefix_bits += std::popcount(byte);
    addresses.push_back({.interface = entry->ifa_name,
                         .address = TextOf(*wire),
                         .prefix_bits = prefix_bits,
                         .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(list);
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const InterfaceAddress& one) { return !absl::StrContains(one.address, ':'); });
  return addresses;
}

std::vector<InterfaceAddress> SelectAddresses(std::span<const InterfaceAddress> all, absl::string_view include,
                                              absl::string_view exclude) {
  std::vector<InterfaceAddress> selected;
  std::ranges::copy_if(all, std::back_inserter(selected), [&](const InterfaceAddress& address) {
    if (!include.empty()) return AnyNames(include, address);
    // By default Open MPI excludes loopback alone. A list of the user replaces that, and must name loopback itself.
    return exclude.empty() ? !address.loopback : !AnyNames(exclude, address);
  });
  return selected;
}

std::string SubnetOf(absl::string_view address, int prefix_bits) {
  const std::optional<WireAddress> parsed = Parse(address);
  if (!parsed.has_value() || prefix_bits < 0 || prefix_bits > parsed->bits()) return "";
  return absl::StrCat(TextOf(Masked(*parsed, prefix_bits)), "/", prefix_bits);
}

std::string InterfaceWith(std::span<const InterfaceAddress> all, absl::string_view address) {
  const auto found = std::ranges::find(all, address, &InterfaceAddress::address);
  return found == all.end() ? "" : found->interface;
}

std::string AddressesText(std::span<const InterfaceAddress> addresses) {
  return absl::StrJoin(addresses, ", ", [](std::string* out, const InterfaceAddress& one) {
    absl::StrAppend(out, one.interface, " ", one.address, "/", one.prefix_bits);
  });
}

}  // namespace starring
