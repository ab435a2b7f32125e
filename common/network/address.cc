#include "common/network/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"

namespace starring {

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", text, "\" is not host:port, for instance 127.0.0.1:7077: ", why));
  };
  // The last colon counts: an IPv6 host has colons of its own.
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return refuse("it has no host or no port");
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return refuse("it has a bracket that is not closed");
  } else if (host.find(':') != absl::string_view::npos) {
    return refuse("an IPv6 host is written in brackets, [::1]:7077");
  }
  if (host.empty()) return refuse("it has no host");
  // Only digits are allowed, though SimpleAtoi would take a sign and spaces. An empty port passes the first test below
  // and fails the second.
  const absl::string_view digits = text.substr(colon + 1);
  int port;
  if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(digits, &port)) {
    return refuse(absl::StrCat("port \"", digits, "\" is no number"));
  }
  if (port > kPortMax) return refuse(absl::StrCat("port ", port, " is over ", kPortMax));
  return HostPort{.host = std::string(host), .port = port};
}

bool IsLoopbackHost(std::string host) {
  // A name is not looked up: what it resolves to may change, and a resolver may be slow.
  if (host == "localhost") return true;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  in_addr four;
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six;
  if (inet_pton(AF_INET6, host.c_str(), &six) != 1) return false;
  if (IN6_IS_ADDR_V4MAPPED(&six)) return six.s6_addr[12] == 127;  // ::ffff:127.0.0.1
  return IN6_IS_ADDR_LOOPBACK(&six);
}

bool IsAnyHost(absl::string_view host) { return host == "0.0.0.0" || host == "::"; }

}  // namespace starring
