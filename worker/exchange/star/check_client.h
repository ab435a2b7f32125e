// The Check calls of a worker to one server, before training.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_EXCHANGE_STAR_CHECK_CLIENT_H_
#define STARRING_WORKER_EXCHANGE_STAR_CHECK_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/transport_security.h"
#include "proto/starring/v1/check.pb.h"

namespace starring {

class StarCheckClient {
 public:
  struct Options {
    std::string address;
    TransportSecurity security;  // as the server has it
    int rank = 0;
    uint64_t worker_id = 0;  // unique to this process; together with the rank it signs this worker's notes
  };
  // Connects with the first call.
  explicit StarCheckClient(Options options);
  ~StarCheckClient();
  StarCheckClient(const StarCheckClient&) = delete;
  StarCheckClient& operator=(const StarCheckClient&) = delete;

  // Each call fails with DeadlineExceeded at `end`, or earlier with the reason why the server cannot be reached or
  // refuses.
  //
  // The server's facts; sets the round trip of `link`, and the clock.
  absl::StatusOr<v1::ProcessFacts> Ask(absl::Time end, v1::LinkReport& link);
  // Bytes per second to the server, measured for `seconds` or kCheckBandwidthBytesMax of limits.h. The server then
  // knows this worker, as after Put and Get.
  absl::StatusOr<double> MeasureBandwidth(double seconds, absl::Time end);
  // The server's board of notes: server/door/check_service.h.
  absl::Status Put(int stage, const std::string& text, absl::Time end);
  absl::StatusOr<std::optional<std::string>> Get(int rank, int stage, absl::Time end);
  // Removes this worker's notes. Returns how many workers still have notes.
  absl::StatusOr<int> Leave(absl::Time end);

 private:
  class Calls;
  const std::unique_ptr<Calls> calls_;
};

// "1.51.1"
std::string GrpcVersion();
// The protocol's version, common/wire/exchange_message.h.
int StarWireVersion();

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_CHECK_CLIENT_H_
