// TCP connections with a deadline, and errors in words.
//
// Thread safety: free functions from any thread.
#ifndef STARRING_WORKER_CHECK_TCP_DIAL_H_
#define STARRING_WORKER_CHECK_TCP_DIAL_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace starring {

// A socket that is closed with its owner. -1: none.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct DialResult {
  Socket socket;              // connected and non-blocking; none on an error
  std::string local_address;  // numeric, without a port
  int error_number = 0;       // errno; 0 where a name did not resolve
  std::string error;          // empty: connected
};

// Dials all of `addresses` (host:port) at the same time. A name with several addresses is reachable by any of them.
// Returns after `timeout` at the latest, then with ETIMEDOUT for those that did not answer.
std::vector<DialResult> DialAll(std::span<const std::string> addresses, absl::Duration timeout);

// "connection refused (ECONNREFUSED)"
std::string ErrnoText(int error_number);

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_TCP_DIAL_H_
