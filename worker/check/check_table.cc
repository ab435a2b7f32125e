#include "worker/check/check_table.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace starring {

using v1::LinkReport;
using v1::ProcessFacts;
using v1::ProcessReport;

namespace check_table {
namespace {

// A row of connections is 116 columns wide.
constexpr size_t kColumns = 120;
// A problem of hundreds of workers is told in one sentence, which names this many of them.
constexpr size_t kNamesMax = 4;

}  // namespace

std::string NameOf(ProcessFacts::Role role, int number) {
  return absl::StrCat(role == ProcessFacts::WORKER ? "w" : "s", number);
}
std::string NameOf(const ProcessFacts& facts) { return NameOf(facts.role(), facts.number()); }
std::string PeerOf(const LinkReport& link) { return NameOf(link.peer_role(), link.peer()); }

std::string NamesText(const std::vector<std::string>& names) {
  // One name more is printed, because "and 1 more" would be longer than that name.
  if (names.size() <= kNamesMax + 1) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kNamesMax, ", "), " and ", names.size() - kNamesMax,
                      " more");
}

std::string CountText(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

CoreLimits LimitsOf(const ProcessFacts& facts) { return {.cores = facts.cores(), .quota = facts.cpu_quota()}; }

std::string MemoryText(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
}

// Fills each line before the next one begins. A word is never cut, so a line that is one long word, such as a path, may
// be wider than kColumns.
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

// The pointers point into `findings`, which outlives them in every caller.
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

std::map<std::string, double> ClocksAhead(const CheckFindings& findings) {
  std::map<std::string, double> clocks;
  if (findings.reports.empty()) return clocks;
  clocks[NameOf(findings.reports.front().facts())] = 0;
  // The workers of a star connect only to servers, so another worker's clock is known by way of a server: two hops.
  for (int hop = 0; hop < 2; ++hop) {
    for (const ProcessReport& report : findings.reports) {
      const std::string from = NameOf(report.facts());
      for (const LinkReport& link : report.links()) {
        if (!link.error().empty()) continue;
        const std::string to = PeerOf(link);
        // A link is used in both directions. The first path to a process decides: emplace never replaces a clock.
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

}  // namespace check_table

namespace {

using check_table::AllProcesses;
using check_table::ClocksAhead;
using check_table::CountText;
using check_table::LimitsOf;
using check_table::MemoryText;
using check_table::NameOf;
using check_table::NamesText;
using check_table::PeerOf;
using check_table::Wrap;

// Rows beyond these are only counted: a ring of 64 ranks already has some 500 connections.
constexpr size_t kProcessRowsMax = 64;
constexpr size_t kLinkRowsMax = 40;

// Columns keep their width whatever a host or an error is called; two dots show that a text was cut.
std::string Cut(absl::string_view text, size_t columns) {
  return std::string(text.size() <= columns ? text : absl::StrCat(text.substr(0, columns - 2), ".."));
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

std::string ProcessTable(const CheckFindings& findings) {
  const std::vector<const ProcessFacts*> processes = AllProcesses(findings);
  const std::map<std::string, double> clocks = ClocksAhead(findings);
  std::string text = absl::StrFormat("%-7s %-24s %5s %10s %10s %10s  %s\n", "process", "host", "cores", "memory",
                                     "files", "clock", "GPU");
  for (size_t i = 0; i < processes.size() && i < kProcessRowsMax; ++i) {
    const ProcessFacts& facts = *processes[i];
    const auto clock = clocks.find(NameOf(facts));
    absl::StrAppendFormat(&text, "%-7s %-24s %5d %10s %10d %10s  %s\n", NameOf(facts), Cut(facts.host(), 24),
                          facts.cores(), MemoryText(facts.memory_bytes()), facts.descriptors(),
                          // No connection leads from the first worker to this process, so its clock is unknown.
                          clock == clocks.end() ? "-" : ClockText(clock->second),
                          facts.gpu().empty() ? "-" : Cut(facts.gpu(), 40));
  }
  if (processes.size() > kProcessRowsMax) {
    absl::StrAppend(&text, "and ", processes.size() - kProcessRowsMax, " more processes\n");
  }
  std::map<std::string, std::vector<std::string>> by_quota;
  for (const ProcessFacts* facts : processes) {
    if (facts->cpu_quota() > 0) by_quota[CoresText(LimitsOf(*facts))].push_back(NameOf(*facts));
  }
  for (const auto& [cores, names] : by_quota) absl::StrAppend(&text, Wrap(absl::StrCat(NamesText(names), ": ", cores)));
  // Usually all processes have the same versions, and one line says so. Otherwise each group of equal ones has a line.
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

// The line for the connections that the table leaves out: how many there are, and the worst values among them.
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
  // Failures come first, because the rows after kLinkRowsMax are only counted. A stable sort keeps each rank's rows
  // together.
  std::stable_sort(links.begin(), links.end(),
                   [](const auto& a, const auto& b) { return a.second->error().empty() < b.second->error().empty(); });
  std::string text;
  // The second part has no heading. Its rows have the same columns and continue the table of the first part.
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

}  // namespace

std::string CheckTable(const CheckFindings& findings) {
  return absl::StrCat(ProcessTable(findings), LinkTable(findings, Part::kFirst));
}

std::string CheckEnd(const CheckFindings& findings, const CheckVerdict& verdict) {
  std::string text = absl::StrCat(LinkTable(findings, Part::kMpi), "\n");
  // Every problem but the first is printed here, because each has its own way out.
  const std::vector<check_table::Problem> problems = check_table::FindProblems(findings);
  // The first is the worst, and the verdict's sentence has it.
  for (size_t i = 1; i < problems.size() && i <= kLinkRowsMax; ++i) {
    absl::StrAppend(&text, Wrap(absl::StrCat("also: ", problems[i].text)));
  }
  return text + Wrap(verdict.sentence);
}

}  // namespace starring
