#include "server/server_options.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/flags/command_line.h"
#include "common/host/host_port.h"
#include "common/limits.h"
#include "common/security/security_flags.h"
#include "common/status.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:7077", "address to listen on; port 0 takes a free one");
ABSL_FLAG(int, shard, 0, "which shard of the parameters this server owns");
ABSL_FLAG(int, shard_count, 1, "number of servers");
ABSL_FLAG(std::string, run_id, "",
          "the only run whose workers may join, as their --run_id says; empty: that of the first worker");
ABSL_FLAG(bool, insecure, false,
          "without --job_secret, listen on other addresses than loopback too: whoever reaches them can join");
ABSL_FLAG(int, join_deadline_s, 0, "seconds, from the start, for all workers to join; 0: as long as it takes");
ABSL_FLAG(absl::Duration, join_deadline, absl::InfiniteDuration(),
          "old name of --join_deadline_s, with a unit; the next release drops it");
ABSL_FLAG(
    double, memory_limit_gb, 0,
    "memory that this server may use, in units of 10^9 bytes; a job that needs more is refused when its first "
    "worker joins; 0: what is free then (MemAvailable, or the control group's limit), divided by the job's servers "
    "on this machine");
ABSL_FLAG(std::string, port_file, "", "file to write the bound host:port to, for scripts");
ABSL_FLAG(std::string, trace, "",
          "writes a timeline (Chrome trace events) when the job is over; trace.json makes trace.server-SHARD.json");
ABSL_FLAG(
    int, metrics_port, -1,
    "serves live numbers at http://ADDRESS:PORT/metrics (Prometheus); shard s takes this port + s; 0: a free one; "
    "-1: none");
ABSL_FLAG(std::string, metrics_address, "127.0.0.1",
          "address of --metrics_port; 0.0.0.0: every address of the machine");

namespace starring {
namespace {

constexpr FlagRow kRows[] = {
    {"listen", "job", Text("host:port")},
    {"shard", "job", Whole(0, kShardCountMax - 1)},
    {"shard_count", "job", Whole(1, kShardCountMax)},
    {"run_id", "job", Text("name")},
    {"join_deadline_s", "job", Whole(0, kDeadlineSecondsMax)},
    {"join_deadline", "job", Text("duration such as 90s")},
    {"memory_limit_gb", "job", Real(0, kMemoryLimitGbMax)},
    {"port_file", "output", Text("file")},
    {"trace", "output", Text("file")},
    {"metrics_port", "output", Whole(-1, kPortMax)},
    {"metrics_address", "output", Text("address")},
    {"insecure", "security", Switch()},
};
constexpr auto kAllRows = JoinRows(kRows, kSecurityRows);
constexpr FlagTable kTable = {.program = "server",
                              .purpose =
                                  "one shard of the parameter server, for one job. The workers bring model, "
                                  "optimizer and all other settings.",
                              .rows = kAllRows};

absl::StatusOr<absl::Duration> ReadJoinDeadline(const ParsedFlags& flags) {
  if (flags.given.contains("join_deadline")) {
    if (flags.given.contains("join_deadline_s")) {
      return absl::InvalidArgumentError("--join_deadline is the old name of --join_deadline_s: keep the latter");
    }
    const absl::Duration deadline = absl::GetFlag(FLAGS_join_deadline);
    if (deadline > absl::ZeroDuration()) return deadline;
    return absl::InvalidArgumentError(
        absl::StrCat("flag --join_deadline cannot be \"", absl::FormatDuration(deadline), "\": it must be above 0"));
  }
  const int seconds = absl::GetFlag(FLAGS_join_deadline_s);
  return seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
}

}  // namespace

const FlagTable& ServerFlags() { return kTable; }

absl::StatusOr<ServerOptions> ParseServerOptions(int argc, const char* const* argv) {
  ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(argc, argv, kTable));
  ServerOptions options = {.listen = absl::GetFlag(FLAGS_listen),
                           .shard = absl::GetFlag(FLAGS_shard),
                           .shard_count = absl::GetFlag(FLAGS_shard_count),
                           .run_id = absl::GetFlag(FLAGS_run_id),
                           .security = {},
                           .insecure = absl::GetFlag(FLAGS_insecure),
                           .memory_bytes_max = static_cast<int64_t>(1e9 * absl::GetFlag(FLAGS_memory_limit_gb)),
                           .trace = absl::GetFlag(FLAGS_trace),
                           .metrics_port = absl::GetFlag(FLAGS_metrics_port),
                           .metrics_address = absl::GetFlag(FLAGS_metrics_address),
                           .port_file = absl::GetFlag(FLAGS_port_file)};
  ASSIGN_OR_RETURN(options.join_deadline, ReadJoinDeadline(flags));
  RETURN_IF_ERROR(ParseHostPort(options.listen).status(), "--listen");
  if (options.shard >= options.shard_count) {
    return absl::InvalidArgumentError(absl::StrCat("flag --shard cannot be \"", options.shard,
                                                   "\": shards count from 0 to shard_count - 1, and --shard_count is ",
                                                   options.shard_count));
  }
  if (options.metrics_port > 0) options.metrics_port += options.shard;
  if (options.metrics_port > kPortMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("flag --metrics_port cannot be \"", options.metrics_port - options.shard, "\": shard ",
                     options.shard, " would take ", options.metrics_port, ", and ports end at ", kPortMax));
  }
  ASSIGN_OR_RETURN(options.security, LoadTransportSecurity(SecurityFlags()));
  return options;
}

}  // namespace starring
