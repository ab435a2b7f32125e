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
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/elastic_state.pb.h"
#include "server/elastic/record_file.h"
#include "tests/server/elastic/counted_flushes.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kFirstLine[] = "starring-generations-2\n";

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
  std::ofstream(folder + "/generations.log", std::ios::trunc | std::ios::binary) << text;
}

// The records of a log's bytes as --print_log prints them, one a line.
std::string Printed(const std::string& log) {
  const std::string folder = NewFolder();
  Write(folder, log);
  std::string text;
  (void)GenerationLog::Print(folder, [&](const std::string& line) { absl::StrAppend(&text, line, "\n"); });
  return text;
}

// The reverse.
std::string Logged(const std::string& text) {
  std::string log = kFirstLine;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n', absl::SkipEmpty()))) {
    v1::GenerationLogEntry entry;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(line, &entry)) << line;
    log += ToRecord(entry);
  }
  return log;
}

// Replaces `from` in a log that is right otherwise, as a coordinator with a defect would.
std::string Corrupted(const std::string& log, const std::string& from, const std::string& to) {
  std::string text = Printed(log);
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from << " is not in\n" << text;
  if (at != text.npos) text.replace(at, from.size(), to);
  return Logged(text);
}

// Where a record begins that is printed with `text`.
size_t PlaceOf(const std::string& log, const std::string& text) {
  const std::string lines = Printed(log);
  const size_t at = lines.find(text);
  EXPECT_NE(at, lines.npos) << text << " is not in\n" << lines;
  return Logged(lines.substr(0, lines.rfind('\n', at) + 1)).size();
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
  EXPECT_THAT(Printed(Content(folder)), AllOf(HasSubstr("counted { generation: 1 from: 0 to: 20 shards: [80, -1] }"),
                                              HasSubstr("from: 20 to: 50 shards: [120, 120] }")));
  const absl::Status status = CheckExactlyOnce(Corrupted(Content(folder), "shards: [120, 120]", "shards: [120, 116]"));
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
  EXPECT_THAT(Printed(Content(folder)), HasSubstr("commit { generation: 3 first_step: 10 snapshot"));
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
  EXPECT_THAT(Printed(Content(folder)),
              HasSubstr("counted { generation: 1 from: 0 to: 40 } generation: 2 first_step: 10"));
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
  ASSERT_TRUE(GenerationLog::Open(folder, run("ab", "f1", "data-1")).ok());
  EXPECT_TRUE(GenerationLog::Open(folder, run("ab", "f1", "data-1")).ok());
  EXPECT_THAT(refusal(run("cd", "f2", "data-2")),
              AllOf(HasSubstr("its digest of flags is f1, this run's f2: give the same flags"),
                    HasSubstr("another --state_dir"), Not(HasSubstr("data-2"))));
  EXPECT_THAT(refusal(run("cd", "f1", "data-2")),
              HasSubstr("its digest of data is data-1, this run's data-2: give the same f"));
  // Something else has changed: the parts do not tell.
  EXPECT_THAT(refusal(run("cd", "f1", "data-1")),
              AllOf(HasSubstr("flags, model, data, and the instruction set and libraries"), HasSubstr("is ab, this")));
}

TEST(GenerationLogTest, RefusesTheLogOfAnotherRunAndOfOneThatHasEnded) {
  const std::string folder = NewFolder();
  ASSERT_TRUE(GenerationLog::Open(folder, kRun).ok());
  GenerationLog::Run other = kRun;
  other.leaves = 8;
  EXPECT_THAT(std::string(GenerationLog::Open(folder, other).status().message()),
              AllOf(HasSubstr("another run"), HasSubstr("leaves is 4"), HasSubstr("this run's 8"),
                    HasSubstr("with the flags of the run in the log, or name another --state_dir")));
  EXPECT_EQ(GenerationLog::Peek(folder).progress, GenerationLog::Progress::kNone) << "no generation has begun";
  EXPECT_EQ(GenerationLog::UnfinishedRun(folder), kRun.name);
  {
    const auto log = GenerationLog::Open(folder, kRun).value();
    EXPECT_EQ(log->Prepare(1), absl::OkStatus());
    EXPECT_EQ(log->Commit({.number = 1, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}}), absl::OkStatus());
    EXPECT_EQ(GenerationLog::Peek(folder).progress, GenerationLog::Progress::kBegun);
    EXPECT_EQ(log->End(10), absl::OkStatus());
  }
  EXPECT_EQ(GenerationLog::Peek(folder).progress, GenerationLog::Progress::kEnded);
  EXPECT_EQ(GenerationLog::Peek(folder).name, kRun.name);
  EXPECT_EQ(GenerationLog::UnfinishedRun(folder), "");
  EXPECT_EQ(GenerationLog::Peek(folder + "/missing").progress, GenerationLog::Progress::kNone);
  EXPECT_EQ(GenerationLog::Peek(folder + "/missing").name, "");
  EXPECT_EQ(GenerationLog::UnfinishedRun(folder + "/missing"), "");
  EXPECT_THAT(std::string(GenerationLog::Open(folder, kRun).status().message()), HasSubstr("the run has ended"));
  // The end's record was cut off.
  Write(folder, Content(folder).substr(0, Content(folder).size() - 1));
  EXPECT_EQ(GenerationLog::UnfinishedRun(folder), kRun.name);
}

// The servers name the damage, and do so only if they are started with the run's name.
TEST(GenerationLogTest, ADamagedLogStillHasAName) {
  const std::string folder = NewFolder();
  { ASSERT_TRUE(GenerationLog::Open(folder, kRun).value()->Prepare(1).ok()); }
  std::string damaged = Content(folder);
  damaged.back() = static_cast<char>(damaged.back() ^ 4);
  Write(folder, damaged);
  EXPECT_EQ(GenerationLog::UnfinishedRun(folder), kRun.name);
}

TEST(GenerationLogTest, DropsARecordThatWasCutOffAndNoOther) {
  const std::string folder = NewFolder();
  { ASSERT_TRUE(GenerationLog::Open(folder, kRun).value()->Prepare(1).ok()); }
  const std::string before = Content(folder);
  const std::string more = Logged("prepare: 2").substr(sizeof(kFirstLine) - 1);
  // A machine that lost its power may have left zeros.
  for (const std::string& rest : {more.substr(0, 1), more.substr(0, more.size() - 1), std::string(9000, '\0')}) {
    Write(folder, before + rest);
    const auto log = GenerationLog::Open(folder, kRun);
    ASSERT_TRUE(log.ok()) << log.status();
    EXPECT_EQ((*log)->last_number(), 1);
    EXPECT_EQ(Content(folder), before);
    ASSERT_TRUE((*log)->Prepare(2).ok());
    EXPECT_EQ(Content(folder), before + more);
  }
  for (size_t i = 0; i < before.size(); ++i) {
    std::string damaged = before;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    Write(folder, damaged);
    EXPECT_FALSE(GenerationLog::Open(folder, kRun).ok()) << i;
    EXPECT_EQ(Content(folder), damaged) << i;
  }
}

// The coordinator has died in its first write. A log that does not say what the run is has no run yet.
TEST(GenerationLogTest, AFirstRecordThatWasCutOffIsWrittenAgain) {
  const std::string folder = NewFolder();
  GenerationLog::Run run = kRun;
  run.first_step = 100;
  { ASSERT_TRUE(GenerationLog::Open(folder, run).ok()); }
  const std::string whole = Content(folder);
  for (size_t size = 0; size < whole.size(); ++size) {
    Write(folder, whole.substr(0, size));
    EXPECT_EQ(GenerationLog::Peek(folder).name, "") << size;
    const auto log = GenerationLog::Open(folder, run);
    ASSERT_TRUE(log.ok()) << size << ": " << log.status();
    EXPECT_EQ(Content(folder), whole) << size;
    EXPECT_EQ((*log)->first_step(), 100) << size;
    EXPECT_EQ((*log)->counted_end(), 100) << size;
    EXPECT_FALSE((*log)->last().has_value()) << size;
  }
}

// Version 1 was text.
TEST(GenerationLogTest, AnotherVersionIsRefusedAndLeftAsItIs) {
  const std::string folder = NewFolder();
  for (const std::string begin : {"run name=a%20run leaves=4 shards=2 job=ab12 first=0", "starring-generations-3"}) {
    Write(folder, begin + "\nmore\n");
    const absl::Status status = GenerationLog::Open(folder, kRun).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "a restart cannot help";
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder), HasSubstr("it begins with \"" + begin.substr(0, 20)),
                      HasSubstr("writes \"starring-generations-2"), HasSubstr("with an empty --state_dir, or go on")));
    EXPECT_EQ(Content(folder), begin + "\nmore\n");
    EXPECT_EQ(GenerationLog::Peek(folder).name, "");
    EXPECT_EQ(CheckExactlyOnce(Content(folder)).code(), absl::StatusCode::kInvalidArgument);
  }
}

// A coordinator that went on with it could not end its run, and one that adds to such numbers would overflow.
TEST(GenerationLogTest, ADamagedLogIsRefusedWithFilePlaceAndWayOut) {
  std::string log = GoodLog();
  log.resize(PlaceOf(log, "end {"));
  struct Case {
    const char *from, *to, *place, *found;
  };
  for (const Case& c : {
           Case{"from: 0 to: 20", "from: 1 to: 20", "commit { counted",
                "steps 1 to 20 follow step 0: they leave a gap"},
           Case{"prepare: 1", "prepare: 9223372036854775807", "prepare: 1", "9223372036854775807 is no number from 0"},
           Case{"every: 5", "every: 9223372036854775807", "commit { counted",
                "9223372036854775807 is no number from 0"},
           Case{"every: 5", "every: 0", "commit { counted", "generation 3 does not give each of 4 leaves to a worker"},
           Case{"generation: 3", "generation: 1", "commit { counted", "generation 1 follows generation 1"},
           Case{"prepare: 2", " ", "prepare: 2", "it is no record of this build"},
       }) {
    const std::string folder = NewFolder();
    const size_t place = PlaceOf(log, c.place);
    Write(folder, Corrupted(log, c.from, c.to));
    const absl::Status status = GenerationLog::Open(folder, kRun).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.to;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat(folder, "/generations.log: record at byte ", place, ": ", c.found)),
                      HasSubstr("put back a whole copy of the file, or start a")))
        << c.to;
  }
}

// Its records are lost: snapshots are from steps that no generation of it has trained.
TEST(GenerationLogTest, StepsOfNoGenerationAreAnError) {
  const std::string folder = NewFolder();
  const std::string log = GoodLog().substr(0, PlaceOf(GoodLog(), "prepare: 1"));
  Write(folder, log);
  const auto opened = GenerationLog::Open(folder, kRun);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const absl::Status status =
      (*opened)->Commit({.number = 9, .first_step = 60, .workers = {0xa1}, .leaf_owners = {0, 0, 0, 0}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder), HasSubstr("has come to step 60"), HasSubstr("another --state_dir")));
  EXPECT_EQ(Content(folder), log);
}

TEST(GenerationLogTest, IsPrintedAsFarAsItCanBeRead) {
  const std::string folder = NewFolder();
  const auto print = [&](std::vector<std::string>* lines) {
    return GenerationLog::Print(folder, [&](const std::string& line) { lines->push_back(line); });
  };
  std::vector<std::string> lines;
  EXPECT_EQ(print(&lines).code(), absl::StatusCode::kNotFound);
  Write(folder, GoodLog());
  EXPECT_EQ(print(&lines), absl::OkStatus());
  EXPECT_THAT(
      lines,
      ElementsAre("run { name: \"a run/1\" leaves: 4 shards: 2 job: \"ab12\" first_step: 0 }", "prepare: 1",
                  "commit { generation: 1 first_step: 0 snapshot_every: 1 workers: [161] leaf_owners: [0, 0, 0, 0] }",
                  "prepare: 2", "prepare: 3",
                  "commit { counted { generation: 1 from: 0 to: 20 } generation: 3 first_step: 20 snapshot_every: 5 "
                  "workers: [161, 178] leaf_owners: [0, 0, 1, 1] }",
                  "end { counted { generation: 3 from: 20 to: 50 } step: 50 }"));
  // The records are whole, and prove nothing.
  lines.clear();
  Write(folder, Corrupted(GoodLog(), "step: 50", "step: 51"));
  EXPECT_THAT(std::string(print(&lines).message()), AllOf(HasSubstr(folder), HasSubstr("the run ends at step 51")));
  EXPECT_EQ(lines.size(), 7u);
  lines.clear();
  std::string damaged = GoodLog();
  damaged[PlaceOf(damaged, "prepare: 3")] ^= 1;
  Write(folder, damaged);
  EXPECT_THAT(std::string(print(&lines).message()), HasSubstr("the checksum of its length is wrong"));
  EXPECT_EQ(lines.size(), 4u);
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
  EXPECT_EQ(CheckExactlyOnce(log.substr(0, PlaceOf(log, "end {"))), absl::OkStatus());
  EXPECT_EQ(CheckExactlyOnce(log.substr(0, log.size() - 3)), absl::OkStatus());
}

TEST(CheckExactlyOnceTest, FindsEachCorruption) {
  const std::string log = GoodLog();
  struct Case {
    const char *name, *from, *to, *found;
  };
  for (const Case& c : {
           Case{"leaf missing", "[0, 0, 1, 1]", "[0, 0, 1]", "does not give each of 4 leaves to a worker"},
           Case{"leaf too many", "[0, 0, 1, 1]", "[0, 0, 1, 1, 1]", "does not give each of 4 leaves to a worker"},
           Case{"no worker", "[0, 0, 1, 1]", "[0, 0, 1, 2]", "does not give each of 4 leaves to a worker"},
           Case{"old generation", "generation: 3 from", "generation: 1 from", "is not the last one"},
           Case{"overlap", "from: 20", "from: 19", "overlap"},
           Case{"gap", "from: 20", "from: 21", "leave a gap"},
           Case{"nothing", "from: 20 to: 50", "from: 20 to: 20", "steps 20 to 20"},
           Case{"never committed", "generation: 3 from", "generation: 7 from", "is not the last one"},
           Case{"too short", "step: 50", "step: 51", "steps up to 50"},
           Case{"forward", "first_step: 20", "first_step: 21", "begins at step 21, steps from 0 to 20 have counted"},
           Case{"before the first step", "first_step: 0 }", "first_step: 5 }", "begins at step 0"},
           Case{"one generation twice", "generation: 3 first", "generation: 1 first", "generation 1 follows"},
           Case{"no run", "run { name: \"a run/1\" leaves: 4 shards: 2 job: \"ab12\" first_step: 0 }", "prepare: 0",
                "the log says first, and once, what the run is"},
           Case{"another run", "prepare: 2", "run { leaves: 4 }", "says first, and once, what the run is"},
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
  EXPECT_EQ(Content(folder), before) << "no half of a record";
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
