#include "deploy/launch/run_state.h"

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace starring {

std::string UnfinishedRun(const std::string& folder) {
  std::ifstream file(absl::StrCat(folder, "/generations.log"));
  std::string name;
  // A line without its end is no entry: its writer was cut off, or still writes.
  for (std::string line; std::getline(file, line) && !file.eof();) {
    absl::string_view words = line;
    if (name.empty()) {
      if (!absl::ConsumePrefix(&words, "run name=")) return "";
      name = std::string(words.substr(0, words.find(' ')));
      // The log quotes a name with other characters than those that launcher and Slurm's scripts give.
      if (name.empty() || absl::StrContains(name, '%')) return "";
    } else if (absl::StartsWith(words, "end ")) {
      return "";
    }
  }
  return name;
}

}  // namespace starring
