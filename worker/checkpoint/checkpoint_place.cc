#include "worker/checkpoint/checkpoint_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/flags/command_line.h"

namespace starring {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPartBytesMax = 64;  // a name has at most 255
constexpr int kSameNamesMax = 100;

std::string NameOfStep(int64_t step) { return absl::StrFormat("step-%09d", step); }

// "a/b/" and "a/b" are one folder, whose name is b.
fs::path WithoutSlash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

absl::Status RefuseACheckpoint(const std::string& dir, int64_t step) {
  const fs::path path = WithoutSlash(dir);
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  const std::string name = NameOfStep(step);
  const std::string rename =
      path.filename() == name ? "" : absl::StrCat("rename it to ", parent == "." ? "" : parent + "/", name, " and ");
  return RefuseFlag("checkpoint_dir", dir,
                    absl::StrCat("it is itself a checkpoint: ", rename, "give its folder, --checkpoint_dir=", parent));
}

// A checkpoint in `dir` that has not the name of one, and its step.
struct Misnamed {
  std::string path;
  int64_t step = 0;
};
std::optional<Misnamed> FindMisnamed(const std::string& dir) {
  std::error_code error;
  fs::directory_iterator entry(dir, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    // A checkpoint whose name begins with a dot is unfinished.
    if (absl::StartsWith(entry->path().filename().string(), ".")) continue;
    if (const std::optional<int64_t> step = StepOfCheckpoint(entry->path().string())) {
      return Misnamed{.path = entry->path().string(), .step = *step};
    }
  }
  return std::nullopt;
}

// A layer file's path, or a name of any characters, as a part of a folder's name.
std::string AsPart(const std::string& text) {
  std::string part = fs::path(text).stem().string();
  for (char& c : part) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_') c = '_';
  }
  return part.substr(0, kPartBytesMax);
}

}  // namespace

std::string DefaultCheckpointDir(const WorkerOptions& worker, absl::Time now) {
  // In UTC the folders of hosts in several time zones sort by time.
  return absl::StrCat(kDefaultCheckpointsDir, "/", AsPart(worker.dataset.name), "-", AsPart(worker.model), "-",
                      absl::FormatTime("%Y%m%d-%H%M%S", now, absl::UTCTimeZone()));
}

absl::StatusOr<std::string> MakeDefaultCheckpointDir(const std::string& dir, const std::string& holder) {
  RETURN_IF_ERROR(CreateFolders(fs::path(dir).parent_path().string()));
  // Two runs may have begun in the same second. mkdir tells which of them has the name.
  for (int number = 1; number <= kSameNamesMax; ++number) {
    const std::string name = number == 1 ? dir : absl::StrCat(dir, "-", number);
    if (mkdir(name.c_str(), 0777) == 0) return name;
    if (errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", name));
    if (!holder.empty() && FolderLock::HolderOf(name) == holder) return name;
  }
  return absl::AlreadyExistsError(absl::StrCat(dir, " and ", kSameNamesMax - 1, " of that name are there"));
}

void RemoveDefaultCheckpointDir(const std::string& dir) {
  // A run that has saved keeps its folder. Errors below are ignored, because an empty folder does no harm.
  if (HasCheckpoint(dir)) return;
  unlink(absl::StrCat(dir, "/.lock").c_str());
  // A folder that has anything stays, and so does the one above it: another run may be about to use that.
  rmdir(dir.c_str());
}

absl::Status CheckCheckpointPlace(const WorkerOptions& worker) {
  const std::string& dir = worker.checkpoint_dir;
  if (dir.empty()) return absl::OkStatus();
  if (const std::optional<int64_t> step = StepOfCheckpoint(dir)) return RefuseACheckpoint(dir, *step);
  if (HasCheckpoint(dir)) {
    if (worker.resume) return absl::OkStatus();
    return RefuseFlag("checkpoint_dir", dir,
                      "it holds checkpoints of a run before: add --resume to go on with it, or name another folder");
  }
  const std::optional<Misnamed> found = worker.resume ? FindMisnamed(dir) : std::nullopt;
  if (!found.has_value()) return absl::OkStatus();
  return RefuseFlag(
      "checkpoint_dir", dir,
      absl::StrCat(found->path, " is a checkpoint under another name: rename it to ",
                   (fs::path(dir) / NameOfStep(found->step)).string(), " to resume it, or drop --resume"));
}

}  // namespace starring
