#include "common/host/host_port.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/limits.h"

namespace starring {

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", text, "\" is not host:port, for instance 127.0.0.1:7077: ", why));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return refuse("it has no host or no port");
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return refuse("it has a bracket that is not closed");
  } else if (host.find(':') != absl::string_view::npos) {
    return refuse("an IPv6 host is written in brackets, [::1]:7077");
  }
  if (host.empty()) return refuse("it has no host");
  // Digits only: SimpleAtoi would take a sign and spaces.
  const absl::string_view digits = text.substr(colon + 1);
  int port;
  if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(digits, &port)) {
    return refuse(absl::StrCat("port \"", digits, "\" is no number"));
  }
  if (port > kPortMax) return refuse(absl::StrCat("port ", port, " is over ", kPortMax));
  return HostPort{.host = std::string(host), .port = port};
}

}  // namespace starring
