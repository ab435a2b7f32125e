// An address as people write it: host:port, with an IPv6 host in brackets.
#ifndef STARRING_COMMON_HOST_HOST_PORT_H_
#define STARRING_COMMON_HOST_HOST_PORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starring {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};

// InvalidArgument, quoting `text`, if the host is empty or the port is no number from 0 to 65535.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

}  // namespace starring

#endif  // STARRING_COMMON_HOST_HOST_PORT_H_
