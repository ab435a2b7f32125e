// One shard of the parameter server, for one job: workers join, exchange and finish; then the server is done. README.md
// tells the life of a job.
//
// One thread polls gRPC, reads, sums, applies the optimizer and answers. More shards, not more threads, use more cores.
//
// Thread safety: any thread may call any method.
#ifndef STARRING_SERVER_PARAMETER_SERVER_H_
#define STARRING_SERVER_PARAMETER_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/host/machine_limits.h"
#include "common/limits.h"
#include "common/security/transport_security.h"
#include "common/trace.h"
#include "server/server_metrics.h"

namespace starring {

class ParameterServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // host:port; port 0 takes a free one
    int shard = 0;
    int shard_count = 1;
    std::string run_id;  // the only run whose workers may join; empty: the run of the first worker
    // Without a token, only a loopback address can be listened on, unless `insecure`.
    TransportSecurity security = {};
    bool insecure = false;
    // Memory that the server may use; a job that needs more is refused. 0: the memory that is free when the first
    // worker joins, divided by the servers on this machine.
    int64_t memory_bytes_max = 0;
    std::function<absl::StatusOr<int64_t>()> available_memory = [] { return AvailableMemoryBytes(); };  // in bytes
    absl::Duration join_deadline = absl::InfiniteDuration();  // from Start until all workers have joined
    absl::Duration hello_deadline = absl::Milliseconds(kHelloDeadlineMs);
    std::function<void(const std::string&)> log;  // gets lines for people, on the polling thread
    ServerMetrics* metrics = nullptr;             // outlives the server; null: there are none
    Trace* trace = nullptr;  // written before Wait returns; outlives the server; null: there is none
  };
  // InvalidArgument on a wrong option or an address that cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ParameterServer>> Start(Options options);

  // Stops serving at once.
  ~ParameterServer();

  // host:port with the port that was bound.
  const std::string& address() const;

  // Blocks until the server is done. OK: all workers have finished, or Interrupt was called before there was a job.
  // DeadlineExceeded: not all workers joined. Else why the job failed; the workers have been told.
  absl::Status Wait();

  // Asks to stop: at once if no job has begun, else when the workers have finished.
  void Interrupt();

 private:
  class Core;

  explicit ParameterServer(std::unique_ptr<Core> core);

  const std::unique_ptr<Core> core_;
};

}  // namespace starring

#endif  // STARRING_SERVER_PARAMETER_SERVER_H_
