#include "server/server_options.h"

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/job/cells.h"
#include "common/network/address.h"

namespace starring {
namespace {

absl::StatusOr<absl::Duration> ReadJoinDeadline(const ParsedFlags& flags, const ServerOptions::Asked& asked) {
  if (flags.given.contains("join_deadline")) {
    if (flags.given.contains("join_deadline_s")) {
      return absl::InvalidArgumentError("--join_deadline is the old name of --join_deadline_s: keep the latter");
    }
    if (asked.join_deadline > absl::ZeroDuration()) return asked.join_deadline;
    return RefuseFlag("join_deadline", absl::FormatDuration(asked.join_deadline), "it must be above 0");
  }
  return asked.join_deadline_s == 0 ? absl::InfiniteDuration() : absl::Seconds(asked.join_deadline_s);
}

// Whether the flags by which servers and workers find each other go together.
absl::Status CheckTransport(const ParsedFlags& flags, const ServerOptions& options) {
  const Cell& cell = options.cell();
  if (cell.contact == Contact::kServers) {
    for (const char* const flag : {"rendezvous", "world_size"}) {
      if (!flags.given.contains(flag)) continue;
      const std::string value =
          flag == absl::string_view("rendezvous") ? options.rendezvous : absl::StrCat(options.world_size);
      return RefuseFlag(flag, value, "over grpc the workers dial --listen: drop it, or give --transport=tcp");
    }
    return Annotate(ParseHostPort(options.listen).status(), "--listen");
  }
  if (!options.listen.empty()) {
    RETURN_IF_ERROR(ParseHostPort(options.listen).status(), "--listen");
  } else if (!options.port_file.empty()) {
    return RefuseFlag("port_file", options.port_file,
                      "over tcp no worker has to know a server's address: drop it, or give --listen for GetStatus");
  }
  if (options.rendezvous.empty()) {
    return RefuseFlag("transport", "tcp", "it needs --rendezvous=host:port, where worker 0 listens");
  }
  RETURN_IF_ERROR(ParseHostPort(options.rendezvous).status(), "--rendezvous");
  if (options.world_size == 0) {
    return RefuseFlag("world_size", "0", "over tcp a server is a rank after the workers: give the number of workers");
  }
  if (options.world_size + options.shard_count > kWorldSizeMax) {
    return RefuseFlag("world_size", absl::StrCat(options.world_size),
                      absl::StrCat("with --shard_count=", options.shard_count, " there are over ", kWorldSizeMax,
                                   " processes: take fewer servers"));
  }
  return cell.May(Cell::kSiteCertificates) ? absl::OkStatus() : RefuseSiteCertificates(options.security_files);
}

// A range is for a port that the server chooses.
absl::Status CheckPortRange(const ServerOptions& options) {
  if (options.port_range.IsAny() || options.cell().contact != Contact::kServers) return absl::OkStatus();
  ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(options.listen), "--listen");
  if (place.port == 0) return absl::OkStatus();
  return RefuseFlag(
      "port_range", AbslUnparseFlag(options.port_range),
      absl::StrCat("--listen=", options.listen, " has a port already: give it port 0, or drop the range"));
}

// The workers of an elastic run dial what they are told.
absl::Status CheckAnnounced(const ServerOptions& options) {
  if (options.announce.empty()) {
    ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(options.listen), "--listen");
    if (!IsAnyHost(place.host)) return absl::OkStatus();
    return RefuseFlag("listen", options.listen,
                      "the workers of an elastic run are told this address, and none can dial it: give the name or the "
                      "address by which they reach this machine, here or as --announce=host:port");
  }
  ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(options.announce), "--announce");
  if (!IsAnyHost(place.host) && place.port > 0) return absl::OkStatus();
  return RefuseFlag(
      "announce", options.announce,
      "no worker can dial it: give the name or the address, and the port, by which they reach this server");
}

absl::Status ResolveElastic(const ParsedFlags& flags, ServerOptions& options) {
  if (!options.elastic) {
    for (const char* const flag : {"coordinator", "announce", "state_dir", "flush_state", "first_workers",
                                   "min_workers", "member_gone_s", "member_silent_s", "member_stuck_s"}) {
      if (flags.given.contains(flag)) {
        return absl::InvalidArgumentError(absl::StrCat("--", flag, " is for an elastic run: give --elastic, too"));
      }
    }
    return absl::OkStatus();
  }
  if (!options.cell().May(Cell::kElastic)) {
    return RefuseFlag("elastic", "true",
                      absl::StrCat("over ", TransportName(options.transport), " the world is fixed: give --transport=",
                                   TransportName(CellOf({.may = Cell::kElastic}).transport)));
  }
  RETURN_IF_ERROR(CheckAnnounced(options));
  if (options.shard == 0) {
    if (!options.coordinator.empty()) {
      return RefuseFlag("coordinator", options.coordinator, "shard 0 is the coordinator: drop it");
    }
    if (options.state_dir.empty()) {
      return RefuseFlag("elastic", "true", "shard 0 needs --state_dir=folder for the log of the run");
    }
  } else {
    if (options.coordinator.empty()) {
      return RefuseFlag("elastic", "true", "a shard needs --coordinator=host:port, where shard 0 listens");
    }
    RETURN_IF_ERROR(ParseHostPort(options.coordinator).status(), "--coordinator");
  }
  return absl::OkStatus();
}

}  // namespace

const FlagTable& ServerFlags() {
  static const ServerOptions defaults;
  static const FlagTable table = MakeFlagTable(
      "server",
      "one shard of the parameter server, for one job. The workers bring model, optimizer and all other settings.",
      server_flags::kAllRows, &defaults);
  return table;
}

absl::StatusOr<ServerOptions> ParseServerOptions(int argc, const char* const* argv) {
  ServerOptions options;
  ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(argc, argv, ServerFlags(), &options));
  // Printing needs no other flag, so no other flag is checked.
  if (options.print_log) {
    if (!options.state_dir.empty()) return options;
    return RefuseFlag("print_log", "true", "it needs --state_dir=folder, where the log is");
  }
  ASSIGN_OR_RETURN(options.join_deadline, ReadJoinDeadline(flags, options.asked));
  // Without the flag it is 0, and the server looks for free memory when the first worker joins.
  options.memory_bytes_max = static_cast<int64_t>(1e9 * options.asked.memory_limit_gb);
  // Over TCP no worker dials a server.
  if (options.cell().contact != Contact::kServers && !flags.given.contains("listen")) options.listen.clear();
  RETURN_IF_ERROR(CheckTransport(flags, options));
  RETURN_IF_ERROR(CheckPortRange(options));
  // ParameterServer::Start refuses this too, but knows nothing of flags.
  if (options.shard >= options.shard_count) {
    return RefuseFlag(
        "shard", absl::StrCat(options.shard),
        absl::StrCat("shards count from 0 to shard_count - 1, and --shard_count is ", options.shard_count));
  }
  RETURN_IF_ERROR(ResolveElastic(flags, options));
  // A generation's workers join by this name and the generation's number behind it.
  // The slash and the 19 digits that an int64_t has at most.
  constexpr size_t kNumberBytesMax = 20;
  const size_t run_id_max = kRunIdBytesMax - (options.elastic ? kNumberBytesMax : 0);
  if (options.run_id.size() > run_id_max) {
    return RefuseFlag("run_id", options.run_id, absl::StrCat("it may have at most ", run_id_max, " bytes"));
  }
  // The servers of one machine share a command line, so each takes a port of its own. 0 asks for any free port and -1
  // for none: neither is counted up.
  const int first_port = options.asked.metrics_port;
  options.metrics_port = first_port > 0 ? first_port + options.shard : first_port;
  if (options.metrics_port > kPortMax) {
    return RefuseFlag(
        "metrics_port", absl::StrCat(first_port),
        absl::StrCat("shard ", options.shard, " would take ", options.metrics_port, ", and ports end at ", kPortMax));
  }
  ASSIGN_OR_RETURN(options.security, LoadTransportSecurity(options.security_files));
  return options;
}

}  // namespace starring
