#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/network/address.h"

namespace starring {

std::string PeerNameOfUri(absl::string_view uri) {
  // The first colon ends the scheme. gRPC escapes the brackets of an IPv6 host, and the % before an interface.
  const size_t colon = uri.find(':');
  if (colon == absl::string_view::npos) return {};
  std::string name = absl::StrReplaceAll(uri.substr(colon + 1),
                                         {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}, {"%5b", "["}, {"%5d", "]"}});
  // "[fe80::1%eth0]:4711": getpeername does not tell the interface, so the name has none.
  const size_t scope = name.find('%');
  const size_t bracket = name.find(']');
  if (scope != std::string::npos && bracket != std::string::npos && scope < bracket) name.erase(scope, bracket - scope);
  return name;
}

namespace {

// "127.0.0.1:4711"; empty if it is no address of IPv4 or IPv6.
std::string NameOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return {};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", ntohs(v6.sin6_port));
}

// Both ends. No other connection of this machine has them while this one is there.
std::string NameOfConnection(int fd) {
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) return {};
  return absl::StrCat(NameOf(own), " to ", PeerNameOfSocket(fd));
}

void ForEachConnection(absl::FunctionRef<void(int fd, const std::string& peer)> visit) {
  std::error_code error;
  // All numbers are read before any is duplicated: the duplicates would be entries of the same folder.
  std::vector<int> fds;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    int fd;
    if (absl::SimpleAtoi(it->path().filename().string(), &fd)) fds.push_back(fd);
  }
  for (const int fd : fds) {
    // Closing the duplicate of a file's descriptor may write the file back.
    struct stat facts;
    if (fstat(fd, &facts) != 0 || !S_ISSOCK(facts.st_mode)) continue;
    // Another thread may close this descriptor and get its number for something else between the look and the visit.
    // A duplicate keeps referring to the socket that was looked at.
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) continue;
    const std::string peer = PeerNameOfSocket(own);
    if (!peer.empty()) visit(own, peer);
    close(own);
  }
}

}  // namespace

std::string PeerNameOfSocket(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return NameOf(address);
}

void ForEachConnectionTo(const std::set<std::string>& peers, absl::FunctionRef<void(int)> visit) {
  ForEachConnection([&](int fd, const std::string& peer) {
    if (peers.contains(peer)) visit(fd);
  });
}

std::set<std::string> OwnConnections() {
  std::set<std::string> names;
  ForEachConnection([&](int fd, const std::string& /*peer*/) { names.insert(NameOfConnection(fd)); });
  return names;
}

void CutConnectionsTo(const std::set<std::string>& peers, const std::set<std::string>& others) {
  ForEachConnectionTo(peers, [&](int fd) {
    // shutdown acts on the socket and not on the number: the descriptor's owner, gRPC, notices the end and closes its
    // own descriptor.
    if (!others.contains(NameOfConnection(fd))) shutdown(fd, SHUT_RDWR);
  });
}

}  // namespace starring
