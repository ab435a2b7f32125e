#include "worker/check/check_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/flags/command_line.h"
#include "common/host/machine_limits.h"
#include "worker/check/interfaces.h"

namespace starring {
namespace {

using v1::LinkReport;
using v1::ProcessFacts;
using v1::ProcessReport;

constexpr size_t kColumns = 120;
constexpr size_t kProcessRowsMax = 64;
constexpr size_t kLinkRowsMax = 40;
constexpr size_t kNamesMax = 4;
constexpr double kClockSecondsMax = 1;
constexpr int64_t kMemoryBytesMin = int64_t{1} << 30;

std::string NameOf(ProcessFacts::Role role, int number) {
  return absl::StrCat(role == ProcessFacts::WORKER ? "w" : "s", number);
}
std::string NameOf(const ProcessFacts& facts) { return NameOf(facts.role(), facts.number()); }
std::string PeerOf(const LinkReport& link) { return NameOf(link.peer_role(), link.peer()); }

// "w0, w1, w2 and 5 more"
std::string NamesText(const std::vector<std::string>& names) {
  if (names.size() <= kNamesMax + 1) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kNamesMax, ", "), " and ", names.size() - kNamesMax,
                      " more");
}

std::string Cut(absl::string_view text, size_t columns) {
  return std::string(text.size() <= columns ? text : absl::StrCat(text.substr(0, columns - 2), ".."));
}

std::string MillisecondsText(double microseconds) { return absl::StrFormat("%.2f ms", microseconds / 1e3); }

std::string RateText(double bytes_per_second) {
  if (bytes_per_second <= 0) return "-";
  const double bits = bytes_per_second * 8;
  return bits < 1e9 ? absl::StrFormat("%.0f Mbit/s", bits / 1e6) : absl::StrFormat("%.2f Gbit/s", bits / 1e9);
}

std::string ClockText(double seconds) {
  if (std::abs(seconds) < 5e-5) return "0";
  if (std::abs(seconds) < 1) return absl::StrFormat("%+.1f ms", seconds * 1e3);
  return absl::StrFormat("%+.1f s", seconds);
}

std::string MemoryText(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
}

std::string LibrariesText(const ProcessFacts& facts) {
  std::string text = absl::StrCat("starring ", facts.program_version());
  if (facts.wire_version() != 0) absl::StrAppend(&text, ", wire ", facts.wire_version());
  for (const ProcessFacts::Library& library : facts.libraries()) {
    absl::StrAppend(&text, ", ", library.name(), " ", library.version());
  }
  return text;
}

// All processes that anybody knows of: workers, then servers.
std::vector<const ProcessFacts*> AllProcesses(const CheckFindings& findings) {
  std::vector<const ProcessFacts*> processes;
  std::map<int, const ProcessFacts*> servers;
  for (const ProcessReport& report : findings.reports) {
    processes.push_back(&report.facts());
    for (const ProcessFacts& server : report.servers()) servers.emplace(server.number(), &server);
  }
  for (const auto& [number, server] : servers) processes.push_back(server);
  return processes;
}

// How far each process's wall clock is ahead of the first worker's, by name; as far as connections tell.
std::map<std::string, double> Clocks(const CheckFindings& findings) {
  std::map<std::string, double> clocks;
  if (findings.reports.empty()) return clocks;
  clocks[NameOf(findings.reports.front().facts())] = 0;
  // Two hops at most: worker, server, worker.
  for (int hop = 0; hop < 2; ++hop) {
    for (const ProcessReport& report : findings.reports) {
      const std::string from = NameOf(report.facts());
      for (const LinkReport& link : report.links()) {
        if (!link.error().empty() || link.means() == LinkReport::MPI) continue;
        const std::string to = PeerOf(link);
        if (clocks.contains(from)) {
          clocks.emplace(to, clocks[from] + link.clock_ahead_s());
        } else if (clocks.contains(to)) {
          clocks.emplace(from, clocks[to] - link.clock_ahead_s());
        }
      }
    }
  }
  return clocks;
}

struct Problem {
  int exit_code = kExitOk;  // of this problem alone; kExitOk: a job would run all the same
  std::string text;
};
using Problems = std::vector<Problem>;

// A pair of processes is connected if one of the addresses answers.
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

// The subnet by which all pairs of a ring are connected that have more than loopback between them; empty if none is.
std::string CommonSubnet(const CheckFindings& findings) {
  std::set<Pair> pairs;
  std::map<std::string, std::set<Pair>> by_subnet;
  for (const ProcessReport& report : findings.reports) {
    for (const LinkReport& link : report.links()) {
      const absl::string_view host = absl::string_view(link.address()).substr(0, link.address().rfind(':'));
      if (link.means() != LinkReport::TCP || absl::StartsWith(host, "127.")) continue;
      const Pair pair(NameOf(report.facts()), PeerOf(link));
      pairs.insert(pair);
      if (link.error().empty()) by_subnet[SubnetOf(host, link.prefix_bits())].insert(pair);
    }
  }
  for (const auto& [subnet, connected] : by_subnet) {
    if (!subnet.empty() && connected == pairs) return subnet;
  }
  return "";
}

std::string IncludeText(const CheckFindings& findings) {
  const std::string subnet = CommonSubnet(findings);
  return absl::StrCat("set OMPI_MCA_btl_tcp_if_include=",
                      subnet.empty() ? "NETWORK, one that all hosts share" : subnet);
}

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
                    findings.topology == CheckFindings::Topology::kStar ? ", each where it reaches the servers" : "")});
}

void AddUnreachable(const CheckFindings& findings, Problems& problems) {
  const std::set<Pair> connected = ConnectedPairs(findings);
  // Who fails in the same way at the same peer is one problem.
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> from_by_failure;
  std::vector<std::pair<std::string, std::string>> order;
  for (const ProcessReport& report : findings.reports) {
    const std::string from = NameOf(report.facts());
    for (const LinkReport& link : report.links()) {
      if (link.error().empty() || link.means() == LinkReport::MPI || AnswersAsAnother(link) ||
          connected.contains({from, PeerOf(link)})) {
        continue;
      }
      std::string way_out = link.way_out();
      const std::pair<std::string, std::string> failure(
          absl::StrCat(PeerOf(link), " at ", link.address(), ": ", link.error()), way_out);
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
    // Ranks of different versions of MPI do not find each other; other libraries may differ, at the cost of the bits.
    problems.push_back(
        {library == "Open MPI" ? kExitRefused : kExitOk,
         absl::StrCat("versions of ", library, " differ: ", describe(groups), ": install one version everywhere")});
  }
}

void AddShards(const CheckFindings& findings, Problems& problems) {
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
  const bool star = findings.topology == CheckFindings::Topology::kStar;
  for (const ProcessFacts* process : processes) {
    const bool server = process->role() == ProcessFacts::SERVER;
    const int64_t needed =
        server ? ServerDescriptors(int64_t{findings.world_size} * findings.lanes)
               : WorkerDescriptors(star ? int64_t{findings.shard_count} * findings.lanes : findings.world_size);
    if (process->descriptors() != 0 && process->descriptors() < needed) {
      problems.push_back({kExitRefused, absl::StrCat(NameOf(*process), " can have ", process->descriptors(),
                                                     " files open, this job needs ", needed,
                                                     ": raise the limit (ulimit -n) on ", process->host())});
    }
    if (process->memory_bytes() != 0 && process->memory_bytes() < kMemoryBytesMin) {
      problems.push_back(
          {kExitOk, absl::StrCat(NameOf(*process), " can get ", MemoryText(process->memory_bytes()), " of memory on ",
                                 process->host(), ": free some, or use another host")});
    }
  }
}

void AddCores(const CheckFindings& findings, Problems& problems) {
  int most = 0;
  for (const ProcessReport& report : findings.reports) most = std::max(most, report.facts().cores());
  std::vector<std::string> few;
  for (const ProcessReport& report : findings.reports) {
    const ProcessFacts& facts = report.facts();
    if (facts.cores() != 0 && facts.cores() < findings.threads) {
      problems.push_back({kExitOk, absl::StrCat(NameOf(facts), " may run on ", facts.cores(), " of ", facts.host(),
                                                "'s cores and has --threads=", findings.threads,
                                                ": give it more cores, or all workers fewer threads")});
    }
    if (facts.cores() * 2 <= most) few.push_back(NameOf(facts));
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
    (report.facts().gpu().empty() ? without : with).push_back(NameOf(report.facts()));
  }
  if (with.empty() || without.empty()) return;
  problems.push_back({kExitRefused, absl::StrCat(NamesText(with), with.size() == 1 ? " has" : " have", " a GPU, ",
                                                 NamesText(without), without.size() == 1 ? " has" : " have",
                                                 " none: start workers where GPUs are, or give --device=cpu")});
}

void AddClocks(const CheckFindings& findings, Problems& problems) {
  for (const auto& [name, ahead] : Clocks(findings)) {
    if (std::abs(ahead) <= kClockSecondsMax) continue;
    problems.push_back(
        {kExitOk,
         absl::StrFormat("the clock of %s is %.1f s %s that of %s: set it by NTP, or traces and logs of several "
                         "hosts do not fit together",
                         name, std::abs(ahead), ahead > 0 ? "ahead of" : "after",
                         NameOf(findings.reports.front().facts()))});
  }
}

// The worst first: what keeps a job from running, then what would only make it worse.
Problems FindProblems(const CheckFindings& findings) {
  const std::vector<const ProcessFacts*> processes = AllProcesses(findings);
  Problems problems;
  AddShards(findings, problems);
  AddUnreachable(findings, problems);
  AddMissing(findings, problems);
  AddMpi(findings, problems);
  AddDifferences(processes, problems);
  AddLimits(findings, processes, problems);
  AddGpus(findings, problems);
  AddClocks(findings, problems);
  AddCores(findings, problems);
  std::stable_sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
    return (a.exit_code == kExitOk) < (b.exit_code == kExitOk);
  });
  return problems;
}

std::string CountText(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string ReadyText(const CheckFindings& findings) {
  const std::string workers = CountText(findings.world_size, "worker");
  switch (findings.topology) {
    case CheckFindings::Topology::kAlone:
      return "one worker, which needs no other";
    case CheckFindings::Topology::kStar:
      return absl::StrCat(
          workers, findings.world_size == 1 ? " reaches " : " reach ",
          findings.shard_count == 1 ? "the server" : absl::StrCat("all ", findings.shard_count, " servers"));
    case CheckFindings::Topology::kRing:
      return findings.world_size == 1 ? "one worker, which needs no other" : absl::StrCat(workers, " reach each other");
  }
  return workers;
}

// One line cut at spaces; what follows is set in.
std::string Wrap(absl::string_view text) {
  std::string wrapped;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > 0 && column + 1 + word.size() > kColumns) {
      absl::StrAppend(&wrapped, "\n  ");
      column = 2;
    } else if (column > 0) {
      absl::StrAppend(&wrapped, " ");
      ++column;
    }
    absl::StrAppend(&wrapped, word);
    column += word.size();
  }
  return wrapped + "\n";
}

std::string ProcessTable(const CheckFindings& findings) {
  const std::vector<const ProcessFacts*> processes = AllProcesses(findings);
  const std::map<std::string, double> clocks = Clocks(findings);
  std::string text = absl::StrFormat("%-7s %-24s %5s %10s %10s %10s  %s\n", "process", "host", "cores", "memory",
                                     "files", "clock", "GPU");
  for (size_t i = 0; i < processes.size() && i < kProcessRowsMax; ++i) {
    const ProcessFacts& facts = *processes[i];
    const auto clock = clocks.find(NameOf(facts));
    absl::StrAppendFormat(&text, "%-7s %-24s %5d %10s %10d %10s  %s\n", NameOf(facts), Cut(facts.host(), 24),
                          facts.cores(), MemoryText(facts.memory_bytes()), facts.descriptors(),
                          clock == clocks.end() ? "-" : ClockText(clock->second),
                          facts.gpu().empty() ? "-" : Cut(facts.gpu(), 40));
  }
  if (processes.size() > kProcessRowsMax) {
    absl::StrAppend(&text, "and ", processes.size() - kProcessRowsMax, " more processes\n");
  }
  std::map<std::string, std::vector<std::string>> by_versions;
  for (const ProcessFacts* facts : processes) by_versions[LibrariesText(*facts)].push_back(NameOf(*facts));
  for (const auto& [versions, names] : by_versions) {
    absl::StrAppend(&text, Wrap(absl::StrCat(by_versions.size() == 1 ? "all" : NamesText(names), ": ", versions)));
  }
  return text;
}

const char* MeansName(LinkReport::Means means) {
  switch (means) {
    case LinkReport::TCP:
      return "tcp";
    case LinkReport::GRPC:
      return "grpc";
    default:
      return "mpi";
  }
}

std::string LinkRow(const std::string& from, const LinkReport& link) {
  const bool reachable = link.error().empty();
  return absl::StrFormat("%-5s %-5s %-4s %-21s %-10s %-40s %11s %13s\n", from, PeerOf(link), MeansName(link.means()),
                         link.address().empty() ? "-" : Cut(link.address(), 21),
                         link.interface().empty() ? "-" : Cut(link.interface(), 10),
                         reachable ? "reachable" : Cut(link.error(), 40),
                         reachable ? MillisecondsText(link.round_trip_us()) : "-", RateText(link.bytes_per_second()));
}

// What is left out: how many there are, and the worst of them.
std::string OtherLinks(const std::vector<const LinkReport*>& links) {
  double round_trip_us = 0;
  std::optional<double> rate_min;
  int64_t failed = 0;
  for (const LinkReport* link : links) {
    if (!link->error().empty()) {
      ++failed;
      continue;
    }
    round_trip_us = std::max(round_trip_us, link->round_trip_us());
    if (link->bytes_per_second() > 0) {
      rate_min = std::min(rate_min.value_or(link->bytes_per_second()), link->bytes_per_second());
    }
  }
  return absl::StrCat("and ", CountText(static_cast<int64_t>(links.size()), "connection"), " more, ",
                      failed == 0 ? "all reachable" : absl::StrCat(failed, " not reachable"), ": round trip up to ",
                      MillisecondsText(round_trip_us), ", bandwidth from ", RateText(rate_min.value_or(0)), "\n");
}

enum class Part { kFirst, kMpi };

std::string LinkTable(const CheckFindings& findings, Part part) {
  std::vector<std::pair<std::string, const LinkReport*>> links;
  for (const ProcessReport& report : findings.reports) {
    for (const LinkReport& link : report.links()) {
      if ((link.means() == LinkReport::MPI) == (part == Part::kMpi)) links.emplace_back(NameOf(report.facts()), &link);
    }
  }
  if (links.empty()) return "";
  std::stable_sort(links.begin(), links.end(),
                   [](const auto& a, const auto& b) { return a.second->error().empty() < b.second->error().empty(); });
  std::string text;
  if (part == Part::kFirst) {
    absl::StrAppendFormat(&text, "\n%-5s %-5s %-4s %-21s %-10s %-40s %11s %13s\n", "from", "to", "by", "address",
                          "interface", "answer", "round trip", "bandwidth");
  }
  std::vector<const LinkReport*> others;
  for (size_t i = 0; i < links.size(); ++i) {
    if (i < kLinkRowsMax) {
      text += LinkRow(links[i].first, *links[i].second);
    } else {
      others.push_back(links[i].second);
    }
  }
  if (!others.empty()) text += OtherLinks(others);
  if (part == Part::kMpi) return text;
  if (findings.topology == CheckFindings::Topology::kRing &&
      static_cast<int>(RingTargets(0, findings.world_size).size()) < findings.world_size - 1) {
    absl::StrAppend(&text,
                    "each rank has dialled its neighbours, rank 0 and those at distances of powers of two, not all ",
                    findings.world_size - 1, "\n");
  }
  if (findings.bandwidth.rank_stride > 1) {
    absl::StrAppend(&text, "only one rank in ", findings.bandwidth.rank_stride,
                    " has tested bandwidth, to end in time\n");
  }
  return text;
}

}  // namespace

CheckVerdict JudgeCheck(const CheckFindings& findings) {
  const Problems problems = FindProblems(findings);
  CheckVerdict verdict;
  if (problems.empty()) {
    verdict.sentence = absl::StrCat("ready: ", ReadyText(findings));
    return verdict;
  }
  const Problem& worst = problems.front();
  verdict.exit_code = worst.exit_code;
  verdict.sentence = worst.exit_code == kExitOk ? absl::StrCat("ready: ", ReadyText(findings), "; but ", worst.text)
                                                : absl::StrCat("not ready: ", worst.text);
  return verdict;
}

std::string CheckTable(const CheckFindings& findings) {
  return absl::StrCat(ProcessTable(findings), LinkTable(findings, Part::kFirst));
}

std::string CheckEnd(const CheckFindings& findings, const CheckVerdict& verdict) {
  std::string text = absl::StrCat(LinkTable(findings, Part::kMpi), "\n");
  const Problems problems = FindProblems(findings);
  for (size_t i = 1; i < problems.size() && i <= kLinkRowsMax; ++i) {
    absl::StrAppend(&text, Wrap(absl::StrCat("also: ", problems[i].text)));
  }
  return text + Wrap(verdict.sentence);
}

std::string MpiWarning(const CheckFindings& findings) {
  const std::set<Pair> connected = ConnectedPairs(findings);
  for (const ProcessReport& report : findings.reports) {
    for (const LinkReport& link : report.links()) {
      const std::string from = NameOf(report.facts());
      if (link.error().empty() || !connected.contains({from, PeerOf(link)})) continue;
      return Wrap(absl::StrCat("not ready, if nothing follows: Open MPI has chosen an address like ", PeerOf(link),
                               "'s ", link.address(), ", which ", from, " cannot reach (", link.error(),
                               "): ", IncludeText(findings)));
    }
  }
  return "";
}

}  // namespace starring
