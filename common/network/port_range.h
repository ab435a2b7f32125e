// The ports at which a process may listen, for hosts whose firewall lets through only some.
//
// Thread safety: free functions; any thread may call them.
#ifndef STARRING_COMMON_NETWORK_PORT_RANGE_H_
#define STARRING_COMMON_NETWORK_PORT_RANGE_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace starring {

// The values of the flag --port_range, as --help shows them.
inline constexpr absl::string_view kPortRangeForm = "first-last";

struct PortRange {
  int first = 0;  // 0: no range; the system chooses a free port
  int last = 0;   // included

  [[nodiscard]] bool IsAny() const { return first == 0; }
};

// Reads and writes "7000-7100", the value of a flag; "" is no range. False unless 1 <= first <= last <= 65535.
bool AbslParseFlag(absl::string_view text, PortRange* range, std::string* error);
std::string AbslUnparseFlag(const PortRange& range);

// Calls listen_at(port) for the ports of `range` in ascending order until one is not taken; listen_at(0) for no range.
// `listen_at` returns AlreadyExists for a port that is taken; every other result ends the search and is returned.
// InvalidArgument, with both ends of the range, if all its ports are taken.
absl::Status ListenInRange(const PortRange& range, absl::FunctionRef<absl::Status(int port)> listen_at);

}  // namespace starring

#endif  // STARRING_COMMON_NETWORK_PORT_RANGE_H_
