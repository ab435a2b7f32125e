// The server's flags and the values that a command line gives them. A flag is declared in this file alone: a field of
// ServerOptions, whose initial value is the default, and a row.
#ifndef STARRING_SERVER_SERVER_OPTIONS_H_
#define STARRING_SERVER_SERVER_OPTIONS_H_

#include <cstdint>
#include <string>

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

// The transports of cells with servers.
inline constexpr Choice<TransportKind> kServerTransports[] = {{"grpc", TransportKind::kGrpc},
                                                              {"tcp", TransportKind::kTcp}};

struct ServerOptions {
  // The values of the command line where ParseServerOptions changes the unit or the meaning.
  struct Asked {
    int join_deadline_s = 0;  // 0: none
    absl::Duration join_deadline = absl::InfiniteDuration();
    double memory_limit_gb = 0;
    int metrics_port = -1;
    absl::Duration member_gone = absl::Seconds(1);
    absl::Duration member_silent = absl::Seconds(5);
    absl::Duration member_stuck = absl::Seconds(10);
  };
  Asked asked;

  TransportKind transport = TransportKind::kGrpc;
  std::string listen = "127.0.0.1:7077";
  PortRange port_range;    // of the ports that the server may choose; without one any
  std::string rendezvous;  // tcp: where worker 0 listens
  int world_size = 0;      // tcp: number of workers
  int shard = 0;
  int shard_count = 1;
  std::string run_id;  // the only run that may join; empty: the first worker's, over TCP one without a name
  absl::Duration join_deadline = absl::InfiniteDuration();
  int64_t memory_bytes_max = 0;  // 0: what is free
  std::string port_file;         // empty: none
  std::string trace;             // file; empty: none
  int metrics_port = -1;         // of this shard, 0: a free one; -1: none
  std::string metrics_address = "127.0.0.1";
  LogTime log_time = LogTime::kAuto;
  bool insecure = false;
  SecurityFiles security_files;
  TransportSecurity security;  // what the files above hold

  // An elastic run.
  bool elastic = false;
  std::string coordinator;  // host:port of shard 0; empty: this is shard 0
  std::string announce;     // host:port that workers are told; empty: `listen`
  std::string state_dir;    // empty: snapshots are in memory alone
  bool flush_state = false;
  bool print_log = false;
  int first_workers = 1;
  int min_workers = 1;

  // The row of the job.
  const Cell& cell() const { return CellOf({.server_count = shard_count, .transport = transport}); }
};

namespace server_flags {

using S = ServerOptions;
using Asked = ServerOptions::Asked;

inline constexpr FlagRow kRows[] = {
    {"transport", "job",
     "what carries gradients and parameters: grpc: the workers dial this server; tcp: it meets them at --rendezvous",
     OneOfAt<kServerTransports, &S::transport>()},
    {"listen", "job",
     "address to listen on; port 0 takes a free one; over tcp for GetStatus alone, and nowhere without the flag",
     TextAt<&S::listen>("host:port")},
    {"port_range", "job",
     "ports such as 7000-7100 from which the server takes its own: at port 0 of --listen, and over tcp as a rank; "
     "empty: any free one",
     TextAt<&S::port_range>(kPortRangeForm)},
    {"rendezvous", "job", "tcp: where worker 0 listens, as its --rendezvous says", TextAt<&S::rendezvous>("host:port")},
    {"world_size", "job", "tcp: number of workers, as their --world_size says",
     WholeAt<&S::world_size>(0, kWorldSizeMax)},
    {"shard", "job", "which shard of the parameters this server owns", WholeAt<&S::shard>(0, kShardCountMax - 1)},
    {"shard_count", "job", "number of servers", WholeAt<&S::shard_count>(1, kShardCountMax)},
    {"run_id", "job",
     "the only run whose workers may join, as their --run_id says; empty: that of the first worker, over tcp one "
     "without a "
     "name",
     TextAt<&S::run_id>("name")},
    {"join_deadline_s", "job", "seconds, from the start, for all workers to join; 0: as long as it takes",
     WholeAt<&S::asked, &Asked::join_deadline_s>(0, kDeadlineSecondsMax)},
    {"join_deadline", "job", "old name of --join_deadline_s, with a unit; the next release drops it",
     TextAt<&S::asked, &Asked::join_deadline>("duration such as 90s")},
    {"memory_limit_gb", "job",
     "memory that this server may use, in units of 10^9 bytes; a job that needs more is refused when its first worker "
     "joins; 0: what is free then (MemAvailable, or the control group's limit), divided by the job's servers on this "
     "machine",
     ValueAt<&S::asked, &Asked::memory_limit_gb>(Real(0, kMemoryLimitGbMax))},
    {"port_file", "output", "file to write the bound host:port of --listen to, for scripts",
     TextAt<&S::port_file>("file")},
    {"trace", "output",
     "writes a timeline (Chrome trace events) when the job is over; trace.json becomes trace.server-SHARD.json",
     TextAt<&S::trace>("file")},
    {"metrics_port", "output",
     "serves live numbers at http://ADDRESS:PORT/metrics (Prometheus); shard s takes this port + s; 0: a free one; -1: "
     "none",
     WholeAt<&S::asked, &Asked::metrics_port>(-1, kPortMax)},
    {"metrics_address", "output", "address of --metrics_port; 0.0.0.0: every address of the machine",
     TextAt<&S::metrics_address>("address")},
    {"log_time", "output", kLogTimeMeaning, OneOfAt<kLogTimes, &S::log_time>()},
    {"elastic", "elastic", "workers may join and leave while the job runs; it survives what dies",
     SwitchAt<&S::elastic>()},
    {"coordinator", "elastic", "where shard 0, the coordinator, listens; shard 0 itself needs none",
     TextAt<&S::coordinator>("host:port")},
    {"announce", "elastic",
     "the address by which workers reach this server, where it is not that of --listen: in a container, behind NAT, or "
     "with --listen=0.0.0.0:PORT",
     TextAt<&S::announce>("host:port")},
    {"state_dir", "elastic",
     "folder for snapshots, which survive this process, and on shard 0 for the log of generations, without which the "
     "run "
     "cannot go on; empty: snapshots are in memory, and shard 0 needs a folder",
     TextAt<&S::state_dir>("folder")},
    {"flush_state", "elastic", "snapshots in --state_dir survive a machine that loses its power, too",
     SwitchAt<&S::flush_state>()},
    {"print_log", "elastic",
     "print the log of generations in --state_dir, a record a line, and end: with exit code 0 if it proves that every "
     "micro-batch of every step counted once",
     SwitchAt<&S::print_log>()},
    {"first_workers", "elastic", "shard 0: the run begins when so many workers have come",
     WholeAt<&S::first_workers>(1, kMicroBatchesMax)},
    {"min_workers", "elastic", "shard 0: with fewer workers the run waits, for --join_deadline_s",
     WholeAt<&S::min_workers>(1, kMicroBatchesMax)},
    {"member_gone_s", "elastic", "shard 0: seconds without a connection after which a process is given up",
     SecondsAt<&S::asked, &Asked::member_gone>(1, kDeadlineSecondsMax)},
    {"member_silent_s", "elastic", "shard 0: seconds without a report after which a process is given up",
     SecondsAt<&S::asked, &Asked::member_silent>(1, kDeadlineSecondsMax)},
    {"member_stuck_s", "elastic",
     "seconds after which shard 0 gives up a worker that computes and finishes nothing (or 20 times the usual time "
     "of a micro-batch, if that is longer), and after which a server whose thread hangs tells it nothing any more",
     SecondsAt<&S::asked, &Asked::member_stuck>(1, kDeadlineSecondsMax)},
    {"insecure", "security",
     "without --job_secret, also listen, or meet, at addresses other than loopback: any process that reaches them can "
     "join",
     SwitchAt<&S::insecure>()},
};
inline constexpr auto kAllRows = JoinRows(kRows, kSecurityRows<&S::security_files>);

}  // namespace server_flags

// Every flag of the server.
const FlagTable& ServerFlags();

// Also reads the files of the secret and the certificates. InvalidArgument names the flag, its value and the way out.
absl::StatusOr<ServerOptions> ParseServerOptions(int argc, const char* const* argv);

}  // namespace starring

#endif  // STARRING_SERVER_SERVER_OPTIONS_H_
