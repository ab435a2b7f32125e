// One shard of the parameter server, for one job: workers join, exchange and finish; then the server is done. README.md
// tells the life of a job.
//
// One thread polls gRPC, reads, sums, applies the optimizer and answers. More shards, not more threads, use more cores.
//
// Thread safety: any thread may call any method.
#ifndef STARRING_SERVER_PARAMETER_SERVER_H_
#define STARRING_SERVER_PARAMETER_SERVER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/host/machine_limits.h"
#include "common/metrics/trace.h"
#include "common/network/port_range.h"
#include "common/security/transport_security.h"
#include "proto/starring/v1/parameter_server.pb.h"
#include "server/shard/server_metrics.h"

namespace starring {

class ParameterServer {
 public:
  struct Options {
    std::string listen = "127.0.0.1:0";  // host:port; port 0 takes a free one, of `ports`
    PortRange ports = {};
    int shard = 0;
    int shard_count = 1;
    std::string run_id;  // the only run whose workers may join; empty: the run of the first worker
    // Without a secret, only a loopback address can be listened on, unless `insecure`.
    TransportSecurity security = {};
    bool insecure = false;
    // Memory that the server may use; a job that needs more is refused. 0: the memory that is free when the first
    // worker joins, divided by the servers on this machine.
    int64_t memory_bytes_max = 0;
    std::function<absl::StatusOr<int64_t>()> available_memory = [] { return AvailableMemoryBytes(); };  // in bytes
    // Counts the servers on this machine, also those of other jobs.
    std::function<int()> servers_here = CountProcessesOfThisProgram;
    absl::Duration join_deadline = absl::InfiniteDuration();  // from Start until all workers have joined
    // An elastic run: generations follow each other until the coordinator, which shard 0 has, ends the run.
    struct Elastic {
      std::string coordinator;   // host:port of shard 0; empty: the run is not elastic. On shard 0 its own address
      std::string announce;      // host:port that workers are told; empty: the address that is listened on
      std::string state_dir;     // snapshots, and on shard 0 the log; empty: snapshots are in memory alone
      bool flush_state = false;  // SnapshotStore::Options::flush
      int first_workers = 1;     // shard 0: the first generation begins with them
      int min_workers = 1;
      std::chrono::milliseconds gone{1'000};  // MemberTimes
      std::chrono::milliseconds silent{5'000};
      std::chrono::milliseconds stuck{10'000};
    };
    Elastic elastic = {};
    // The state of a job to which the workers come in another way (shard_rank.h): this server answers GetStatus with
    // it, and refuses workers. The polling thread calls it. Null: this server has a job of its own.
    std::function<v1::GetStatusReply()> describe;
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
