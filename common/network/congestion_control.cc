#include "common/network/congestion_control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/network/address.h"

namespace starring {

void AvoidBbr(int fd) {
  char name[16] = "";  // the kernel's TCP_CA_NAME_MAX
  socklen_t length = sizeof(name) - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0 || !absl::StartsWith(name, "bbr")) return;
  // Every kernel has Reno, and lets every process use it if no administrator has forbidden it.
  for (const absl::string_view other : {"cubic", "reno"}) {
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, other.data(), static_cast<socklen_t>(other.size())) == 0) return;
  }
}

void AvoidBbrTo(const std::set<std::string>& peers) { ForEachConnectionTo(peers, AvoidBbr); }

}  // namespace starring
