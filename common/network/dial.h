// TCP connections to other hosts, with a deadline. Children of fork close them, also while they are being opened.
//
// Thread safety: free functions; any thread may call them.
#ifndef STARRING_COMMON_NETWORK_DIAL_H_
#define STARRING_COMMON_NETWORK_DIAL_H_

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/network/close_on_fork.h"

namespace starring {

// Owns a socket, and closes it in the destructor. -1: none.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), not_in_children_(std::move(other.not_in_children_)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(not_in_children_, other.not_in_children_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }
  // From now on children of fork close it (close_on_fork.h).
  void CloseInChildren() { not_in_children_ = CloseOnFork(fd_); }
  void KeepInChildren() { not_in_children_ = CloseOnFork(); }
  // The socket, which the caller then closes. Children of fork keep it.
  int Release();

 private:
  int fd_;
  CloseOnFork not_in_children_;
};

// Ends this end's output and drops what has arrived unread, a megabyte at most. For a connection that is about to be
// closed: closing one with unread bytes resets it, and the reset may overtake what was sent last.
void HangUp(const Socket& socket);

// Whether the other end's kernel has all that was sent, or the connection is over.
bool IsDelivered(const Socket& socket);

// Hangs up, and goes on dropping what arrives, until everything is delivered or `patience` is over. A kernel repeats
// what the network has lost, but not after a reset.
void HangUpAll(std::vector<const Socket*> sockets, absl::Duration patience);

struct DialResult {
  Socket socket;              // connected and non-blocking; none after an error
  std::string local_address;  // numeric, without a port
  int error_number = 0;       // errno; 0 if a name did not resolve
  std::string error;          // empty: connected
};

// Dials all of `addresses` (host:port) at the same time. A name with several addresses is reachable by any of them.
// Returns after `timeout` at the latest, with ETIMEDOUT for the addresses that have not answered by then. A name that
// is not resolved after half of `timeout` is not dialled.
std::vector<DialResult> DialAll(std::span<const std::string> addresses, absl::Duration timeout);

// One connection to a numeric address (host:port) that is being opened: the caller polls, and need not wait. Movable.
class PendingDial {
 public:
  explicit PendingDial(const std::string& address);

  // Becomes writable when there is something to learn. -1: there is already.
  int fd() const { return socket_.fd(); }
  // nullopt: not yet. Must not be called again after a result.
  std::optional<DialResult> Advance();

 private:
  Socket socket_;
  DialResult failure_;  // has an error if the attempt ended at once
};

// "connection refused (ECONNREFUSED)"
std::string ErrnoText(int error_number);

// The end of an error about a dial that nothing has answered (ETIMEDOUT): the cause, and the way out of programs that
// have the flag.
inline constexpr absl::string_view kFirewallCause = ": a firewall may drop the packets";
inline constexpr absl::string_view kFirewallWayOut =
    ": start the processes with --check instead, which shows between which hosts";

}  // namespace starring

#endif  // STARRING_COMMON_NETWORK_DIAL_H_
