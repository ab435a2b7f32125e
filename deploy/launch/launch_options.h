// The launcher's flags, and the values that a command line gives them: launch <flags> -- <worker flags>. A flag is
// declared in this file alone: a field of LaunchOptions, whose initial value is the default, and a row.
#ifndef STARRING_DEPLOY_LAUNCH_LAUNCH_OPTIONS_H_
#define STARRING_DEPLOY_LAUNCH_LAUNCH_OPTIONS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/flags/flag_table.h"
#include "common/host/log.h"
#include "common/job/cells.h"
#include "common/job/sync.h"
#include "common/network/port_range.h"
#include "common/security/security_flags.h"
#include "common/security/transport_security.h"

namespace starring {

struct LaunchOptions {
  std::optional<Sync> sync_asked = Sync::kStar;    // as given; empty: auto
  Sync sync = Sync::kStar;                         // of auto: the topology from which the workers choose
  std::optional<TransportKind> transport_asked;    // as given
  TransportKind transport = TransportKind::kNone;  // kNone for kLocal only
  int worker_count = 1;
  int servers_asked = 0;             // as given
  int server_count = 0;              // 0 unless a star over gRPC, or over TCP with servers
  std::vector<std::string> proxies;  // star: what the workers dial instead of each server; empty: the servers
  int restart_count = 0;
  bool elastic = false;
  int min_workers = 1;
  int process_restart_count = 0;  // of single processes, in one attempt
  std::string state_dir;          // of the servers; empty: a temporary folder
  std::string join;    // host:port: no job is started, workers are added to the elastic one whose shard 0 this is
  std::string status;  // address of shard 0: print that job's status and exit
  bool check = false;  // the workers dial all processes that they will talk to, and end
  absl::Duration start_deadline = absl::Seconds(30);  // for the servers to listen
  absl::Duration stop_deadline = absl::Seconds(60);   // for the workers to save and leave after a signal
  PortRange port_range;                               // of everything that listens, but for --metrics_port
  int cores_per_worker = 0;                           // see CoreDemand
  int cores_per_server = 0;
  std::string trace;                  // --trace of every process; empty: none
  LogTime log_time = LogTime::kAuto;  // of all processes' lines, which the launcher stamps
  int metrics_port = -1;              // of worker 0; the workers' follow, then the servers'; 0: free ones; -1: none
  std::string worker_binary;
  std::string server_binary;              // with servers only
  std::string make_secret;                // if not empty: write a secret there and end
  std::string secret_from;                // the secret to write there; empty: a fresh one
  SecurityFiles security;                 // grpc, tcp: of all processes; without job_secret the launcher makes one
  std::vector<std::string> worker_flags;  // the words after "--"

  // The row of this job. A job that is joined has its servers elsewhere.
  const Cell& cell() const {
    return CellOf({.sync = sync, .server_count = join.empty() ? server_count : 1, .transport = transport});
  }
};

namespace launch_flags {

using L = LaunchOptions;

inline constexpr FlagRow kRows[] = {
    {"sync", "job",
     "how gradients are synchronised; auto: one worker local, more without servers as takes least time at the start, "
     "which the workers measure",
     OneOfAt<kSyncs, &L::sync_asked>()},
    {"transport", "job",
     "what carries gradients and parameters; auto: grpc for a star, mpi for a ring; a star over mpi, or over tcp "
     "without --servers, has no servers: its workers own the parameters",
     OneOfAt<kTransports, &L::transport_asked>()},
    {"workers", "job", "worker processes", WholeAt<&L::worker_count>(1, kWorldSizeMax)},
    {"servers", "job", "star: server processes; 0: over grpc 1, over tcp none",
     WholeAt<&L::servers_asked>(0, kShardCountMax)},
    {"through_proxy", "job",
     "star over grpc: host:port for each server, separated by commas, that workers dial instead of it; the launcher "
     "prints where the servers listen, so that the proxies can forward to them",
     TextAt<&L::proxies>("host:port,...")},
    {"restarts", "job", "after a failure, start the job again with --resume, at most this many times",
     WholeAt<&L::restart_count>(0, kRestartCountMax)},
    {"elastic", "job",
     "workers may join and leave while the job runs, and the job survives what dies: a star over grpc; the servers are "
     "started with --elastic",
     SwitchAt<&L::elastic>()},
    {"min_workers", "job", "elastic: with fewer workers the job waits for more, a minute",
     WholeAt<&L::min_workers>(1, kMicroBatchesMax)},
    {"restart_processes", "job",
     "elastic: restart a process that dies, at most this many times; then --restarts applies",
     WholeAt<&L::process_restart_count>(0, kRestartCountMax)},
    {"state_dir", "job",
     "elastic: folder for snapshots and the log of the run; with those of a run that has failed, that run goes on; "
     "empty: a temporary one, which stays if the run fails",
     TextAt<&L::state_dir>("folder")},
    {"join", "job", "start only workers, which join the elastic job whose shard 0 listens there; give its --job_secret",
     TextAt<&L::join>("host:port")},
    {"status", "job",
     "print the members, their shares and the snapshots of the elastic job whose shard 0 listens there, and end; give "
     "its --job_secret",
     TextAt<&L::status>("host:port")},
    {"check", "job",
     "instead of training: every process dials every other one that it would talk to; worker 0 prints one table, and "
     "says that the job is ready or what to mend; exit code 0, 2 or 3",
     SwitchAt<&L::check>()},
    {"start_deadline_s", "job", "seconds for the servers to listen",
     SecondsAt<&L::start_deadline>(1, kStartSecondsMax)},
    {"stop_deadline_s", "job", "seconds for the workers to save and leave after Ctrl-C or SIGTERM",
     SecondsAt<&L::stop_deadline>(1, kStartSecondsMax)},
    {"port_range", "job",
     "ports such as 7000-7100 from which rendezvous, coordinator, servers, and ranks over tcp take theirs; empty: any",
     TextAt<&L::port_range>(kPortRangeForm)},
    {"cores_per_worker", "processor",
     "cores that each worker is pinned to; 0: an equal share, of the CPU quota if that is less",
     WholeAt<&L::cores_per_worker>(0, kCoreCountMax)},
    {"cores_per_server", "processor", "cores that each server is pinned to; 0: those that the workers leave, else all",
     WholeAt<&L::cores_per_server>(0, kCoreCountMax)},
    {"trace", "output",
     "every worker and server writes a timeline; trace.json becomes trace.worker-0.json, trace.server-0.json ...",
     TextAt<&L::trace>("file")},
    {"metrics_port", "output",
     "workers serve live numbers (Prometheus) from this port on, the servers after them; 0: free ones; -1: none",
     WholeAt<&L::metrics_port>(-1, kPortMax)},
    {"log_time", "output", kLogTimeMeaning, OneOfAt<kLogTimes, &L::log_time>()},
    {"worker_binary", "program", "the worker; empty: the one built with this launcher",
     TextAt<&L::worker_binary>("file")},
    {"server_binary", "program", "the server; empty: the one built with this launcher",
     TextAt<&L::server_binary>("file")},
    {"make_secret", "security",
     "write the secret of one job to this file, mode 0600, for --job_secret of servers and workers, and end",
     TextAt<&L::make_secret>("file")},
    {"secret_from", "security",
     "with --make_secret: write a copy of this file, which its group may read, such as a container's or a service's",
     TextAt<&L::secret_from>("file")},
};
inline constexpr auto kAllRows = JoinRows(kRows, kSecurityRows<&L::security>);

}  // namespace launch_flags

// Every flag of the launcher.
const FlagTable& LaunchFlags();

// InvalidArgument names the flag, its value and the way out; NotFound names a binary that is not there.
absl::StatusOr<LaunchOptions> ParseLaunchOptions(int argc, const char* const* argv);

// How long the workers wait for each other: --join_deadline_s as the command line has it, else the worker's default.
absl::Duration JoinDeadline(const std::vector<std::string>& worker_flags);

// Worker flags of a restart: the same, with --resume.
std::vector<std::string> ResumingFlags(std::vector<std::string> worker_flags);

}  // namespace starring

#endif  // STARRING_DEPLOY_LAUNCH_LAUNCH_OPTIONS_H_
