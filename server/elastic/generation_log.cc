#include "server/elastic/generation_log.h"

#include <fcntl.h>
#include <google/protobuf/text_format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/file_descriptor.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "proto/starring/v1/elastic_state.pb.h"
#include "server/elastic/record_file.h"

namespace starring {
namespace {

using Entry = v1::GenerationLogEntry;

constexpr FileFormat kFormat = {.line = "starring-generations-2\n", .first_version = "run name="};
// Stands for the count of a shard that was started again, and so has none of this generation.
constexpr int64_t kNotCounted = -1;

Entry EntryOf(const GenerationLog::Run& run) {
  Entry entry;
  Entry::Run& proto = *entry.mutable_run();
  proto.set_name(run.name);
  proto.set_leaves(run.leaves);
  proto.set_shards(run.shards);
  proto.set_job(run.job);
  proto.set_first_step(run.first_step);
  for (const GenerationLog::Run::Part& part : run.parts) {
    Entry::Run::Part& one = *proto.add_parts();
    one.set_name(part.name);
    one.set_digest(part.digest);
  }
  return entry;
}

Entry EntryOf(const Generation& generation) {
  Entry entry;
  Entry::Commit& proto = *entry.mutable_commit();
  proto.set_generation(generation.number);
  proto.set_first_step(generation.first_step);
  proto.set_snapshot_every(generation.snapshot_every);
  proto.mutable_workers()->Add(generation.workers.begin(), generation.workers.end());
  proto.mutable_leaf_owners()->Add(generation.leaf_owners.begin(), generation.leaf_owners.end());
  return entry;
}

// The error of a damaged log.
template <typename... Words>
absl::Status Wrong(const Words&... words) {
  return absl::DataLossError(absl::StrCat(words...));
}

// Fills in which steps up to `end` have counted since the records of `history`: all are the last generation's.
absl::Status Count(const RunHistory& history, int64_t end, const GenerationLog::Counts& counts, Entry::Counted* proto) {
  // A log whose last records were lost may say less than the shards' snapshots do.
  if (!history.last.has_value()) {
    return Wrong("its end: the run has come to step ", end, ", and the log has no generation");
  }
  proto->set_generation(history.last->number);
  proto->set_from(history.counted_end);
  proto->set_to(end);
  for (const std::map<int64_t, int64_t>& counted : counts) {
    const auto found = counted.find(end);
    proto->add_shards(found == counted.end() ? kNotCounted : found->second);
  }
  return absl::OkStatus();
}

// A run has no larger steps and numbers of generations, so sums of them need no check for overflow.
absl::Status CheckNumbers(std::initializer_list<int64_t> numbers) {
  for (const int64_t number : numbers) {
    if (number < 0 || number > kStepMax) return Wrong(number, " is no number from 0 to ", kStepMax);
  }
  return absl::OkStatus();
}

absl::Status Add(const Entry::Counted& counted, RunHistory& history) {
  RETURN_IF_ERROR(CheckNumbers({counted.from(), counted.to()}));
  if (!history.last.has_value() || counted.generation() != history.last->number) {
    return Wrong("generation ", counted.generation(), " counts, and is not the last one");
  }
  if (counted.from() != history.counted_end || counted.to() <= counted.from()) {
    return Wrong("steps ", counted.from(), " to ", counted.to(), " follow step ", history.counted_end, ": they ",
                 counted.from() < history.counted_end ? "overlap" : "leave a gap");
  }
  const int64_t leaves = (counted.to() - counted.from()) * history.leaves;
  for (int shard = 0; shard < counted.shards_size(); ++shard) {
    if (counted.shards(shard) == kNotCounted || counted.shards(shard) == leaves) continue;
    return Wrong("shard ", shard, " counted ", counted.shards(shard), " leaves in steps ", counted.from(), " to ",
                 counted.to(), ", which have ", leaves);
  }
  history.counted_end = counted.to();
  return absl::OkStatus();
}

absl::Status Add(const Entry::Commit& commit, RunHistory& history) {
  RETURN_IF_ERROR(CheckNumbers({commit.generation(), commit.first_step(), commit.snapshot_every()}));
  if (commit.has_counted()) RETURN_IF_ERROR(Add(commit.counted(), history));
  // Members of an earlier generation may still run. With a number for the second time they would be taken for members
  // of the new one.
  // The last commit counts, and not last_number, which a `prepare` with this generation's own number has raised.
  if (const int64_t last = history.last.has_value() ? history.last->number : 0; commit.generation() <= last) {
    return Wrong("generation ", commit.generation(), " follows generation ", last);
  }
  if (commit.first_step() < history.first_step || commit.first_step() > history.counted_end) {
    return Wrong("generation ", commit.generation(), " begins at step ", commit.first_step(), ", steps from ",
                 history.first_step, " to ", history.counted_end, " have counted");
  }
  const auto is_worker = [&](int rank) { return rank >= 0 && rank < commit.workers_size(); };
  if (commit.leaf_owners_size() != history.leaves || !std::ranges::all_of(commit.leaf_owners(), is_worker) ||
      commit.snapshot_every() == 0) {
    return Wrong("generation ", commit.generation(), " does not give each of ", history.leaves, " leaves to a worker");
  }
  history.last_number = std::max(history.last_number, commit.generation());
  // If the run has gone back, the steps from here on count again.
  history.counted_end = commit.first_step();
  history.last = {.number = commit.generation(),
                  .first_step = commit.first_step(),
                  .snapshot_every = commit.snapshot_every(),
                  .workers = {commit.workers().begin(), commit.workers().end()},
                  .leaf_owners = {commit.leaf_owners().begin(), commit.leaf_owners().end()}};
  return absl::OkStatus();
}

absl::Status Add(const Entry::End& end, RunHistory& history) {
  if (end.has_counted()) RETURN_IF_ERROR(Add(end.counted(), history));
  if (end.step() != history.counted_end) {
    return Wrong("the run ends at step ", end.step(), ", steps up to ", history.counted_end, " have counted");
  }
  history.has_ended = true;
  return absl::OkStatus();
}

// Not OK: with this record the log proves no more that each leaf of each step counted once.
absl::Status Add(const Entry& entry, RunHistory& history) {
  if (entry.has_run() != (history.leaves == 0)) return Wrong("the log says first, and once, what the run is");
  switch (entry.kind_case()) {
    case Entry::kRun:
      history = {.leaves = entry.run().leaves(),
                 .first_step = entry.run().first_step(),
                 .counted_end = entry.run().first_step()};
      return CheckNumbers({history.leaves, history.first_step});
    case Entry::kPrepare:
      history.last_number = std::max(history.last_number, entry.prepare());
      return CheckNumbers({entry.prepare()});
    case Entry::kCommit:
      return Add(entry.commit(), history);
    case Entry::kEnd:
      return Add(entry.end(), history);
    case Entry::KIND_NOT_SET:
      break;
  }
  return Wrong("it is no record of this build");  // but of a newer one, whose coordinator can read it
}

// Calls `take` for every record. Returns the size of the log without a record that was cut off. The error names the
// place of the record.
absl::StatusOr<int64_t> ForEachEntry(absl::string_view log, absl::FunctionRef<absl::Status(const Entry&)> take) {
  ASSIGN_OR_RETURN(absl::string_view rest, AfterFirstLine(log, kFormat));
  Entry entry;
  for (size_t whole = 0;; whole = log.size() - rest.size()) {
    const std::string place = absl::StrCat("record at byte ", log.size() - rest.size());
    ASSIGN_OR_RETURN(const bool is_there, TakeRecord(rest, entry), place);
    if (!is_there) return whole;
    RETURN_IF_ERROR(take(entry), place);
  }
}

// Why a log that begins so is not that of `run`; OK if it is.
absl::Status CheckSameRun(const Entry::Run& theirs, const GenerationLog::Run& run) {
  struct Fact {
    std::string what, theirs, ours, way_out;
  };
  const std::string flags = "start servers and workers with the flags of the run in the log";
  // Not `first_step`: a worker that comes later may have newer checkpoints.
  std::vector<Fact> facts = {{"name", theirs.name(), run.name, flags},
                             {"leaves", absl::StrCat(theirs.leaves()), absl::StrCat(run.leaves), flags},
                             {"shards", absl::StrCat(theirs.shards()), absl::StrCat(run.shards), flags}};
  for (size_t i = 0; i < run.parts.size() && i < static_cast<size_t>(theirs.parts_size()); ++i) {
    const Entry::Run::Part& part = theirs.parts(static_cast<int>(i));
    facts.push_back(
        {absl::StrCat("digest of ", part.name()), part.digest(), run.parts[i].digest, run.parts[i].way_out});
  }
  facts.push_back(
      {"job (the digest of flags, model, data, and the instruction set and libraries of the machines)", theirs.job(),
       run.job, "start servers and workers with the flags, files and build of the run in the log, on such machines"});
  for (const Fact& fact : facts) {
    if (fact.theirs == fact.ours) continue;
    return absl::FailedPreconditionError(absl::StrCat("it is the log of another run: its ", fact.what, " is ",
                                                      fact.theirs, ", this run's ", fact.ours, ": ", fact.way_out,
                                                      ", or name another --state_dir for a new run"));
  }
  return absl::OkStatus();
}

absl::Status FileError(const char* what, const std::string& path) {
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot ", what, " ", path,
                                                     ": no space left; free some, and start "
                                                     "the coordinator again with the same --state_dir"));
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

// Names the file in an error of the log's content, and for damage the way out. The end of the run is no damage.
absl::Status WithPath(const absl::Status& status, const std::string& path) {
  const absl::Status annotated = Annotate(status, path);
  if (!absl::IsDataLoss(status)) return annotated;
  return absl::DataLossError(absl::StrCat(std::string(annotated.message()),
                                          ": put back a whole copy of the file, or start a new run with --resume from "
                                          "the last checkpoint, and with another --state_dir"));
}

absl::StatusOr<std::string> ReadAll(int file, const std::string& path) {
  std::string log;
  char part[1 << 16];
  for (int64_t count; (count = pread(file, part, sizeof(part), std::ssize(log))) != 0;) {
    if (count < 0 && errno != EINTR) return FileError("read", path);
    if (count > 0) log.append(part, static_cast<size_t>(count));
  }
  return log;
}

std::string PathIn(const std::string& folder) { return absl::StrCat(folder, "/generations.log"); }

absl::StatusOr<std::string> ReadLog(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return file.get() < 0 ? FileError("open", path) : ReadAll(file.get(), path);
}

}  // namespace

absl::StatusOr<FolderLock> GenerationLog::Lock(const std::string& folder, absl::Duration patience) {
  absl::StatusOr<FolderLock> lock = FolderLock::Take(folder, patience);
  if (!absl::IsFailedPrecondition(lock.status())) return lock;
  return absl::FailedPreconditionError(absl::StrCat("another coordinator runs with --state_dir=", folder,
                                                    ": a run has one; give this one a folder of its own"));
}

absl::StatusOr<std::unique_ptr<GenerationLog>> GenerationLog::Open(const std::string& folder, const Run& run,
                                                                   const FolderLock* held) {
  std::optional<FolderLock> lock;
  if (held == nullptr) {
    ASSIGN_OR_RETURN(FolderLock taken, Lock(folder, kLockPatience));
    lock.emplace(std::move(taken));
  }
  const std::string path = PathIn(folder);
  // O_NOFOLLOW: a link in the folder must not turn the log into another file.
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0) return FileError("open", path);
  const bool is_locked = held != nullptr ? held->is_held() : lock->is_held();
  std::unique_ptr<GenerationLog> log(new GenerationLog(std::move(lock), is_locked, path, file));
  ASSIGN_OR_RETURN(const std::string bytes, ReadAll(file, path));
  RunHistory& history = log->history_;
  const absl::StatusOr<int64_t> whole = ForEachEntry(bytes, [&](const Entry& entry) -> absl::Status {
    if (history.leaves == 0) RETURN_IF_ERROR(CheckSameRun(entry.run(), run));
    RETURN_IF_ERROR(Add(entry, history));
    if (!history.has_ended) return absl::OkStatus();
    return absl::FailedPreconditionError("the run has ended: name another --state_dir for a new one");
  });
  if (!whole.ok()) return WithPath(whole.status(), path);
  // Cut off an unfinished last record, whose writer died. No process has been told of it.
  log->size_ = *whole;
  if (*whole < std::ssize(bytes) && ftruncate(file, *whole) != 0) return FileError("shorten", path);
  if (*whole == 0) {
    const Entry entry = EntryOf(run);
    RETURN_IF_ERROR(log->Write(absl::StrCat(kFormat.line, ToRecord(entry))));
    RETURN_IF_ERROR(FlushFolder(folder));  // the file is new
    RETURN_IF_ERROR(Add(entry, history));
  }
  return log;
}

GenerationLog::Glimpse GenerationLog::Peek(const std::string& folder) {
  const absl::StatusOr<std::string> log = ReadLog(PathIn(folder));
  Glimpse seen;
  const auto take = [&](const Entry& entry) {
    if (entry.has_run()) seen.name = entry.run().name();
    if (entry.has_commit()) seen.progress = Progress::kBegun;
    if (entry.has_end()) seen.progress = Progress::kEnded;
    return absl::OkStatus();
  };
  if (!log.ok() || !ForEachEntry(*log, take).ok()) seen.progress = Progress::kNone;
  return seen;
}

std::string GenerationLog::UnfinishedRun(const std::string& folder) {
  const Glimpse seen = Peek(folder);
  return seen.progress == Progress::kEnded ? "" : seen.name;
}

absl::Status GenerationLog::Print(const std::string& folder, absl::FunctionRef<void(const std::string&)> print) {
  ASSIGN_OR_RETURN(const std::string log, ReadLog(PathIn(folder)));
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetUseShortRepeatedPrimitives(true);
  const auto take = [&](const Entry& entry) {
    std::string line;
    printer.PrintToString(entry, &line);
    print(std::string(absl::StripSuffix(line, " ")));
    return absl::OkStatus();
  };
  ForEachEntry(log, take).IgnoreError();  // CheckExactlyOnce returns it
  return WithPath(CheckExactlyOnce(log), PathIn(folder));
}

GenerationLog::~GenerationLog() { close(file_); }

absl::Status GenerationLog::Write(absl::string_view bytes) {
  struct stat facts;
  if (fstat(file_, &facts) != 0) return FileError("look at", path_);
  if (facts.st_size != size_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " has ", facts.st_size, " bytes, and this coordinator has left it with ", size_,
                     ": another one writes there; end it, or give each a --state_dir of its own"));
  }
  const int64_t end = size_ + std::ssize(bytes);
  absl::Status status;
  while (status.ok() && !bytes.empty()) {
    const ssize_t written = write(file_, bytes.data(), bytes.size());
    if (written >= 0) bytes.remove_prefix(static_cast<size_t>(written));
    if (written < 0 && errno != EINTR) status = FileError("write", path_);
  }
  // fdatasync flushes the new size of the file, too. It leaves out the times, which no reader needs.
  if (status.ok() && fdatasync(file_) != 0) status = FileError("flush", path_);
  if (status.ok()) {
    size_ = end;
  } else if (ftruncate(file_, size_) != 0) {  // half a record would be in the way of the next
    return FileError("shorten", path_);
  }
  return status;
}

absl::Status GenerationLog::Prepare(int64_t number) {
  CHECK_GT(number, last_number());
  Entry entry;
  // The number is on the disk before a member hears of it, so a coordinator that starts again does not give it twice.
  entry.set_prepare(number);
  RETURN_IF_ERROR(Write(ToRecord(entry)));
  history_.last_number = number;
  return absl::OkStatus();
}

absl::Status GenerationLog::Commit(const Generation& generation, int64_t reached, const Counts& counts) {
  CHECK_GE(generation.number, last_number());
  Entry entry = EntryOf(generation);
  // The generation before has counted up to `reached`, also the steps that the run now undoes.
  if (const int64_t end = std::max(reached, generation.first_step); end > counted_end()) {
    RETURN_IF_ERROR(WithPath(Count(history_, end, counts, entry.mutable_commit()->mutable_counted()), path_));
  }
  RETURN_IF_ERROR(Write(ToRecord(entry)));
  // After a failed write the history is still the disk's, and the caller may try again.
  history_.last_number = generation.number;
  history_.counted_end = generation.first_step;
  history_.last = generation;
  return absl::OkStatus();
}

absl::Status GenerationLog::End(int64_t step, const Counts& counts) {
  Entry entry;
  entry.mutable_end()->set_step(step);
  if (step > counted_end()) {
    RETURN_IF_ERROR(WithPath(Count(history_, step, counts, entry.mutable_end()->mutable_counted()), path_));
  }
  RETURN_IF_ERROR(Write(ToRecord(entry)));
  // The run may say that it is done only if its own log proves it.
  ASSIGN_OR_RETURN(const std::string log, ReadAll(file_, path_));
  return WithPath(CheckExactlyOnce(log), path_);
}

absl::Status CheckExactlyOnce(absl::string_view log) {
  RunHistory history;
  return ForEachEntry(log, [&](const Entry& entry) { return Add(entry, history); }).status();
}

}  // namespace starring
