#include "common/network/port_range.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/limits.h"

namespace starring {
namespace {

// 0 if `text` is no port. Only digits are allowed, though SimpleAtoi would take a sign and spaces.
int PortOf(absl::string_view text) {
  int port;
  if (!std::ranges::all_of(text, absl::ascii_isdigit) || !absl::SimpleAtoi(text, &port) || port > kPortMax) return 0;
  return port;
}

}  // namespace

bool AbslParseFlag(absl::string_view text, PortRange* range, std::string* error) {
  *range = {};
  if (text.empty()) return true;
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  const PortRange read = {.first = PortOf(ends.front()), .last = PortOf(ends.back())};
  if (ends.size() != 2 || read.first < 1 || read.last < read.first) {
    *error = absl::StrCat("it must be: ", kPortRangeForm, ", such as 7000-7100, from 1 to ", kPortMax);
    return false;
  }
  *range = read;
  return true;
}

std::string AbslUnparseFlag(const PortRange& range) {
  return range.IsAny() ? "" : absl::StrCat(range.first, "-", range.last);
}

absl::Status ListenInRange(const PortRange& range, absl::FunctionRef<absl::Status(int port)> listen_at) {
  if (range.IsAny()) return listen_at(0);
  for (int port = range.first; port <= range.last; ++port) {
    const absl::Status status = listen_at(port);
    // Any other error would come at the next port, too.
    if (!absl::IsAlreadyExists(status)) return status;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no port from ", range.first, " to ", range.last,
                   " is free: end what listens there, or widen --port_range=", AbslUnparseFlag(range)));
}

}  // namespace starring
