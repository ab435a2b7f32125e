// A worker's connection to another worker's PeerListener.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECK_PEER_LINK_H_
#define STARRING_WORKER_CHECK_PEER_LINK_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/check/peer_protocol.h"
#include "worker/check/tcp_dial.h"

namespace starring {

// Of the quickest of several requests.
struct RoundTrip {
  double microseconds = 0;
  double clock_ahead_s = 0;  // the peer's wall clock less ours, give or take half the round trip
};

class PeerLink {
 public:
  // `socket` is connected and non-blocking, `nonce` the peer's.
  PeerLink(Socket socket, uint64_t nonce) : socket_(std::move(socket)), nonce_(nonce) {}

  // Each fails with DeadlineExceeded when the peer does not answer until `end`, and with Unavailable when it closes the
  // connection: whoever listens there is not this peer.
  absl::StatusOr<RoundTrip> MeasureRoundTrip(absl::Time end);
  // Bytes per second towards the peer, from as much as is sent in `seconds`, at most limits.h's.
  absl::StatusOr<double> MeasureBandwidth(double seconds, absl::Time end);
  absl::Status Put(int rank, int stage, const std::string& text, absl::Time end);
  absl::StatusOr<std::optional<std::string>> Get(int rank, int stage, absl::Time end);

 private:
  absl::Status Send(const void* data, size_t size, absl::Time end);
  absl::Status Receive(void* data, size_t size, absl::Time end);
  absl::StatusOr<peer_protocol::Answer> Ask(const peer_protocol::Request& request, const std::string& text,
                                            absl::Time end);
  absl::Status AwaitReady(short events, absl::Time end) const;

  Socket socket_;
  uint64_t nonce_;
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_PEER_LINK_H_
