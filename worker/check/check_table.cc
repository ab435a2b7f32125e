#include "worker/check/check_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/flags/command_line.h"
#include "common/host/machine_limits.h"
#include "worker/check/host_network.h"

namespace starring {
namespace {

using v1::LinkReport;
using v1::ProcessFacts;
using v1::ProcessReport;

using Names = std::vector<std::string>;       // of processes: "w3", "s0"
using Groups = std::map<std::string, Names>;  // by what the processes have in common
using Pair = std::pair<std::string, std::string>;

constexpr size_t kColumns = 120;
// A problem of hundreds of workers is told in one sentence, which names this many of them.
constexpr size_t kNamesMax = 4;
// Rows beyond these are only counted: a ring of 64 ranks already has some 500 connections.
constexpr size_t kProcessRowsMax = 64;
constexpr size_t kLinkRowsMax = 40;
// This is far more than the error of a measured clock, which is half a round trip.
constexpr double kClockSecondsMax = 1;
constexpr int64_t kMemoryBytesMin = int64_t{1} << 30;

std::string NameOf(ProcessFacts::Role role, int number) {
  return absl::StrCat(role == ProcessFacts::WORKER ? "w" : "s", number);
}
std::string NameOf(const ProcessFacts& facts) { return NameOf(facts.role(), facts.number()); }

// "w0, w1, w2, w3 and 5 more"
std::string NamesText(const Names& names) {
  // One name more is printed, because "and 1 more" would be longer than that name.
  if (names.size() <= kNamesMax + 1) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kNamesMax, ", "), " and ", names.size() - kNamesMax,
                      " more");
}

// "w0 has", "w0, w1 have"
std::string Have(const Names& names) { return absl::StrCat(NamesText(names), names.size() == 1 ? " has" : " have"); }

std::string CountText(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

CoreLimits LimitsOf(const ProcessFacts& facts) { return {.cores = facts.cores(), .quota = facts.cpu_quota()}; }

std::string MemoryText(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
}

std::string MillisecondsText(double microseconds) { return absl::StrFormat("%.2f ms", microseconds / 1e3); }

std::string RateText(double bytes_per_second) {
  // A rate of 0 is a connection that was not tested: see BandwidthPlan.
  if (bytes_per_second <= 0) return "-";
  const double bits = bytes_per_second * 8;
  return bits < 1e9 ? absl::StrFormat("%.0f Mbit/s", bits / 1e6) : absl::StrFormat("%.2f Gbit/s", bits / 1e9);
}

std::string ClockText(double seconds) {
  // A smaller difference would be printed as "+0.0 ms" or "-0.0 ms".
  if (std::abs(seconds) < 5e-5) return "0";
  if (std::abs(seconds) < 1) return absl::StrFormat("%+.1f ms", seconds * 1e3);
  return absl::StrFormat("%+.1f s", seconds);
}

std::string LibrariesText(const ProcessFacts& facts) {
  std::string text = absl::StrCat("starring ", facts.program_version());
  if (facts.wire_version() != 0) absl::StrAppend(&text, ", wire ", facts.wire_version());
  for (const ProcessFacts::Library& library : facts.libraries()) {
    absl::StrAppend(&text, ", ", library.name(), " ", library.version());
  }
  return text;
}

// Fills each line before the next one begins. Later lines are indented. A word is never cut, so a line that is one long
// word, such as a path, may be wider than kColumns.
std::string Wrap(absl::string_view text) {
  std::string wrapped;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const bool fits = column + 1 + word.size() <= kColumns;
    const absl::string_view gap = column == 0 ? "" : fits ? " " : "\n  ";
    column = (gap == "\n  " ? 2 : column + gap.size()) + word.size();
    absl::StrAppend(&wrapped, gap, word);
  }
  return wrapped + "\n";
}

// All processes that any report knows of: workers, then servers. The pointers point into `findings`.
std::vector<const ProcessFacts*> AllProcesses(const CheckFindings& findings) {
  std::vector<const ProcessFacts*> processes;
  std::map<int, const ProcessFacts*> servers;
  for (const ProcessReport& report : findings.reports) {
    processes.push_back(&report.facts());
    // Many workers have reached the same server. The first report of each shard is taken, so that a server has one row;
    // the map sorts the rows by shard.
    for (const ProcessFacts& server : report.servers()) servers.emplace(server.number(), &server);
  }
  for (const auto& [number, server] : servers) processes.push_back(server);
  return processes;
}

struct Link {
  std::string from;
  std::string to;
  std::string address;  // a process does not know it in the job's transport: then the host at the other end, if known
  const LinkReport* report = nullptr;  // in the findings

  bool is_reachable() const { return report->error().empty(); }
  bool is_by_mpi() const { return report->means() == LinkReport::MPI; }
};

std::vector<Link> LinksOf(const CheckFindings& findings) {
  std::map<std::string, std::string> hosts;
  for (const ProcessFacts* process : AllProcesses(findings)) hosts[NameOf(*process)] = process->host();
  std::vector<Link> links;
  for (const ProcessReport& report : findings.reports) {
    for (const LinkReport& link : report.links()) {
      const std::string to = NameOf(link.peer_role(), link.peer());
      links.push_back({.from = NameOf(report.facts()),
                       .to = to,
                       .address = link.address().empty() ? hosts[to] : link.address(),
                       .report = &link});
    }
  }
  return links;
}

// By name: how many seconds a process's wall clock is ahead of the first worker's, where connections tell.
std::map<std::string, double> ClocksAhead(const CheckFindings& findings) {
  std::map<std::string, double> clocks;
  if (findings.reports.empty()) return clocks;
  clocks[NameOf(findings.reports.front().facts())] = 0;
  // The workers of a star connect only to servers, so another worker's clock is known by way of a server: two hops.
  for (int hop = 0; hop < 2; ++hop) {
    for (const Link& link : LinksOf(findings)) {
      if (!link.is_reachable()) continue;
      // A link is used in both directions. The first path to a process decides: emplace never replaces a clock.
      if (clocks.contains(link.from)) {
        clocks.emplace(link.to, clocks[link.from] + link.report->clock_ahead_s());
      } else if (clocks.contains(link.to)) {
        clocks.emplace(link.from, clocks[link.to] - link.report->clock_ahead_s());
      }
    }
  }
  return clocks;
}

// --- The table

struct Column {
  const char* heading;
  int width;  // negative: of texts, which begin at the left
};
constexpr Column kProcessColumns[] = {{"process", -7}, {"host", -24}, {"cores", 5}, {"memory", 10},
                                      {"files", 10},   {"clock", 10}, {"GPU", -40}};
constexpr Column kLinkColumns[] = {{"from", -5},       {"to", -5},      {"by", -4},         {"address", -21},
                                   {"interface", -10}, {"answer", -40}, {"round trip", 11}, {"bandwidth", 13}};

// A column keeps its width whatever a host or an error is called: two dots show that a text was cut.
std::string Row(std::span<const Column> columns, const std::vector<std::string>& cells) {
  std::string row;
  for (size_t i = 0; i < columns.size(); ++i) {
    const auto text_columns = static_cast<size_t>(std::max(0, -columns[i].width));
    std::string cell = cells[i].empty() ? "-" : cells[i];
    if (text_columns > 0 && cell.size() > text_columns) cell = absl::StrCat(cell.substr(0, text_columns - 2), "..");
    absl::StrAppendFormat(&row, "%*s ", columns[i].width, cell);
  }
  absl::StripTrailingAsciiWhitespace(&row);
  return row + "\n";
}

std::string Heading(std::span<const Column> columns) {
  std::vector<std::string> cells;
  for (const Column& column : columns) cells.emplace_back(column.heading);
  return Row(columns, cells);
}

std::string ProcessTable(const CheckFindings& findings) {
  const std::vector<const ProcessFacts*> processes = AllProcesses(findings);
  const std::map<std::string, double> clocks = ClocksAhead(findings);
  std::string text = Heading(kProcessColumns);
  for (size_t i = 0; i < processes.size() && i < kProcessRowsMax; ++i) {
    const ProcessFacts& facts = *processes[i];
    const auto clock = clocks.find(NameOf(facts));
    text += Row(kProcessColumns, {NameOf(facts), facts.host(), absl::StrCat(facts.cores()),
                                  MemoryText(facts.memory_bytes()), absl::StrCat(facts.descriptors()),
                                  // No connection leads from the first worker to this process: its clock is unknown.
                                  clock == clocks.end() ? "" : ClockText(clock->second), facts.gpu()});
  }
  if (processes.size() > kProcessRowsMax) {
    absl::StrAppend(&text, "and ", processes.size() - kProcessRowsMax, " more processes\n");
  }
  Groups by_quota;
  Groups by_versions;
  for (const ProcessFacts* facts : processes) {
    if (facts->cpu_quota() > 0) by_quota[CoresText(LimitsOf(*facts))].push_back(NameOf(*facts));
    by_versions[LibrariesText(*facts)].push_back(NameOf(*facts));
  }
  for (const auto& [cores, names] : by_quota) text += Wrap(absl::StrCat(NamesText(names), ": ", cores));
  // Usually all processes have the same versions, and one line says so. Otherwise each group of equal ones has a line.
  for (const auto& [versions, names] : by_versions) {
    text += Wrap(absl::StrCat(by_versions.size() == 1 ? "all" : NamesText(names), ": ", versions));
  }
  return text;
}

// The line for the connections that the table leaves out: how many there are, and the worst values among them.
std::string OtherLinks(std::span<const Link> links) {
  double round_trip_us = 0;
  std::optional<double> rate_min;
  int64_t failed = 0;
  for (const Link& link : links) {
    if (!link.is_reachable()) {
      ++failed;
      continue;
    }
    round_trip_us = std::max(round_trip_us, link.report->round_trip_us());
    const double rate = link.report->bytes_per_second();
    if (rate > 0) rate_min = std::min(rate_min.value_or(rate), rate);
  }
  return absl::StrCat("and ", CountText(static_cast<int64_t>(links.size()), "connection"), " more, ",
                      failed == 0 ? "all reachable" : absl::StrCat(failed, " not reachable"), ": round trip up to ",
                      MillisecondsText(round_trip_us), ", bandwidth from ", RateText(rate_min.value_or(0)), "\n");
}

enum class Part { kFirst, kMpi };

// The second part has no heading. Its rows have the same columns and continue the table of the first part.
std::string LinkTable(const CheckFindings& findings, Part part) {
  std::vector<Link> links = LinksOf(findings);
  std::erase_if(links, [&](const Link& link) { return link.is_by_mpi() != (part == Part::kMpi); });
  if (links.empty()) return "";
  // Failures come first, because the rows after kLinkRowsMax are only counted. A stable sort keeps each rank's rows
  // together.
  std::ranges::stable_sort(links, {}, &Link::is_reachable);
  std::string text = part == Part::kMpi ? "" : absl::StrCat("\n", Heading(kLinkColumns));
  const size_t row_count = std::min(links.size(), kLinkRowsMax);
  for (const Link& link : std::span(links).first(row_count)) {
    const LinkReport& report = *link.report;
    text += Row(kLinkColumns, {link.from, link.to, absl::AsciiStrToLower(LinkReport::Means_Name(report.means())),
                               link.address, report.interface(), link.is_reachable() ? "reachable" : report.error(),
                               link.is_reachable() ? MillisecondsText(report.round_trip_us()) : "",
                               RateText(report.bytes_per_second())});
  }
  if (links.size() > row_count) text += OtherLinks(std::span(links).subspan(row_count));
  if (part == Part::kMpi) return text;
  if (findings.contact == Contact::kMpirun &&
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

// --- The advice

struct Problem {
  int exit_code = kExitOk;  // of this problem alone; kExitOk if a job would run in spite of it
  std::string text;
};

using Problems = std::vector<Problem>;

template <typename... Texts>
void Add(Problems& problems, int exit_code, const Texts&... texts) {
  problems.push_back({exit_code, absl::StrCat(texts...)});
}

// A process may have several addresses. A pair of processes is connected if one of them answers.
std::set<Pair> ConnectedPairs(std::span<const Link> links) {
  std::set<Pair> pairs;
  for (const Link& link : links) {
    if (!link.is_by_mpi() && link.is_reachable()) pairs.emplace(link.from, link.to);
  }
  return pairs;
}

// The setting for Open MPI: the subnet that connects all pairs of a ring that need more than loopback, if there is one.
std::string IncludeText(std::span<const Link> links) {
  std::set<Pair> pairs;
  std::map<std::string, std::set<Pair>> by_subnet;
  for (const Link& link : links) {
    // Cuts the port off. An address without a colon stays whole, because substr takes npos as the end.
    absl::string_view host = absl::string_view(link.address).substr(0, link.address.rfind(':'));
    if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
    if (link.report->means() != LinkReport::TCP || absl::StartsWith(host, "127.")) continue;
    // A pair counts even if its connection failed: a subnet that does not connect it must not be advised.
    pairs.emplace(link.from, link.to);
    if (link.is_reachable()) by_subnet[SubnetOf(host, link.report->prefix_bits())].emplace(link.from, link.to);
  }
  // A subnet that connects only some pairs is no help: with this variable set Open MPI uses no other network.
  const auto common = std::ranges::find_if(
      by_subnet, [&](const auto& subnet) { return !subnet.first.empty() && subnet.second == pairs; });
  return absl::StrCat("set OMPI_MCA_btl_tcp_if_include=",
                      common == by_subnet.end() ? "NETWORK, one that all hosts share" : common->first);
}

// The order of --servers is wrong: the address reaches a server, but another shard than it is listed as. star_check.cc
// writes this error.
bool AnswersAsAnother(const Link& link) { return absl::StartsWith(link.report->error(), "answers as shard "); }

void AddShards(std::span<const Link> links, Problems& problems) {
  // All workers have the same --servers and find the same wrong places; the set keeps each text once.
  std::set<std::string> texts;
  for (const Link& link : links) {
    if (!AnswersAsAnother(link)) continue;
    texts.insert(absl::StrCat("the server at ", link.address, " ", link.report->error(), ", --servers has it as shard ",
                              link.report->peer(), ": ", link.report->way_out()));
  }
  for (const std::string& text : texts) Add(problems, kExitRefused, text);
}

void AddUnreachable(std::span<const Link> links, Problems& problems) {
  const std::set<Pair> connected = ConnectedPairs(links);
  // Workers that fail in the same way at the same peer are one problem. The map sorts by text. Problems are listed in
  // the order of ranks, which `order` keeps.
  Groups from_by_failure;
  std::vector<std::string> order;
  for (const Link& link : links) {
    // An address that does not answer is no problem if another address of the same peer does.
    if (link.is_reachable() || link.is_by_mpi() || AnswersAsAnother(link) || connected.contains({link.from, link.to})) {
      continue;
    }
    const std::string& way_out = link.report->way_out();
    const std::string failure = absl::StrCat(link.to, link.address.empty() ? "" : " at ", link.address, ": ",
                                             link.report->error(), way_out.empty() ? "" : ": ", way_out);
    Names& names = from_by_failure[failure];
    if (names.empty()) order.push_back(failure);
    names.push_back(link.from);
  }
  for (const std::string& failure : order) {
    Add(problems, kExitPeerMissing, NamesText(from_by_failure[failure]), " cannot reach ", failure);
  }
}

void AddMissing(const CheckFindings& findings, Problems& problems) {
  if (findings.missing.empty()) return;
  Names names;
  for (const int rank : findings.missing) names.push_back(NameOf(ProcessFacts::WORKER, rank));
  Add(problems, kExitPeerMissing, Have(names), " not reported within ", absl::FormatDuration(findings.gather_deadline),
      ": start all ", findings.world_size, " workers at the same time",
      findings.contact == Contact::kServers ? ", each where it reaches the servers" : "");
}

// MPI is tried only where TCP connects all ranks, so the advice is about the networks that Open MPI chooses.
void AddMpi(std::span<const Link> links, Problems& problems) {
  for (const Link& link : links) {
    if (!link.is_by_mpi() || link.is_reachable()) continue;
    Add(problems, kExitPeerMissing, "MPI's messages from ", link.from, " to ", link.to, " fail (", link.report->error(),
        "), while TCP connects: ", IncludeText(links));
  }
}

void AddDifferences(std::span<const ProcessFacts* const> processes, Problems& problems) {
  // One sentence names all versions of a program or library, and the processes that have each. The program comes first.
  enum Kind { kProgram, kLibrary };
  std::map<std::pair<Kind, std::string>, Groups> by_name;
  for (const ProcessFacts* process : processes) {
    const std::string own = absl::StrCat(process->program_version(), " (wire ", process->wire_version(), ")");
    by_name[{kProgram, "starring"}][own].push_back(NameOf(*process));
    for (const ProcessFacts::Library& library : process->libraries()) {
      by_name[{kLibrary, library.name()}][library.version()].push_back(NameOf(*process));
    }
  }
  for (const auto& [name, groups] : by_name) {
    if (groups.size() == 1) continue;
    const std::string versions = absl::StrJoin(groups, ", ", [](std::string* out, const auto& group) {
      absl::StrAppend(out, group.first, " on ", NamesText(group.second));
    });
    // Ranks with different versions of MPI do not find each other, and of NCCL they refuse each other. Other libraries
    // may differ, but then the results may differ in their bits.
    const bool must_agree = name.first == kProgram || name.second == "MPI" || name.second == "NCCL";
    Add(problems, must_agree ? kExitRefused : kExitOk, "versions of ", name.second, " differ: ", versions,
        ": install one version everywhere");
  }
}

void AddLimits(const CheckFindings& findings, std::span<const ProcessFacts* const> processes, Problems& problems) {
  const bool star = findings.contact == Contact::kServers;
  for (const ProcessFacts* process : processes) {
    const std::string name = NameOf(*process);
    const bool server = process->role() == ProcessFacts::SERVER;
    // The same two functions decide how many descriptors a job's processes ask for, so a check and a job cannot
    // disagree.
    const int64_t needed = server && star ? ServerDescriptors(int64_t{findings.world_size} * findings.lanes)
                                          : WorkerDescriptors(star ? int64_t{findings.shard_count} * findings.lanes
                                                                   : findings.world_size + findings.shard_count);
    // A process that could not find out its limit reports 0.
    if (process->descriptors() != 0 && process->descriptors() < needed) {
      Add(problems, kExitRefused, name, " can have ", process->descriptors(), " files open, this job needs ", needed,
          ": raise the limit (ulimit -n) on ", process->host());
    }
    // This is only a warning, because the job's need depends on model and data set, which a check does not load.
    if (process->memory_bytes() != 0 && process->memory_bytes() < kMemoryBytesMin) {
      Add(problems, kExitOk, name, " can get ", MemoryText(process->memory_bytes()), " of memory on ", process->host(),
          ": free some, or use another host");
    }
  }
}

void AddGpus(const CheckFindings& findings, Problems& problems) {
  if (!findings.uses_gpus) return;
  Names with;
  Names without;
  for (const ProcessReport& report : findings.reports) {
    // With --device=auto a worker without a GPU would take its CPU, and the ranks would be refused when the job starts.
    (report.facts().gpu().empty() ? without : with).push_back(NameOf(report.facts()));
  }
  if (with.empty() || without.empty()) return;
  Add(problems, kExitRefused, Have(with), " a GPU, ", Have(without),
      " none: start workers where GPUs are, or give --device=cpu");
}

void AddNccl(const CheckFindings& findings, Problems& problems) {
  Groups by_reason;
  for (const ProcessReport& report : findings.reports) {
    const std::string& why = report.facts().no_nccl();
    if (!why.empty()) by_reason[why].push_back(NameOf(report.facts()));
  }
  for (const auto& [why, names] : by_reason) {
    Add(problems, kExitRefused, "--sync=nccl: ", NamesText(names), ": ", why);
  }
}

void AddClocks(const CheckFindings& findings, Problems& problems) {
  for (const auto& [name, ahead] : ClocksAhead(findings)) {
    if (std::abs(ahead) <= kClockSecondsMax) continue;
    Add(problems, kExitOk, "the clock of ", name, " is ", absl::StrFormat("%.1f", std::abs(ahead)), " s ",
        ahead > 0 ? "ahead of" : "after", " that of ", NameOf(findings.reports.front().facts()),
        ": set it by NTP, or traces and logs of several hosts do not fit together");
  }
}

void AddCores(const CheckFindings& findings, Problems& problems) {
  int most = 0;
  for (const ProcessReport& report : findings.reports) most = std::max(most, CountedCores(LimitsOf(report.facts())));
  Names few;
  for (const ProcessReport& report : findings.reports) {
    const ProcessFacts& facts = report.facts();
    // A process that could not find out its cores reports 0.
    if (facts.cores() == 0) continue;
    if (facts.cores() < findings.threads) {
      Add(problems, kExitOk, NameOf(facts), " may run on ", facts.cores(), " of ", facts.host(),
          "'s cores and has --threads=", findings.threads, ": give it more cores, or all workers fewer threads");
    } else if (facts.cpu_quota() > 0 && facts.cpu_quota() < findings.threads) {
      // The kernel stops a process that has used up its quota until the next period, usually 0.1 s.
      Add(problems, kExitOk, NameOf(facts), " has ", CoresText(LimitsOf(facts)), ", on ", facts.host(),
          " and --threads=", findings.threads,
          ": the kernel stops it in each period: raise the quota of its control group (cpu.max; "
          "cpu.cfs_quota_us)");
    }
    // Workers train in lockstep, so one with half the cores halves the speed of all.
    if (CountedCores(LimitsOf(facts)) * 2 <= most) few.push_back(NameOf(facts));
  }
  if (few.empty()) return;
  Add(problems, kExitOk, Have(few), " half of the cores of others or fewer (", most,
      "), and all wait for the slowest: give each worker as many");
}

// The worst first: what keeps a job from running, then what would only make it worse.
Problems FindProblems(const CheckFindings& findings) {
  const std::vector<const ProcessFacts*> processes = AllProcesses(findings);
  const std::vector<Link> links = LinksOf(findings);
  Problems problems;
  // A wrong order of --servers is a cause of its own, so AddUnreachable leaves those links out.
  AddShards(links, problems);
  AddUnreachable(links, problems);
  AddMissing(findings, problems);
  AddMpi(links, problems);
  AddDifferences(processes, problems);
  AddLimits(findings, processes, problems);
  AddGpus(findings, problems);
  AddNccl(findings, problems);
  AddClocks(findings, problems);
  AddCores(findings, problems);
  // The sort is stable, because the order above is from cause to consequence.
  std::ranges::stable_sort(problems, {}, [](const Problem& problem) { return problem.exit_code == kExitOk; });
  return problems;
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

CheckVerdict JudgeCheck(const CheckFindings& findings) {
  const Problems problems = FindProblems(findings);
  CheckVerdict verdict = {.sentence = absl::StrCat("ready: ", ReadyText(findings))};
  if (problems.empty()) return verdict;
  // If any problem keeps the job from running, the first one does: warnings are at the end.
  verdict.exit_code = problems[0].exit_code;
  verdict.sentence = verdict.exit_code == kExitOk ? absl::StrCat(verdict.sentence, "; but ", problems[0].text)
                                                  : absl::StrCat("not ready: ", problems[0].text);
  for (size_t i = 1; i < problems.size() && i <= kLinkRowsMax; ++i) verdict.others.push_back(problems[i].text);
  return verdict;
}

std::string CheckTable(const CheckFindings& findings) {
  return absl::StrCat(ProcessTable(findings), LinkTable(findings, Part::kFirst));
}

std::string CheckEnd(const CheckFindings& findings, const CheckVerdict& verdict) {
  std::string text = absl::StrCat(LinkTable(findings, Part::kMpi), "\n");
  for (const std::string& other : verdict.others) text += Wrap(absl::StrCat("also: ", other));
  return text + Wrap(verdict.sentence);
}

std::string MpiWarning(const CheckFindings& findings) {
  const std::vector<Link> links = LinksOf(findings);
  const std::set<Pair> connected = ConnectedPairs(links);
  // MPI is tried only if every pair is connected by some address. Open MPI chooses among all of them, also those that
  // fail here, and ends the process when it meets one. One example is enough, since the way out is the same for all.
  const auto link = std::ranges::find_if(links, [&](const Link& one) {
    return !one.is_reachable() && connected.contains({one.from, one.to});
  });
  if (link == links.end()) return "";
  return Wrap(absl::StrCat("not ready, if nothing follows: Open MPI has chosen an address like ", link->to, "'s ",
                           link->address, ", which ", link->from, " cannot reach (", link->report->error(),
                           "): ", IncludeText(links)));
}

}  // namespace starring
