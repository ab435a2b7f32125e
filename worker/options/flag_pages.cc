// bazel run //worker/options:flag_pages -- "$PWD"
//
// Writes what follows from the worker's flags into the files of a checkout: the table in worker/README.md and
// bench/ddp/worker_flags.json, from which the PyTorch peer makes its command line and its run record. A test compares
// both files with the flags.
#include <string.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/atomic_file.h"
#include "common/base/status.h"
#include "common/flags/flag_table.h"
#include "worker/options/worker_options.h"

namespace starring {
namespace {

absl::Status WritePages(const std::string& folder) {
  const std::string page = absl::StrCat(folder, "/worker/README.md");
  std::ifstream file(page);
  std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t begin = text.find(kFlagsMarkdownBegin);
  const size_t end = text.find(kFlagsMarkdownEnd);
  if (begin == std::string::npos || end == std::string::npos) {
    return absl::NotFoundError(absl::StrCat(page, " has no line ", kFlagsMarkdownBegin, " or no line ",
                                            kFlagsMarkdownEnd, ": name the folder of a checkout"));
  }
  text.replace(begin, end + strlen(kFlagsMarkdownEnd) - begin, FlagsMarkdown(WorkerFlags()));
  RETURN_IF_ERROR(WriteFileAtomically(page, text));
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
