// The check of processes that meet over TCP: they meet as in a job, by the same rendezvous and with the same secret, so
// that each has connected with every other one. Servers are among them.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/transport/check_conversation.h"
#include "common/transport/message_pump.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "common/watch/stall_report.h"
#include "worker/check/topology_check.h"

namespace starring {
namespace {

CheckOutcome TestOver(std::unique_ptr<Transport> connected, const CheckParts& parts, CheckFindings findings,
                      v1::ProcessReport report) {
  MessagePump pump(connected.get(), StallOptions(), findings.shard_count);
  const std::unique_ptr<Transport> transport = std::move(connected);  // ends before the pump
  const double seconds = findings.bandwidth.SecondsOf(pump.rank());
  absl::Status tested = InviteServers(pump);
  if (tested.ok()) tested = TestLinks(pump, {.bandwidth_seconds = seconds}, report);
  if (!tested.ok()) return ConcludeAlone(parts, std::move(findings), report, tested);
  PumpMeeting meeting(&pump);
  return Conclude(parts, std::move(findings), report, meeting);
}

}  // namespace

CheckOutcome CheckMesh(const CheckParts& parts, v1::ProcessReport report) {
  CheckFindings findings = EmptyFindings(parts);
  if (findings.world_size + findings.shard_count == 1) return ConcludeAlone(parts, std::move(findings), report);
  findings.bandwidth = PlanBandwidth(std::max(1, findings.shard_count), findings.world_size);
  TcpRendezvousOptions rendezvous = std::move(*parts.rendezvous);
  rendezvous.join_deadline = findings.gather_deadline;
  absl::StatusOr<std::unique_ptr<Transport>> connected = ConnectFullMesh(std::move(rendezvous));
  if (!connected.ok()) return ConcludeAlone(parts, std::move(findings), report, connected.status());
  return TestOver(*std::move(connected), parts, std::move(findings), std::move(report));
}

}  // namespace starring
