#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/checkpoint/checkpoint.h"

namespace starring {
namespace {

namespace fs = std::filesystem;

constexpr char kStep[] = "step-";
constexpr size_t kHolderBytesMax = 512;
constexpr char kWriting[] = ".writing-";
constexpr char kReplaced[] = ".replaced-";

absl::Status FileSystemError(const std::error_code& error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot ", what, " ", path));
}

// A folder that this process writes. While the object lives, no process that can lock takes it for a leftover.
class OwnFolder {
 public:
  explicit OwnFolder(const std::string& path) : file_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    is_others_ = file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  }
  ~OwnFolder() {
    if (file_ >= 0) close(file_);
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;
  bool is_others() const { return is_others_; }

 private:
  const int file_;
  bool is_others_ = false;
};

// The step in "step-000000123"; nullopt for any other name. Digits are checked one by one, because SimpleAtoi takes
// signs and spaces too. 18 of them always fit an int64_t.
std::optional<int64_t> StepOf(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, kStep) || name.empty() || name.size() > 18) return std::nullopt;
  if (name.find_first_not_of("0123456789") != absl::string_view::npos) return std::nullopt;
  return absl::SimpleAtoi(name, &step) ? std::optional<int64_t>(step) : std::nullopt;
}

// The rest of the names of folders in `dir` that begin with `prefix`.
std::vector<std::string> NamesBehind(absl::string_view prefix, const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  // An error shortens the list: another process may remove a folder meanwhile, which is no reason to fail.
  fs::directory_iterator entry(dir, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    absl::string_view rest = name;
    std::error_code ignored;
    if (absl::ConsumePrefix(&rest, prefix) && entry->is_directory(ignored)) names.emplace_back(rest);
  }
  return names;
}

// Removes what a crash left. A replaced folder stays if nothing took its place: it is still the checkpoint of its step.
// In an elastic run two processes may write at a time: rank 0, and one before it that was frozen and wakes up.
void RemoveLeftovers(const std::string& dir) {
  std::error_code ignored;
  for (const std::string& name : NamesBehind(kWriting, dir)) {
    const std::string path = absl::StrCat(dir, "/", kWriting, name);
    if (const OwnFolder folder(path); !folder.is_others()) fs::remove_all(path, ignored);
  }
  for (const std::string& name : NamesBehind(kReplaced, dir)) {
    if (fs::exists(absl::StrCat(dir, "/", name), ignored)) {
      fs::remove_all(absl::StrCat(dir, "/", kReplaced, name), ignored);
    }
  }
}

// Renames `temporary` to DIR/`name`. A folder of that name moves away first, since rename() cannot replace a folder
// that has files; at every moment one of the two has a name that ListCheckpointFolders finds.
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
    // The old folder gets its name back: after an error, `dir` is as it was.
    if (is_taken) fs::rename(replaced, target, ignored);
    return FileSystemError(error, "rename to", target);
  }
  // The flush precedes the removal of the old folder: a crash of the machine could otherwise lose the new name and find
  // the old folder gone.
  RETURN_IF_ERROR(FlushFolder(dir));
  fs::remove_all(replaced, ignored);
  return absl::OkStatus();
}

// Abseil calls a file where a folder is expected (ENOTDIR) FailedPrecondition. FolderLock means another job by that
// code.
absl::Status UnfitFolder(const absl::Status& status) {
  if (!absl::IsFailedPrecondition(status)) return status;
  return absl::InternalError(status.message());
}

}  // namespace

absl::Status FlushFolder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  // errno is kept aside, because close may change it. EINVAL: a file system (older CIFS, some FUSE) that flushes no
  // folder. It writes names as it sees fit, and its checkpoints are as good as its other files.
  const int error = fsync(folder) == 0 || errno == EINVAL ? 0 : errno;
  close(folder);
  return error == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, absl::StrCat("cannot flush ", path));
}

// Flushes the parent of each new folder: a crash would otherwise lose the whole path.
absl::Status CreateFolders(const std::string& dir) {
  const fs::path path = dir;
  std::error_code error;
  if (path.empty() || fs::exists(path, error)) return absl::OkStatus();
  // The parent of "a/b/" is "a/b", the same folder: a path that ends with a slash needs two steps up.
  const fs::path parent = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
  RETURN_IF_ERROR(CreateFolders(parent.string()));
  // This is no error if another process has just made the folder.
  fs::create_directory(path, error);
  if (error) return FileSystemError(error, "create", dir);
  return FlushFolder(parent.empty() ? "." : parent.string());
}

std::vector<CheckpointFolder> ListCheckpointFolders(const std::string& dir) {
  std::vector<CheckpointFolder> folders;
  // The sort below is stable: a replaced folder follows the folder that took its place.
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
  RETURN_IF_ERROR(CreateFolders(dir));
  RemoveLeftovers(dir);
  const std::string name = absl::StrFormat("%s%09d", kStep, step);
  const std::string temporary = absl::StrCat(dir, "/", kWriting, name);
  const bool is_new = fs::create_directory(temporary, error);
  if (error) return FileSystemError(error, "create", temporary);
  if (!is_new) return absl::AlreadyExistsError(absl::StrCat("another process writes ", temporary));
  const OwnFolder own(temporary);
  // Each flush precedes the step that relies on it: `fill` flushes the files, the next line their names in the folder,
  // and TakePlace the folder's new name.
  absl::Status status = fill(temporary);
  if (status.ok()) status = FlushFolder(temporary);
  if (status.ok()) status = TakePlace(dir, temporary, name);
  if (!status.ok()) fs::remove_all(temporary, error);
  return status;
}

FolderLock::FolderLock(FolderLock&& other) noexcept : file_(std::exchange(other.file_, -1)), is_held_(other.is_held_) {}

FolderLock::~FolderLock() {
  // The lock file stays. If it were removed, a job that has the old file open would lock that one, while a later job
  // locks a new file of the same name: both would write.
  if (file_ >= 0) close(file_);
}

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& dir, absl::Duration patience, const std::string& file) {
  RETURN_IF_ERROR(UnfitFolder(CreateFolders(dir)));
  const std::string path = absl::StrCat(dir, "/", file);
  FolderLock lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (lock.file_ < 0) return UnfitFolder(absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path)));
  // The kernel may need a moment to release the lock of a job that was killed.
  for (const absl::Time end = SteadyNow() + patience;;) {
    lock.is_held_ = flock(lock.file_, LOCK_EX | LOCK_NB) == 0;
    if (lock.is_held_) return lock;
    if (errno == EINTR) continue;
    // The file system has no locks. Refusing would make such file systems useless, so the user must keep jobs apart.
    if (errno != EWOULDBLOCK) return lock;
    if (SteadyNow() >= end) break;
    absl::SleepFor(absl::Milliseconds(50));
  }
  const std::string holder = HolderOf(dir, file);
  return absl::FailedPreconditionError(
      absl::StrCat("another job", holder.empty() ? "" : absl::StrCat(", ", holder, ","), " writes checkpoints into ",
                   dir, ": name another folder, or wait until it has ended"));
}

void FolderLock::Sign(const std::string& holder) const {
  if (ftruncate(file_, 0) != 0) return;
  [[maybe_unused]] const ssize_t written = pwrite(file_, holder.data(), holder.size(), 0);
}

std::string FolderLock::HolderOf(const std::string& dir, const std::string& file) {
  const int lock = open(absl::StrCat(dir, "/", file).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (lock < 0) return "";
  std::array<char, kHolderBytesMax> text;
  const ssize_t size = pread(lock, text.data(), text.size(), 0);
  close(lock);
  return size <= 0 ? "" : Printable({text.data(), static_cast<size_t>(size)});
}

void RemoveOldFolders(const std::string& dir, int64_t newest_step, int kept) {
  CHECK_GE(kept, 1);
  int met = 0;
  std::error_code ignored;
  for (const CheckpointFolder& folder : ListCheckpointFolders(dir)) {
    if (folder.step <= newest_step && ++met > kept) fs::remove_all(folder.path, ignored);
  }
}

void RemoveOtherFolders(const std::string& dir, int64_t step) {
  std::error_code ignored;
  for (const CheckpointFolder& folder : ListCheckpointFolders(dir)) {
    if (folder.step != step) fs::remove_all(folder.path, ignored);
  }
}

}  // namespace starring
