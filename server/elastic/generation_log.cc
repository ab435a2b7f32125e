#include "server/elastic/generation_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/checkpoint/crc32c.h"
#include "common/job/leaf_shares.h"

namespace starring {
namespace {

constexpr char kFileName[] = "generations.log";
constexpr absl::string_view kCrc = " crc=";
constexpr char kNotCounted[] = "-";

std::string Hex(uint64_t id) { return absl::StrFormat("%016x", id); }

std::string WithCrc(absl::string_view entry) { return absl::StrFormat("%s%s%08x\n", entry, kCrc, Crc32c(entry)); }

// A name in one word.
std::string Quoted(absl::string_view name) {
  std::string text;
  for (const char c : name) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("._-", c)) {
      text += c;
    } else {
      absl::StrAppendFormat(&text, "%%%02x", static_cast<unsigned char>(c));
    }
  }
  return text;
}

std::string RunEntry(const GenerationLog::Run& run) {
  std::string entry = absl::StrCat("run name=", Quoted(run.name), " leaves=", run.leaves, " shards=", run.shards,
                                   " job=", run.job, " first=", run.first_step);
  for (const GenerationLog::Run::Part& part : run.parts) absl::StrAppend(&entry, " ", part.name, "=", part.digest);
  return entry;
}

std::string CommitEntry(const Generation& generation) {
  return absl::StrCat(
      "commit ", generation.number, " first=", generation.first_step, " every=", generation.snapshot_every, " workers=",
      absl::StrJoin(generation.workers, ",", [](std::string* out, uint64_t id) { absl::StrAppend(out, Hex(id)); }),
      " owners=", absl::StrJoin(generation.leaf_owners, ","));
}

std::string CountedEntry(const Generation& generation, int64_t end, const GenerationLog::Counts& counts) {
  std::vector<std::string> leaves;
  for (const Contributor& one : ContributorsOf(generation.leaf_owners)) {
    leaves.push_back(absl::StrCat(one.leaves.begin, "-", one.leaves.end, ":",
                                  Hex(generation.workers[static_cast<size_t>(one.rank)])));
  }
  std::vector<std::string> by_shard;
  for (const std::map<int64_t, int64_t>& counted : counts) {
    const auto found = counted.find(end);
    by_shard.push_back(found == counted.end() ? kNotCounted : absl::StrCat(found->second));
  }
  return absl::StrCat("counted ", generation.number, " from=", generation.first_step, " to=", end,
                      " leaves=", absl::StrJoin(leaves, ","),
                      by_shard.empty() ? "" : " shards=", absl::StrJoin(by_shard, ","));
}

// A line of the log, taken apart: "KIND NUMBER key=value ...".
struct Entry {
  std::string kind;
  int64_t number = 0;
  std::map<std::string, std::string> values;
};

// Steps and numbers of generations. A run has no larger numbers, so sums of them need no check for overflow.
bool ReadNumber(absl::string_view text, int64_t* number) {
  return absl::SimpleAtoi(text, number) && *number >= 0 && *number <= kStepMax;
}

// Nothing is lost by refusing the lines of a newer build: its coordinator can read them.
absl::StatusOr<Entry> ParseEntry(absl::string_view line) {
  const size_t crc_at = line.rfind(kCrc);
  if (crc_at == absl::string_view::npos || WithCrc(line.substr(0, crc_at)) != absl::StrCat(line, "\n")) {
    return absl::DataLossError("its checksum is wrong");
  }
  const std::vector<std::string> words = absl::StrSplit(line.substr(0, crc_at), ' ');
  Entry entry{.kind = words[0]};
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    if (absl::StrContains(words[i], '=')) {
      entry.values.insert(parts);
    } else if (!ReadNumber(words[i], &entry.number)) {
      return absl::DataLossError(absl::StrCat("\"", words[i], "\" is no number from 0 to ", kStepMax));
    }
  }
  return entry;
}

absl::StatusOr<int64_t> NumberOf(const Entry& entry, const std::string& key) {
  const auto found = entry.values.find(key);
  int64_t number = 0;
  if (found == entry.values.end() || !ReadNumber(found->second, &number)) {
    return absl::DataLossError(absl::StrCat("\"", entry.kind, "\" has no ", key, "=N with N from 0 to ", kStepMax));
  }
  return number;
}

std::vector<std::string> ListOf(const Entry& entry, const std::string& key) {
  const auto found = entry.values.find(key);
  if (found == entry.values.end()) return {};
  return absl::StrSplit(found->second, ',', absl::SkipEmpty());
}

absl::StatusOr<Generation> GenerationOf(const Entry& entry) {
  Generation generation{.number = entry.number};
  ASSIGN_OR_RETURN(generation.first_step, NumberOf(entry, "first"));
  ASSIGN_OR_RETURN(generation.snapshot_every, NumberOf(entry, "every"));
  for (const std::string& text : ListOf(entry, "workers")) {
    uint64_t id = 0;
    if (!absl::SimpleHexAtoi(text, &id)) return absl::DataLossError(absl::StrCat("worker \"", text, "\""));
    generation.workers.push_back(id);
  }
  for (const std::string& text : ListOf(entry, "owners")) {
    int rank = -1;
    if (!absl::SimpleAtoi(text, &rank) || rank < 0 || rank >= std::ssize(generation.workers)) {
      return absl::DataLossError(absl::StrCat("owner \"", text, "\""));
    }
    generation.leaf_owners.push_back(rank);
  }
  if (generation.leaf_owners.empty() || generation.snapshot_every < 1)
    return absl::DataLossError("no leaf has an owner");
  return generation;
}

// Calls `take` for every line; text after the last newline is no line. The error names the line.
template <typename Take>
absl::Status ForEachEntry(absl::string_view text, const Take& take) {
  int64_t number = 0;
  for (size_t end; (end = text.find('\n')) != absl::string_view::npos; text.remove_prefix(end + 1)) {
    ++number;
    const absl::StatusOr<Entry> entry = ParseEntry(text.substr(0, end));
    absl::Status status = entry.status();
    if (status.ok()) status = take(*entry);
    if (!status.ok()) return Annotate(status, absl::StrCat("line ", number));
  }
  return absl::OkStatus();
}

// The error of a damaged log.
template <typename... Words>
absl::Status Wrong(const Words&... words) {
  return absl::DataLossError(absl::StrCat(words...));
}

// Whether each leaf counted once in a `counted` entry, by its worker.
absl::Status CheckLeaves(const Entry& entry, const Generation& generation, int64_t leaf_count) {
  std::vector<int> times(static_cast<size_t>(leaf_count));
  for (const std::string& range : ListOf(entry, "leaves")) {
    const std::vector<std::string> parts = absl::StrSplit(range, absl::ByAnyChar("-:"));
    int64_t begin = 0, end = 0;
    uint64_t worker = 0;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &begin) || !absl::SimpleAtoi(parts[1], &end) ||
        !absl::SimpleHexAtoi(parts[2], &worker) || begin < 0 || end > leaf_count) {
      return Wrong("leaves \"", range, "\"");
    }
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      ++times[static_cast<size_t>(leaf)];
      const int owner = generation.leaf_owners[static_cast<size_t>(leaf)];
      if (generation.workers[static_cast<size_t>(owner)] != worker) {
        return Wrong("leaf ", leaf, " is not worker ", Hex(worker), "'s in generation ", entry.number);
      }
    }
  }
  for (int64_t leaf = 0; leaf < leaf_count; ++leaf) {
    if (times[static_cast<size_t>(leaf)] != 1) {
      return Wrong("leaf ", leaf, " of steps ", entry.values.at("from"), " to ", entry.values.at("to"), " counted ",
                   times[static_cast<size_t>(leaf)], " times");
    }
  }
  return absl::OkStatus();
}

// Whether each shard has counted the leaves of a `counted` entry once. A log of an older build says nothing of shards.
absl::Status CheckShards(const Entry& entry, int64_t leaves) {
  int shard = 0;
  for (const std::string& text : ListOf(entry, "shards")) {
    int64_t counted = 0;
    if (text != kNotCounted && (!absl::SimpleAtoi(text, &counted) || counted != leaves)) {
      return Wrong("shard ", shard, " counted ", text, " leaves in steps ", entry.values.at("from"), " to ",
                   entry.values.at("to"), ", which have ", leaves);
    }
    ++shard;
  }
  return absl::OkStatus();
}

// Why a log that begins so is not that of `run`; OK if it is. Compared as text: whatever differs is named.
absl::Status CheckSameRun(const Entry& first, const GenerationLog::Run& run) {
  ASSIGN_OR_RETURN(const Entry mine, ParseEntry(absl::StripSuffix(WithCrc(RunEntry(run)), "\n")));
  const auto theirs = [&](const std::string& key) {
    const auto found = first.values.find(key);
    return found == first.values.end() ? "nothing" : found->second;
  };
  const auto refuse = [](const std::string& what, const std::string& way_out) {
    return absl::FailedPreconditionError(absl::StrCat("it is the log of another run: ", what, ": ", way_out,
                                                      ", or name another --state_dir for a new run"));
  };
  // Not `first`: a worker that comes later may have newer checkpoints.
  for (const char* const key : {"name", "leaves", "shards"}) {
    if (theirs(key) == mine.values.at(key)) continue;
    return refuse(absl::StrCat("its ", key, " is ", theirs(key), ", this run's ", mine.values.at(key)),
                  "start servers and workers with the flags of the run in the log");
  }
  if (theirs("job") == run.job) return absl::OkStatus();
  for (const GenerationLog::Run::Part& part : run.parts) {
    // The log of an older build has no parts.
    if (!first.values.contains(part.name) || theirs(part.name) == part.digest) continue;
    return refuse(absl::StrCat("its job differs in ", part.name, " (digest ", theirs(part.name), ", this run's ",
                               part.digest, ")"),
                  part.way_out);
  }
  return refuse(absl::StrCat("its job (the digest of flags, model, data, and the instruction set and libraries of the "
                             "machines) is ",
                             theirs("job"), ", this run's ", run.job),
                "start servers and workers with the flags, files and build of the run in the log, on such machines");
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
  std::string text;
  char part[1 << 16];
  while (true) {
    const ssize_t count = read(file, part, sizeof(part));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError("read", path);
    if (count == 0) return text;
    text.append(part, static_cast<size_t>(count));
  }
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
  const std::string path = absl::StrCat(folder, "/", kFileName);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0) return FileError("open", path);
  const bool is_locked = held != nullptr ? held->is_held() : lock->is_held();
  std::unique_ptr<GenerationLog> log(new GenerationLog(std::move(lock), is_locked, path, file));
  ASSIGN_OR_RETURN(const std::string text, ReadAll(file, path));
  absl::Status readable = log->Read(text, run);
  // Read's results are right only if the lines prove what the run must prove at its end.
  if (readable.ok()) readable = CheckExactlyOnce(text);
  if (!readable.ok()) return WithPath(readable, path);
  // Cut off an unfinished last line, whose writer died. No process has been told of it.
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole < text.size() && ftruncate(file, static_cast<off_t>(whole)) != 0) return FileError("shorten", path);
  log->size_ = static_cast<int64_t>(whole);
  if (whole == 0) {
    RETURN_IF_ERROR(log->Write({RunEntry(run)}));
    RETURN_IF_ERROR(FlushFolder(folder));  // the file is new
    log->first_step_ = log->counted_end_ = run.first_step;
  }
  return log;
}

GenerationLog::Progress GenerationLog::Peek(const std::string& folder, const std::string& name) {
  const std::string path = absl::StrCat(folder, "/", kFileName);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return Progress::kNone;
  const absl::StatusOr<std::string> text = ReadAll(file, path);
  close(file);
  Progress progress = Progress::kNone;
  bool is_ours = false;
  const auto take = [&](const Entry& entry) {
    if (entry.kind == "run" && entry.values.contains("name")) is_ours = entry.values.at("name") == Quoted(name);
    if (is_ours && entry.kind == "commit") progress = Progress::kBegun;
    if (is_ours && entry.kind == "end") progress = Progress::kEnded;
    return absl::OkStatus();
  };
  return text.ok() && ForEachEntry(*text, take).ok() ? progress : Progress::kNone;
}

GenerationLog::~GenerationLog() { close(file_); }

absl::Status GenerationLog::Read(std::string_view text, const Run& run) {
  bool is_first = true;
  return ForEachEntry(absl::string_view(text.data(), text.size()), [&](const Entry& entry) -> absl::Status {
    if (std::exchange(is_first, false)) {
      RETURN_IF_ERROR(CheckSameRun(entry, run));
      ASSIGN_OR_RETURN(first_step_, NumberOf(entry, "first"));
      counted_end_ = first_step_;
      return absl::OkStatus();
    }
    if (entry.kind == "prepare" || entry.kind == "commit") last_number_ = std::max(last_number_, entry.number);
    if (entry.kind == "commit") {
      ASSIGN_OR_RETURN(last_, GenerationOf(entry));
      last_has_counted_ = false;
    } else if (entry.kind == "counted") {
      ASSIGN_OR_RETURN(counted_end_, NumberOf(entry, "to"));
      last_has_counted_ = true;
    } else if (entry.kind == "back") {
      counted_end_ = entry.number;
    } else if (entry.kind == "end") {
      return absl::FailedPreconditionError("the run has ended: name another --state_dir for a new one");
    } else if (entry.kind != "prepare") {
      return absl::DataLossError(absl::StrCat("\"", entry.kind, "\" is no entry of this build"));
    }
    return absl::OkStatus();
  });
}

absl::Status GenerationLog::Write(const std::vector<std::string>& entries) {
  std::string text;
  for (const std::string& entry : entries) text += WithCrc(entry);
  struct stat facts;
  if (fstat(file_, &facts) != 0) return FileError("look at", path_);
  if (facts.st_size != size_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " has ", facts.st_size, " bytes, and this coordinator has left it with ", size_,
                     ": another one writes there; end it, or give each a --state_dir of its own"));
  }
  const absl::Status status = Append(text);
  if (status.ok()) {
    size_ += static_cast<int64_t>(text.size());
  } else if (ftruncate(file_, static_cast<off_t>(size_)) != 0) {  // half a line would be in the way of the next
    return FileError("shorten", path_);
  }
  return status;
}

absl::Status GenerationLog::Append(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError("write", path_);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return fdatasync(file_) == 0 ? absl::OkStatus() : FileError("flush", path_);
}

absl::Status GenerationLog::Prepare(int64_t number) {
  CHECK_GT(number, last_number_);
  RETURN_IF_ERROR(Write({absl::StrCat("prepare ", number)}));
  last_number_ = number;
  return absl::OkStatus();
}

absl::Status GenerationLog::Commit(const Generation& generation, int64_t reached, const Counts& counts) {
  CHECK_GE(generation.number, last_number_);
  std::vector<std::string> entries;
  const int64_t end = std::max({reached, counted_end_, generation.first_step});
  if (end > counted_end_) {
    ASSIGN_OR_RETURN(entries.emplace_back(), CountedUpTo(end, counts));
  }
  if (end > generation.first_step) entries.push_back(absl::StrCat("back ", generation.first_step));
  entries.push_back(CommitEntry(generation));
  RETURN_IF_ERROR(Write(entries));
  last_number_ = generation.number;
  counted_end_ = generation.first_step;
  last_ = generation;
  last_has_counted_ = false;
  return absl::OkStatus();
}

absl::Status GenerationLog::End(int64_t step, const Counts& counts) {
  std::vector<std::string> entries;
  if (step > counted_end_) {
    ASSIGN_OR_RETURN(entries.emplace_back(), CountedUpTo(step, counts));
  }
  entries.push_back(absl::StrCat("end ", step));
  RETURN_IF_ERROR(Write(entries));
  // The run may say that it is done only if its own log proves it.
  if (lseek(file_, 0, SEEK_SET) != 0) return FileError("read", path_);
  ASSIGN_OR_RETURN(const std::string text, ReadAll(file_, path_));
  return WithPath(CheckExactlyOnce(text), path_);
}

// A log whose last lines were lost may say less than the shards' snapshots do.
absl::StatusOr<std::string> GenerationLog::CountedUpTo(int64_t step, const Counts& counts) const {
  if (last_.has_value() && !last_has_counted_ && last_->first_step == counted_end_) {
    return CountedEntry(*last_, step, counts);
  }
  return WithPath(Wrong("its last line: the run has come to step ", step, ", and after step ", counted_end_,
                        " the log has no generation"),
                  path_);
}

absl::Status CheckExactlyOnce(std::string_view text) {
  int64_t leaf_count = 0;
  int64_t first_step = 0;
  int64_t counted_end = 0;
  int64_t last_counted = 0;
  std::map<int64_t, Generation> generations;
  bool is_first = true;
  return ForEachEntry(absl::string_view(text.data(), text.size()), [&](const Entry& entry) -> absl::Status {
    if (std::exchange(is_first, false)) {
      if (entry.kind != "run") return Wrong("the log does not begin with what the run is");
      ASSIGN_OR_RETURN(leaf_count, NumberOf(entry, "leaves"));
      ASSIGN_OR_RETURN(first_step, NumberOf(entry, "first"));
      counted_end = first_step;
      return absl::OkStatus();
    }
    if (entry.kind == "commit") {
      if (const int64_t last = generations.empty() ? 0 : generations.rbegin()->first; entry.number <= last) {
        return Wrong("generation ", entry.number, " follows generation ", last);
      }
      ASSIGN_OR_RETURN(generations[entry.number], GenerationOf(entry));
      if (std::ssize(generations[entry.number].leaf_owners) != leaf_count) {
        return Wrong("generation ", entry.number, " has ", generations[entry.number].leaf_owners.size(), " leaves of ",
                     leaf_count);
      }
      if (generations[entry.number].first_step != counted_end) {
        return Wrong("generation ", entry.number, " begins at step ", generations[entry.number].first_step,
                     ", steps up to ", counted_end, " have counted");
      }
      return absl::OkStatus();
    }
    if (entry.kind == "back") {
      if (entry.number < first_step || entry.number >= counted_end) {
        return Wrong("it goes back to step ", entry.number, ", steps from ", first_step, " to ", counted_end,
                     " have counted");
      }
      counted_end = entry.number;
    }
    if (entry.kind == "end" && entry.number != counted_end) {
      return Wrong("the run ends at step ", entry.number, ", steps up to ", counted_end, " have counted");
    }
    if (entry.kind != "counted") return absl::OkStatus();
    ASSIGN_OR_RETURN(const int64_t from, NumberOf(entry, "from"));
    ASSIGN_OR_RETURN(const int64_t to, NumberOf(entry, "to"));
    if (!generations.contains(entry.number)) return Wrong("generation ", entry.number, " was never committed");
    if (entry.number <= last_counted || entry.number != generations.rbegin()->first) {
      return Wrong("generation ", entry.number, " was over: ", generations.rbegin()->first, " is the last one");
    }
    if (from != counted_end || to <= from) {
      return Wrong("steps ", from, " to ", to, " follow step ", counted_end, ": they ",
                   from < counted_end ? "overlap" : "leave a gap");
    }
    RETURN_IF_ERROR(CheckLeaves(entry, generations[entry.number], leaf_count));
    RETURN_IF_ERROR(CheckShards(entry, (to - from) * leaf_count));
    counted_end = to;
    last_counted = entry.number;
    return absl::OkStatus();
  });
}

}  // namespace starring
