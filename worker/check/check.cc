#include "worker/check/check.h"

#include <dnnl.h>
#include <errno.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/host/host_identity.h"
#include "common/host/process_facts.h"
#include "common/job/cells.h"
#include "common/network/dial.h"
#include "common/network/round_trip.h"
#include "common/transport/check_conversation.h"
#include "common/transport/message_pump.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "common/watch/stall_report.h"
#include "worker/check/host_network.h"
#include "worker/check/topology_check.h"
#include "worker/exchange/star/check_client.h"

namespace starring {
namespace {

using v1::LinkReport;

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
  if (!parts.nccl.empty()) AddLibrary("NCCL", parts.nccl, facts);
  facts->set_no_nccl(parts.no_nccl);
  facts->set_gpu(parts.gpu);
  return report;
}

// The advice to a person about an address that cannot be dialled, to one of --servers and to another worker.
struct DialAdvice {
  int error_number;  // 0: any other
  const char* to_server;
  const char* to_worker;
};
constexpr char kShareNetwork[] =
    "bring up the interface, or give --servers an address in a network that both hosts share";
constexpr char kShareInclude[] =
    "bring up the interface, or set OMPI_MCA_btl_tcp_if_include to a network that all hosts share";
constexpr DialAdvice kDialAdvice[] = {
    // A ring's worker listens before it tells its address, so a refusal does not come from a missing process.
    {ECONNREFUSED, "start that server, or correct --servers", "let TCP pass between the hosts: a firewall refuses it"},
    {ETIMEDOUT, "let TCP pass to that port through the firewalls on the way, or correct --servers",
     "let TCP pass between the hosts, to all ports or those of --port_range: packets are lost on the way"},
    {EHOSTUNREACH, kShareNetwork, kShareInclude},
    {ENETUNREACH, kShareNetwork, kShareInclude},
    {0, "correct --servers", "let TCP pass between the hosts"},
};

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
          // The workers test their links to all servers, or each the link to the next rank.
          .bandwidth = PlanBandwidth(std::max(1, options.ServerCount()), options.world_size)};
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
  absl::StatusOr<Reports> reports = meeting.Gather(own);
  if (!reports.ok()) return ConcludeAlone(parts, std::move(findings), own, reports.status());
  const bool leads = parts.options->rank == 0;
  int exit_code = kExitOk;
  if (leads) {
    findings.reports = *std::move(reports);
    for (int rank = 0; rank < findings.world_size; ++rank) {
      const auto is_from = [rank](const v1::ProcessReport& report) { return report.facts().number() == rank; };
      if (std::ranges::none_of(findings.reports, is_from)) findings.missing.push_back(rank);
    }
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

std::vector<DialResult> DialLinks(Contact contact, v1::ProcessReport& report) {
  std::vector<std::string> addresses;
  std::vector<int> links;
  for (int i = 0; i < report.links_size(); ++i) {
    // A peer without an interface has a link without an address, which has its error already.
    if (report.links(i).address().empty()) continue;
    addresses.push_back(report.links(i).address());
    links.push_back(i);
  }
  const std::vector<InterfaceAddress> interfaces = ListInterfaceAddresses();
  std::vector<DialResult> dialled(report.links_size());
  std::vector<DialResult> results = DialAll(addresses, kDialDeadline);
  for (size_t i = 0; i < links.size(); ++i) dialled[links[i]] = std::move(results[i]);
  for (size_t i = 0; i < dialled.size(); ++i) {
    LinkReport& link = *report.mutable_links(static_cast<int>(i));
    link.set_interface(InterfaceWith(interfaces, dialled[i].local_address));
    if (dialled[i].error.empty() || !link.error().empty()) continue;
    const DialAdvice* const advice = std::ranges::find_if(kDialAdvice, [&](const DialAdvice& one) {
      return one.error_number == dialled[i].error_number || one.error_number == 0;
    });
    FailLink(dialled[i].error, contact == Contact::kServers ? advice->to_server : advice->to_worker, link);
  }
  return dialled;
}

std::string OwnPlace(const LauncherEnvironment& launcher) {
  const std::string& include = launcher.mpi_interfaces_included;
  const std::string& exclude = launcher.mpi_interfaces_excluded;
  return absl::StrCat("rank ", launcher.rank, " of ", launcher.world_size, " is on ", HostName(), ", interfaces ",
                      AddressesText(ListInterfaceAddresses()),
                      ", btl_tcp_if_include=", include.empty() ? "(not set)" : include,
                      exclude.empty() ? "" : absl::StrCat(", btl_tcp_if_exclude=", exclude));
}

// Processes that meet over TCP do so as in a job, by the same rendezvous and with the same secret, so that each has
// connected with every other one. Servers are among them.
CheckOutcome CheckMesh(const CheckParts& parts, v1::ProcessReport report) {
  CheckFindings findings = EmptyFindings(parts);
  if (findings.world_size + findings.shard_count == 1) return ConcludeAlone(parts, std::move(findings), report);
  TcpRendezvousOptions rendezvous = std::move(*parts.rendezvous);
  rendezvous.join_deadline = findings.gather_deadline;
  absl::StatusOr<std::unique_ptr<Transport>> connected = ConnectFullMesh(std::move(rendezvous));
  if (!connected.ok()) return ConcludeAlone(parts, std::move(findings), report, connected.status());
  MessagePump pump(connected->get(), StallOptions(), findings.shard_count);
  const std::unique_ptr<Transport> transport = *std::move(connected);  // ends before the pump
  absl::Status tested = InviteServers(pump);
  const double seconds = findings.bandwidth.SecondsOf(pump.rank());
  if (tested.ok()) tested = TestLinks(pump, {.bandwidth_seconds = seconds}, report);
  if (!tested.ok()) return ConcludeAlone(parts, std::move(findings), report, tested);
  PumpMeeting meeting(&pump);
  return Conclude(parts, std::move(findings), report, meeting);
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
