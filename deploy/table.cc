// //deploy:table: prints run records as one table. Exit code 1 if two runs differ that must agree.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/host/standard_streams.h"
#include "deploy/run_record_table.h"

namespace starring {
namespace {

absl::Status PrintTable(const std::vector<std::string>& paths) {
  if (paths.empty()) return absl::InvalidArgumentError("no run record given: table FILE...");
  std::vector<RunSummary> runs;
  for (const std::string& path : paths) {
    std::ifstream file(path);
    const std::string json(std::istreambuf_iterator<char>(file), {});
    if (!file) return absl::NotFoundError("cannot read " + path);
    ASSIGN_OR_RETURN(runs.emplace_back(), ParseRunRecord(path, json));
  }
  // The table precedes the comparison, which may fail: it shows the runs that differ.
  std::printf("%s", FormatTable(runs).c_str());
  ASSIGN_OR_RETURN(const std::string agreement, CompareDigests(runs));
  std::printf("%s", agreement.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  starring::OpenStandardStreams();
  starring::EnterUsersFolder("table");
  const absl::Status status = starring::PrintTable({argv + 1, argv + argc});
  if (!status.ok()) std::fprintf(stderr, "table: error: %s\n", std::string(status.message()).c_str());
  return starring::ExitCode(status);
}
