#include "deploy/launch/job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/host/exhausted.h"
#include "common/host/machine_limits.h"
#include "common/job/cells.h"
#include "common/network/port_range.h"
#include "deploy/launch/mpi_rank.h"
#include "server/elastic/generation_log.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = Supervisor::Clock;

// The period of checks for things that no event announces (port files).
constexpr milliseconds kTick{20};
// A child may notice a peer's end before we do. We wait this long for the exit code of the peer, the real cause.
constexpr milliseconds kCulpritGrace{1000};
// The time between SIGTERM and SIGKILL when the job has failed. mpirun needs two seconds to end its ranks.
constexpr seconds kTermGrace{4};
// How long mpirun may take to end after its ranks have ended. It needs two seconds.
constexpr seconds kMpirunGrace{5};
// How far the first rank to end may be ahead of the last: ranks end together.
constexpr seconds kLastRankGrace{60};
// The period of checks on the ranks. They are mpirun's children, so no signal tells us that one has ended.
constexpr seconds kRanksTick{1};
constexpr milliseconds kElasticTick{250};
// How long after another process shard 0 may end with the run: it waits up to two seconds for the others to hear of it.
constexpr seconds kRunEndGrace{3};
// How long the workers may take to report after the end of the run. One that has missed the end would wait a minute.
constexpr seconds kLastWorkerGrace{3};
// How long the servers may take to leave by themselves after the workers have left.
constexpr seconds kServerGrace{2};
// How long they may take when the job has failed, once its workers are gone.
constexpr seconds kLoneServerGrace{1};
// A killed process is gone at once, unless it hangs inside the kernel.
constexpr seconds kKillDeadline{10};
constexpr Clock::duration kForEver = std::chrono::hours(24 * 365);

std::string NameOf(char role, int number) { return absl::StrCat(std::string(1, role), number); }

// As in a shell, an exit code above 128 is that of a signal. 0: the child has ended by itself.
int SignalOf(const Child& child) {
  const int number = child.exit_code - 128;
  return number > 0 && number < SIGRTMIN ? number : 0;
}

std::string EndText(const Child& child) {
  if (const int number = SignalOf(child); number > 0) {
    return absl::StrCat(child.name, " was ended by signal ", number, " (", strsignal(number), ")");
  }
  return absl::StrCat(child.name, " failed with exit code ", child.exit_code,
                      child.exit_code == kExitNotWritten ? ": it has trained, and could not write the result" : "");
}

// A socket that has a port of the loopback interface. As long as it is open, no other process can have the port.
struct ReservedPort {
  UniqueFd holder;
  int port = 0;
};

// Port 0 takes a free one. AlreadyExists if the port is taken.
absl::StatusOr<ReservedPort> BindPort(int port) {
  ReservedPort reserved{.holder = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t length = sizeof(address);
  auto* const place = reinterpret_cast<sockaddr*>(&address);
  const int fd = reserved.holder.get();
  // Without SO_REUSEADDR a bound socket keeps others out. A port of a range must be free again at once after the last
  // job that had it, whose connections the kernel remembers for a minute. So the socket allows reuse, and listens,
  // which keeps others out, too.
  const int yes = 1;
  if (fd < 0 || (port != 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0) ||
      bind(fd, place, length) != 0 || (port != 0 && listen(fd, kWorldSizeMax) != 0) ||
      getsockname(fd, place, &length) != 0) {
    const int error = errno;
    const std::string text = absl::StrCat("cannot bind port ", port, " of 127.0.0.1");
    // ErrnoToStatus has another code for a port that is taken.
    return error == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::ErrnoToStatus(error, text);
  }
  reserved.port = ntohs(address.sin_port);
  return reserved;
}

// A port for --rendezvous. Rank 0 inherits the socket, and listens.
absl::StatusOr<ReservedPort> ReservePort(const PortRange& ports) {
  ReservedPort reserved;
  const absl::Status status = ListenInRange(ports, [&](int port) -> absl::Status {
    ASSIGN_OR_RETURN(reserved, BindPort(port));
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(status, "--rendezvous");
  return reserved;
}

// A port that is free now, and that no other process gets later, because shard 0 comes back at the same one: outside
// ip_local_port_range, or the last free one of `ports`, of which the other shards take the first.
absl::StatusOr<int> FindCoordinatorPort(const PortRange& ports) {
  if (!ports.IsAny()) {
    int found = 0;
    const absl::Status status = ListenInRange(ports, [&](int port) -> absl::Status {
      ASSIGN_OR_RETURN(const ReservedPort reserved, BindPort(ports.last - (port - ports.first)));
      found = reserved.port;
      return absl::OkStatus();
    });
    RETURN_IF_ERROR(status, "--elastic");
    return found;
  }
  int first = 32768, last = 60999;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first >> last;
  constexpr int kFirstUserPort = 1024, kPorts = 65536, kTries = 200;
  std::random_device random;
  for (int i = 0; i < kTries; ++i) {
    const int port = kFirstUserPort + static_cast<int>(random() % (kPorts - kFirstUserPort));
    if ((port < first || port > last) && BindPort(port).ok()) return port;
  }
  return absl::UnavailableError(absl::StrCat("no free port outside of ", first, " to ", last,
                                             ", the range that the system gives away (ip_local_port_range)"));
}

}  // namespace

Job::Job(const Context& context)
    : context_(context),
      options_(*context.options),
      environment_(InheritedEnvironment()),
      supervisor_(context.signals, context.merger, context.output) {
  // A waiting thread that spins would take the core of the thread that it waits for: cores are often oversubscribed.
  environment_.SetDefault("OMP_WAIT_POLICY", "PASSIVE");
  environment_.SetDefault("OMP_NUM_THREADS", absl::StrCat(context.cores->workers.front().size()));
  environment_.Set("STARRING_CORES_PER_WORKER", CoreListsText(context.cores->workers));
  environment_.Set("STARRING_CORES_PER_SERVER", CoreListsText(context.cores->servers));
}

absl::StatusOr<JobOutcome> Job::Run() {
  // An error does not return here: the children that have been started are ended below.
  const absl::Status started = Start();
  if (started.ok()) RunWorkers();
  const bool done = started.ok() && WorkersDone();
  if (done && options_.check) {
    EndCheck();
  } else if (done && FirstFailure() == nullptr) {
    EndServers();
  }

  JobOutcome outcome{.exit_code = 0, .stopped = supervisor_.stop_count() > 0};
  if (const Child* const failure = FirstFailure(); failure != nullptr) {
    outcome.exit_code = failure->exit_code;
    // The last sentence of a check's own output already says what is wrong.
    const bool said = options_.check && (failure->exit_code == kExitRefused || failure->exit_code == kExitPeerMissing);
    if (!said) {
      context_.merger->Print(
          absl::StrCat("launch: ", EndText(*failure), supervisor_.AnyRunning() ? ": ending the others" : ""));
      if (SignalOf(*failure) == SIGKILL) {
        context_.merger->Print(absl::StrCat(
            "launch: signal 9 comes from a person, or from the kernel when memory runs out: ", MemoryLimitsText()));
      }
    }
  } else if (!done && EndOfRun() != nullptr) {
    context_.merger->Print("launch: the run has ended, and not all workers have: ending them");
  } else if (!done && outcome.stopped) {
    outcome.exit_code = 128 + supervisor_.stop_signal();
  } else if (ranks_are_missing_) {
    outcome.exit_code = kExitPeerMissing;
  }
  EndAllProcesses();
  // A child's exit code, or a signal, is the cause of a start that failed, and says more than the failed start.
  if (!started.ok() && outcome.exit_code == 0) return started;
  return outcome;
}

absl::Status Job::Start() {
  if (!options_.join.empty()) return StartWorkers({absl::StrCat("--coordinator=", options_.join), "--elastic"});
  if (options_.elastic) return StartElastic();
  switch (options_.cell().contact) {
    case Contact::kServers: {
      RETURN_IF_ERROR(StartServers({"--listen=127.0.0.1:0"}));
      ASSIGN_OR_RETURN(std::vector<std::string> addresses, AwaitServerAddresses());
      for (size_t shard = 0; shard < options_.proxies.size(); ++shard) {
        context_.merger->Print(absl::StrCat("launch: ", NameOf('s', static_cast<int>(shard)), " listens at ",
                                            addresses[shard], ", the workers dial ", options_.proxies[shard]));
        addresses[shard] = options_.proxies[shard];
      }
      return StartWorkers({absl::StrCat("--servers=", absl::StrJoin(addresses, ","))});
    }
    case Contact::kRendezvous: {
      ASSIGN_OR_RETURN(ReservedPort reserved, ReservePort(options_.port_range));
      const std::string rendezvous = absl::StrCat("--rendezvous=127.0.0.1:", reserved.port);
      if (options_.server_count == 0) return StartWorkers({rendezvous}, reserved.holder.get());
      RETURN_IF_ERROR(StartServers({absl::StrCat("--transport=", TransportName(options_.transport)), rendezvous,
                                    absl::StrCat("--world_size=", options_.worker_count)}));
      return StartWorkers({rendezvous, absl::StrCat("--server_ranks=", options_.server_count)}, reserved.holder.get());
    }
    case Contact::kMpirun:
      return StartMpirun();
    case Contact::kNone:
      return StartWorkers({});
  }
  return absl::InternalError("no such way to start");
}

// Shard 0 comes back at the same port, so that port must be one that the system gives to nobody else.
absl::Status Job::StartElastic() {
  ASSIGN_OR_RETURN(const int port, FindCoordinatorPort(options_.port_range));
  const std::string coordinator = absl::StrCat("127.0.0.1:", port);
  const std::string state_dir = absl::StrCat("--state_dir=", context_.state_dir);
  RETURN_IF_ERROR(StartServer(0, {absl::StrCat("--listen=", coordinator), "--elastic", state_dir,
                                  absl::StrCat("--first_workers=", options_.worker_count),
                                  absl::StrCat("--min_workers=", options_.min_workers)}));
  for (int shard = 1; shard < options_.server_count; ++shard) {
    RETURN_IF_ERROR(StartServer(
        shard, {"--listen=127.0.0.1:0", "--elastic", state_dir, absl::StrCat("--coordinator=", coordinator)}));
  }
  context_.merger->Print(absl::StrCat("launch: the coordinator listens at ", coordinator));
  if (options_.process_restart_count > 0) {
    watch_ = std::make_unique<RunWatch>(coordinator, context_.security, options_.server_count);
  }
  return StartWorkers({absl::StrCat("--coordinator=", coordinator), "--elastic"});
}

bool Job::RestartProcesses() {
  for (const Child& dead : supervisor_.Excusable()) {
    const auto startable = startable_.find(dead.name);
    // A worker that is refused does not end a run that others go on with.
    const bool is_refused = dead.exit_code == kExitRefused;
    const bool has_begun = options_.join.empty() && !GenerationLog::UnfinishedRun(context_.state_dir).empty();
    if (startable == startable_.end() || (is_refused && (dead.role == Role::kServer || !has_begun))) return true;
    if (dead.exit_code == kExitNotWritten) continue;  // the run is over: shard 0 is about to end
    const bool was_killed = SignalOf(dead) > 0;
    // The end of the run may have ended it, and then shard 0 is about to end, too.
    if (!was_killed && Clock::now() < dead.ended + kRunEndGrace) continue;
    const std::string text = EndText(dead);
    // With --join, shard 0 is not ours to look at: a worker that was not killed knows that the run is over, or has
    // waited for the run long enough.
    const bool may_start = was_killed || (options_.join.empty() && !is_refused);
    if (!may_start || process_restarts_ == options_.process_restart_count) {
      // The others go on without a worker, but not without a shard.
      if (dead.role == Role::kServer || !CanGoOn()) return true;
      context_.merger->Print(absl::StrCat("launch: ", text, ": the others go on"));
      supervisor_.Excuse(dead.pid);
      continue;
    }
    if (!was_killed && !MayRestart(dead, &startable->second.pause)) continue;
    ++process_restarts_;
    context_.merger->Print(absl::StrCat("launch: ", text, ": starting it again, ", process_restarts_, " of ",
                                        options_.process_restart_count));
    supervisor_.Excuse(dead.pid);
    if (!StartChild(dead.name, startable->second.role, startable->second.spec).ok()) return true;
  }
  return false;
}

// A process that fails again and again, such as one with a broken GPU, joins and leaves less and less often.
bool Job::MayRestart(const Child& dead, RestartPause* pause) {
  const auto [at, is_new] = restart_at_.try_emplace(dead.pid);
  if (is_new) at->second = dead.ended + pause->After(dead.ended - dead.started);
  return Clock::now() >= at->second;
}

bool Job::CanGoOn() const {
  if (!WorkersDone()) return true;
  // Others' workers may train, and the coordinator knows. Before it has a first worker, it would wait without end.
  if (options_.join.empty()) return !GenerationLog::UnfinishedRun(context_.state_dir).empty();
  return std::ranges::any_of(supervisor_.children(), [](const Child& child) { return child.exit_code == kExitOk; });
}

const Child* Job::EndOfRun() const {
  if (!options_.elastic) return nullptr;
  for (const Child& child : supervisor_.children()) {
    if (child.name == NameOf('s', 0) && !child.running && !child.ended_by_us && SignalOf(child) == 0) return &child;
  }
  return nullptr;
}

void Job::EndStuckServers() {
  if (watch_ == nullptr) return;
  for (const StuckServer& stuck : watch_->Take()) {
    const std::string name = NameOf('s', stuck.shard);
    for (const Child& child : supervisor_.children()) {
      if (!child.running || child.name != name || child.started > stuck.seen) continue;
      context_.merger->Print(absl::StrCat("launch: ", name, " runs and does not answer: ending it"));
      supervisor_.Signal(name, SIGKILL);
      break;
    }
  }
}

absl::Status Job::StartServers(const std::vector<std::string>& meeting) {
  for (int shard = 0; shard < options_.server_count; ++shard) RETURN_IF_ERROR(StartServer(shard, meeting));
  return absl::OkStatus();
}

absl::Status Job::StartServer(int shard, const std::vector<std::string>& meeting) {
  const std::string name = NameOf('s', shard);
  ChildSpec spec;
  spec.program = options_.server_binary;
  spec.argv = {options_.server_binary, absl::StrCat("--shard=", shard),
               absl::StrCat("--shard_count=", options_.server_count)};
  spec.argv.insert(spec.argv.end(), meeting.begin(), meeting.end());
  // Where workers dial the servers, the kernel gives each server a free port (port 0), and the port file says which. A
  // port chosen here could be taken by the time the server asks for it.
  if (options_.cell().contact == Contact::kServers) {
    spec.argv.push_back(absl::StrCat("--port_file=", context_.folder, "/", name, ".port"));
  }
  spec.argv.insert(spec.argv.end(), context_.admission_flags.begin(), context_.admission_flags.end());
  // Shard 0 of an elastic job has its port from us.
  if (!IsElastic() || shard > 0) AppendPortRange(&spec.argv);
  AppendWatching(options_.worker_count, &spec.argv);
  spec.cores = context_.cores->servers[static_cast<size_t>(shard)];
  return StartChild(name, Role::kServer, std::move(spec));
}

absl::StatusOr<std::vector<std::string>> Job::AwaitServerAddresses() {
  std::vector<std::string> addresses(static_cast<size_t>(options_.server_count));
  const auto all_listen = [&] {
    for (int shard = 0; shard < options_.server_count; ++shard) {
      std::string& address = addresses[static_cast<size_t>(shard)];
      if (!address.empty()) continue;
      std::ifstream file(absl::StrCat(context_.folder, "/", NameOf('s', shard), ".port"));
      std::string text(std::istreambuf_iterator<char>(file), {});
      if (!absl::EndsWith(text, "\n")) return false;  // not written yet, or half written
      absl::StripAsciiWhitespace(&text);
      address = absl::StrContains(text, ':') ? text : absl::StrCat("127.0.0.1:", text);
    }
    return true;
  };
  const auto over = [&] {
    return supervisor_.stop_count() > 0 || !std::all_of(supervisor_.children().begin(), supervisor_.children().end(),
                                                        [](const Child& child) { return child.running; });
  };
  const bool in_time = supervisor_.RunUntil([&] { return over() || all_listen(); },
                                            Clock::now() + absl::ToChronoSeconds(options_.start_deadline), kTick);
  if (over()) {
    for (const Child& child : supervisor_.children()) {
      if (!child.running) return absl::UnavailableError(absl::StrCat(EndText(child), " before it was listening"));
    }
    return absl::CancelledError("stopped before the servers were listening");
  }
  if (in_time) return addresses;
  const auto silent = std::find(addresses.begin(), addresses.end(), "") - addresses.begin();
  return absl::DeadlineExceededError(absl::StrCat("s", silent, " is not listening after ",
                                                  absl::ToInt64Seconds(options_.start_deadline),
                                                  " s (--start_deadline_s)"));
}

absl::Status Job::StartWorkers(const std::vector<std::string>& meeting, int rendezvous_fd) {
  for (int rank = 0; rank < options_.worker_count; ++rank) {
    ChildSpec spec;
    spec.program = options_.worker_binary;
    spec.argv = WorkerCommand();
    if (!meeting.empty()) {
      spec.argv.insert(spec.argv.end(), meeting.begin(), meeting.end());
      // In an elastic job it is only a number for files, ports and messages.
      spec.argv.push_back(absl::StrCat("--rank=", rank));
      if (!IsElastic()) spec.argv.push_back(absl::StrCat("--world_size=", options_.worker_count));
      spec.argv.insert(spec.argv.end(), context_.admission_flags.begin(), context_.admission_flags.end());
    }
    if (rank == 0 && rendezvous_fd >= 0) {
      spec.argv.push_back(absl::StrCat("--rendezvous_fd=", rendezvous_fd));
      spec.kept_fd = rendezvous_fd;
    }
    spec.cores = context_.cores->workers[static_cast<size_t>(rank)];
    RETURN_IF_ERROR(StartChild(NameOf('w', rank), Role::kWorker, std::move(spec)));
  }
  return absl::OkStatus();
}

absl::Status Job::StartMpirun() {
  for (int rank = 0; rank < options_.worker_count; ++rank) {
    const std::string prefix = absl::StrCat(NameOf('w', rank), " | ");
    for (const OutputStream stream : {OutputStream::kOut, OutputStream::kErr}) {
      const std::string path = RankPath(context_.folder, rank, stream == OutputStream::kOut ? "out" : "err");
      if (rank == 0 && stream == OutputStream::kOut && isatty(STDOUT_FILENO) == 1) {
        ASSIGN_OR_RETURN(OutputChannel terminal, CreateTerminal());
        // The rank opens its output by its name in the folder, pipe or terminal.
        if (symlink(terminal.write_path.c_str(), path.c_str()) != 0) return absl::InternalError(path);
        // Without a writer the terminal would report its end before rank 0 has opened it.
        held_open_.push_back(std::move(terminal.write_end));
        supervisor_.AddOutput(std::move(terminal.read_end), context_.merger->AddLive());
        continue;
      }
      ASSIGN_OR_RETURN(OutputChannel fifo, CreateFifo(path));
      const bool bare = rank == 0 && stream == OutputStream::kOut;
      supervisor_.AddOutput(std::move(fifo.read_end), context_.merger->AddPrefixed(bare ? "" : prefix, stream));
    }
  }
  // The usual soft limit of 1024 is enough for some 120 ranks. mpirun inherits it.
  RaiseDescriptorLimit(MpirunDescriptors(options_.worker_count));
  SetMpiDefaults(options_.worker_count, CountedCores(ReadCoreLimits()), environment_);
  SetMpiMemory(options_.worker_count, context_.folder, environment_);
  ChildSpec spec;
  RETURN_IF_ERROR(SetMpirunCommand({.rank_count = options_.worker_count,
                                    .folder = context_.folder,
                                    .cores = context_.cores->workers,
                                    .worker = WorkerCommand(),
                                    .quiet = options_.check},
                                   spec));
  spec.death_signal = SIGTERM;  // on SIGTERM mpirun ends its ranks and cleans up; on SIGKILL it could not
  return StartChild("mpirun", Role::kMpirun, std::move(spec));
}

absl::Status Job::StartChild(const std::string& name, Role role, ChildSpec spec) {
  if (IsElastic()) startable_.try_emplace(name, Startable{.role = role, .spec = spec});  // its pause stays
  const std::string prefix = absl::StrCat(name, " | ");
  OutputChannel out;
  int out_source = 0;
  if (name == "w0") {
    // Worker 0 draws a live line where its output is a terminal, so it gets one if the launcher has one.
    const bool live = isatty(STDOUT_FILENO) == 1;
    ASSIGN_OR_RETURN(out, live ? CreateTerminal() : CreatePipe());
    out_source = live ? context_.merger->AddLive() : context_.merger->AddPrefixed("", OutputStream::kOut);
  } else {
    ASSIGN_OR_RETURN(out, CreatePipe());
    out_source = context_.merger->AddPrefixed(prefix, OutputStream::kOut);
  }
  // Standard error always has a prefix, worker 0's too, so that each message names its process.
  ASSIGN_OR_RETURN(OutputChannel err, CreatePipe());
  spec.environment = environment_.variables();
  spec.stdout_fd = out.write_end.get();
  spec.stderr_fd = err.write_end.get();
  supervisor_.AddOutput(std::move(out.read_end), out_source);
  supervisor_.AddOutput(std::move(err.read_end), context_.merger->AddPrefixed(prefix, OutputStream::kErr));
  return supervisor_.Start(name, role, spec);
}

// Appends the flags for lines, timelines and metrics. Processes of one kind have consecutive ports; `first_port` is the
// offset of the first one from --metrics_port.
void Job::AppendWatching(int first_port, std::vector<std::string>* command) const {
  command->emplace_back("--log_time=none");  // the launcher stamps the lines
  if (!options_.trace.empty()) command->push_back(absl::StrCat("--trace=", options_.trace));
  const int port = options_.metrics_port;
  if (port >= 0) command->push_back(absl::StrCat("--metrics_port=", port == 0 ? 0 : port + first_port));
}

void Job::AppendPortRange(std::vector<std::string>* command) const {
  if (options_.port_range.IsAny()) return;
  command->push_back(absl::StrCat("--port_range=", AbslUnparseFlag(options_.port_range)));
}

std::vector<std::string> Job::WorkerCommand() const {
  std::vector<std::string> command = {options_.worker_binary,
                                      absl::StrCat("--sync=", NameOf(kSyncs, options_.sync_asked))};
  if (options_.cell().Exchanges()) {
    command.push_back(absl::StrCat("--transport=", TransportName(options_.transport)));
  }
  if (options_.check) command.emplace_back("--check");
  if (options_.cell().contact != Contact::kServers) AppendPortRange(&command);
  AppendWatching(0, &command);
  command.insert(command.end(), context_.worker_flags.begin(), context_.worker_flags.end());
  return command;
}

// Returns when the workers are done, or the job has failed, or a second signal demands an end at once.
void Job::RunWorkers() {
  // During --check, a worker that cannot reach the others fails early. The others are left to finish within their own
  // deadlines, so that the table is complete.
  const auto over = [&] { return IsOver(); };
  const Clock::time_point join_end = Clock::now() + absl::ToChronoSeconds(JoinDeadline(context_.worker_flags));
  const auto ranks_are_late = [&] { return !RanksHaveStarted() && Clock::now() > join_end; };
  supervisor_.RunUntil([&] { return over() || supervisor_.stop_count() > 0 || ranks_are_late() || MpirunIsOverdue(); },
                       Clock::now() + kForEver, Tick());
  if (!over() && supervisor_.stop_count() == 0 && !RanksHaveStarted()) return EndMpirunWithoutRanks();
  if (!over() && supervisor_.stop_count() == 0) {
    context_.merger->Print(absl::StrCat("launch: ", ended_ranks_, " of ", options_.worker_count,
                                        " ranks have ended, and mpirun has not noticed: ending it"));
    supervisor_.Signal(Role::kMpirun, SIGKILL);
    supervisor_.RunUntil(over, Clock::now() + kKillDeadline, seconds(60));
    return;
  }
  if (!over()) StopPolitely();
  const Child* const failure = FirstFailure();
  if (failure != nullptr && failure->exit_code == kExitNotWritten) {
    // The training is over, and the others are about to say so.
    supervisor_.RunUntil([&] { return !supervisor_.AnyRunning() || supervisor_.stop_count() > 1; },
                         Clock::now() + kLastWorkerGrace, seconds(60));
  }
  if (options_.check || failure == nullptr || failure->exit_code != kExitPeerMissing) return;
  // So far only processes that miss a peer have ended. The peer, the cause, gets a moment to end as well.
  supervisor_.RunUntil(
      [&] {
        const Child* const first = FirstFailure();
        return !supervisor_.AnyRunning() || first == nullptr || first->exit_code != kExitPeerMissing ||
               supervisor_.stop_count() > 1;
      },
      Clock::now() + kCulpritGrace, seconds(60));
}

// The job is done, or it has failed.
bool Job::IsOver() {
  if (!IsElastic()) return WorkersDone() || (!options_.check && FirstFailure() != nullptr);
  EndStuckServers();
  if (const Child* const end = EndOfRun(); end != nullptr) {
    return end->exit_code != kExitOk || WorkersDone() || Clock::now() > end->ended + kLastWorkerGrace;
  }
  // Others' workers may train when ours have left: the servers end with the run.
  return RestartProcesses() || (WorkersDone() && !supervisor_.AnyRunning(Role::kServer));
}

// A signal announces every end of a child of ours. Only mpirun's ranks, servers that are stuck, and times that pass
// have to be looked for.
milliseconds Job::Tick() const {
  if (supervisor_.AnyRunning(Role::kMpirun)) return kRanksTick;
  return IsElastic() ? kElasticTick : milliseconds(seconds(60));
}

// True without mpirun.
bool Job::RanksHaveStarted() {
  if (started_ranks_ < options_.worker_count && supervisor_.AnyRunning(Role::kMpirun)) {
    started_ranks_ = CountStartedRanks(context_.folder, options_.worker_count);
    return started_ranks_ == options_.worker_count;
  }
  return true;
}

// An mpirun that lacks something (descriptors, processes, memory) may say so and wait for ever. The caller's caller
// ends it.
void Job::EndMpirunWithoutRanks() {
  ranks_are_missing_ = true;
  context_.merger->Print(absl::StrCat(
      "launch: mpirun has started ", started_ranks_, " of ", options_.worker_count, " ranks within ",
      absl::ToInt64Seconds(JoinDeadline(context_.worker_flags)), " s (--join_deadline_s): ending it; it may need ",
      MpirunDescriptors(options_.worker_count), " descriptors, and ulimit -n allows ", RaiseDescriptorLimit(0)));
}

// True if ranks have ended and mpirun does not notice: Open MPI 4.1 waits for ever for a rank that died while it was
// connecting ("PMIX ERROR: UNREACHABLE").
bool Job::MpirunIsOverdue() {
  for (const Child& child : supervisor_.children()) {
    if (!child.running || child.role != Role::kMpirun) continue;
    const Clock::time_point now = Clock::now();
    const int ended = CountEndedRanks(context_.folder, options_.worker_count, child.pid);
    // Each further end begins the time anew: ranks may save and leave one after another.
    if (ended != ended_ranks_) ended_ranks_since_ = now;
    ended_ranks_ = ended;
    const seconds grace = ended == options_.worker_count ? kMpirunGrace : kLastRankGrace;
    return ended > 0 && now > ended_ranks_since_ + grace;
  }
  return false;
}

// The workers agree on a step, save and leave with 0. The servers get no signal, because the workers need them for it.
void Job::StopPolitely() {
  // Ranks that are about to start get a moment. Without all of them no rank trains, and mpirun may hang.
  supervisor_.RunUntil([&] { return RanksHaveStarted() || IsOver() || supervisor_.stop_count() > 1; },
                       Clock::now() + kTermGrace, kTick);
  if (!RanksHaveStarted()) {
    context_.merger->Print(
        absl::StrCat("launch: ", strsignal(supervisor_.stop_signal()), " before all ranks have started"));
    return;
  }
  context_.merger->Print(absl::StrCat("launch: ", strsignal(supervisor_.stop_signal()),
                                      ": asking the workers to save and stop (once more: end at once)"));
  if (options_.elastic) {
    // A worker would leave, and the others go on.
    supervisor_.Signal(NameOf('s', 0), SIGTERM);
  } else {
    supervisor_.Signal(Role::kWorker, supervisor_.stop_signal() == SIGINT ? SIGINT : SIGTERM);
  }
  // On SIGINT and SIGTERM mpirun kills its ranks. It passes SIGUSR1 on to them, and a worker treats that as a stop.
  supervisor_.Signal(Role::kMpirun, SIGUSR1);
  const bool in_time = supervisor_.RunUntil([&] { return IsOver() || supervisor_.stop_count() > 1; },
                                            Clock::now() + absl::ToChronoSeconds(options_.stop_deadline), Tick());
  // The caller ends those that still run.
  if (!in_time) {
    context_.merger->Print(absl::StrCat("launch: the workers still run ", absl::ToInt64Seconds(options_.stop_deadline),
                                        " s later (--stop_deadline_s): ending them"));
  }
}

// A check is over. Servers that still wait for a job have nothing to save and no message to print: kill them.
void Job::EndCheck() {
  supervisor_.EndAll(SIGKILL);
  supervisor_.RunUntil([&] { return !supervisor_.AnyRunning(); }, Clock::now() + kKillDeadline, seconds(60));
}

void Job::EndServers() {
  const auto gone = [&] {
    return !supervisor_.AnyRunning() || FirstFailure() != nullptr || supervisor_.stop_count() > 1;
  };
  supervisor_.RunUntil(gone, Clock::now() + kServerGrace, seconds(60));
  if (supervisor_.AnyRunning()) EndAllProcesses();
}

void Job::EndAllProcesses() {
  // A second signal from the user skips the polite half.
  const bool at_once = supervisor_.stop_count() > 1;
  const auto gone = [&] { return !supervisor_.AnyRunning(); };
  if (!at_once) {
    supervisor_.EndAll(SIGTERM);
    // A server of a job whose workers are gone would wait for them to come back.
    supervisor_.RunUntil([&] { return WorkersDone() || supervisor_.stop_count() > 1; }, Clock::now() + kTermGrace,
                         seconds(60));
    supervisor_.RunUntil([&] { return gone() || supervisor_.stop_count() > 1; }, Clock::now() + kLoneServerGrace,
                         seconds(60));
  }
  for (const Child& child : supervisor_.children()) {
    if (!child.running || child.role != Role::kMpirun) continue;
    // An mpirun that is still there waits for its ranks. Once they are gone it cleans up and ends. If it were killed
    // itself, it would leave its files in the temporary folder.
    KillRanks(context_.folder, options_.worker_count, child.pid);
    supervisor_.RunUntil(gone, Clock::now() + kTermGrace, seconds(60));
  }
  supervisor_.EndAll(SIGKILL);
  supervisor_.RunUntil(gone, Clock::now() + kKillDeadline, seconds(60));
  supervisor_.CloseOutputs();
}

// The cause of a failed job: the child that ended first among those that failed by themselves. A child that reports a
// missing peer is the cause only if every failed child does, since its peer's failure came first. In an elastic job
// shard 0 says how the run has ended. A child that then reports a missing peer has not learned of the end.
const Child* Job::FirstFailure() const {
  const Child* const end = EndOfRun();
  if (end != nullptr && end->exit_code != kExitOk) return end;
  const Child* first = nullptr;
  const auto order = [](const Child& child) {
    return std::make_pair(child.exit_code == kExitPeerMissing, child.end_order);
  };
  for (const Child& child : supervisor_.children()) {
    if (child.running || child.ended_by_us || child.excused || child.exit_code == 0) continue;
    if (end != nullptr && child.exit_code == kExitPeerMissing) continue;
    if (first == nullptr || order(child) < order(*first)) first = &child;
  }
  return first;
}

bool Job::WorkersDone() const {
  return !supervisor_.AnyRunning(Role::kWorker) && !supervisor_.AnyRunning(Role::kMpirun);
}

}  // namespace starring
