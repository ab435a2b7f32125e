#include "server/elastic/generation_log.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/checkpoint/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/elastic/counted_flushes.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const GenerationLog::Run kRun = {.name = "a run/1", .leaves = 4, .shards = 2, .job = "ab12"};

std::string NewFolder() {
  std::string folder = absl::StrCat(testing::TempDir(), "/log.XXXXXX");
  return mkdtemp(folder.data());
}

std::string Content(const std::string& folder) {
  std::ifstream file(folder + "/generations.log");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void Write(const std::string& folder, const std::string& text) {
  std::ofstream(folder + "/generations.log", std::ios::trunc) << text;
}

// Replaces `from` in one line of the log and gives it a right checksum, as a coordinator with a defect would.
std::string Corrupted(const std::string& log, const std::string& from, const std::string& to) {
  std::string result;
  bool done = false;
  for (absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
    std::string entry(line.substr(0, line.rfind(" crc=")));
    if (entry.find(from) != std::string::npos && !done) {
      entry = absl::StrReplaceAll(entry, {{from, to}});
      done = true;
    }
    if (!entry.empty()) absl::StrAppendFormat(&result, "%s crc=%08x\n", entry, Crc32c(entry));
  }
  EXPECT_TRUE(done) << from;
  return result;
}

Generation Third() {
  return {.number = 3, .first_step = 20, .snapshot_every = 5, .workers = {0xa1, 0xb2}, .leaf_owners = {0, 0, 1, 1}};
}

// Two generations, of which the second replaced steps of the first: 0 to 20 by one worker, 20 to 50 by two.
std::string GoodLog() {
  const std::string folder = NewFolder();
  const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, kRun).value();
  EXPECT_TRUE(log->Prepare(1).ok());
  EXPECT_TRUE(log->Commit({.number = 1, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}}).ok());
  EXPECT_TRUE(log->Prepare(2).ok());  // and nobody came
  EXPECT_TRUE(log->Prepare(3).ok());
  EXPECT_TRUE(log->Commit(Third()).ok());
  EXPECT_TRUE(log->End(50).ok());
  return Content(folder);
}

TEST(GenerationLogTest, RemembersWhatWasWritten) {
  const std::string folder = NewFolder();
  {
    const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, kRun).value();
    EXPECT_EQ(log->last_number(), 0);
    EXPECT_FALSE(log->last().has_value());
    EXPECT_TRUE(log->Prepare(1).ok());
    EXPECT_TRUE(log->Commit({.number = 1, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}}).ok());
    EXPECT_TRUE(log->Prepare(3).ok());
    EXPECT_TRUE(log->Commit(Third()).ok());
    EXPECT_TRUE(log->Prepare(4).ok());
  }
  const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, kRun).value();
  EXPECT_EQ(log->last_number(), 4);
  EXPECT_EQ(log->last(), Third());
  EXPECT_EQ(log->counted_end(), 20);
}

// One of the shards was started again, and has lost its counts.
TEST(GenerationLogTest, ShardsHaveCountedTheLeavesOfTheirSums) {
  const std::string folder = NewFolder();
  const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, kRun).value();
  EXPECT_TRUE(log->Commit({.number = 1, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}}).ok());
  EXPECT_TRUE(log->Commit(Third(), 0, {{{10, 40}, {20, 80}}, {}}).ok());
  EXPECT_EQ(log->End(50, {{{50, 120}}, {{50, 120}}}), absl::OkStatus());
  EXPECT_THAT(Content(folder), AllOf(HasSubstr("from=0 to=20 leaves=0-4:00000000000000a1 shards=80,- crc"),
                                     HasSubstr(" shards=120,120 crc")));
  const absl::Status status = CheckExactlyOnce(Corrupted(Content(folder), "shards=120,120", "shards=120,116"));
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("shard 1 counted 116 leaves in steps 20 to 50, which have 120"));
}

TEST(GenerationLogTest, ARunDoesNotEndIfAShardHasCountedOtherwise) {
  const std::unique_ptr<GenerationLog> log = GenerationLog::Open(NewFolder(), kRun).value();
  EXPECT_TRUE(log->Commit({.number = 1, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}}).ok());
  EXPECT_TRUE(absl::IsDataLoss(log->End(10, {{{10, 40}}, {{10, 44}}})));
}

TEST(GenerationLogTest, AStepCountsOnceIfTheRunGoesBack) {
  const std::string folder = NewFolder();
  const auto commit = [](GenerationLog& log, int64_t number, int64_t first_step) {
    EXPECT_TRUE(log.Prepare(number).ok());
    EXPECT_TRUE(
        log.Commit({.number = number, .first_step = first_step, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}}).ok());
    EXPECT_EQ(log.counted_end(), first_step);
  };
  {
    const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, kRun).value();
    commit(*log, 1, 0);
    commit(*log, 2, 20);
    commit(*log, 3, 10);
  }
  const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, kRun).value();
  EXPECT_EQ(log->counted_end(), 10);
  EXPECT_EQ(log->End(30), absl::OkStatus());
  EXPECT_THAT(Content(folder), HasSubstr("back 10"));
}

TEST(GenerationLogTest, TheUmaskDecidesWhoMayReadAndWrite) {
  const std::string folder = NewFolder();
  const mode_t before = umask(002);
  EXPECT_TRUE(GenerationLog::Open(folder, kRun).ok());
  umask(before);
  struct stat facts = {};
  ASSERT_EQ(stat((folder + "/generations.log").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0664);
}

// No step of the first generation has counted yet.
TEST(GenerationLogTest, TheFirstGenerationGoesBackAsOthersDo) {
  const std::string folder = NewFolder();
  const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, kRun).value();
  EXPECT_TRUE(log->Commit({.number = 1, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}}).ok());
  EXPECT_TRUE(
      log->Commit({.number = 2, .first_step = 10, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}}, /*reached=*/40)
          .ok());
  EXPECT_EQ(log->counted_end(), 10);
  EXPECT_THAT(Content(folder), AllOf(HasSubstr("counted 1 from=0 to=40"), HasSubstr("back 10")));
  EXPECT_EQ(log->End(50), absl::OkStatus());
}

TEST(GenerationLogTest, ARunMayBeginAtACheckpoint) {
  const std::string folder = NewFolder();
  GenerationLog::Run run = kRun;
  run.first_step = 100;
  {
    const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, run).value();
    EXPECT_EQ(log->counted_end(), 100);
    EXPECT_TRUE(log->Commit({.number = 1, .first_step = 100, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}}).ok());
  }
  run.first_step = 200;  // a newer checkpoint is of no interest to a run that has begun
  const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, run).value();
  EXPECT_EQ(log->first_step(), 100);
  EXPECT_EQ(log->End(300), absl::OkStatus());
}

TEST(GenerationLogTest, HasOneWriter) {
  const std::string folder = NewFolder();
  const auto first = GenerationLog::Open(folder, kRun);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = GenerationLog::Open(folder, kRun);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), AllOf(HasSubstr("another coordinator"), HasSubstr(folder)));
}

// Its caller may have the lock longer than the log.
TEST(GenerationLogTest, TakesNoLockThatIsHeld) {
  const std::string folder = NewFolder();
  const auto lock = GenerationLog::Lock(folder, absl::ZeroDuration());
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_TRUE(GenerationLog::Open(folder, kRun, &*lock).ok());
  EXPECT_EQ(GenerationLog::Lock(folder, absl::ZeroDuration()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(GenerationLogTest, ARefusalNamesTheFirstPartThatDiffers) {
  const std::string folder = NewFolder();
  const auto run = [](const std::string& job, const std::string& flags, const std::string& data) {
    GenerationLog::Run other = kRun;
    other.job = job;
    other.parts = {{"flags", flags, "give the same flags"}, {"data", data, "give the same files"}};
    return other;
  };
  const auto refusal = [&](const GenerationLog::Run& other) {
    const absl::Status status = GenerationLog::Open(folder, other).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  ASSERT_TRUE(GenerationLog::Open(folder, run("ab", "f1", "d1")).ok());
  EXPECT_TRUE(GenerationLog::Open(folder, run("ab", "f1", "d1")).ok());
  EXPECT_THAT(refusal(run("cd", "f2", "d2")),
              AllOf(HasSubstr("differs in flags (digest f1, this run's f2): give the same flags"),
                    HasSubstr("another --state_dir"), Not(HasSubstr("d2"))));
  EXPECT_THAT(refusal(run("cd", "f1", "d2")), HasSubstr("differs in data (digest d1, this run's d2): give the same f"));
  // Something else has changed, or an older build has written the log: the parts do not tell.
  EXPECT_THAT(refusal(run("cd", "f1", "d1")),
              AllOf(HasSubstr("flags, model, data, and the instruction set and libraries"), HasSubstr("is ab, this")));
  const std::string whole = Content(folder);
  Write(folder, Corrupted(whole, " flags=f1 data=d1", ""));
  EXPECT_TRUE(GenerationLog::Open(folder, run("ab", "f2", "d2")).ok());
  EXPECT_THAT(refusal(run("cd", "f2", "d2")), HasSubstr("flags, model, data, and the instruction set and libraries"));
}

TEST(GenerationLogTest, RefusesTheLogOfAnotherRunAndOfOneThatHasEnded) {
  const std::string folder = NewFolder();
  ASSERT_TRUE(GenerationLog::Open(folder, kRun).ok());
  GenerationLog::Run other = kRun;
  other.leaves = 8;
  EXPECT_THAT(std::string(GenerationLog::Open(folder, other).status().message()),
              AllOf(HasSubstr("another run"), HasSubstr("leaves is 4"), HasSubstr("this run's 8"),
                    HasSubstr("with the flags of the run in the log, or name another --state_dir")));
  EXPECT_EQ(GenerationLog::Peek(folder, kRun.name), GenerationLog::Progress::kNone) << "no generation has begun";
  {
    const auto log = GenerationLog::Open(folder, kRun).value();
    EXPECT_EQ(log->Prepare(1), absl::OkStatus());
    EXPECT_EQ(log->Commit({.number = 1, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}}), absl::OkStatus());
    EXPECT_EQ(GenerationLog::Peek(folder, kRun.name), GenerationLog::Progress::kBegun);
    EXPECT_EQ(log->End(10), absl::OkStatus());
  }
  EXPECT_EQ(GenerationLog::Peek(folder, kRun.name), GenerationLog::Progress::kEnded);
  EXPECT_EQ(GenerationLog::Peek(folder, "another"), GenerationLog::Progress::kNone);
  EXPECT_EQ(GenerationLog::Peek(folder + "/missing", kRun.name), GenerationLog::Progress::kNone);
  EXPECT_THAT(std::string(GenerationLog::Open(folder, kRun).status().message()), HasSubstr("the run has ended"));
}

TEST(GenerationLogTest, DropsALineThatWasCutOffAndNoOther) {
  const std::string folder = NewFolder();
  { ASSERT_TRUE(GenerationLog::Open(folder, kRun).value()->Prepare(1).ok()); }
  const std::string before = Content(folder);
  for (const char* const rest : {"prep", "prepare 2 crc=0000000"}) {
    Write(folder, before + rest);
    const auto log = GenerationLog::Open(folder, kRun);
    ASSERT_TRUE(log.ok()) << log.status();
    EXPECT_EQ((*log)->last_number(), 1);
    EXPECT_EQ(Content(folder), before);
    ASSERT_TRUE((*log)->Prepare(2).ok());
  }
  for (size_t i = 0; i < before.size(); ++i) {
    std::string damaged = before;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    Write(folder, damaged);
    // A damaged end of the last line makes it one that was cut off.
    const auto log = GenerationLog::Open(folder, kRun);
    EXPECT_TRUE(!log.ok() || i + 1 == before.size()) << i;
  }
}

// The coordinator has died in its first write. A log that does not say what the run is has no run yet.
TEST(GenerationLogTest, AFirstLineThatWasCutOffIsWrittenAgain) {
  const std::string folder = NewFolder();
  GenerationLog::Run run = kRun;
  run.first_step = 100;
  { ASSERT_TRUE(GenerationLog::Open(folder, run).ok()); }
  const std::string whole = Content(folder);
  ASSERT_EQ(whole.find('\n') + 1, whole.size());
  for (size_t size = 0; size < whole.size(); ++size) {
    Write(folder, whole.substr(0, size));
    EXPECT_EQ(GenerationLog::Peek(folder, run.name), GenerationLog::Progress::kNone) << size;
    const auto log = GenerationLog::Open(folder, run);
    ASSERT_TRUE(log.ok()) << size << ": " << log.status();
    EXPECT_EQ(Content(folder), whole) << size;
    EXPECT_EQ((*log)->first_step(), 100) << size;
    EXPECT_EQ((*log)->counted_end(), 100) << size;
    EXPECT_FALSE((*log)->last().has_value()) << size;
  }
}

// A coordinator that went on with it could not end its run, and one that adds to such numbers would overflow.
TEST(GenerationLogTest, ADamagedLogIsRefusedWithFileLineAndWayOut) {
  std::string log = GoodLog();
  log.resize(log.find("end "));
  struct Case {
    const char *from, *to, *found;
  };
  for (const Case& c : {
           Case{"counted 3 from=20", "counted 3 from=21", "generations.log: line 8: steps 21 to 50"},
           Case{"prepare 1", "prepare 9223372036854775807", "line 2: \"9223372036854775807\" is no number from 0 to"},
           Case{"every=5", "every=9223372036854775807", "line 7: \"commit\" has no every=N"},
           Case{"prepare 2", "back 0", "line 4: it goes back to step 0"},
           Case{"commit 3", "commit 1", "line 7: generation 1 follows generation 1"},
           Case{"run name", "walk name", "line 1: "},
       }) {
    const std::string folder = NewFolder();
    Write(folder, Corrupted(log, c.from, c.to));
    const absl::Status status = GenerationLog::Open(folder, kRun).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.to;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(folder), HasSubstr(c.found),
                                                     HasSubstr("put back a whole copy of the file, or start a")))
        << c.to;
  }
}

// Its last lines are lost: snapshots are from steps that no generation of it has trained.
TEST(GenerationLogTest, StepsOfNoGenerationAreAnError) {
  const std::string log = GoodLog();
  for (const char* const end : {"prepare 1", "commit 3", "end "}) {
    const std::string folder = NewFolder();
    Write(folder, log.substr(0, log.find(end)));
    const auto opened = GenerationLog::Open(folder, kRun);
    ASSERT_TRUE(opened.ok()) << end << opened.status();
    const absl::Status status =
        (*opened)->Commit({.number = 9, .first_step = 60, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}});
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << end;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder), HasSubstr("has come to step 60"), HasSubstr("another --state_dir")));
    EXPECT_EQ(Content(folder), log.substr(0, log.find(end)));
  }
}

// A planted link would be written through.
TEST(GenerationLogTest, IsNeverALink) {
  const std::string folder = NewFolder();
  const std::string target = folder + "/elsewhere";
  ASSERT_EQ(symlink(target.c_str(), (folder + "/generations.log").c_str()), 0);
  EXPECT_FALSE(GenerationLog::Open(folder, kRun).ok());
  EXPECT_FALSE(std::filesystem::exists(target));
}

TEST(CheckExactlyOnceTest, AWholeLogPassesAndSoDoesThatOfARunThatGoesOn) {
  const std::string log = GoodLog();
  EXPECT_EQ(CheckExactlyOnce(log), absl::OkStatus());
  EXPECT_EQ(CheckExactlyOnce(log.substr(0, log.find("end "))), absl::OkStatus());
  EXPECT_EQ(CheckExactlyOnce(log.substr(0, log.size() - 3)), absl::OkStatus());
}

TEST(CheckExactlyOnceTest, FindsEachCorruption) {
  const std::string log = GoodLog();
  struct Case {
    const char *name, *from, *to, *found;
  };
  for (const Case& c : {
           Case{"leaf doubled", "leaves=0-2:00000000000000a1,2-4:",
                "leaves=0-2:00000000000000a1,2-4:00000000000000b2,2-4:", "counted 2 times"},
           Case{"leaf missing",
                "leaves=0-2:00000000000000a1,2-4:", "leaves=0-1:00000000000000a1,2-4:", "counted 0 times"},
           Case{"old generation", "counted 3 ", "counted 1 ", "was over"},
           Case{"overlap", "counted 3 from=20", "counted 3 from=19", "overlap"},
           Case{"gap", "counted 3 from=20", "counted 3 from=21", "leave a gap"},
           Case{"another worker", "leaves=0-2:00000000000000a1", "leaves=0-2:00000000000000b2", "is not worker"},
           Case{"never committed", "counted 3 ", "counted 7 ", "never committed"},
           Case{"too short", "end 50", "end 51", "steps up to 50"},
           Case{"back to the future", "prepare 3", "back 21", "goes back to step 21"},
           Case{"before the first step", "first=0", "first=5", "begins at step 0"},
           Case{"one generation twice", "commit 3", "commit 1", "generation 1 follows generation 1"},
       }) {
    const absl::Status status = CheckExactlyOnce(Corrupted(log, c.from, c.to));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.found)) << c.name;
  }
}

// The log's entries must not be lost if the machine loses power.
TEST(GenerationLogTest, EachEntryIsFlushedAndSoIsTheNameOfTheFile) {
  const std::string folder = NewFolder();
  TakeFlushCounts();
  const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, kRun).value();
  const FlushCounts opened = TakeFlushCounts();
  EXPECT_EQ(opened.folders, 1);
  EXPECT_EQ(opened.files, 1);
  EXPECT_TRUE(log->Prepare(3).ok());
  EXPECT_EQ(TakeFlushCounts().files, 1);
  EXPECT_TRUE(log->Commit({.number = 3, .workers = {1}, .leaf_owners = {0, 0, 0, 0}}).ok());
  EXPECT_EQ(TakeFlushCounts().files, 1);
  EXPECT_TRUE(log->End(10).ok());
  EXPECT_EQ(TakeFlushCounts().files, 1);
}

TEST(GenerationLogTest, AWriteThatFindsNoSpaceLeavesNothingAndMayBeTriedAgain) {
  const std::string folder = NewFolder();
  const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, kRun).value();
  const std::string before = Content(folder);
  void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
  rlimit all;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &all), 0);
  const rlimit few = {.rlim_cur = before.size() + 5, .rlim_max = all.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  const absl::Status full = log->Prepare(1);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &all), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_EQ(Content(folder), before) << "no half of a line";
  EXPECT_EQ(log->last_number(), 0);
  EXPECT_TRUE(log->Prepare(1).ok());
  EXPECT_TRUE(CheckExactlyOnce(Content(folder)).ok());
}

// Where the file system has no locks.
TEST(GenerationLogTest, AnotherWriterIsFound) {
  const std::string folder = NewFolder();
  const std::unique_ptr<GenerationLog> log = GenerationLog::Open(folder, kRun).value();
  EXPECT_TRUE(log->is_locked());
  EXPECT_TRUE(log->Prepare(1).ok());
  std::ofstream(folder + "/generations.log", std::ios::app) << "prepare 2\n";
  const absl::Status status = log->Prepare(3);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("another one writes there"), HasSubstr("--state_dir")));
}

}  // namespace
}  // namespace starring
