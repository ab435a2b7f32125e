#include "common/checkpoint_folders.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/check.h"
#include "common/status.h"

namespace starring {
namespace {

namespace fs = std::filesystem;

constexpr char kStep[] = "step-";
constexpr char kWriting[] = ".writing-";
constexpr char kReplaced[] = ".replaced-";

absl::Status FileSystemError(const std::error_code& error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot ", what, " ", path));
}

// A new name is on the disk when the folder that holds it has been flushed.
absl::Status FlushFolder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  const int result = fsync(folder);
  const int error = errno;
  close(folder);
  return result == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, absl::StrCat("cannot flush ", path));
}

std::optional<int64_t> StepOf(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, kStep) || name.empty() || name.size() > 18) return std::nullopt;
  if (name.find_first_not_of("0123456789") != absl::string_view::npos) return std::nullopt;
  return absl::SimpleAtoi(name, &step) ? std::optional<int64_t>(step) : std::nullopt;
}

// Names of folders in `dir` that begin with `prefix`, without it.
std::vector<std::string> NamesBehind(absl::string_view prefix, const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  // An error is an empty or a shorter list: a folder that goes away meanwhile is no reason to fail.
  fs::directory_iterator entry(dir, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    absl::string_view rest = name;
    std::error_code ignored;
    if (absl::ConsumePrefix(&rest, prefix) && entry->is_directory(ignored)) names.emplace_back(rest);
  }
  return names;
}

// What a crash left behind.
void RemoveLeftovers(const std::string& dir) {
  std::error_code ignored;
  for (const std::string& name : NamesBehind(kWriting, dir))
    fs::remove_all(absl::StrCat(dir, "/", kWriting, name), ignored);
  for (const std::string& name : NamesBehind(kReplaced, dir)) {
    if (fs::exists(absl::StrCat(dir, "/", name), ignored)) {
      fs::remove_all(absl::StrCat(dir, "/", kReplaced, name), ignored);
    }
  }
}

// Renames `temporary` to `target`, which may be taken.
absl::Status TakePlace(const std::string& dir, const std::string& temporary, const std::string& name) {
  const std::string target = absl::StrCat(dir, "/", name);
  const std::string replaced = absl::StrCat(dir, "/", kReplaced, name);
  std::error_code error, ignored;
  const bool is_taken = fs::exists(target, ignored);
  if (is_taken) {
    fs::remove_all(replaced, ignored);
    fs::rename(target, replaced, error);
    if (error) return FileSystemError(error, "rename away", target);
  }
  fs::rename(temporary, target, error);
  if (error) {
    if (is_taken) fs::rename(replaced, target, ignored);
    return FileSystemError(error, "rename to", target);
  }
  RETURN_IF_ERROR(FlushFolder(dir));
  fs::remove_all(replaced, ignored);
  return absl::OkStatus();
}

}  // namespace

std::vector<CheckpointFolder> ListCheckpointFolders(const std::string& dir) {
  std::vector<CheckpointFolder> folders;
  // `replaced` comes behind the folder that has its place.
  for (const std::string& prefix : {std::string(), std::string(kReplaced)}) {
    for (const std::string& name : NamesBehind(prefix, dir)) {
      if (const std::optional<int64_t> step = StepOf(name)) {
        folders.push_back({.step = *step, .path = absl::StrCat(dir, "/", prefix, name)});
      }
    }
  }
  std::stable_sort(folders.begin(), folders.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return folders;
}

absl::Status PublishFolder(const std::string& dir, int64_t step,
                           absl::FunctionRef<absl::Status(const std::string& folder)> fill) {
  CHECK_GE(step, 0);
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return FileSystemError(error, "create", dir);
  RemoveLeftovers(dir);
  const std::string name = absl::StrFormat("%s%09d", kStep, step);
  const std::string temporary = absl::StrCat(dir, "/", kWriting, name);
  fs::create_directory(temporary, error);
  if (error) return FileSystemError(error, "create", temporary);
  absl::Status status = fill(temporary);
  if (status.ok()) status = FlushFolder(temporary);
  if (status.ok()) status = TakePlace(dir, temporary, name);
  if (!status.ok()) fs::remove_all(temporary, error);
  return status;
}

void RemoveOldFolders(const std::string& dir, int64_t newest_step, int kept) {
  CHECK_GE(kept, 1);
  int met = 0;
  std::error_code ignored;
  for (const CheckpointFolder& folder : ListCheckpointFolders(dir)) {
    if (folder.step <= newest_step && ++met > kept) fs::remove_all(folder.path, ignored);
  }
}

}  // namespace starring
