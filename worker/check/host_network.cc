#include "worker/check/host_network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace starring {
namespace {

constexpr int kBits = 32;  // in an IPv4 address

// The number is in host order, where the prefix of a subnet is the high bits.
std::optional<uint32_t> NumberOf(absl::string_view address) {
  in_addr parsed = {};
  if (inet_pton(AF_INET, std::string(address).c_str(), &parsed) != 1) return std::nullopt;
  return ntohl(parsed.s_addr);
}

// A prefix of 0 has a branch of its own, because shifting a 32-bit number by 32 is undefined.
uint32_t MaskOf(int prefix_bits) { return prefix_bits == 0 ? 0 : ~uint32_t{0} << (kBits - prefix_bits); }

// Whether `word`, the name of an interface or a subnet, includes the address.
bool Names(absl::string_view word, const InterfaceAddress& address) {
  // Without a slash the second part is empty, which is no number, so the word is taken for a name.
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('/', 1));
  int bits = 0;
  const std::optional<uint32_t> net = NumberOf(parts.first);
  if (!net.has_value() || !absl::SimpleAtoi(parts.second, &bits) || bits < 0 || bits > kBits) {
    return word == address.interface;
  }
  const std::optional<uint32_t> number = NumberOf(address.address);
  return number.has_value() && (*number & MaskOf(bits)) == (*net & MaskOf(bits));
}

bool AnyNames(absl::string_view words, const InterfaceAddress& address) {
  const std::vector<absl::string_view> list = absl::StrSplit(words, ',', absl::SkipWhitespace());
  return std::any_of(list.begin(), list.end(), [&](absl::string_view word) { return Names(word, address); });
}

std::string TextOf(const in_addr& address) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address, text, sizeof(text));
  return text;
}

}  // namespace

std::vector<InterfaceAddress> ListInterfaceAddresses() {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    // An interface without any address has no ifa_addr.
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || entry->ifa_netmask == nullptr) continue;
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    const auto* mask = reinterpret_cast<const sockaddr_in*>(entry->ifa_netmask);
    addresses.push_back({.interface = entry->ifa_name,
                         .address = TextOf(address->sin_addr),
                         // A mask's ones are contiguous, so their number is the prefix, in any byte order.
                         .prefix_bits = std::popcount(mask->sin_addr.s_addr),
                         .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(list);
  return addresses;
}

std::vector<InterfaceAddress> SelectAddresses(std::span<const InterfaceAddress> all, absl::string_view include,
                                              absl::string_view exclude) {
  std::vector<InterfaceAddress> selected;
  std::copy_if(all.begin(), all.end(), std::back_inserter(selected), [&](const InterfaceAddress& address) {
    if (!include.empty()) return AnyNames(include, address);
    return exclude.empty() ? !address.loopback : !AnyNames(exclude, address);
  });
  return selected;
}

std::string SubnetOf(absl::string_view address, int prefix_bits) {
  const std::optional<uint32_t> number = NumberOf(address);
  if (!number.has_value() || prefix_bits < 0 || prefix_bits > kBits) return "";
  in_addr net = {};
  net.s_addr = htonl(*number & MaskOf(prefix_bits));
  return absl::StrCat(TextOf(net), "/", prefix_bits);
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
