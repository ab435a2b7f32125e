#include "server/elastic/snapshot_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/atomic_file.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/crc32c.h"
#include "proto/starring/v1/elastic_state.pb.h"
#include "server/elastic/record_file.h"

namespace starring {
namespace {

namespace fs = std::filesystem;

constexpr FileFormat kFormat = {.line = "starring-snapshot-2\n", .first_version = "starring-snapshot-1 "};
constexpr size_t kHeadBytes = 512;  // the first line, a record, and zeros
constexpr char kUnfinished[] = ".tmp";

absl::Status SystemError(const char* what, const std::string& path) {
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot ", what, " ", path, ": no space left"));
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

// Closes a file at the end of its scope.
class OpenFile {
 public:
  OpenFile(const std::string& path, int flags) : path_(path), file_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~OpenFile() {
    if (file_ >= 0) close(file_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  bool is_open() const { return file_ >= 0; }
  absl::StatusOr<int64_t> Size() const {
    struct stat facts;
    if (fstat(file_, &facts) != 0) return SystemError("read", path_);
    return facts.st_size;
  }
  absl::Status Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = write(file_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return SystemError("write", path_);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return absl::OkStatus();
  }
  absl::Status Read(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = read(file_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return SystemError("read", path_);
      if (count == 0) return absl::DataLossError(absl::StrCat(path_, " is too short"));
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return absl::OkStatus();
  }
  absl::Status Flush() { return fdatasync(file_) == 0 ? absl::OkStatus() : SystemError("flush", path_); }

 private:
  const std::string path_;
  const int file_;
};

v1::SnapshotHead HeadOf(const SnapshotStore::Options& options, const Snapshot& snapshot, uint32_t crc) {
  v1::SnapshotHead head;
  head.set_job(options.job);
  head.set_shard(options.shard);
  head.set_shard_count(options.shard_count);
  head.set_step(snapshot.step);
  head.set_elements(snapshot.arrays.empty() ? 0 : snapshot.arrays[0].size());
  head.set_arrays(static_cast<int>(snapshot.arrays.size()));
  head.set_side_values(std::ssize(snapshot.side_values));
  head.set_crc(crc);
  return head;
}

// InvalidArgument if the file is of another version.
absl::StatusOr<v1::SnapshotHead> ReadHead(OpenFile& file) {
  std::string bytes(kHeadBytes, '\0');
  RETURN_IF_ERROR(file.Read(std::as_writable_bytes(std::span(bytes))));
  ASSIGN_OR_RETURN(absl::string_view rest, AfterFirstLine(bytes, kFormat));
  v1::SnapshotHead head;
  ASSIGN_OR_RETURN(const bool is_there, TakeRecord(rest, head), "its head");
  if (!is_there) return absl::DataLossError("its head was cut off");
  return head;
}

uint32_t CrcOf(const Snapshot& snapshot) {
  uint32_t crc = 0;
  for (const AlignedFloats& array : snapshot.arrays) crc = ExtendCrc32c(crc, std::as_bytes(array.span()));
  return ExtendCrc32c(crc, std::as_bytes(std::span(snapshot.side_values)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SnapshotStore>> SnapshotStore::Open(Options options) {
  std::unique_ptr<SnapshotStore> store(new SnapshotStore(std::move(options)));
  const Options& made = store->options_;
  if (made.folder.empty()) return store;
  const std::string number = absl::StrFormat("%dof%d", made.shard, made.shard_count);
  // Taken before the files are looked for: a process that still has the lock may unlink and write some of them.
  absl::StatusOr<FolderLock> lock =
      FolderLock::Take(made.folder, kLockPatience, absl::StrCat(".lock-snapshots-", number));
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat("another process has the snapshots of shard ", made.shard, " of ",
                                                      made.shard_count, " in --state_dir=", made.folder,
                                                      ": end it, or give this one another folder"));
  }
  if (!lock.ok()) return lock.status();
  store->lock_.emplace(*std::move(lock));
  RETURN_IF_ERROR(store->FindFiles());
  // The thread gets the object's address, because the unique_ptr moves to the caller.
  SnapshotStore* const writing = store.get();
  store->writer_ = std::thread([writing] { writing->WriteInBackground(); });
  return store;
}

SnapshotStore::SnapshotStore(Options options) : options_(std::move(options)) {
  for (const int64_t elements : options_.slice_elements) {
    if (elements > 0) buckets_.insert(static_cast<int>(offsets_.size()));
    offsets_.push_back(element_count_);
    element_count_ += elements;
  }
}

SnapshotStore::~SnapshotStore() {
  if (!writer_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyOne();
  }
  // The thread needs the mutex to end, so the join is outside the lock.
  writer_.join();
}

std::string SnapshotStore::PathOf(int64_t step) const {
  return absl::StrFormat("%s/snapshot-%dof%d-%09d", options_.folder, options_.shard, options_.shard_count, step);
}

absl::Status SnapshotStore::FindFiles() {
  std::error_code error, ignored;
  fs::create_directories(options_.folder, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot create ", options_.folder, ": ", error.message()));
  const std::string prefix = absl::StrFormat("snapshot-%dof%d-", options_.shard, options_.shard_count);
  for (fs::directory_iterator entry(options_.folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    // With the lock held, only a process that has ended can have left such a file.
    if (absl::StartsWith(name, prefix) && absl::EndsWith(name, kUnfinished)) fs::remove(entry->path(), ignored);
    int64_t step = 0;
    if (!absl::StartsWith(name, prefix) || !absl::SimpleAtoi(name.substr(prefix.size()), &step)) continue;
    OpenFile file(PathOf(step), O_RDONLY);
    const absl::StatusOr<v1::SnapshotHead> head = ReadHead(file);
    if (absl::IsInvalidArgument(head.status())) return Annotate(head.status(), PathOf(step));
    // Files of other runs are left alone.
    if (head.ok() && (head->job() != options_.job || head->step() != step || head->elements() != element_count_))
      continue;
    // Read whole: a generation that was logged with a snapshot must find it.
    if (const auto snapshot = ReadFile(step); snapshot.ok()) {
      in_files_.insert(step);
    } else if (options_.log != nullptr) {
      options_.log(absl::StrCat(std::string(snapshot.status().message()), ": it is passed over"));
    }
  }
  if (error) return absl::UnavailableError(absl::StrCat("cannot read ", options_.folder, ": ", error.message()));
  return absl::OkStatus();
}

bool SnapshotStore::IsPast(int64_t step) const { return !in_memory_.empty() && step <= in_memory_.rbegin()->first; }

SnapshotStore::Building* SnapshotStore::BuildingOf(int64_t step) {
  if (const auto found = building_.find(step); found != building_.end()) return &found->second;
  if (std::ssize(building_) == kBuildingMax) {
    if (step < building_.begin()->first) return nullptr;
    auto oldest = building_.extract(building_.begin());
    Recycle(std::move(oldest.mapped().snapshot));
  }
  Building& building = building_[step];
  if (spare_.empty()) {
    building.snapshot = std::make_shared<Snapshot>();
    for (int i = 0; i < 1 + options_.vector_count; ++i) building.snapshot->arrays.emplace_back(element_count_);
  } else {
    building.snapshot = std::move(spare_.back());
    spare_.pop_back();
    building.snapshot->side_values.clear();
  }
  building.snapshot->step = step;
  building.missing = buckets_;
  building.side_values_missing = options_.has_side_values;
  return &building;
}

void SnapshotStore::Take(int64_t step, int bucket, std::span<const std::span<const float>> slices) {
  const int64_t elements = options_.slice_elements[static_cast<size_t>(bucket)];
  CHECK_EQ(std::ssize(slices), 1 + options_.vector_count);
  if (elements == 0 || IsPast(step)) return;
  Building* const building = BuildingOf(step);
  if (building == nullptr) return;
  const int64_t offset = offsets_[static_cast<size_t>(bucket)];
  for (size_t i = 0; i < slices.size(); ++i) {
    CHECK_EQ(std::ssize(slices[i]), elements);
    std::copy(slices[i].begin(), slices[i].end(), building->snapshot->arrays[i].data() + offset);
  }
  building->missing.erase(bucket);  // by its name: one that comes twice does not stand for another
  FinishIfComplete(step);
}

void SnapshotStore::SetSideValues(int64_t step, std::vector<double> values) {
  CHECK(options_.has_side_values);
  if (IsPast(step)) return;
  Building* const building = BuildingOf(step);
  if (building == nullptr) return;
  building->snapshot->side_values = std::move(values);
  building->side_values_missing = false;
  FinishIfComplete(step);
}

void SnapshotStore::FinishIfComplete(int64_t step) {
  const auto found = building_.find(step);
  if (!found->second.missing.empty() || found->second.side_values_missing) return;
  const std::shared_ptr<const Snapshot> snapshot = std::move(found->second.snapshot);
  // Earlier snapshots stay incomplete: their missing slices would have come before this one's.
  building_.erase(building_.begin(), std::next(found));
  in_memory_[step] = snapshot;
  // Memory is bounded whatever the disk does. A snapshot that is forgotten before it is written is lost to this shard.
  while (std::ssize(in_memory_) > kInMemoryMax) ForgetOldest();
  if (options_.folder.empty()) return;
  const MutexLock lock(mutex_);
  const bool is_idle = to_write_ == nullptr && writing_ == nullptr;
  if (!choice_.Wants(step, is_idle ? WriteChoice::Disk::kIdle : WriteChoice::Disk::kBusy)) return;
  to_write_ = snapshot;
  changed_.NotifyOne();
}

void SnapshotStore::ForgetOldest() {
  auto oldest = in_memory_.extract(in_memory_.begin());
  Recycle(std::move(oldest.mapped()));
}

void SnapshotStore::Recycle(std::shared_ptr<const Snapshot> snapshot) {
  if (snapshot.use_count() != 1 || std::ssize(building_) + std::ssize(spare_) >= kBuildingMax) return;
  // The writing thread may have dropped its reference just now. Its loads come before our stores only after an acquire
  // on the same counter (contribution_sum.cc, FreeBuffer).
  std::shared_ptr<const Snapshot>(snapshot).reset();
  spare_.push_back(std::const_pointer_cast<Snapshot>(snapshot));
}

void SnapshotStore::TakeWritten() {
  absl::Status failure;
  {
    const MutexLock lock(mutex_);
    // A file was written, so the next failure is a new outage, and is told again.
    if (!written_.empty()) told_failure_ = false;
    in_files_.insert(written_.begin(), written_.end());
    written_.clear();
    failure = std::exchange(write_failure_, absl::OkStatus());
  }
  if (!failure.ok() && !std::exchange(told_failure_, true) && options_.log != nullptr) {
    options_.log(absl::StrCat("snapshots are in memory only, and will not survive this process: ",
                              std::string(failure.message())));
  }
}

std::vector<int64_t> SnapshotStore::held() const {
  std::set<int64_t> steps = in_files_;
  for (const auto& [step, snapshot] : in_memory_) steps.insert(step);
  return {steps.begin(), steps.end()};
}

std::vector<int64_t> SnapshotStore::durable() {
  if (options_.folder.empty()) return held();
  TakeWritten();
  ThinOut();
  return {in_files_.begin(), in_files_.end()};
}

// While another shard's disk is full or slow, no newer snapshot is on all disks, and DropBefore is not called. The
// oldest file stays: it is the last snapshot that all shards have. The newest two files of each level stay, because the
// other shard may yet write those steps: it writes few levels, and late. A file that goes is old, and two newer ones
// stand in for it.
void SnapshotStore::ThinOut() {
  while (std::ssize(in_files_) > kFilesMax) {
    const auto second = std::next(in_files_.begin());
    auto gone = std::find_if(second, in_files_.end(), [this](int64_t step) {
      const auto stands_in = [step](int64_t newer) {
        return WriteChoice::LevelOf(newer) >= WriteChoice::LevelOf(step);
      };
      return std::count_if(in_files_.upper_bound(step), in_files_.end(), stands_in) >= 2;
    });
    if (gone == in_files_.end()) gone = second;
    // An error is ignored: FindFiles of the next process finds the file again, and until then it costs space alone.
    unlink(PathOf(*gone).c_str());
    in_files_.erase(gone);
  }
}

int64_t SnapshotStore::bytes_in_memory() const {
  std::set<const Snapshot*> snapshots;
  for (const auto& [step, snapshot] : in_memory_) snapshots.insert(snapshot.get());
  for (const auto& [step, building] : building_) snapshots.insert(building.snapshot.get());
  for (const auto& snapshot : spare_) snapshots.insert(snapshot.get());
  const std::shared_ptr<const Snapshot> read = read_.lock();
  if (read != nullptr) snapshots.insert(read.get());
  {
    const MutexLock lock(mutex_);
    if (to_write_ != nullptr) snapshots.insert(to_write_.get());
    if (writing_ != nullptr) snapshots.insert(writing_.get());
  }
  return std::ssize(snapshots) * (1 + options_.vector_count) * element_count_ * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<std::shared_ptr<const Snapshot>> SnapshotStore::Get(int64_t step) {
  if (const auto found = in_memory_.find(step); found != in_memory_.end()) return found->second;
  if (!in_files_.contains(step))
    return absl::NotFoundError(
        absl::StrCat("shard ", options_.shard, " of ", options_.shard_count, " has no snapshot of step ", step));
  if (const auto read = read_.lock(); read != nullptr && read->step == step) return read;
  // The callers hold this snapshot. Among the newest ones it would take the place of a snapshot that is not written
  // yet. If a worker asked for 16 files one after the other, 16 snapshots would be in memory.
  absl::StatusOr<std::shared_ptr<const Snapshot>> snapshot = ReadFile(step);
  if (snapshot.ok()) {
    read_ = *snapshot;
  } else {
    in_files_.erase(step);
  }
  return snapshot;
}

void SnapshotStore::DropBefore(int64_t step) {
  keep_from_ = std::max(keep_from_, step);
  while (!in_memory_.empty() && in_memory_.begin()->first < keep_from_) ForgetOldest();
  building_.erase(building_.begin(), building_.lower_bound(keep_from_));
  TakeWritten();
  while (!in_files_.empty() && *in_files_.begin() < keep_from_) {
    unlink(PathOf(*in_files_.begin()).c_str());
    in_files_.erase(in_files_.begin());
  }
}

void SnapshotStore::DropAfter(int64_t step) {
  building_.clear();
  in_memory_.erase(in_memory_.upper_bound(step), in_memory_.end());
  TakeWritten();
  for (auto file = in_files_.upper_bound(step); file != in_files_.end(); file = in_files_.erase(file)) {
    unlink(PathOf(*file).c_str());
  }
  // The snapshot with which the generation begins may have been passed over by the writer, or have waited for it.
  const auto start = in_memory_.find(step);
  const MutexLock lock(mutex_);
  // Later snapshots must not come back: a run also goes back because a step may have had wrong bits.
  if (to_write_ != nullptr && to_write_->step > step) to_write_ = nullptr;
  if (writing_ != nullptr && writing_->step > step) is_void_ = true;
  const bool is_on_its_way = in_files_.contains(step) || (writing_ != nullptr && writing_->step == step);
  if (options_.folder.empty() || start == in_memory_.end() || is_on_its_way) return;
  to_write_ = start->second;
  changed_.NotifyOne();
}

void SnapshotStore::WriteInBackground() {
  while (true) {
    std::shared_ptr<const Snapshot> snapshot;
    {
      const MutexLock lock(mutex_);
      changed_.Wait(mutex_,
                    [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || to_write_ != nullptr; });
      if (to_write_ == nullptr) return;  // a waiting snapshot is written, also at the end
      snapshot = writing_ = std::exchange(to_write_, nullptr);
    }
    // The file is written without the lock: a slow disk must not hold up the server's thread.
    const absl::Status status = WriteFile(*snapshot);
    const MutexLock lock(mutex_);
    writing_ = nullptr;
    // The run has gone back while the file was written.
    if (std::exchange(is_void_, false)) {
      if (status.ok()) unlink(PathOf(snapshot->step).c_str());
    } else if (status.ok()) {
      written_.push_back(snapshot->step);
    } else {
      write_failure_ = status;
    }
  }
}

// A file gets its name when it is complete.
absl::Status SnapshotStore::WriteFile(const Snapshot& snapshot) const {
  const std::string path = PathOf(snapshot.step);
  // Another process of this shard, which was given up, may still write.
  const std::string temporary = absl::StrCat(path, ".", ProcessMark(), kUnfinished);
  std::string head = absl::StrCat(kFormat.line, ToRecord(HeadOf(options_, snapshot, CrcOf(snapshot))));
  CHECK_LE(head.size(), kHeadBytes);
  head.resize(kHeadBytes, '\0');
  OpenFile file(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
  if (!file.is_open()) return SystemError("create", temporary);
  absl::Status status = file.Write(std::as_bytes(std::span(head)));
  for (const AlignedFloats& array : snapshot.arrays) {
    if (status.ok()) status = file.Write(std::as_bytes(array.span()));
  }
  if (status.ok()) status = file.Write(std::as_bytes(std::span(snapshot.side_values)));
  if (status.ok() && options_.flush) status = file.Flush();
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) status = SystemError("rename to", path);
  if (!status.ok()) unlink(temporary.c_str());
  // Otherwise a power cut could leave the file without its name.
  if (status.ok() && options_.flush) status = FlushFolder(options_.folder);
  return status;
}

absl::StatusOr<std::shared_ptr<const Snapshot>> SnapshotStore::ReadFile(int64_t step) const {
  const std::string path = PathOf(step);
  OpenFile file(path, O_RDONLY);
  if (!file.is_open()) return SystemError("open", path);
  ASSIGN_OR_RETURN(const v1::SnapshotHead head, ReadHead(file), path, " is damaged");
  // Memory is taken only for what the file has.
  ASSIGN_OR_RETURN(const int64_t file_bytes, file.Size());
  const int64_t array_bytes = (1 + options_.vector_count) * element_count_ * static_cast<int64_t>(sizeof(float));
  const int64_t side_bytes = file_bytes - static_cast<int64_t>(kHeadBytes) - array_bytes;
  const int64_t side_count = side_bytes / static_cast<int64_t>(sizeof(double));
  if (side_bytes < 0 || head.side_values() != side_count) {
    return absl::DataLossError(
        absl::StrCat(path, " is damaged: its head does not say that it has ", file_bytes, " bytes"));
  }
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->step = step;
  for (int i = 0; i < 1 + options_.vector_count; ++i) {
    snapshot->arrays.emplace_back(element_count_);
    RETURN_IF_ERROR(file.Read(std::as_writable_bytes(snapshot->arrays.back().span())));
  }
  snapshot->side_values.resize(static_cast<size_t>(side_count));
  RETURN_IF_ERROR(file.Read(std::as_writable_bytes(std::span(snapshot->side_values))));
  // The whole head must be the one that was written, with the checksum of what was read.
  if (ToRecord(HeadOf(options_, *snapshot, CrcOf(*snapshot))) != ToRecord(head)) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: its checksum is wrong"));
  }
  return std::shared_ptr<const Snapshot>(std::move(snapshot));
}

}  // namespace starring
