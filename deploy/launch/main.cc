// //deploy:launch: runs a job of several processes on this machine. See launch_options.h for the flags.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/host/exhausted.h"
#include "common/host/log.h"
#include "common/host/machine_limits.h"
#include "common/host/standard_streams.h"
#include "common/job/cells.h"
#include "common/security/job_secret.h"
#include "common/security/security_flags.h"
#include "common/security/transport_security.h"
#include "common/wire/run_client.h"
#include "deploy/launch/child_process.h"
#include "deploy/launch/job.h"
#include "deploy/launch/launch_options.h"
#include "deploy/launch/mpi_rank.h"
#include "deploy/launch/output.h"
#include "deploy/launch/status_text.h"
#include "deploy/launch/supervisor.h"
#include "server/elastic/generation_log.h"

namespace starring {
namespace {

constexpr std::chrono::milliseconds kStatusPatience(5'000);

// A folder that is deleted with its owner, unless it is to be kept.
class TemporaryFolder {
 public:
  static absl::StatusOr<TemporaryFolder> Create(absl::string_view name) {
    const char* const parent = getenv("TMPDIR");
    std::string path = absl::StrCat(parent == nullptr ? "/tmp" : parent, "/", name, ".XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return absl::InternalError(absl::StrCat("cannot make a folder ", path, ": ", strerror(errno), "; set TMPDIR"));
    }
    return TemporaryFolder(path);
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  void Keep() { path_.clear(); }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

std::string PlanText(const LaunchOptions& options, const CorePlan& plan, const CoreLimits& limits) {
  std::string text = absl::StrCat("launch: ",
                                  !options.join.empty() ? absl::StrCat("workers for the job of ", options.join)
                                                        : absl::StrCat(IsCoLocated(options.cell()) ? "co-located " : "",
                                                                       NameOf(kSyncs, options.sync_asked)),
                                  ", cores:");
  for (size_t rank = 0; rank < plan.workers.size(); ++rank) {
    absl::StrAppend(&text, " w", rank, "=", CoreListText(plan.workers[rank]));
  }
  for (size_t shard = 0; shard < plan.servers.size(); ++shard) {
    absl::StrAppend(&text, " s", shard, "=", CoreListText(plan.servers[shard]));
  }
  if (limits.quota > 0) absl::StrAppend(&text, " (", CoresText(limits), ")");
  return text;
}

// Sets the values that admit only this attempt's processes to its connections. They are the secret (a fresh one if the
// user gave none) and a run id, by which servers refuse workers of an earlier attempt.
absl::Status SetAdmission(const LaunchOptions& options, const std::string& run_id, Job::Context* context) {
  if (!options.cell().May(Cell::kSecret)) return absl::OkStatus();
  SecurityFiles files = options.security;
  if (files.job_secret.empty()) {
    files.job_secret = absl::StrCat(context->folder, "/secret");
    RETURN_IF_ERROR(MakeJobSecret(files.job_secret), "cannot make the job's secret");
  }
  context->admission_flags = SecurityFlagWords(files);
  context->admission_flags.push_back(absl::StrCat("--run_id=", run_id));
  ASSIGN_OR_RETURN(context->security, LoadTransportSecurity(files));
  return absl::OkStatus();
}

// A random name that distinguishes this launcher's job from any other. It is never used in arithmetic, so results stay
// equal.
std::string DrawJobName() {
  std::random_device device;
  return absl::StrCat("launch-", absl::Hex(device(), absl::kZeroPad8));
}

// Sets where an attempt's servers have their state. Returns the folder if it is a temporary one.
absl::StatusOr<std::optional<TemporaryFolder>> SetStateDir(const LaunchOptions& options, int restart,
                                                           Job::Context* context) {
  if (!options.elastic) return std::nullopt;
  if (!options.state_dir.empty()) {
    // A restart goes on from a checkpoint, with a log of its own.
    context->state_dir = options.state_dir;
    if (restart > 0) absl::StrAppend(&context->state_dir, "/restart-", restart);
    return std::nullopt;
  }
  ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Create("starring-state"));
  context->state_dir = folder.path();
  return std::optional<TemporaryFolder>(std::move(folder));
}

// The name of an attempt's run. If --state_dir has an unfinished run, that run goes on under its name.
std::string RunIdOf(const LaunchOptions& options, const std::string& job_name, int restart,
                    const Job::Context& context) {
  if (!options.join.empty()) return "";  // a launcher that joins gets the name from the coordinator
  const std::string unfinished = options.elastic ? GenerationLog::UnfinishedRun(context.state_dir) : "";
  if (unfinished.empty()) return absl::StrCat(job_name, "-", restart);
  context.merger->Print(absl::StrCat("launch: going on with the run of --state_dir=", context.state_dir));
  return unfinished;
}

// Whether another attempt follows after this outcome. Prints that it does, or why it does not.
bool StartsAgain(const LaunchOptions& options, const JobOutcome& outcome, int restart, LineMerger* merger) {
  // A check is never repeated: its result is what the user wants to see.
  if (outcome.exit_code == kExitOk || outcome.stopped || options.restart_count == 0 || options.check) return false;
  if (outcome.exit_code == kExitRefused) {
    merger->Print("launch: exit code 2 means wrong flags or input: no restart would help");
    return false;
  }
  if (outcome.exit_code == kExitNotWritten) {
    merger->Print("launch: exit code 4 means that the training is over: no restart would bring the result back");
    return false;
  }
  if (restart == options.restart_count) {
    merger->Print(absl::StrCat("launch: giving up after ", restart, restart == 1 ? " restart" : " restarts"));
    return false;
  }
  merger->Print(absl::StrCat("launch: restart ", restart + 1, " of ", options.restart_count,
                             ", from the last complete checkpoint"));
  return true;
}

absl::Status PrintStatus(const LaunchOptions& options) {
  ASSIGN_OR_RETURN(const TransportSecurity security, LoadTransportSecurity(options.security));
  RunClient client(options.status, security);
  const absl::StatusOr<RunStatus> run = client.Ask(kStatusPatience);
  if (!run.ok()) {
    return absl::Status(run.status().code(),
                        absl::StrCat(Printable(run.status().message()),
                                     ": --status needs the address that an elastic run has printed, and its secret as "
                                     "--job_secret"));
  }
  std::fputs(StatusText(*run).c_str(), stdout);
  return absl::OkStatus();
}

absl::StatusOr<int> Launch(int argc, const char* const* argv) {
  ASSIGN_OR_RETURN(const LaunchOptions options, ParseLaunchOptions(argc, argv));
  if (!options.make_secret.empty()) {
    RETURN_IF_ERROR(options.secret_from.empty() ? MakeJobSecret(options.make_secret)
                                                : CopyJobSecret(options.secret_from, options.make_secret));
    std::printf("%s: the secret of one job, for --job_secret of its servers and workers\n",
                options.make_secret.c_str());
    return kExitOk;
  }
  if (!options.status.empty()) {
    RETURN_IF_ERROR(PrintStatus(options));
    return kExitOk;
  }
  // Before the first child: from here on signals wait in a queue, and the launcher ends its children before itself.
  ASSIGN_OR_RETURN(SignalQueue signals, SignalQueue::Create());
  OutputQueue output;
  NameLog("launch", options.log_time);
  LineMerger merger([&output](OutputStream stream, absl::string_view bytes) { output.Write(stream, bytes); },
                    options.log_time);
  const CoreLimits limits = ReadCoreLimits();
  const CorePlan plan = PlanCores(AllowedCores(), {.worker_count = options.worker_count,
                                                   .server_count = options.server_count,
                                                   .cores_per_worker = options.cores_per_worker,
                                                   .cores_per_server = options.cores_per_server,
                                                   .quota = limits.quota});
  merger.Print(PlanText(options, plan, limits));
  Job::Context context{.options = &options,
                       .cores = &plan,
                       .signals = &signals,
                       .merger = &merger,
                       .output = &output,
                       .folder = "",
                       .state_dir = options.state_dir,
                       .worker_flags = options.worker_flags,
                       .admission_flags = {},
                       .security = {}};
  const std::string job_name = DrawJobName();
  RestartPause restart_pause(RestartPause::kOfJob);
  for (int restart = 0;; ++restart) {
    // Every attempt has a folder of its own. In an old one, the port files and process ids of the attempt before would
    // pass for the new ones.
    ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Create("starring"));
    context.folder = folder.path();
    ASSIGN_OR_RETURN(std::optional<TemporaryFolder> state, SetStateDir(options, restart, &context));
    RETURN_IF_ERROR(SetAdmission(options, RunIdOf(options, job_name, restart, context), &context));
    const RestartPause::Clock::time_point begin = RestartPause::Clock::now();
    Job job(context);
    ASSIGN_OR_RETURN(const JobOutcome outcome, job.Run());
    // The pause ends with a signal, or Ctrl-C would seem to be ignored for up to 8 s.
    if (!StartsAgain(options, outcome, restart, &merger) ||
        signals.StopsWithin(restart_pause.After(RestartPause::Clock::now() - begin))) {
      const bool may_go_on = options.elastic && outcome.exit_code != kExitOk && outcome.exit_code != kExitRefused;
      if (may_go_on && !GenerationLog::UnfinishedRun(context.state_dir).empty()) {
        if (state.has_value()) state->Keep();
        merger.Print(
            absl::StrCat("launch: to go on with this run, start it again with --state_dir=", context.state_dir));
      }
      return outcome.exit_code;
    }
    context.worker_flags = ResumingFlags(options.worker_flags);
  }
}

int Main(int argc, char** argv) {
  // mpirun starts this program once for each rank (mpi_rank.h).
  if (IsRankCommand(argc, argv)) RunRank(argc, argv);
  OpenStandardStreams();
  ExplainExhaustion("launch");
  EnterUsersFolder("launch");
  // Launch may refuse the flags, and the refusal then has the time stamp that they ask for.
  NameLog("launch", AskedLogTime(argc, argv));
  const absl::StatusOr<int> exit_code = Launch(argc, argv);
  if (exit_code.ok()) return *exit_code;
  Log(std::string(exit_code.status().message()), LogLevel::kError);
  return ExitCode(exit_code.status());
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) { return starring::Main(argc, argv); }
