#include "deploy/launch/launch_options.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/flags/command_line.h"
#include "common/flags/flag_file.h"
#include "common/flags/flag_table.h"
#include "common/limits.h"
#include "common/security/security_flags.h"
#include "common/status.h"

ABSL_FLAG(std::string, sync, "star", "how gradients are synchronised");
ABSL_FLAG(int, workers, 1, "worker processes");
ABSL_FLAG(int, servers, 0, "star: server processes; 0 means 1");
ABSL_FLAG(int, restarts, 0, "after a failure, start the job again with --resume, at most so many times");
ABSL_FLAG(int, cores_per_worker, 0, "cores that each worker is pinned to; 0: an equal share");
ABSL_FLAG(int, cores_per_server, 0, "cores that each server is pinned to; 0: what the workers leave, else all");
ABSL_FLAG(std::string, through_proxy, "",
          "star: host:port for each server, separated by commas, that workers dial instead of it; the launcher prints "
          "where the servers listen, so that whoever is there can forward to them");
ABSL_FLAG(bool, check, false,
          "instead of training: every process dials every other one that it would talk to; prints one table and "
          "whether the job is ready, or what to mend; exit code 0, 2 or 3");
ABSL_FLAG(std::string, worker_binary, "", "the worker; empty: the one built with this launcher");
ABSL_FLAG(std::string, server_binary, "", "the server; empty: the one built with this launcher");
ABSL_FLAG(std::string, make_secret, "",
          "write the secret of one job to this file, mode 0600, for --job_secret of servers and workers, and end");
ABSL_FLAG(std::string, trace, "",
          "every worker and server writes a timeline; trace.json makes trace.worker-0.json, trace.server-0.json ...");
ABSL_FLAG(int, metrics_port, -1,
          "workers serve live numbers (Prometheus) from this port on, the servers after them; 0: free ones; -1: none");
ABSL_FLAG(int, start_deadline_s, 30, "seconds for the servers to listen");
ABSL_FLAG(int, stop_deadline_s, 60, "seconds for the workers to save and leave after Ctrl-C or SIGTERM");

namespace starring {
namespace {

constexpr FlagRow kRows[] = {
    {"sync", "job", OneOf("star", "ring", "mpi", "local")},
    {"workers", "job", Whole(1, kWorldSizeMax)},
    {"servers", "job", Whole(0, kShardCountMax)},
    {"through_proxy", "job", Text("host:port,...")},
    {"restarts", "job", Whole(0, kRestartCountMax)},
    {"check", "job", Switch()},
    {"start_deadline_s", "job", Whole(1, kStartSecondsMax)},
    {"stop_deadline_s", "job", Whole(1, kStartSecondsMax)},
    {"cores_per_worker", "processor", Whole(0, kCoreCountMax)},
    {"cores_per_server", "processor", Whole(0, kCoreCountMax)},
    {"trace", "output", Text("file")},
    {"metrics_port", "output", Whole(-1, kPortMax)},
    {"worker_binary", "program", Text("file")},
    {"server_binary", "program", Text("file")},
    {"make_secret", "security", Text("file")},
};
constexpr auto kAllRows = JoinRows(kRows, kSecurityRows);
constexpr FlagTable kTable = {
    .program = "launch",
    .purpose =
        "runs a job of several processes on this machine: launch FLAGS -- WORKER FLAGS.\n"
        "worker --help shows the latter. A file of flags may have both, with a line -- between them.",
    .rows = kAllRows};

absl::Status Refuse(absl::string_view flag, absl::string_view value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("flag --", flag, " cannot be \"", value, "\": ", why));
}

absl::StatusOr<LaunchSync> ParseSync(const std::string& name) {
  if (name == "star") return LaunchSync::kStar;
  if (name == "ring") return LaunchSync::kRing;
  if (name == "mpi") return LaunchSync::kMpi;
  if (name == "local") return LaunchSync::kLocal;
  return Refuse("sync", name, "it must be one of star, ring, mpi, local");
}

// The program as given, or the one that Bazel put into the folder next to ours (bazel-bin/worker/worker beside
// bazel-bin/deploy/launch), or the one in our own folder, where somebody copied both.
absl::StatusOr<std::string> FindProgram(absl::string_view name, absl::string_view flag, const std::string& given) {
  if (!given.empty()) {
    char resolved[PATH_MAX];
    if (realpath(given.c_str(), resolved) != nullptr && access(resolved, X_OK) == 0) return std::string(resolved);
    return absl::NotFoundError(absl::StrCat("flag --", flag, " names ", given, ", which is no program"));
  }
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  if (length <= 0) return absl::InternalError("cannot read /proc/self/exe");
  const std::string folder(self, static_cast<size_t>(absl::string_view(self, static_cast<size_t>(length)).rfind('/')));
  const std::string candidates[] = {absl::StrCat(folder, "/../", name, "/", name), absl::StrCat(folder, "/", name)};
  for (const std::string& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("no ", name, " at ", candidates[0], " nor ", candidates[1],
                                          ": build it (bazel build //", name, ") or give --", flag));
}

bool IsFlag(absl::string_view word, absl::string_view flag) {
  if (!absl::ConsumePrefix(&word, "--") && !absl::ConsumePrefix(&word, "-")) return false;
  return word == flag || absl::StartsWith(word, absl::StrCat(flag, "="));
}

bool HasFlag(const std::vector<std::string>& words, absl::string_view flag) {
  return std::any_of(words.begin(), words.end(), [flag](const std::string& word) { return IsFlag(word, flag); });
}

// The workers' flags and those of their files, which the workers read themselves.
absl::StatusOr<std::vector<std::string>> WithFilesRead(const std::vector<std::string>& worker_flags) {
  std::vector<std::string> words = worker_flags;
  for (size_t i = 0; i < worker_flags.size(); ++i) {
    if (!IsFlag(worker_flags[i], "flagfile")) continue;
    const size_t equals = worker_flags[i].find('=');
    if (equals == std::string::npos && i + 1 == worker_flags.size()) break;  // the workers refuse it
    ASSIGN_OR_RETURN(
        const FlagFile file,
        ReadFlagFile(equals == std::string::npos ? worker_flags[i + 1] : worker_flags[i].substr(equals + 1)));
    for (const FlagLine& line : file.dashes_place.empty() ? file.lines : file.worker_lines) words.push_back(line.word);
  }
  return words;
}

absl::Status CheckWorkerFlags(const LaunchOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> worker_flags, WithFilesRead(options.worker_flags));
  for (const absl::string_view shared :
       {"run_id", "job_secret", "tls", "notls", "tls_ca", "tls_certificate", "tls_key"}) {
    if (HasFlag(worker_flags, shared)) {
      return absl::InvalidArgumentError(
          absl::StrCat("flag --", shared, " is after --, but the servers need the same: ",
                       shared == "run_id" ? "drop it, the launcher sets it for both" : "give it before --"));
    }
  }
  for (const absl::string_view ours : {"sync", "rank", "world_size", "servers"}) {
    if (HasFlag(worker_flags, ours)) {
      return absl::InvalidArgumentError(
          absl::StrCat("flag --", ours, " is after --, but the launcher sets it for each worker: drop it there"));
    }
  }
  constexpr absl::string_view kAfterToo = "it is after -- too: drop it there, the launcher gives it to every process";
  if (!options.trace.empty() && HasFlag(worker_flags, "trace")) {
    return Refuse("trace", options.trace, kAfterToo);
  }
  if (options.metrics_port >= 0 && HasFlag(worker_flags, "metrics_port")) {
    return Refuse("metrics_port", absl::StrCat(options.metrics_port), kAfterToo);
  }
  if (options.restart_count > 0 && !HasFlag(worker_flags, "checkpoint_dir")) {
    return Refuse("restarts", absl::StrCat(options.restart_count),
                  "a restart continues from a checkpoint: give the workers a --checkpoint_dir after --");
  }
  return absl::OkStatus();
}

// Loads what the processes will load: a file that is unfit is refused before anything is started.
absl::Status ReadSecurity(LaunchOptions& options) {
  options.security = SecurityFlags();
  const std::vector<std::string> words = SecurityFlagWords(options.security);
  if (options.sync != LaunchSync::kStar && !words.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("flag ", words.front(),
                                                   " protects the connections of a star, and "
                                                   "--sync=",
                                                   options.sync_name, " has none: drop it"));
  }
  SecurityFiles files = options.security;
  // The launcher makes the job's secret, from which TLS has its key and certificate.
  if (files.job_secret.empty() && files.tls_ca.empty() && files.tls_certificate.empty() && files.tls_key.empty()) {
    files.tls = false;
  }
  return LoadTransportSecurity(files).status();
}

absl::Status ReadServers(LaunchOptions& options) {
  const int count = absl::GetFlag(FLAGS_servers);
  if (options.sync == LaunchSync::kStar) {
    options.server_count = std::max(1, count);
    ASSIGN_OR_RETURN(options.server_binary, FindProgram("server", "server_binary", absl::GetFlag(FLAGS_server_binary)));
  } else if (count > 0) {
    return Refuse("servers", absl::StrCat(count), absl::StrCat("--sync=", options.sync_name, " has no servers"));
  }
  const std::string proxies = absl::GetFlag(FLAGS_through_proxy);
  if (proxies.empty()) return absl::OkStatus();
  options.proxies = absl::StrSplit(proxies, ',');
  if (options.sync != LaunchSync::kStar) {
    return Refuse("through_proxy", proxies, absl::StrCat("--sync=", options.sync_name, " has no servers"));
  }
  if (static_cast<int>(options.proxies.size()) != options.server_count) {
    return Refuse("through_proxy", proxies,
                  absl::StrCat("it has ", options.proxies.size(), " addresses for ", options.server_count,
                               " servers: give one for each of --servers"));
  }
  return absl::OkStatus();
}

}  // namespace

const FlagTable& LaunchFlags() { return kTable; }

std::vector<std::string> ResumingFlags(std::vector<std::string> worker_flags) {
  // A flag that is given twice is refused.
  std::erase_if(worker_flags,
                [](const std::string& word) { return IsFlag(word, "resume") || IsFlag(word, "noresume"); });
  worker_flags.emplace_back("--resume=true");
  return worker_flags;
}

absl::StatusOr<LaunchOptions> ParseLaunchOptions(int argc, const char* const* argv) {
  ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(argc, argv, kTable, FlagFilePart::kLauncher));
  LaunchOptions options;
  const char* const* const end = argv + argc;
  const char* const* const dashes = std::find_if(argv, end, [](const char* word) { return strcmp(word, "--") == 0; });
  if (dashes != end) options.worker_flags.assign(dashes + 1, end);
  // Each worker reads its part of the file itself: its errors name file and line.
  for (const std::string& file : flags.files_with_worker_part) {
    options.worker_flags.push_back(absl::StrCat("--flagfile=", file));
  }

  options.make_secret = absl::GetFlag(FLAGS_make_secret);
  if (!options.make_secret.empty()) return options;
  options.sync_name = absl::GetFlag(FLAGS_sync);
  options.worker_count = absl::GetFlag(FLAGS_workers);
  options.check = absl::GetFlag(FLAGS_check);
  options.restart_count = absl::GetFlag(FLAGS_restarts);
  options.cores_per_worker = absl::GetFlag(FLAGS_cores_per_worker);
  options.cores_per_server = absl::GetFlag(FLAGS_cores_per_server);
  options.start_deadline = std::chrono::seconds(absl::GetFlag(FLAGS_start_deadline_s));
  options.trace = absl::GetFlag(FLAGS_trace);
  options.metrics_port = absl::GetFlag(FLAGS_metrics_port);
  options.stop_deadline = std::chrono::seconds(absl::GetFlag(FLAGS_stop_deadline_s));
  ASSIGN_OR_RETURN(options.sync, ParseSync(options.sync_name));
  if (options.sync == LaunchSync::kLocal && options.worker_count > 1) {
    return Refuse("workers", absl::StrCat(options.worker_count), "--sync=local is one worker: choose star or ring");
  }
  RETURN_IF_ERROR(ReadServers(options));
  RETURN_IF_ERROR(ReadSecurity(options));
  ASSIGN_OR_RETURN(options.worker_binary, FindProgram("worker", "worker_binary", absl::GetFlag(FLAGS_worker_binary)));
  RETURN_IF_ERROR(CheckWorkerFlags(options));
  return options;
}

}  // namespace starring
