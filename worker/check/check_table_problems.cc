#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/flags/command_line.h"
#include "common/host/machine_limits.h"
#include "worker/check/check_table.h"
#include "worker/check/host_network.h"

namespace starring {
namespace {

using check_table::ClocksAhead;
using check_table::CountText;
using check_table::LimitsOf;
using check_table::MemoryText;
using check_table::NameOf;
using check_table::NamesText;
using check_table::PeerOf;
using check_table::Problem;
using v1::LinkReport;
using v1::ProcessFacts;
using v1::ProcessReport;

using Problems = std::vector<Problem>;

// This is far more than the error of a measured clock, which is half a round trip.
constexpr double kClockSecondsMax = 1;
constexpr int64_t kMemoryBytesMin = int64_t{1} << 30;

// A process may have several addresses. A pair of processes is connected if one of them answers.
using Pair = std::pair<std::string, std::string>;
std::set<Pair> ConnectedPairs(const CheckFindings& findings) {
  std::set<Pair> pairs;
  for (const ProcessReport& report : findings.reports) {
    for (const LinkReport& link : report.links()) {
      if (link.means() != LinkReport::MPI && link.error().empty()) pairs.emplace(NameOf(report.facts()), PeerOf(link));
    }
  }
  return pairs;
}

// The subnet that connects all pairs of a ring that need more than loopback; empty if there is none. It is the network
// that a person should tell Open MPI to use.
std::string CommonSubnet(const CheckFindings& findings) {
  std::set<Pair> pairs;
  std::map<std::string, std::set<Pair>> by_subnet;
  for (const ProcessReport& report : findings.reports) {
    for (const LinkReport& link : report.links()) {
      // Cuts the port off. An address without a colon stays whole, because substr takes npos as the end.
      absl::string_view host = absl::string_view(link.address()).substr(0, link.address().rfind(':'));
      if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
      if (link.means() != LinkReport::TCP || absl::StartsWith(host, "127.")) continue;
      const Pair pair(NameOf(report.facts()), PeerOf(link));
      // A pair counts even if its connection failed: a subnet that does not connect it must not be advised.
      pairs.insert(pair);
      if (link.error().empty()) by_subnet[SubnetOf(host, link.prefix_bits())].insert(pair);
    }
  }
  for (const auto& [subnet, connected] : by_subnet) {
    // A subnet that connects only some pairs is no help: with this variable set Open MPI uses no other network.
    if (!subnet.empty() && connected == pairs) return subnet;
  }
  return "";
}

std::string IncludeText(const CheckFindings& findings) {
  const std::string subnet = CommonSubnet(findings);
  return absl::StrCat("set OMPI_MCA_btl_tcp_if_include=",
                      subnet.empty() ? "NETWORK, one that all hosts share" : subnet);
}

// The order of --servers is wrong: the address reaches a server, but another shard than it is listed as. star_check.cc
// writes this error.
bool AnswersAsAnother(const LinkReport& link) { return absl::StartsWith(link.error(), "answers as shard "); }

void AddMissing(const CheckFindings& findings, Problems& problems) {
  if (findings.missing.empty()) return;
  std::vector<std::string> names;
  for (const int rank : findings.missing) names.push_back(NameOf(ProcessFacts::WORKER, rank));
  problems.push_back(
      {kExitPeerMissing,
       absl::StrCat(NamesText(names), names.size() == 1 ? " has" : " have", " not reported within ",
                    absl::FormatDuration(findings.gather_deadline), ": start all ", findings.world_size,
                    " workers at the same time",
                    findings.contact == Contact::kServers ? ", each where it reaches the servers" : "")});
}

void AddUnreachable(const CheckFindings& findings, Problems& problems) {
  const std::set<Pair> connected = ConnectedPairs(findings);
  // Workers that fail in the same way at the same peer are one problem.
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> from_by_failure;
  // The map sorts by text. Problems are listed in the order of ranks, which `order` keeps.
  std::vector<std::pair<std::string, std::string>> order;
  for (const ProcessReport& report : findings.reports) {
    const std::string from = NameOf(report.facts());
    for (const LinkReport& link : report.links()) {
      if (link.error().empty() || link.means() == LinkReport::MPI || AnswersAsAnother(link) ||
          // An address that does not answer is no problem if another address of the same peer does.
          connected.contains({from, PeerOf(link)})) {
        continue;
      }
      std::string way_out = link.way_out();
      const std::pair<std::string, std::string> failure(
          absl::StrCat(PeerOf(link), link.address().empty() ? "" : " at ", link.address(), ": ", link.error()),
          way_out);
      std::vector<std::string>& names = from_by_failure[failure];
      if (names.empty()) order.push_back(failure);
      names.push_back(from);
    }
  }
  for (const auto& failure : order) {
    problems.push_back(
        {kExitPeerMissing, absl::StrCat(NamesText(from_by_failure[failure]), " cannot reach ", failure.first,
                                        failure.second.empty() ? "" : ": ", failure.second)});
  }
}

// MPI is tried only where TCP connects all ranks, so the advice is about the networks that Open MPI chooses.
void AddMpi(const CheckFindings& findings, Problems& problems) {
  for (const ProcessReport& report : findings.reports) {
    for (const LinkReport& link : report.links()) {
      if (link.means() != LinkReport::MPI || link.error().empty()) continue;
      problems.push_back(
          {kExitPeerMissing, absl::StrCat("MPI's messages from ", NameOf(report.facts()), " to ", PeerOf(link),
                                          " fail (", link.error(), "), while TCP connects: ", IncludeText(findings))});
    }
  }
}

void AddDifferences(const std::vector<const ProcessFacts*>& processes, Problems& problems) {
  std::map<std::string, std::vector<std::string>> by_version;
  std::map<std::string, std::map<std::string, std::vector<std::string>>> by_library;
  for (const ProcessFacts* process : processes) {
    // The processes are grouped by version, so that one sentence names all versions and the processes that have each.
    by_version[absl::StrCat(process->program_version(), " (wire ", process->wire_version(), ")")].push_back(
        NameOf(*process));
    for (const ProcessFacts::Library& library : process->libraries()) {
      by_library[library.name()][library.version()].push_back(NameOf(*process));
    }
  }
  const auto describe = [](const std::map<std::string, std::vector<std::string>>& groups) {
    return absl::StrJoin(groups, ", ", [](std::string* out, const auto& group) {
      absl::StrAppend(out, group.first, " on ", NamesText(group.second));
    });
  };
  if (by_version.size() > 1) {
    problems.push_back({kExitRefused, absl::StrCat("versions of starring differ: ", describe(by_version),
                                                   ": install one version everywhere")});
  }
  for (const auto& [library, groups] : by_library) {
    if (groups.size() == 1) continue;
    // Ranks with different versions of MPI do not find each other. Other libraries may differ, but then the results may
    // differ in their bits.
    problems.push_back(
        {library == "MPI" ? kExitRefused : kExitOk,
         absl::StrCat("versions of ", library, " differ: ", describe(groups), ": install one version everywhere")});
  }
}

void AddShards(const CheckFindings& findings, Problems& problems) {
  // All workers have the same --servers and find the same wrong places; the set keeps each text once.
  std::set<std::string> texts;
  for (const ProcessReport& report : findings.reports) {
    for (const LinkReport& link : report.links()) {
      if (!AnswersAsAnother(link)) continue;
      texts.insert(absl::StrCat("the server at ", link.address(), " ", link.error(), ", --servers has it as shard ",
                                link.peer(), ": ", link.way_out()));
    }
  }
  for (const std::string& text : texts) problems.push_back({kExitRefused, text});
}

void AddLimits(const CheckFindings& findings, const std::vector<const ProcessFacts*>& processes, Problems& problems) {
  const bool star = findings.contact == Contact::kServers;
  for (const ProcessFacts* process : processes) {
    const bool server = process->role() == ProcessFacts::SERVER;
    // The same two functions decide how many descriptors a job's processes ask for, so a check and a job cannot
    // disagree.
    const int64_t needed = server && star ? ServerDescriptors(int64_t{findings.world_size} * findings.lanes)
                                          : WorkerDescriptors(star ? int64_t{findings.shard_count} * findings.lanes
                                                                   : findings.world_size + findings.shard_count);
    // A process that could not find out its limit reports 0.
    if (process->descriptors() != 0 && process->descriptors() < needed) {
      problems.push_back({kExitRefused, absl::StrCat(NameOf(*process), " can have ", process->descriptors(),
                                                     " files open, this job needs ", needed,
                                                     ": raise the limit (ulimit -n) on ", process->host())});
    }
    // This is only a warning, because the job's need depends on model and data set, which a check does not load.
    if (process->memory_bytes() != 0 && process->memory_bytes() < kMemoryBytesMin) {
      problems.push_back(
          {kExitOk, absl::StrCat(NameOf(*process), " can get ", MemoryText(process->memory_bytes()), " of memory on ",
                                 process->host(), ": free some, or use another host")});
    }
  }
}

void AddCores(const CheckFindings& findings, Problems& problems) {
  int most = 0;
  for (const ProcessReport& report : findings.reports) most = std::max(most, CountedCores(LimitsOf(report.facts())));
  std::vector<std::string> few;
  for (const ProcessReport& report : findings.reports) {
    const ProcessFacts& facts = report.facts();
    // A process that could not find out its cores reports 0.
    if (facts.cores() == 0) continue;
    if (facts.cores() < findings.threads) {
      problems.push_back({kExitOk, absl::StrCat(NameOf(facts), " may run on ", facts.cores(), " of ", facts.host(),
                                                "'s cores and has --threads=", findings.threads,
                                                ": give it more cores, or all workers fewer threads")});
    } else if (facts.cpu_quota() > 0 && facts.cpu_quota() < findings.threads) {
      // The kernel stops a process that has used up its quota until the next period, usually 0.1 s.
      problems.push_back({kExitOk, absl::StrCat(NameOf(facts), " has ", CoresText(LimitsOf(facts)), ", on ",
                                                facts.host(), " and --threads=", findings.threads,
                                                ": the kernel stops it in each period: raise the quota of its control "
                                                "group (cpu.max; cpu.cfs_quota_us)")});
    }
    // Workers train in lockstep, so one with half the cores halves the speed of all.
    if (CountedCores(LimitsOf(facts)) * 2 <= most) few.push_back(NameOf(facts));
  }
  if (!few.empty()) {
    problems.push_back({kExitOk, absl::StrCat(NamesText(few), few.size() == 1 ? " has" : " have",
                                              " half of the cores of others or fewer (", most,
                                              "), and all wait for the slowest: give each worker as many")});
  }
}

void AddGpus(const CheckFindings& findings, Problems& problems) {
  if (!findings.uses_gpus) return;
  std::vector<std::string> with;
  std::vector<std::string> without;
  for (const ProcessReport& report : findings.reports) {
    // With --device=auto a worker without a GPU would take its CPU, and the ranks would be refused when the job starts.
    (report.facts().gpu().empty() ? without : with).push_back(NameOf(report.facts()));
  }
  if (with.empty() || without.empty()) return;
  problems.push_back({kExitRefused, absl::StrCat(NamesText(with), with.size() == 1 ? " has" : " have", " a GPU, ",
                                                 NamesText(without), without.size() == 1 ? " has" : " have",
                                                 " none: start workers where GPUs are, or give --device=cpu")});
}

void AddClocks(const CheckFindings& findings, Problems& problems) {
  for (const auto& [name, ahead] : ClocksAhead(findings)) {
    if (std::abs(ahead) <= kClockSecondsMax) continue;
    problems.push_back(
        {kExitOk,
         absl::StrFormat("the clock of %s is %.1f s %s that of %s: set it by NTP, or traces and logs of several "
                         "hosts do not fit together",
                         name, std::abs(ahead), ahead > 0 ? "ahead of" : "after",
                         NameOf(findings.reports.front().facts()))});
  }
}

std::string ReadyText(const CheckFindings& findings) {
  const bool one = findings.world_size == 1;
  const std::string workers = CountText(findings.world_size, "worker");
  if (findings.shard_count > 0) {
    return absl::StrCat(
        workers, one ? " reaches " : " reach ",
        findings.shard_count == 1 ? "the server" : absl::StrCat("all ", findings.shard_count, " servers"));
  }
  return one ? "one worker, which needs no other" : absl::StrCat(workers, " reach each other");
}

}  // namespace

Problems check_table::FindProblems(const CheckFindings& findings) {
  const std::vector<const ProcessFacts*> processes = AllProcesses(findings);
  Problems problems;
  // A wrong order of --servers is a cause of its own, so AddUnreachable leaves those links out.
  AddShards(findings, problems);
  AddUnreachable(findings, problems);
  AddMissing(findings, problems);
  AddMpi(findings, problems);
  AddDifferences(processes, problems);
  AddLimits(findings, processes, problems);
  AddGpus(findings, problems);
  AddClocks(findings, problems);
  AddCores(findings, problems);
  // The sort is stable, because the order above is from cause to consequence.
  std::stable_sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
    return (a.exit_code == kExitOk) < (b.exit_code == kExitOk);
  });
  return problems;
}

CheckVerdict JudgeCheck(const CheckFindings& findings) {
  const Problems problems = check_table::FindProblems(findings);
  CheckVerdict verdict;
  if (problems.empty()) {
    verdict.sentence = absl::StrCat("ready: ", ReadyText(findings));
    return verdict;
  }
  const Problem& worst = problems.front();
  // If any problem keeps the job from running, the worst one does: FindProblems sorts warnings to the end.
  verdict.exit_code = worst.exit_code;
  verdict.sentence = worst.exit_code == kExitOk ? absl::StrCat("ready: ", ReadyText(findings), "; but ", worst.text)
                                                : absl::StrCat("not ready: ", worst.text);
  return verdict;
}

std::string MpiWarning(const CheckFindings& findings) {
  const std::set<Pair> connected = ConnectedPairs(findings);
  for (const ProcessReport& report : findings.reports) {
    for (const LinkReport& link : report.links()) {
      const std::string from = NameOf(report.facts());
      // MPI is tried only if every pair is connected by some address. Open MPI chooses among all of them, also those
      // that fail here, and ends the process when it meets one. One example is enough, since the way out is the same
      // for all.
      if (link.error().empty() || !connected.contains({from, PeerOf(link)})) continue;
      return check_table::Wrap(absl::StrCat("not ready, if nothing follows: Open MPI has chosen an address like ",
                                            PeerOf(link), "'s ", link.address(), ", which ", from, " cannot reach (",
                                            link.error(), "): ", IncludeText(findings)));
    }
  }
  return "";
}

}  // namespace starring
