#include "worker/check/check.h"

#include <dnnl.h>
#include <errno.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/flags/command_line.h"
#include "common/host/host_identity.h"
#include "common/host/process_facts.h"
#include "common/job/cells.h"
#include "common/transport/mpi/mpi_probe.h"
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
  if (parts.mpi != nullptr) AddLibrary("Open MPI", MpiVersion(), facts);
  const dnnl_version_t* const onednn = dnnl_version();
  AddLibrary("oneDNN", absl::StrCat(onednn->major, ".", onednn->minor, ".", onednn->patch), facts);
  if (const std::string driver = NvidiaDriverVersion(); !driver.empty()) AddLibrary("NVIDIA driver", driver, facts);
  facts->set_gpu(parts.gpu);
  return report;
}

// Why a worker that has found nothing wrong has only its own findings, and the way out.
std::string AloneText(int rank, CheckFindings::Topology topology) {
  if (rank != 0) {
    return absl::StrCat("rank 0 did not answer to w", rank,
                        ", whose own findings these are: see what rank 0 says, and whether both reach a common server");
  }
  // Rank 0 decides and waits for no decision: it is alone only if its own notes do not reach the board.
  return absl::StrCat(
      "w0 cannot leave notes for the other workers, and these are its own findings: see whether ",
      topology == CheckFindings::Topology::kStar ? "the servers still run" : "mpirun still runs on all hosts",
      ", and check again");
}

}  // namespace

CheckFindings EmptyFindings(const CheckParts& parts, CheckFindings::Topology topology) {
  const WorkerOptions& options = *parts.options;
  return {.topology = topology,
          .world_size = options.world_size,
          .shard_count = static_cast<int>(options.servers.size()),
          .lanes = options.lanes,
          .threads = options.threads,
          .uses_gpus = options.device != DeviceKind::kCpu,
          .reports = {},
          .missing = {},
          // A check waits for workers no longer than the job would.
          .gather_deadline = std::min(kGatherDeadline, options.join_deadline),
          .bandwidth = {}};
}

CheckOutcome ConcludeAlone(const CheckParts& parts, CheckFindings findings, const v1::ProcessReport& own) {
  // No worker is listed as missing: whether others are there is exactly what this worker cannot know.
  findings.reports = {own};
  CheckVerdict verdict = JudgeCheck(findings);
  // This worker has found nothing wrong, but a job needs all of them, and it does not know whether they are there.
  if (verdict.exit_code == kExitOk && findings.world_size > 1) {
    verdict.exit_code = kExitPeerMissing;
    verdict.sentence = absl::StrCat("not ready: ", AloneText(parts.options->rank, findings.topology));
  }
  parts.print(absl::StrCat(CheckTable(findings), CheckEnd(findings, verdict)));
  return {.exit_code = verdict.exit_code, .mpi_is_stuck = own.mpi_hangs()};
}

CheckOutcome Conclude(const CheckParts& parts, CheckFindings findings, v1::ProcessReport own, Meeting& meeting,
                      const std::function<void(v1::ProcessReport&)>& try_mpi) {
  if (parts.options->rank != 0) {
    // This rank does not call MPI if rank 0 decides against it, nor if rank 0 is silent. The wait for the verdict below
    // tells the two cases apart.
    if (try_mpi != nullptr && meeting.AwaitDecision()) {
      v1::ProcessReport by_mpi;
      // The note has only the new links, which rank 0 adds to the report that it has.
      by_mpi.mutable_facts()->set_number(parts.options->rank);
      try_mpi(by_mpi);
      // The merge comes before Put, which may fail: a process whose MPI hangs must end without MPI_Finalize, even if
      // rank 0 does not learn that it hangs.
      own.MergeFrom(by_mpi);
      if (!meeting.Put(CheckStage::kMpiReport, by_mpi).ok()) return ConcludeAlone(parts, std::move(findings), own);
    }
    const std::optional<int> exit_code = meeting.AwaitVerdict();
    if (!exit_code.has_value()) return ConcludeAlone(parts, std::move(findings), own);
    return {.exit_code = *exit_code, .mpi_is_stuck = own.mpi_hangs()};
  }
  // The rest is done by rank 0. The other ranks wait for its decision and its verdict: each way out below either
  // announces a verdict or leaves them to their deadlines.
  Meeting::Everything everything = meeting.GatherReports(own);
  findings.reports = everything.reports;
  findings.missing = everything.missing;
  CheckVerdict verdict = JudgeCheck(findings);
  // Printed before MPI is tried, because Open MPI may end this process.
  parts.print(CheckTable(findings));
  if (try_mpi != nullptr) {
    // If TCP does not connect all ranks, MPI cannot either, and would only hang or abort.
    const bool tries = verdict.exit_code == kExitOk;
    if (tries) parts.print(MpiWarning(findings));
    if (!meeting.Decide(tries).ok()) return ConcludeAlone(parts, std::move(findings), own);
    if (tries) {
      // Reports ascend by rank, so the first is rank 0's own.
      try_mpi(everything.reports.front());
      meeting.GatherMpiReports(everything);
      findings.reports = everything.reports;
      // The verdict before was about TCP only.
      verdict = JudgeCheck(findings);
    }
  }
  parts.print(CheckEnd(findings, verdict));
  meeting.Announce(verdict.exit_code);
  own = everything.reports.front();
  return {.exit_code = verdict.exit_code, .mpi_is_stuck = own.mpi_hangs()};
}

std::string WayOut(int error_number, CheckFindings::Topology topology) {
  const bool star = topology == CheckFindings::Topology::kStar;
  switch (error_number) {
    // A ring's worker listens before it tells its address, so a refusal does not come from a missing process.
    case ECONNREFUSED:
      return star ? "start that server, or correct --servers" : "let TCP pass between the hosts: a firewall refuses it";
    case ETIMEDOUT:
      return star ? "let TCP pass to that port through the firewalls on the way, or correct --servers"
                  : "let TCP pass between the hosts, to all ports: packets are lost on the way";
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
      return CheckRing(parts, std::move(report));
    case Contact::kRendezvous:
      return CheckMesh(parts, std::move(report));
    case Contact::kNone:
      break;
  }
  return ConcludeAlone(parts, EmptyFindings(parts, CheckFindings::Topology::kAlone), report);
}

}  // namespace starring
