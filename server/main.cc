// //server: one shard of the parameter server, for one job. The workers bring model, optimizer and all other settings.
//
// Prints "listening on HOST:PORT" on stdout; over TCP, where it looks for worker 0. Ends with 0 when all workers have
// finished, or when it is asked to stop (SIGINT, SIGTERM, SIGUSR1, SIGHUP unless ignored) before a job has begun.
// During a job the first signal lets the workers finish; the second one ends the process at once. Another signal within
// a second of the first is the same request.
#include <google/protobuf/stubs/logging.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/atomic_file.h"
#include "common/base/limits.h"
#include "common/base/memory.h"
#include "common/base/mutex.h"
#include "common/base/not_written.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/flags/command_line.h"
#include "common/host/exhausted.h"
#include "common/host/log.h"
#include "common/host/standard_streams.h"
#include "common/host/stop_signals.h"
#include "common/job/cells.h"
#include "common/metrics/metrics.h"
#include "common/metrics/trace.h"
#include "common/transport/tcp/openssl_tls.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "server/elastic/generation_log.h"
#include "server/parameter_server.h"
#include "server/server_options.h"
#include "server/shard/server_metrics.h"
#include "server/shard/shard_rank.h"

namespace starring {
namespace {

constexpr absl::Duration kMeetingPause = absl::Milliseconds(200);  // between two attempts to meet the workers
constexpr int kExitKilled = 130;  // what a shell reports for a process that ended by SIGINT

sigset_t StopSignalSet() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : StopSignals()) sigaddset(&signals, number);
  return signals;
}

// Runs in a thread of its own and never returns: it waits for signals until the process ends. `interrupt` ends a server
// that has no job yet.
[[noreturn]] void HandleSignals(const std::function<void()>& interrupt) {
  const sigset_t signals = StopSignalSet();
  int first, again;
  sigwait(&signals, &first);
  const absl::Time asked = SteadyNow();
  Log("asked to stop: a running job goes on until its workers finish, an elastic run until its next snapshot; once "
      "more "
      "ends it now");
  interrupt();
  // Slurm sends SIGUSR1 to all processes of a step, whose script then sends SIGINT: one request.
  do {
    sigwait(&signals, &again);
  } while (again != first && SteadyNow() - asked < absl::Seconds(1));
  _exit(kExitKilled);
}

// Null without --metrics_port. Never freed: the server, which uses it, lives as long as the process.
absl::StatusOr<ServerMetrics*> ServeMetrics(const ServerOptions& options) {
  if (options.metrics_port < 0) return nullptr;
  ASSIGN_OR_RETURN(std::unique_ptr<Metrics> metrics,
                   Metrics::Start({.address = options.metrics_address, .port = options.metrics_port}));
  Log(absl::StrCat("metrics at ", metrics->url()));
  return new ServerMetrics(metrics.release());
}

// Null without --trace. Never freed, like the metrics.
absl::StatusOr<Trace*> CreateTrace(const ServerOptions& options) {
  if (options.trace.empty()) return nullptr;
  ASSIGN_OR_RETURN(std::unique_ptr<Trace> trace,
                   Trace::Create({.path = options.trace, .role = Trace::Role::kServer, .number = options.shard}));
  return trace.release();
}

void SayInLog(const std::string& line) { Log(line); }

// Never destroyed: gRPC's threads use it until the process ends.
absl::StatusOr<ParameterServer*> Listen(const ServerOptions& options, ParameterServer::Options serving_options) {
  serving_options.listen = options.listen;
  serving_options.ports = options.port_range;
  serving_options.shard = options.shard;
  serving_options.shard_count = options.shard_count;
  serving_options.run_id = options.run_id;
  serving_options.security = options.security;
  serving_options.insecure = options.insecure;
  serving_options.log = SayInLog;
  ASSIGN_OR_RETURN(std::unique_ptr<ParameterServer> server, ParameterServer::Start(std::move(serving_options)));
  return server.release();
}

absl::Status SayAddress(const ServerOptions& options, const ParameterServer& server) {
  std::printf("listening on %s\n", server.address().c_str());
  std::fflush(stdout);
  if (options.port_file.empty()) return absl::OkStatus();
  return WriteFileAtomically(options.port_file, absl::StrCat(server.address(), "\n"));
}

// The answer of GetStatus about a job over TCP. Two threads use it.
class JobStatus {
 public:
  JobStatus() { status_.set_message("waiting for the workers at --rendezvous"); }
  void Set(const v1::GetStatusReply& status) {
    const MutexLock lock(mutex_);
    status_ = status;
  }
  v1::GetStatusReply Get() {
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  v1::GetStatusReply status_ ABSL_GUARDED_BY(mutex_);
};

// Over TCP: one rank of the workers' world. As over gRPC, a server waits on when workers have given up before a job,
// because one of them is missing.
absl::StatusOr<std::unique_ptr<Transport>> MeetWorkers(const ServerOptions& options,
                                                       const std::shared_ptr<const TlsContext>& tls,
                                                       absl::Time join_end) {
  while (true) {
    absl::StatusOr<std::unique_ptr<Transport>> connected =
        ConnectFullMesh({.rank = options.world_size + options.shard,
                         .world_size = options.world_size + options.shard_count,
                         .server_count = options.shard_count,
                         .rendezvous = options.rendezvous,
                         .listener = std::nullopt,
                         .ports = options.port_range,
                         .run_id = options.run_id,
                         .token = options.security.rank_key,
                         .insecure = options.insecure,
                         .tls = tls,
                         .join_deadline = join_end - SteadyNow(),
                         // The job's own, which is not known yet, ends earlier.
                         .exchange_deadline = absl::Milliseconds(kTcpSilenceMsMax),
                         .say = SayInLog});
    const bool has_given_up = absl::IsDeadlineExceeded(connected.status()) || absl::IsUnavailable(connected.status());
    if (!has_given_up || SteadyNow() >= join_end) return connected;
    Log(absl::StrCat(std::string(connected.status().message()), "; waiting for the workers"));
    absl::SleepFor(kMeetingPause);
  }
}

absl::Status ServeAsRank(const ServerOptions& options) {
  ASSIGN_OR_RETURN(Trace* const trace, CreateTrace(options));
  ASSIGN_OR_RETURN(ServerMetrics* const metrics, ServeMetrics(options));
  // Static: the thread that waits for signals lives as long as the process.
  static std::atomic<bool> has_job = false;
  std::thread([] {
    HandleSignals([] {
      if (!has_job) _exit(kExitOk);
    });
  }).detach();
  ASSIGN_OR_RETURN(std::shared_ptr<const TlsContext> tls, TlsContextOf(options.security));
  static JobStatus job_status;
  if (!options.listen.empty()) {
    ASSIGN_OR_RETURN(const ParameterServer* const door, Listen(options, {.describe = [] { return job_status.Get(); }}));
    RETURN_IF_ERROR(SayAddress(options, *door));
  }
  std::printf("meeting the workers at %s, as rank %d\n", options.rendezvous.c_str(),
              options.world_size + options.shard);
  std::fflush(stdout);
  const absl::Time join_end = SteadyNow() + options.join_deadline;
  absl::Status status;
  for (bool is_job = false; !is_job;) {
    ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, MeetWorkers(options, tls, join_end));
    ShardRank server(std::move(transport), {.shard = options.shard,
                                            .shard_count = options.shard_count,
                                            .memory_bytes_max = options.memory_bytes_max,
                                            .join_deadline = join_end - SteadyNow(),
                                            .log = SayInLog,
                                            .on_begin = [] { has_job = true; },
                                            .on_status = [](const auto& now) { job_status.Set(now); },
                                            .metrics = metrics,
                                            .trace = trace});
    status = server.Run();
    is_job = !server.was_check();
    // A check does not end the server, which still waits for its job.
    if (!is_job && !status.ok()) Log(absl::StrCat("a check failed: ", std::string(status.message())));
  }
  // A job that failed has a trace too: that is when it is needed.
  if (trace == nullptr) return status;
  const absl::Status written = NotWritten(trace->Write(), "the trace");
  return status.ok() ? written : status;
}

absl::Status ServeByGrpc(const ServerOptions& options) {
  ParameterServer::Options serving_options = {.memory_bytes_max = options.memory_bytes_max,
                                              .join_deadline = options.join_deadline};
  if (options.elastic) {
    serving_options.elastic = {.coordinator = options.shard == 0 ? options.listen : options.coordinator,
                               .announce = options.announce,
                               .state_dir = options.state_dir,
                               .flush_state = options.flush_state,
                               .first_workers = options.first_workers,
                               .min_workers = options.min_workers,
                               .gone = absl::ToChronoMilliseconds(options.asked.member_gone),
                               .silent = absl::ToChronoMilliseconds(options.asked.member_silent),
                               .stuck = absl::ToChronoMilliseconds(options.asked.member_stuck)};
  }
  ASSIGN_OR_RETURN(serving_options.trace, CreateTrace(options));
  ASSIGN_OR_RETURN(serving_options.metrics, ServeMetrics(options));
  // Static: the thread that waits for signals lives as long as the process, and so does the server.
  static std::atomic<ParameterServer*> serving = nullptr;
  static std::atomic<bool> is_asked = false;
  std::thread([elastic = options.elastic] {
    HandleSignals([elastic] {
      is_asked = true;
      if (serving != nullptr) return serving.load()->Interrupt();
      // It may wait for its port. The run of an elastic one may have begun, and is saved when there is a server.
      if (!elastic) _exit(kExitOk);
    });
  }).detach();
  ASSIGN_OR_RETURN(serving, Listen(options, std::move(serving_options)));
  if (is_asked) serving.load()->Interrupt();
  RETURN_IF_ERROR(SayAddress(options, *serving));
  return serving.load()->Wait();
}

absl::Status PrintLog(const ServerOptions& options) {
  return GenerationLog::Print(options.state_dir, [](const std::string& line) { std::puts(line.c_str()); });
}

absl::Status Serve(const ServerOptions& options) {
  if (options.print_log) return PrintLog(options);
  return options.cell().contact == Contact::kRendezvous ? ServeAsRank(options) : ServeByGrpc(options);
}

int Main(int argc, char** argv) {
  OpenStandardStreams();
  ExplainExhaustion("server");
  EnterUsersFolder("server");
  KeepFreedMemory();
  setenv("GRPC_VERBOSITY", "NONE", 0);  // our own messages say what matters of gRPC's log
  // A message that does not parse is refused. Protobuf would also write a line for each, which a stranger could repeat
  // without end.
  google::protobuf::SetLogHandler(nullptr);
  signal(SIGXFSZ, SIG_IGN);  // at the limit of a file's size write() then fails, as on a full disk
  signal(SIGPIPE, SIG_IGN);  // who reads the output may leave: the job goes on without a reader
  // This comes before any thread is started: all inherit the mask, so that only HandleSignals receives these signals.
  const sigset_t signals = StopSignalSet();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const absl::StatusOr<ServerOptions> options = ParseServerOptions(argc, argv);
  if (options.ok()) {
    NameLog(absl::StrCat("server ", options->shard), options->log_time);
  } else {
    NameLog("server", AskedLogTime(argc, argv));
  }
  const absl::Status status = options.ok() ? Serve(*options) : options.status();
  if (!status.ok()) {
    // A worker may have said why the job ended.
    Log(Printable(status.message()), LogLevel::kError);
  }
  std::fflush(stdout);
  // No destructor runs: gRPC's threads and the one that waits for signals still run and use what would be destroyed.
  _exit(ExitCode(status));
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) { return starring::Main(argc, argv); }
