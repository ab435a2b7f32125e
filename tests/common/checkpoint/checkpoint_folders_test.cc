#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/checkpoint/folder_fixture.h"

namespace {

// The errno that fsync of a folder reports; 0: the system's own fsync runs.
std::atomic<int> folder_flush_errno = 0, lock_errno = 0;

}  // namespace

// In place of the C library's: no file system of a build machine refuses to flush a folder.
extern "C" int fsync(int file) {
  struct stat status = {};
  if (folder_flush_errno != 0 && fstat(file, &status) == 0 && S_ISDIR(status.st_mode)) {
    errno = folder_flush_errno;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, file));
}

extern "C" int flock(int file, int operation) {
  if (lock_errno != 0) {
    errno = lock_errno;
    return -1;
  }
  return static_cast<int>(syscall(SYS_flock, file, operation));
}

namespace starring {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CheckpointFoldersTest : public FolderTest {
 protected:
  absl::Status Publish(int64_t step, const std::string& content) {
    return PublishFolder(dir_, step, [&](const std::string& folder) {
      std::ofstream(folder + "/content") << content;
      return absl::OkStatus();
    });
  }
  static std::string Content(const std::string& folder) {
    std::ifstream file(folder + "/content");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    for (const CheckpointFolder& folder : ListCheckpointFolders(dir_)) steps.push_back(folder.step);
    return steps;
  }
};

TEST_F(CheckpointFoldersTest, NewestFirstWhateverTheNumberOfDigits) {
  EXPECT_THAT(Steps(), IsEmpty());
  // The names of steps are padded to nine digits. Sorted as text, a longer one would come before 200000000.
  for (const int64_t step : {int64_t{9}, int64_t{1234567890123}, int64_t{0}, int64_t{200000000}, int64_t{100}}) {
    ASSERT_TRUE(Publish(step, "x").ok());
  }
  EXPECT_THAT(Steps(), ElementsAre(1234567890123, 200000000, 100, 9, 0));
}

TEST_F(CheckpointFoldersTest, OneProcessAtATimeHasTheLock) {
  const std::string deep = dir_ + "/made/on/the/way";
  {
    const auto first = FolderLock::Take(deep, absl::ZeroDuration());
    ASSERT_TRUE(first.ok()) << first.status();
    const auto second = FolderLock::Take(deep, absl::Milliseconds(60));
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr(deep));
    EXPECT_TRUE(FolderLock::Take(dir_, absl::ZeroDuration()).ok());
  }
  EXPECT_TRUE(FolderLock::Take(deep, absl::ZeroDuration()).ok());
  EXPECT_TRUE(ListCheckpointFolders(deep).empty());
}

// The code of a taken lock, by which a run that goes on leaves, is no other trouble's.
TEST_F(CheckpointFoldersTest, AnUnfitFolderIsNotTakenByAnotherJob) {
  ASSERT_TRUE(CreateFolders(dir_).ok());
  const std::string file = dir_ + "/file";
  std::ofstream(file) << "no folder";
  for (const std::string& folder : {file, file + "/below"}) {
    const absl::Status status = FolderLock::Take(folder, absl::ZeroDuration()).status();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  }
}

TEST_F(CheckpointFoldersTest, TheUmaskDecidesWhoMayTakeTheLock) {
  const mode_t before = umask(002);
  const auto lock = FolderLock::Take(dir_ + "/shared", absl::ZeroDuration());
  umask(before);
  ASSERT_TRUE(lock.ok()) << lock.status();
  struct stat facts = {};
  ASSERT_EQ(stat((dir_ + "/shared/.lock").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0664);
}

// As NFS may be.
TEST_F(CheckpointFoldersTest, AFileSystemWithoutLocksIsTold) {
  EXPECT_TRUE(FolderLock::Take(dir_, absl::ZeroDuration())->is_held());
  lock_errno = ENOLCK;
  const absl::StatusOr<FolderLock> first = FolderLock::Take(dir_, absl::ZeroDuration());
  const absl::StatusOr<FolderLock> second = FolderLock::Take(dir_, absl::ZeroDuration());
  lock_errno = 0;
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_FALSE(first->is_held());
  EXPECT_FALSE(second->is_held());
}

TEST_F(CheckpointFoldersTest, LocksOfOtherNamesAreOthers) {
  const absl::StatusOr<FolderLock> first = FolderLock::Take(dir_, absl::ZeroDuration(), ".lock-shard-0of2");
  const absl::StatusOr<FolderLock> second = FolderLock::Take(dir_, absl::ZeroDuration(), ".lock-shard-1of2");
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(FolderLock::Take(dir_, absl::ZeroDuration(), ".lock-shard-1of2").ok());
}

TEST_F(CheckpointFoldersTest, OtherNamesAreNotTaken) {
  for (const char* name : {"step-", "step-1x", "step--1", "step-9999999999999999999", "Step-1", "step-2.old", "x"}) {
    fs::create_directories(dir_ + "/" + name);
  }
  std::ofstream(dir_ + "/step-000000003") << "a file";
  EXPECT_THAT(Steps(), IsEmpty());
}

TEST_F(CheckpointFoldersTest, TheSameStepIsReplaced) {
  ASSERT_TRUE(Publish(5, "old").ok());
  ASSERT_TRUE(Publish(5, "other").ok());
  EXPECT_EQ(Content(dir_ + "/step-000000005"), "other");
  EXPECT_THAT(Names(), ElementsAre("step-000000005"));
}

TEST_F(CheckpointFoldersTest, AFailedFillLeavesWhatWasThere) {
  ASSERT_TRUE(Publish(5, "old").ok());
  const absl::Status status = PublishFolder(dir_, 5, [](const std::string& folder) {
    std::ofstream(folder + "/content") << "half";
    return absl::ResourceExhaustedError("full");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Content(dir_ + "/step-000000005"), "old");
  EXPECT_THAT(Names(), ElementsAre("step-000000005"));
}

TEST_F(CheckpointFoldersTest, LeftoversOfACrashAreCleared) {
  ASSERT_TRUE(Publish(1, "x").ok());
  fs::create_directories(dir_ + "/.writing-step-000000002");
  fs::create_directories(dir_ + "/.replaced-step-000000001");
  EXPECT_THAT(Steps(), ElementsAre(1, 1)) << "a replaced folder counts, after its successor";
  EXPECT_EQ(ListCheckpointFolders(dir_)[0].path, dir_ + "/step-000000001");
  ASSERT_TRUE(Publish(3, "x").ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000001", "step-000000003"));
}

// Rank 0 of an elastic run, and one before it that was frozen and wakes up.
TEST_F(CheckpointFoldersTest, WhatAnotherProcessWritesIsNoLeftover) {
  const absl::Status slow = PublishFolder(dir_, 5, [&](const std::string& folder) {
    std::ofstream(folder + "/content") << "five";
    EXPECT_EQ(Publish(6, "six"), absl::OkStatus());
    EXPECT_EQ(Publish(5, "again").code(), absl::StatusCode::kAlreadyExists);
    return absl::OkStatus();
  });
  EXPECT_EQ(slow, absl::OkStatus());
  EXPECT_THAT(Names(), ElementsAre("step-000000005", "step-000000006"));
  EXPECT_EQ(Content(dir_ + "/step-000000005"), "five");
}

// After a crash between the two renames of a replacement, only the hidden folder is there: it is the only whole
// checkpoint of its step.
TEST_F(CheckpointFoldersTest, AReplacedFolderWithoutSuccessorStays) {
  ASSERT_TRUE(Publish(1, "whole").ok());
  fs::rename(dir_ + "/step-000000001", dir_ + "/.replaced-step-000000001");
  EXPECT_THAT(Steps(), ElementsAre(1));
  ASSERT_TRUE(Publish(2, "x").ok());
  EXPECT_THAT(Steps(), ElementsAre(2, 1));
  EXPECT_EQ(Content(ListCheckpointFolders(dir_)[1].path), "whole");
  ASSERT_TRUE(Publish(1, "again").ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000001", "step-000000002"));
}

TEST_F(CheckpointFoldersTest, OldOnesGoAndLaterOnesStay) {
  for (const int64_t step : {1, 2, 3, 9}) ASSERT_TRUE(Publish(step, "x").ok());
  RemoveOldFolders(dir_, 3, 2);
  EXPECT_THAT(Steps(), ElementsAre(9, 3, 2));
}

// Older CIFS and some FUSE file systems cannot flush a folder. Any other error is one.
TEST_F(CheckpointFoldersTest, AFileSystemThatCannotFlushAFolderKeepsCheckpoints) {
  folder_flush_errno = EINVAL;
  const absl::Status created = CreateFolders(dir_ + "/made/on/the/way");
  const absl::Status published = Publish(7, "seven");
  folder_flush_errno = EIO;
  const absl::Status failed = Publish(8, "eight");
  folder_flush_errno = 0;
  EXPECT_EQ(created, absl::OkStatus());
  EXPECT_EQ(published, absl::OkStatus());
  EXPECT_EQ(Content(dir_ + "/step-000000007"), "seven");
  EXPECT_NE(std::string(failed.message()).find("cannot flush"), std::string::npos) << failed;
}

TEST_F(CheckpointFoldersTest, AFolderThatCannotBeMadeIsAnError) {
  fs::create_directories(dir_);
  std::ofstream(dir_ + "/file") << "x";
  const absl::Status status = PublishFolder(dir_ + "/file/dir", 1, [](const std::string&) { return absl::OkStatus(); });
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("cannot create " + dir_ + "/file/dir"));
}

}  // namespace
}  // namespace starring
