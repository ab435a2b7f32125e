#include "worker/check/check.h"

#include <dnnl.h>
#include <errno.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/flags/command_line.h"
#include "common/host/host_identity.h"
#include "common/host/process_facts.h"
#include "common/job/cells.h"
#include "common/transport/mpi/mpi_names.h"
#include "worker/check/host_network.h"
#include "worker/check/topology_check.h"
#include "worker/exchange/star/check_client.h"

namespace starring {
namespace {

void AddLibrary(const std::string& name, const std::string& version, v1::ProcessFacts* facts) {
  v1::ProcessFacts::Library* const library = facts->add_libraries();
  library->set_name(name);
  library->set_version(version);
}

// The version of the kernel module, which the CUDA driver's library must match; empty if there is no module.
std::string NvidiaDriverVersion() {
  std::string version;
  std::ifstream("/sys/module/nvidia/version") >> version;
  return version;
}

v1::ProcessReport OwnReport(const CheckParts& parts) {
  v1::ProcessReport report;
  v1::ProcessFacts* const facts = report.mutable_facts();
  *facts = ReadProcessFacts(v1::ProcessFacts::WORKER, parts.options->rank);
  facts->set_wire_version(StarWireVersion());
  AddLibrary("gRPC", GrpcVersion(), facts);
  if (parts.mpi != nullptr) AddLibrary("MPI", parts.mpi->library().Name(), facts);
  const dnnl_version_t* const onednn = dnnl_version();
  AddLibrary("oneDNN", absl::StrCat(onednn->major, ".", onednn->minor, ".", onednn->patch), facts);
  if (const std::string driver = NvidiaDriverVersion(); !driver.empty()) AddLibrary("NVIDIA driver", driver, facts);
  facts->set_gpu(parts.gpu);
  return report;
}

}  // namespace

CheckFindings EmptyFindings(const CheckParts& parts) {
  const WorkerOptions& options = *parts.options;
  return {.contact = options.cell().contact,
          .world_size = options.world_size,
          .shard_count = options.ServerCount(),
          .lanes = options.lanes,
          .threads = options.threads,
          .uses_gpus = options.device != DeviceKind::kCpu,
          .reports = {},
          .missing = {},
          // A check waits for workers no longer than the job would.
          .gather_deadline = std::min(kGatherDeadline, options.join_deadline),
          .bandwidth = {}};
}

CheckOutcome ConcludeAlone(const CheckParts& parts, CheckFindings findings, const v1::ProcessReport& own,
                           const absl::Status& why) {
  // No worker is listed as missing: whether others are there is exactly what this worker cannot know.
  findings.reports = {own};
  CheckVerdict verdict = JudgeCheck(findings);
  if (verdict.exit_code == kExitOk && !why.ok()) {
    const bool is_missing = absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why);
    verdict.exit_code = is_missing ? kExitPeerMissing : kExitRefused;
    verdict.sentence = absl::StrCat("not ready: ", std::string(why.message()));
  }
  parts.print(absl::StrCat(CheckTable(findings), CheckEnd(findings, verdict)));
  return {.exit_code = verdict.exit_code};
}

CheckOutcome Conclude(const CheckParts& parts, CheckFindings findings, const v1::ProcessReport& own, Meeting& meeting,
                      Round round) {
  absl::StatusOr<Meeting::Everything> everything = meeting.Gather(own);
  if (!everything.ok()) return ConcludeAlone(parts, std::move(findings), own, everything.status());
  const bool leads = parts.options->rank == 0;
  int exit_code = kExitOk;
  if (leads) {
    findings.reports = std::move(everything->reports);
    findings.missing = std::move(everything->missing);
    const CheckVerdict verdict = JudgeCheck(findings);
    exit_code = verdict.exit_code;
    // If TCP does not connect all ranks, MPI cannot either, and would only hang or abort.
    const bool ends = round != Round::kBeforeMpi || exit_code != kExitOk;
    parts.print(absl::StrCat(round == Round::kMpi ? "" : CheckTable(findings),
                             ends ? CheckEnd(findings, verdict) : MpiWarning(findings)));
  }
  const absl::Status told = meeting.Tell(exit_code);
  // Rank 0 has said all, but must not call MPI alone: it would wait there for the others.
  if (!told.ok() && (!leads || round == Round::kBeforeMpi)) {
    return ConcludeAlone(parts, std::move(findings), own, told);
  }
  return {.exit_code = exit_code};
}

std::string WayOut(int error_number, Contact contact) {
  const bool star = contact == Contact::kServers;
  switch (error_number) {
    // A ring's worker listens before it tells its address, so a refusal does not come from a missing process.
    case ECONNREFUSED:
      return star ? "start that server, or correct --servers" : "let TCP pass between the hosts: a firewall refuses it";
    case ETIMEDOUT:
      return star
                 ? "let TCP pass to that port through the firewalls on the way, or correct --servers"
                 : "let TCP pass between the hosts, to all ports or those of --port_range: packets are lost on the way";
    case EHOSTUNREACH:
    case ENETUNREACH:
      return star ? "bring up the interface, or give --servers an address in a network that both hosts share"
                  : "bring up the interface, or set OMPI_MCA_btl_tcp_if_include to a network that all hosts share";
    default:
      return star ? "correct --servers" : "let TCP pass between the hosts";
  }
}

std::string OwnPlace(const LauncherEnvironment& launcher) {
  const std::string& include = launcher.mpi_interfaces_included;
  const std::string& exclude = launcher.mpi_interfaces_excluded;
  return absl::StrCat("rank ", launcher.rank, " of ", launcher.world_size, " is on ", HostName(), ", interfaces ",
                      AddressesText(ListInterfaceAddresses()),
                      ", btl_tcp_if_include=", include.empty() ? "(not set)" : include,
                      exclude.empty() ? "" : absl::StrCat(", btl_tcp_if_exclude=", exclude));
}

CheckOutcome RunCheck(const CheckParts& parts) {
  v1::ProcessReport report = OwnReport(parts);
  switch (parts.options->cell().contact) {
    case Contact::kServers:
      return CheckStar(parts, std::move(report));
    case Contact::kMpirun:
      return CheckOverMpi(parts, std::move(report));
    case Contact::kRendezvous:
      return CheckMesh(parts, std::move(report));
    case Contact::kNone:
      break;
  }
  return ConcludeAlone(parts, EmptyFindings(parts), report);
}

}  // namespace starring
