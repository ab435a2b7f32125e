#include "deploy/launch/launch_options.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/host/own_program.h"
#include "common/job/cells.h"
#include "common/network/address.h"

namespace starring {
namespace {

// The program that the flag names; else the one that Bazel has built next to this launcher (bazel-bin/worker/worker and
// bazel-bin/deploy/launch); else the one in the launcher's own folder, as a bundle has them.
absl::StatusOr<std::string> FindProgram(absl::string_view name, absl::string_view flag, const std::string& given) {
  if (!given.empty()) {
    char resolved[PATH_MAX];
    if (realpath(given.c_str(), resolved) != nullptr && access(resolved, X_OK) == 0) return std::string(resolved);
    return absl::NotFoundError(absl::StrCat("flag --", flag, " names ", given, ", which is no program"));
  }
  const std::string self = OwnProgram();
  if (self.empty()) return absl::InternalError("cannot read /proc/self/exe");
  const std::string folder = self.substr(0, self.rfind('/'));
  const std::string candidates[] = {absl::StrCat(folder, "/../", name, "/", name), absl::StrCat(folder, "/", name)};
  for (const std::string& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("no ", name, " at ", candidates[0], " nor ", candidates[1],
                                          ": build it (bazel build //", name, ") or give --", flag));
}

// One dash or two, with or without a value, as the workers' parser reads it.
bool IsFlag(absl::string_view word, absl::string_view flag) {
  if (!absl::ConsumePrefix(&word, "--") && !absl::ConsumePrefix(&word, "-")) return false;
  return word == flag || absl::StartsWith(word, absl::StrCat(flag, "="));
}

bool HasFlag(const std::vector<std::string>& words, absl::string_view flag) {
  return std::any_of(words.begin(), words.end(), [flag](const std::string& word) { return IsFlag(word, flag); });
}

// Whether the workers save where a restart finds it.
bool HasFolder(const std::vector<std::string>& words) {
  std::string folder;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!IsFlag(words[i], "checkpoint_dir")) continue;
    const size_t equals = words[i].find('=');
    folder = equals != std::string::npos ? words[i].substr(equals + 1) : i + 1 < words.size() ? words[i + 1] : "";
  }
  return !folder.empty() && folder != "none";
}

// The workers' flags, and those in the workers' files. The workers read the files again themselves; here they are read
// to find flags that contradict the launcher's.
absl::StatusOr<std::vector<std::string>> WithFilesRead(const std::vector<std::string>& worker_flags) {
  std::vector<std::string> words = worker_flags;
  for (size_t i = 0; i < worker_flags.size(); ++i) {
    if (!IsFlag(worker_flags[i], "flagfile")) continue;
    const size_t equals = worker_flags[i].find('=');
    if (equals == std::string::npos && i + 1 == worker_flags.size()) break;  // the workers refuse it
    ASSIGN_OR_RETURN(
        const FlagFile file,
        ReadFlagFile(equals == std::string::npos ? worker_flags[i + 1] : worker_flags[i].substr(equals + 1)));
    // As a worker reads it: the part after the line --, or all of a file that has no such line.
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
  for (const absl::string_view ours : {"sync", "transport", "port_range", "rendezvous", "rendezvous_fd", "rank",
                                       "world_size", "servers", "server_ranks", "elastic", "coordinator"}) {
    if (HasFlag(worker_flags, ours)) {
      return absl::InvalidArgumentError(
          absl::StrCat("flag --", ours, " is after --, but the launcher sets it for each worker: drop it there"));
    }
  }
  constexpr absl::string_view kAfterToo = "it is after -- too: drop it there, the launcher gives it to every process";
  if (!options.trace.empty() && HasFlag(worker_flags, "trace")) {
    return RefuseFlag("trace", options.trace, kAfterToo);
  }
  if (HasFlag(worker_flags, "log_time")) return RefuseFlag("log_time", NameOf(kLogTimes, options.log_time), kAfterToo);
  if (options.metrics_port >= 0 && HasFlag(worker_flags, "metrics_port")) {
    return RefuseFlag("metrics_port", absl::StrCat(options.metrics_port), kAfterToo);
  }
  // An evaluation saves nothing from which a restart could go on, so it needs no folder.
  const bool restarts = options.restart_count > 0 && !HasFlag(worker_flags, "evaluate");
  if (restarts && !HasFolder(worker_flags)) {
    return RefuseFlag("restarts", absl::StrCat(options.restart_count),
                      "a restart continues from a checkpoint: give the workers a --checkpoint_dir after --");
  }
  return absl::OkStatus();
}

// "--sync=star --transport=mpi", as far as it was given.
std::string JobName(const LaunchOptions& options) {
  const std::string sync = absl::StrCat("--sync=", NameOf(kSyncs, options.sync_asked));
  if (!options.transport_asked.has_value()) return sync;
  return absl::StrCat(sync, " --transport=", NameOf(kTransports, options.transport_asked));
}

// The topology of --sync=auto. More than one worker without servers choose among several, of which this is the first.
Sync UsualSync(const LaunchOptions& options) {
  const std::optional<TransportKind> asked = options.transport_asked;
  const bool has_servers =
      options.servers_asked > 0 || (asked.has_value() && CellOf({.transport = asked}).contact == Contact::kServers);
  if (has_servers) return CellOf({.server_count = 1}).sync;
  return options.worker_count > 1 ? CellOf({.may = Cell::kAutoSync}).sync : CellOf({.contact = Contact::kNone}).sync;
}

absl::Status ResolveTransport(LaunchOptions& options) {
  const std::optional<TransportKind> asked = options.transport_asked;
  CellPattern wanted = {.sync = options.sync, .transport = asked};
  if (!asked.has_value()) wanted.may = Cell::kUsual;
  const Cell* const cell = FindCell(wanted);
  if (cell == nullptr) return RefuseFlag("transport", NameOf(kTransports, asked), WhyNotOver(options.sync, *asked));
  options.transport = cell->transport;
  return absl::OkStatus();
}

// Whether a process of the job listens at a port that it chooses. Over MPI the workers do so for a check alone.
absl::Status CheckPortRange(const LaunchOptions& options) {
  const Contact contact = options.cell().contact;
  const bool listens =
      contact == Contact::kServers || contact == Contact::kRendezvous || (contact == Contact::kMpirun && options.check);
  if (options.port_range.IsAny() || (listens && options.join.empty())) return absl::OkStatus();
  return RefuseFlag("port_range", AbslUnparseFlag(options.port_range),
                    contact == Contact::kMpirun ? "MPI chooses its ports itself: drop it, and limit Open MPI's by "
                                                  "OMPI_MCA_btl_tcp_port_min_v4 and OMPI_MCA_btl_tcp_port_range_v4"
                                                : absl::StrCat(options.join.empty() ? JobName(options) : "--join",
                                                               " has nothing that listens: "
                                                               "drop it"));
}

absl::Status CheckElastic(const ParsedFlags& flags, const LaunchOptions& options) {
  if (!options.join.empty()) {
    RETURN_IF_ERROR(ParseHostPort(options.join).status(), "--join");
    for (const char* const flag : {"elastic", "state_dir", "min_workers"}) {
      if (flags.given.contains(flag)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", flag, " is for the command that starts a job; --join adds workers to one: drop it"));
      }
    }
  }
  if (!options.join.empty() && options.servers_asked > 0) {
    return RefuseFlag("join", options.join, "the job has its servers: drop --servers");
  }
  if (!options.join.empty() && options.security.job_secret.empty()) {
    return RefuseFlag("join", options.join,
                      "it needs the job's secret: start the job with --job_secret=FILE, and give the "
                      "same file here");
  }
  if (options.elastic || !options.join.empty()) {
    const bool may = FindCell({.sync = options.sync, .transport = options.transport, .may = Cell::kElastic}) != nullptr;
    if (may && options.proxies.empty() && !options.check) return absl::OkStatus();
    return RefuseFlag(
        options.elastic ? "elastic" : "join", options.elastic ? "true" : options.join,
        absl::StrCat("it needs ", CellFlags(CellOf({.may = Cell::kElastic})), ", without --through_proxy and --check"));
  }
  for (const char* const flag : {"restart_processes", "state_dir", "min_workers"}) {
    if (flags.given.contains(flag)) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, " is for an elastic job: give --elastic, too"));
    }
  }
  return absl::OkStatus();
}

// Loads the files that the processes will load, so that an unfit file is refused before any process starts.
absl::Status ReadSecurity(LaunchOptions& options) {
  const Cell& cell = options.cell();
  if (!cell.May(Cell::kSecret)) RETURN_IF_ERROR(RefuseSecurityFlags(options.security, JobName(options)));
  if (!cell.May(Cell::kSiteCertificates)) RETURN_IF_ERROR(RefuseSiteCertificates(options.security));
  SecurityFiles files = options.security;
  // The launcher will make the job's secret, from which TLS takes its key and certificate. Until then --tls alone would
  // be refused for want of them.
  if (files.job_secret.empty() && files.tls_ca.empty() && files.tls_certificate.empty() && files.tls_key.empty()) {
    files.tls = false;
  }
  return LoadTransportSecurity(files).status();
}

absl::Status ReadServers(LaunchOptions& options) {
  const auto has_cell = [&options](int server_count) {
    return FindCell({.sync = options.sync, .server_count = server_count, .transport = options.transport}) != nullptr;
  };
  // A job that may do without servers has only those that the user asks for.
  if (has_cell(1)) options.server_count = std::max(has_cell(0) ? 0 : 1, options.servers_asked);
  if (options.server_count > 0) {
    ASSIGN_OR_RETURN(options.server_binary, FindProgram("server", "server_binary", options.server_binary));
  } else if (options.servers_asked > 0) {
    return RefuseFlag("servers", absl::StrCat(options.servers_asked),
                      absl::StrCat(JobName(options), " has no servers: drop it, or choose a star over grpc or tcp"));
  }
  const Cell& cell = options.cell();
  if (options.proxies.empty()) return absl::OkStatus();
  const std::string proxies = absl::StrJoin(options.proxies, ",");
  if (cell.contact != Contact::kServers) {
    return RefuseFlag("through_proxy", proxies,
                      absl::StrCat(JobName(options), " has no servers that workers dial: choose --transport=grpc"));
  }
  if (static_cast<int>(options.proxies.size()) != options.server_count) {
    return RefuseFlag("through_proxy", proxies,
                      absl::StrCat("it has ", options.proxies.size(), " addresses for ", options.server_count,
                                   " servers: give one for each of --servers"));
  }
  return absl::OkStatus();
}

// Written by bazel run //worker/options:flag_pages.
constexpr absl::string_view kWorkerFlags[] = {
#include "deploy/launch/worker_flags.inc"
};

std::string AfterDashes(absl::string_view name) {
  if (std::ranges::find(kWorkerFlags, name) == std::end(kWorkerFlags)) return "";
  return absl::StrCat("it is a flag of the workers: write it after --, as in launch --workers=2 -- --", name, "=...");
}

FlagTable MakeTable() {
  static const LaunchOptions defaults;
  FlagTable table =
      MakeFlagTable("launch",
                    "runs a job of several processes on this machine: launch FLAGS -- WORKER FLAGS.\n"
                    "worker --help shows the latter. A file of flags may have both, with a line -- between them.",
                    launch_flags::kAllRows, &defaults);
  table.elsewhere = AfterDashes;
  return table;
}

}  // namespace

const FlagTable& LaunchFlags() {
  static const FlagTable table = MakeTable();
  return table;
}

absl::Duration JoinDeadline(const std::vector<std::string>& worker_flags) {
  constexpr absl::string_view kFlag = "--join_deadline_s=";
  // The default of the worker's flag.
  int64_t join_seconds = 60;
  for (const std::string& word : worker_flags) {
    int64_t number;
    if (absl::StartsWith(word, kFlag) && absl::SimpleAtoi(word.substr(kFlag.size()), &number) && number > 0) {
      join_seconds = std::min<int64_t>(number, kDeadlineSecondsMax);
    }
  }
  return absl::Seconds(join_seconds);
}

std::vector<std::string> ResumingFlags(std::vector<std::string> worker_flags) {
  // An old --resume is removed first, because a flag that is given twice is refused. The files of flags stay: a flag on
  // the command line wins over a --resume in them.
  std::erase_if(worker_flags,
                [](const std::string& word) { return IsFlag(word, "resume") || IsFlag(word, "noresume"); });
  worker_flags.emplace_back("--resume=true");
  return worker_flags;
}

absl::StatusOr<LaunchOptions> ParseLaunchOptions(int argc, const char* const* argv) {
  LaunchOptions options;
  ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(argc, argv, LaunchFlags(), &options, FlagFilePart::kLauncher));
  const char* const* const end = argv + argc;
  // ParseFlags has stopped at the same word.
  const char* const* const dashes = std::find_if(argv, end, [](const char* word) { return strcmp(word, "--") == 0; });
  if (dashes != end) options.worker_flags.assign(dashes + 1, end);
  // Each worker reads its part of the file itself: its errors name file and line.
  for (const std::string& file : flags.files_with_worker_part) {
    options.worker_flags.push_back(absl::StrCat("--flagfile=", file));
  }

  // No process is started, so no program is looked for and no other flag has to fit.
  if (!options.status.empty()) RETURN_IF_ERROR(ParseHostPort(options.status).status(), "--status");
  if (!options.make_secret.empty() || !options.status.empty()) return options;
  if (!options.secret_from.empty()) {
    return RefuseFlag("secret_from", options.secret_from, "it needs --make_secret=file, where the copy is written");
  }
  options.sync = options.sync_asked.value_or(UsualSync(options));
  if (!CellOf({.sync = options.sync}).Exchanges() && options.worker_count > 1) {
    return RefuseFlag("workers", absl::StrCat(options.worker_count), "--sync=local is one worker: choose star or ring");
  }
  RETURN_IF_ERROR(ResolveTransport(options));
  RETURN_IF_ERROR(CheckElastic(flags, options));
  if (options.join.empty()) RETURN_IF_ERROR(ReadServers(options));
  RETURN_IF_ERROR(CheckPortRange(options));
  RETURN_IF_ERROR(ReadSecurity(options));
  ASSIGN_OR_RETURN(options.worker_binary, FindProgram("worker", "worker_binary", options.worker_binary));
  RETURN_IF_ERROR(CheckWorkerFlags(options));
  return options;
}

}  // namespace starring
