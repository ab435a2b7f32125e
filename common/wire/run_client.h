// Asks the coordinator of an elastic run how the run is, for people and launchers
// (proto/starring/v1/coordinator.proto, GetRun).
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_WIRE_RUN_CLIENT_H_
#define STARRING_COMMON_WIRE_RUN_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/security/transport_security.h"

namespace starring {

struct RunStatus {
  struct Member {
    std::string name;
    std::string what;  // "rank 2, micro-batches 4-6", "spare", "shard 1 of 2"
  };
  int64_t generation = 0;  // 0: none has begun
  int64_t first_step = 0;  // of the generation
  int64_t step = 0;        // the newest that a worker is at
  int64_t end_step = 0;
  bool changing = false;  // no generation is being trained
  std::string cause;      // of the last change
  std::vector<Member> members;
  std::vector<int> missing_shards;
  std::vector<int64_t> snapshots;  // that all shards have
};

class RunClient {
 public:
  RunClient(const std::string& coordinator, TransportSecurity security);  // host:port
  ~RunClient();

  // Unavailable or DeadlineExceeded: nobody answers in time. Others are the coordinator's refusal.
  absl::StatusOr<RunStatus> Ask(std::chrono::milliseconds deadline);

 private:
  struct Channel;

  const std::string coordinator_;
  const TransportSecurity security_;
  const std::unique_ptr<Channel> channel_;
};

}  // namespace starring

#endif  // STARRING_COMMON_WIRE_RUN_CLIENT_H_
