// A worker's way into a job: Join on one shard after the other.
#ifndef STARRING_WORKER_EXCHANGE_STAR_JOIN_H_
#define STARRING_WORKER_EXCHANGE_STAR_JOIN_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/job_spec.h"
#include "common/security/transport_security.h"
#include "worker/exchange/stall_report.h"

namespace starring {

struct JoinTarget {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;  // shared: gRPC's way
  int lanes = 1;                           // that the worker will open to it
};

// Returns the job's number at each shard. Shard 0 comes first, so that workers which disagree meet there and nowhere
// else. A server that is not up yet, or knows another process as this rank (which may have died with its machine), is
// tried again until the join deadline, which counts for all shards together; after a second the latter is said once.
// Unavailable, naming the address, if a server cannot be reached; InvalidArgument, at once, if it is protected in
// another way than `security`; DeadlineExceeded, naming the ranks, if workers are missing; else what the server refuses
// the worker for. A wait that is long is reported as `stall` says.
absl::StatusOr<std::vector<uint64_t>> JoinAll(const JobSpec& job, const std::string& run_id,
                                              const TransportSecurity& security, const std::vector<JoinTarget>& targets,
                                              const StallOptions& stall);

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_JOIN_H_
