// //server: one shard of the parameter server, for one job. The workers bring model, optimizer and all other settings.
//
// Prints "listening on HOST:PORT" on stdout. Ends with 0 when all workers have finished, or when it is asked to stop
// (SIGINT, SIGTERM) before a job began; during a job the first signal lets the workers finish, the second ends at once.
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/atomic_file.h"
#include "common/command_line.h"
#include "common/limits.h"
#include "common/metrics/metrics.h"
#include "common/security_flags.h"
#include "common/status.h"
#include "common/trace.h"
#include "server/parameter_server.h"
#include "server/server_metrics.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:7077", "host:port to listen on; port 0 takes a free one");
ABSL_FLAG(int, shard, 0, "which shard of the parameters this server owns");
ABSL_FLAG(int, shard_count, 1, "number of servers");
ABSL_FLAG(std::string, run_id, "",
          "the only run whose workers may join, as their --run_id says; empty: that of the first worker");
ABSL_FLAG(bool, insecure, false,
          "without --job_secret, listen on other addresses than loopback too: whoever reaches them can join");
ABSL_FLAG(absl::Duration, join_deadline, absl::InfiniteDuration(),
          "how long to wait, from the start, until all workers have joined; inf: as long as it takes");
ABSL_FLAG(
    double, memory_limit_gb, 0,
    "memory that this server may use, in units of 10^9 bytes; a job that needs more is refused when its first "
    "worker joins; 0: what is free then (MemAvailable, or the control group's limit), divided by the job's servers "
    "on this machine");
ABSL_FLAG(std::string, trace, "",
          "writes a timeline (Chrome trace events) when the job is over; trace.json makes trace.server-SHARD.json");
ABSL_FLAG(
    int, metrics_port, -1,
    "serves live numbers at http://ADDRESS:PORT/metrics (Prometheus); shard s takes this port + s; 0: a free one; "
    "-1: none");
ABSL_FLAG(std::string, metrics_address, "127.0.0.1", "address of --metrics_port; 0.0.0.0: every one of the machine");
ABSL_FLAG(std::string, port_file, "", "file to write the bound host:port to, for scripts");

namespace starring {
namespace {

constexpr int kExitKilled = 130;  // what a shell reports for a process that ended by SIGINT

// A buffer that is freed and asked for again every step must not come back as fresh, unmapped pages.
void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// Runs in a thread of its own and never returns; the process ends under it.
[[noreturn]] void HandleSignals(ParameterServer* server) {
  const sigset_t signals = StopSignals();
  int signal_number;
  sigwait(&signals, &signal_number);
  std::fprintf(stderr,
               "server: asked to stop: a running job goes on until its workers finish; once more ends it now\n");
  server->Interrupt();
  sigwait(&signals, &signal_number);
  _exit(kExitKilled);
}

// As long as the process lives, as the server does. Null without --metrics_port.
absl::StatusOr<ServerMetrics*> ServeMetrics(int shard) {
  const int port = absl::GetFlag(FLAGS_metrics_port);
  if (port < 0) return nullptr;
  if (port + shard > kPortMax) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics_port=", port, ": shard ", shard, " would take ",
                                                   port + shard, ", and ports end at ", kPortMax));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Metrics> metrics, Metrics::Start({.address = absl::GetFlag(FLAGS_metrics_address),
                                                                     .port = port == 0 ? 0 : port + shard}));
  std::fprintf(stderr, "server %d: metrics at %s\n", shard, metrics->url().c_str());
  return new ServerMetrics(metrics.release());
}

absl::StatusOr<int64_t> MemoryLimitBytes() {
  const double gb = absl::GetFlag(FLAGS_memory_limit_gb);
  if (!(gb >= 0 && gb <= kMemoryLimitGbMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--memory_limit_gb=", gb, " is not between 0 and ", kMemoryLimitGbMax));
  }
  return static_cast<int64_t>(1e9 * gb);
}

absl::Status Serve(ParameterServer::Options options) {
  ASSIGN_OR_RETURN(options.memory_bytes_max, MemoryLimitBytes());
  std::unique_ptr<Trace> trace;
  if (const std::string path = absl::GetFlag(FLAGS_trace); !path.empty()) {
    ASSIGN_OR_RETURN(trace, Trace::Create({.path = path, .role = Trace::Role::kServer, .number = options.shard}));
    options.trace = trace.release();  // for as long as the server
  }
  ASSIGN_OR_RETURN(options.metrics, ServeMetrics(options.shard));
  const std::string prefix = absl::StrCat("server ", options.shard);
  options.log = [prefix](const std::string& line) { std::fprintf(stderr, "%s: %s\n", prefix.c_str(), line.c_str()); };
  absl::StatusOr<std::unique_ptr<ParameterServer>> server = ParameterServer::Start(std::move(options));
  if (!server.ok()) return server.status();
  std::printf("listening on %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  if (const std::string file = absl::GetFlag(FLAGS_port_file); !file.empty()) {
    const absl::Status status = WriteFileAtomically(file, absl::StrCat((*server)->address(), "\n"));
    if (!status.ok()) return status;
  }
  // Not joined: it waits for signals for as long as the process lives, and the server with it.
  ParameterServer* const serving = server->release();
  std::thread([serving] { HandleSignals(serving); }).detach();
  return serving->Wait();
}

int Main(int argc, char** argv) {
  KeepFreedMemory();
  setenv("GRPC_VERBOSITY", "NONE", 0);  // what matters of gRPC's log is in our own messages
  // Before any thread is started, so that all inherit it and only HandleSignals gets them.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  absl::SetProgramUsageMessage("one shard of the parameter server; see README.md");
  absl::Status status = ParseFlags(argc, argv).status();
  absl::StatusOr<TransportSecurity> security = TransportSecurity();
  if (status.ok()) {
    security = LoadTransportSecurity(SecurityFlags());
    status = security.status();
  }
  if (status.ok()) {
    status = Serve({.listen = absl::GetFlag(FLAGS_listen),
                    .shard = absl::GetFlag(FLAGS_shard),
                    .shard_count = absl::GetFlag(FLAGS_shard_count),
                    .run_id = absl::GetFlag(FLAGS_run_id),
                    .security = *std::move(security),
                    .insecure = absl::GetFlag(FLAGS_insecure),
                    .join_deadline = absl::GetFlag(FLAGS_join_deadline),
                    .log = nullptr});
  }
  if (!status.ok()) {
    std::fprintf(stderr, "server %d: error: %s\n", absl::GetFlag(FLAGS_shard), std::string(status.message()).c_str());
  }
  std::fflush(stdout);
  // Without destructors: gRPC's threads and the one that waits for signals are still there.
  _exit(ExitCode(status));
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) { return starring::Main(argc, argv); }
