// bazel run //worker/options:flag_pages -- "$PWD"
//
// Writes into the files of a checkout what follows from the worker's flags: the table in worker/README.md and
// bench/ddp/worker_flags.json, from which the PyTorch peer makes its command line and its run record, and the names
// that the launcher recognises. Writes also what follows from the cells (common/job/cells.h): the table in
// worker/exchange/README.md and bench/compare/measured/cells.json. Tests compare these files with flags and cells.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/atomic_file.h"
#include "common/base/status.h"
#include "common/flags/flag_table.h"
#include "common/job/cell_pages.h"
#include "worker/options/worker_options.h"

namespace starring {
namespace {

// `table` takes the place of what the page has between these lines, which are part of `table`.
absl::Status ReplaceTable(const std::string& page, const std::string& table, const std::string& first_line,
                          const std::string& last_line) {
  std::ifstream file(page);
  std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t begin = text.find(first_line);
  const size_t end = text.find(last_line);
  if (begin == std::string::npos || end == std::string::npos) {
    return absl::NotFoundError(
        absl::StrCat(page, " has no line ", first_line, " or no line ", last_line, ": name the folder of a checkout"));
  }
  text.replace(begin, end + last_line.size() - begin, table);
  return WriteFileAtomically(page, text);
}

absl::Status WritePages(const std::string& folder) {
  RETURN_IF_ERROR(ReplaceTable(absl::StrCat(folder, "/worker/README.md"), FlagsMarkdown(WorkerFlags()),
                               kFlagsMarkdownBegin, kFlagsMarkdownEnd));
  RETURN_IF_ERROR(ReplaceTable(absl::StrCat(folder, "/worker/exchange/README.md"), CellsMarkdown(), kCellsMarkdownBegin,
                               kCellsMarkdownEnd));
  RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(folder, "/bench/compare/measured/cells.json"), CellsJson()));
  RETURN_IF_ERROR(
      WriteFileAtomically(absl::StrCat(folder, "/deploy/launch/worker_flags.inc"), FlagNames(WorkerFlags())));
  return WriteFileAtomically(absl::StrCat(folder, "/bench/ddp/worker_flags.json"), FlagsJson(WorkerFlags()));
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  const absl::Status status = argc == 2 ? starring::WritePages(argv[1])
                                        : absl::InvalidArgumentError("give one argument: the folder of a checkout");
  if (status.ok()) return 0;
  std::fprintf(stderr, "flag_pages: error: %s\n", std::string(status.message()).c_str());
  return 1;
}
