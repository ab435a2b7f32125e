#include "server/elastic/snapshot_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/atomic_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/elastic_state.pb.h"
#include "server/elastic/record_file.h"
#include "tests/server/elastic/counted_flushes.h"

namespace starring {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string NewFolder() {
  std::string folder = absl::StrCat(testing::TempDir(), "/snapshots.XXXXXX");
  return mkdtemp(folder.data());
}

SnapshotStore::Options TwoBuckets(const std::string& folder) {
  return {
      .folder = folder, .shard = 1, .shard_count = 2, .job = "ab12", .slice_elements = {48, 0, 16}, .vector_count = 1};
}

float ValueOf(int64_t step, int bucket, size_t vector, size_t i) {
  return static_cast<float>(1000 * step + 100 * bucket + 10 * static_cast<int>(vector)) + static_cast<float>(i) / 64;
}

void TakeBucket(SnapshotStore& store, int64_t step, int bucket, size_t elements) {
  std::vector<std::vector<float>> values(2, std::vector<float>(elements));
  for (size_t vector = 0; vector < 2; ++vector) {
    for (size_t i = 0; i < elements; ++i) values[vector][i] = ValueOf(step, bucket, vector, i);
  }
  const std::vector<std::span<const float>> spans(values.begin(), values.end());
  store.Take(step, bucket, spans);
}

void TakeAll(SnapshotStore& store, int64_t step) {
  TakeBucket(store, step, 0, 48);
  TakeBucket(store, step, 2, 16);
}

// The thread that writes waits at the file of `step` until Open: the file is a pipe that is not read yet.
class SlowFile {
 public:
  SlowFile(const std::string& folder, int64_t step)
      : path_(absl::StrFormat("%s/snapshot-1of2-%09d.%s.tmp", folder, step, ProcessMark())) {
    signal(SIGPIPE, SIG_IGN);  // a test that fails may close the pipe first
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
  }
  SlowFile(const SlowFile&) = delete;
  SlowFile& operator=(const SlowFile&) = delete;
  ~SlowFile() {
    if (reader_ < 0) Open();
    unlink(path_.c_str());  // a thread that comes as late as this does not wait
    close(reader_);
  }
  void Open() { reader_ = open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }

 private:
  const std::string path_;
  int reader_ = -1;
};

void ExpectWhole(const Snapshot& snapshot, int64_t step) {
  EXPECT_EQ(snapshot.step, step);
  ASSERT_EQ(snapshot.arrays.size(), 2u);
  for (size_t vector = 0; vector < 2; ++vector) {
    const std::span<const float> array = snapshot.arrays[vector].span();
    ASSERT_EQ(array.size(), 64u);
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(array[i], i < 48 ? ValueOf(step, 0, vector, i) : ValueOf(step, 2, vector, i - 48))
          << vector << " " << i;
    }
  }
}

// The writing thread needs a moment.
void AwaitDurable(SnapshotStore& store, int64_t step) {
  for (int i = 0; i < 1000; ++i) {
    if (std::ranges::count(store.durable(), step) > 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL() << "the snapshot of step " << step << " was not written";
}

TEST(SnapshotStoreTest, ASnapshotIsHeldWhenAllItsSlicesAreThere) {
  const auto store = SnapshotStore::Open(TwoBuckets("")).value();
  TakeBucket(*store, 10, 2, 16);
  TakeBucket(*store, 20, 2, 16);  // a bucket may be ahead of another
  EXPECT_THAT(store->held(), IsEmpty());
  TakeBucket(*store, 10, 0, 48);
  EXPECT_THAT(store->held(), ElementsAre(10));
  ExpectWhole(**store->Get(10), 10);
  EXPECT_EQ(store->Get(20).status().code(), absl::StatusCode::kNotFound);
  TakeBucket(*store, 20, 0, 48);
  EXPECT_THAT(store->held(), ElementsAre(10, 20));
  EXPECT_THAT(store->durable(), ElementsAre(10, 20));  // nothing but this process can lose them
}

TEST(SnapshotStoreTest, SideValuesArePartOfIt) {
  SnapshotStore::Options options = TwoBuckets("");
  options.has_side_values = true;
  const auto store = SnapshotStore::Open(options).value();
  TakeAll(*store, 10);
  EXPECT_THAT(store->held(), IsEmpty());
  store->SetSideValues(10, {1.5, 2.5});
  EXPECT_THAT(store->held(), ElementsAre(10));
  EXPECT_THAT((*store->Get(10))->side_values, ElementsAre(1.5, 2.5));
}

// A generation that has gone back computes the step again. The slices from before may have other bits.
TEST(SnapshotStoreTest, SlicesOfAStepThatWasUndoneAreForgotten) {
  const auto store = SnapshotStore::Open(TwoBuckets("")).value();
  TakeAll(*store, 10);
  TakeBucket(*store, 20, 0, 48);
  store->DropAfter(10);
  TakeBucket(*store, 20, 2, 16);
  EXPECT_THAT(store->held(), ElementsAre(10));
  TakeBucket(*store, 20, 0, 48);
  EXPECT_THAT(store->held(), ElementsAre(10, 20));
  ExpectWhole(**store->Get(20), 20);
}

// It would complete a snapshot over memory that another one has left.
TEST(SnapshotStoreTest, ASliceThatComesTwiceDoesNotStandForAnother) {
  const auto store = SnapshotStore::Open(TwoBuckets("")).value();
  for (int i = 0; i < 2; ++i) TakeBucket(*store, 10, 0, 48);
  EXPECT_THAT(store->held(), IsEmpty());
  TakeBucket(*store, 10, 2, 16);
  EXPECT_THAT(store->held(), ElementsAre(10));
  ExpectWhole(**store->Get(10), 10);
}

// The disk is slow, and the run goes back meanwhile.
TEST(SnapshotStoreTest, AStepThatIsUndoneWhileItIsWrittenIsNotOnTheDisk) {
  const std::string folder = NewFolder();
  const auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
  TakeAll(*store, 8);
  AwaitDurable(*store, 8);
  SlowFile slow(folder, 16);
  TakeAll(*store, 16);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the writing thread takes it, and shows it to nobody
  store->DropAfter(8);
  slow.Open();
  const std::string path = absl::StrFormat("%s/snapshot-1of2-%09d", folder, 16);
  const std::string unfinished = absl::StrCat(path, ".", ProcessMark(), ".tmp");
  for (int i = 0; i < 500 && (std::filesystem::exists(unfinished) || std::filesystem::exists(path)); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  TakeAll(*store, 64);
  AwaitDurable(*store, 64);
  EXPECT_THAT(store->durable(), ElementsAre(8, 64));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SnapshotStoreTest, AStepThatIsUndoneWhileItWaitsIsNotWritten) {
  const std::string folder = NewFolder();
  const auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
  SlowFile slow(folder, 8);
  TakeAll(*store, 8);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // as above
  TakeAll(*store, 16);
  store->DropAfter(16);  // a generation begins with it, so it is to be written
  store->DropAfter(8);   // the next one begins before it
  slow.Open();
  AwaitDurable(*store, 8);
  TakeAll(*store, 64);
  AwaitDurable(*store, 64);
  EXPECT_THAT(store->durable(), ElementsAre(8, 64));
}

TEST(SnapshotStoreTest, AFlippedBitInSideValuesIsFound) {
  const std::string folder = NewFolder();
  SnapshotStore::Options options = TwoBuckets(folder);
  options.has_side_values = true;
  {
    const auto store = SnapshotStore::Open(options).value();
    TakeAll(*store, 10);
    store->SetSideValues(10, {1, 2, 3});
    AwaitDurable(*store, 10);
  }
  std::fstream file(absl::StrFormat("%s/snapshot-1of2-%09d", folder, 10), std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('\x01');  // the last byte of a double
  file.close();
  std::string said;
  options.log = [&](const std::string& line) { said = line; };
  EXPECT_THAT(SnapshotStore::Open(options).value()->held(), IsEmpty());
  EXPECT_THAT(said, HasSubstr("its checksum is wrong"));
}

// Neither the bytes nor the name of a file may be lost with the machine's power.
TEST(SnapshotStoreTest, FilesThatSurviveTheMachineAreFlushedWithTheirFolder) {
  for (const bool flush : {false, true}) {
    SnapshotStore::Options options = TwoBuckets(NewFolder());
    options.flush = flush;
    const auto store = SnapshotStore::Open(options).value();
    TakeFlushCounts();
    for (const int64_t step : {8, 16}) {
      TakeAll(*store, step);
      AwaitDurable(*store, step);
    }
    const FlushCounts counts = TakeFlushCounts();
    EXPECT_EQ(counts.files, flush ? 2 : 0);
    EXPECT_EQ(counts.folders, flush ? 2 : 0);
  }
}

TEST(SnapshotStoreTest, TheUmaskDecidesWhoMayReadAndWrite) {
  const std::string folder = NewFolder();
  const mode_t before = umask(002);
  const auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
  TakeAll(*store, 8);
  AwaitDurable(*store, 8);
  umask(before);
  struct stat facts = {};
  ASSERT_EQ(stat((folder + "/snapshot-1of2-000000008").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0664);
}

TEST(SnapshotStoreTest, OneProcessHasAShardsFiles) {
  const std::string folder = NewFolder();
  auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
  SnapshotStore::Options other = TwoBuckets(folder);
  other.job = "another run";
  const absl::Status refused = SnapshotStore::Open(other).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("another process has the snapshots of shard 1 of 2 in --state"));
  other.shard = 0;
  EXPECT_TRUE(SnapshotStore::Open(other).ok());
  store.reset();
  EXPECT_TRUE(SnapshotStore::Open(TwoBuckets(folder)).ok());
}

TEST(SnapshotStoreTest, MemoryIsBounded) {
  const auto store = SnapshotStore::Open(TwoBuckets("")).value();
  for (int64_t step = 1; step <= 10; ++step) TakeAll(*store, step);
  EXPECT_THAT(store->held(), ElementsAre(8, 9, 10));
  for (const int64_t step : store->held()) ExpectWhole(**store->Get(step), step);
  // Whoever reads one keeps it.
  const std::shared_ptr<const Snapshot> read = *store->Get(8);
  for (int64_t step = 11; step <= 20; ++step) TakeAll(*store, step);
  ExpectWhole(*read, 8);
}

// As a worker may be that sends what no step needs yet, while the disk writes nothing.
TEST(SnapshotStoreTest, MemoryIsBoundedWhateverIsTaken) {
  constexpr int64_t kSnapshotBytes = 2 * 64 * sizeof(float);
  const std::string folder = NewFolder();
  SnapshotStore::Options options = TwoBuckets(folder);
  options.has_side_values = true;
  const auto store = SnapshotStore::Open(options).value();
  EXPECT_EQ(store->bytes_in_memory(), 0);
  SlowFile file(folder, 1);
  const auto take = [&](int64_t step) {
    TakeAll(*store, step);
    store->SetSideValues(step, {0.5});
  };
  take(1);
  take(2);
  store->DropAfter(2);  // waits to be written
  for (int64_t step = 3; step < 20; ++step) take(step);
  for (int64_t step = 20; step < 40; ++step) TakeBucket(*store, step, 2, 16);
  for (int64_t step = 40; step < 60; ++step) store->SetSideValues(step, {0.5});
  const std::shared_ptr<const Snapshot> read = *store->Get(17);
  EXPECT_THAT(store->held(), ElementsAre(17, 18, 19));
  EXPECT_LE(store->bytes_in_memory(), (SnapshotStore::kAliveMax - 1) * kSnapshotBytes);  // and one that others hold
  // The newest two can become complete, and older ones take no place of theirs.
  store->SetSideValues(20, {0.5});
  for (const int64_t step : {58, 59}) TakeAll(*store, step);
  EXPECT_THAT(store->held(), ElementsAre(19, 58, 59));
  EXPECT_LE(store->bytes_in_memory(), (SnapshotStore::kAliveMax - 1) * kSnapshotBytes);
}

// As a worker may ask for, one after the other, where another shard writes nothing.
TEST(SnapshotStoreTest, MemoryIsBoundedWhateverIsRead) {
  constexpr int64_t kSnapshotBytes = 2 * 64 * sizeof(float);
  const std::string folder = NewFolder();
  {
    const auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
    for (int64_t step = 1; step <= SnapshotStore::kFilesMax; ++step) {
      TakeAll(*store, step);
      AwaitDurable(*store, step);
    }
  }
  const auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
  ASSERT_EQ(std::ssize(store->held()), SnapshotStore::kFilesMax);
  for (const int64_t step : store->held()) {
    const std::shared_ptr<const Snapshot> snapshot = store->Get(step).value();
    ExpectWhole(*snapshot, step);
    EXPECT_EQ(store->bytes_in_memory(), kSnapshotBytes);  // of the one that is held here
    EXPECT_EQ(store->Get(step).value(), snapshot);
  }
  EXPECT_EQ(store->bytes_in_memory(), 0);
  EXPECT_EQ(std::ssize(store->held()), SnapshotStore::kFilesMax);
}

TEST(SnapshotStoreTest, MemoryIsUsedAgain) {
  const auto store = SnapshotStore::Open(TwoBuckets("")).value();
  for (int64_t step = 1; step <= 4; ++step) TakeAll(*store, step);
  const int64_t bytes = store->bytes_in_memory();
  for (int64_t step = 5; step <= 20; ++step) {
    store->DropBefore(step - 2);
    TakeBucket(*store, step, 0, 48);
    EXPECT_EQ(store->bytes_in_memory(), bytes);
    TakeBucket(*store, step, 2, 16);
  }
}

TEST(SnapshotStoreTest, AnotherProcessFindsTheFiles) {
  const std::string folder = NewFolder();
  {
    SnapshotStore::Options options = TwoBuckets(folder);
    options.has_side_values = true;
    const auto store = SnapshotStore::Open(options).value();
    TakeAll(*store, 10);
    store->SetSideValues(10, {3.25});
    AwaitDurable(*store, 10);
    TakeAll(*store, 20);
    store->SetSideValues(20, {4.25});
  }  // finishes the file
  SnapshotStore::Options options = TwoBuckets(folder);
  options.has_side_values = true;
  auto store = SnapshotStore::Open(options).value();
  EXPECT_THAT(store->held(), ElementsAre(10, 20));
  for (const int64_t step : {10, 20}) {
    const auto snapshot = store->Get(step);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    ExpectWhole(**snapshot, step);
  }
  EXPECT_THAT((*store->Get(20))->side_values, ElementsAre(4.25));
  store.reset();
  // Others' are left alone.
  for (auto change :
       {+[](SnapshotStore::Options& o) { o.job = "cd34"; }, +[](SnapshotStore::Options& o) { o.shard = 0; },
        +[](SnapshotStore::Options& o) { o.slice_elements[0] = 64; }}) {
    SnapshotStore::Options other = options;
    change(other);
    EXPECT_THAT(SnapshotStore::Open(other).value()->held(), IsEmpty());
  }
  EXPECT_THAT(SnapshotStore::Open(options).value()->held(), ElementsAre(10, 20));
}

TEST(SnapshotStoreTest, DamageIsFound) {
  const std::string folder = NewFolder();
  { TakeAll(*SnapshotStore::Open(TwoBuckets(folder)).value(), 10); }
  const std::string path = folder + "/snapshot-1of2-000000010";
  ASSERT_TRUE(std::filesystem::exists(path));
  const auto size = std::filesystem::file_size(path);
  for (const int64_t at : {int64_t{520}, static_cast<int64_t>(size) - 1}) {
    auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
    file.close();
    EXPECT_THAT(store->held(), ElementsAre(10));
    EXPECT_EQ(store->Get(10).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(store->held(), IsEmpty());
    store.reset();
    // A process that comes later passes it over, and says so.
    std::vector<std::string> said;
    SnapshotStore::Options options = TwoBuckets(folder);
    options.log = [&](const std::string& line) { said.push_back(line); };
    EXPECT_THAT(SnapshotStore::Open(options).value()->held(), IsEmpty());
    EXPECT_THAT(said, ElementsAre(testing::AllOf(HasSubstr(path), HasSubstr("checksum"), HasSubstr("passed over"))));
    std::fstream mend(path, std::ios::in | std::ios::out | std::ios::binary);
    mend.seekp(at);
    mend.put(byte);
  }
  EXPECT_THAT(SnapshotStore::Open(TwoBuckets(folder)).value()->held(), ElementsAre(10));
  for (const uintmax_t bytes : {size - 4, uintmax_t{100}}) {
    std::filesystem::resize_file(path, bytes);
    EXPECT_THAT(SnapshotStore::Open(TwoBuckets(folder)).value()->held(), IsEmpty());
  }
  // A file that a process had not finished is removed by the next process.
  const std::string unfinished = path + ".4711.tmp";
  std::ofstream(unfinished) << "half";
  EXPECT_THAT(SnapshotStore::Open(TwoBuckets(folder)).value()->held(), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(unfinished));
}

// The size in a damaged head is compared with the file before memory is taken for it.
TEST(SnapshotStoreTest, AHeadDoesNotDecideHowMuchMemoryIsTaken) {
  const std::string folder = NewFolder();
  { TakeAll(*SnapshotStore::Open(TwoBuckets(folder)).value(), 10); }
  const std::string path = folder + "/snapshot-1of2-000000010";
  std::string head(512, '\0');
  std::ifstream(path, std::ios::binary).read(head.data(), std::ssize(head));
  const absl::string_view first_line = "starring-snapshot-2\n";
  absl::string_view rest = head;
  ASSERT_TRUE(absl::ConsumePrefix(&rest, first_line));
  v1::SnapshotHead proto;
  ASSERT_TRUE(TakeRecord(rest, proto).value());
  EXPECT_EQ(proto.step(), 10);
  for (const int64_t count : {int64_t{1}, int64_t{1'000'000}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    proto.set_side_values(count);
    std::string damaged = absl::StrCat(first_line, ToRecord(proto));
    damaged.resize(head.size());
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).write(damaged.data(), std::ssize(damaged));
    std::vector<std::string> said;
    SnapshotStore::Options options = TwoBuckets(folder);
    options.log = [&](const std::string& line) { said.push_back(line); };
    EXPECT_THAT(SnapshotStore::Open(options).value()->held(), IsEmpty()) << count;
    EXPECT_THAT(said, ElementsAre(testing::AllOf(HasSubstr(path), HasSubstr("its head does not say")))) << count;
  }
}

TEST(SnapshotStoreTest, ADamagedHeadIsFound) {
  const std::string folder = NewFolder();
  { TakeAll(*SnapshotStore::Open(TwoBuckets(folder)).value(), 10); }
  const std::string path = folder + "/snapshot-1of2-000000010";
  for (const int at : {0, 20, 24, 28, 32, 40}) {  // the first line, and a record's length, checksums and message
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto flip = [&] {
      file.seekg(at);
      const char byte = static_cast<char>(file.get() ^ 1);
      file.seekp(at);
      file.put(byte).flush();
    };
    flip();
    std::vector<std::string> said;
    SnapshotStore::Options options = TwoBuckets(folder);
    options.log = [&](const std::string& line) { said.push_back(line); };
    EXPECT_THAT(SnapshotStore::Open(options).value()->held(), IsEmpty()) << at;
    EXPECT_THAT(said, ElementsAre(testing::AllOf(HasSubstr(path), HasSubstr("is damaged"), HasSubstr("passed over"))))
        << at;
    flip();
  }
  EXPECT_THAT(SnapshotStore::Open(TwoBuckets(folder)).value()->held(), ElementsAre(10));
}

// The log of its run is of another version, too.
TEST(SnapshotStoreTest, TheFilesOfAnotherVersionAreRefusedAndLeftAsTheyAre) {
  const std::string folder = NewFolder();
  const std::string path = folder + "/snapshot-1of2-000000010";
  std::string old = "starring-snapshot-1 job=ab12 shard=1/2 step=10 elements=64 arrays=2 side=0 crc=00000000\n";
  old.resize(512 + 2 * 64 * sizeof(float));
  std::ofstream(path, std::ios::binary) << old;
  const absl::Status status = SnapshotStore::Open(TwoBuckets(folder)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr(path), HasSubstr("it begins with \"starring-snapshot-1 \""),
                             HasSubstr("writes \"starring-snapshot-2\""), HasSubstr("with an empty --state_dir")));
  EXPECT_EQ(std::filesystem::file_size(path), old.size());
}

TEST(SnapshotStoreTest, DropsWhatNobodyNeeds) {
  const std::string folder = NewFolder();
  const auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
  for (const int64_t step : {10, 20, 30}) {
    TakeAll(*store, step);
    AwaitDurable(*store, step);
  }
  store->DropBefore(20);
  EXPECT_THAT(store->held(), ElementsAre(20, 30));
  EXPECT_FALSE(std::filesystem::exists(folder + "/snapshot-1of2-000000010"));
  store->DropAfter(20);
  EXPECT_THAT(store->held(), ElementsAre(20));
  EXPECT_FALSE(std::filesystem::exists(folder + "/snapshot-1of2-000000030"));
  TakeAll(*store, 30);
  AwaitDurable(*store, 30);
  ExpectWhole(**store->Get(30), 30);
}

TEST(SnapshotStoreTest, ASlowDiskGetsTheStepsThatOtherShardsWrite) {
  const std::string folder = NewFolder();
  const auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
  SlowFile file(folder, 1);
  for (int64_t step = 1; step <= 6; ++step) TakeAll(*store, step);
  file.Open();
  AwaitDurable(*store, 1);
  TakeAll(*store, 7);  // level 0, but the disk has missed others of that level
  TakeAll(*store, 8);
  AwaitDurable(*store, 8);
  EXPECT_THAT(store->durable(), ElementsAre(1, 8));
}

// A planned end of a generation is at a snapshot that a busy disk may have left out, or not begun to write.
TEST(SnapshotStoreTest, WhatAGenerationBeginsWithIsWritten) {
  for (const int64_t start : {20, 30}) {
    const std::string folder = NewFolder();
    const auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
    SlowFile file(folder, 10);
    for (const int64_t step : {10, 20, 30}) TakeAll(*store, step);
    store->DropAfter(start);
    store->DropAfter(start);
    file.Open();
    AwaitDurable(*store, start);
  }
}

TEST(SnapshotStoreTest, FilesAreFewWhileAnotherShardWritesNone) {
  const std::string folder = NewFolder();
  const auto store = SnapshotStore::Open(TwoBuckets(folder)).value();
  for (int64_t step = 1; step <= 60; ++step) {
    TakeAll(*store, step);
    AwaitDurable(*store, step);
    if (step == 3) store->DropBefore(3);
  }
  // The step that all shards have, and for a shard of any speed the step that it writes next.
  EXPECT_THAT(store->durable(), testing::IsSupersetOf({3, 32, 48, 56, 58, 59, 60}));
  EXPECT_EQ(std::ssize(store->durable()), SnapshotStore::kFilesMax);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()),
            SnapshotStore::kFilesMax + 1);  // and the lock
  store->DropBefore(48);
  EXPECT_EQ(store->durable().front(), 48);
}

TEST(SnapshotStoreTest, ADiskThatIsFullCostsDurabilityAlone) {
  const std::string folder = NewFolder();
  std::vector<std::string> said;
  SnapshotStore::Options options = TwoBuckets(folder);
  options.log = [&](const std::string& line) { said.push_back(line); };
  const auto store = SnapshotStore::Open(options).value();
  // Nothing can be created in a folder that is gone.
  std::filesystem::remove_all(folder);
  for (int64_t step = 1; step <= 5; ++step) {
    TakeAll(*store, step);
    for (int i = 0; i < 200 && said.empty(); ++i) {
      EXPECT_THAT(store->durable(), IsEmpty());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  EXPECT_THAT(store->held(), ElementsAre(3, 4, 5));
  ExpectWhole(**store->Get(4), 4);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("in memory only"));
}

TEST(SnapshotStoreTest, ADiskThatFailsAgainIsSaidAgain) {
  const std::string folder = NewFolder();
  std::vector<std::string> said;
  SnapshotStore::Options options = TwoBuckets(folder);
  options.log = [&](const std::string& line) { said.push_back(line); };
  const auto store = SnapshotStore::Open(options).value();
  const auto fail = [&](int64_t step, size_t lines) {
    std::filesystem::remove_all(folder);
    TakeAll(*store, step);
    for (int i = 0; i < 1000 && said.size() < lines; ++i) {
      store->durable();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(said.size(), lines);
  };
  fail(1, 1);
  std::filesystem::create_directories(folder);
  TakeAll(*store, 2);
  AwaitDurable(*store, 2);
  fail(4, 2);
}

}  // namespace
}  // namespace starring
