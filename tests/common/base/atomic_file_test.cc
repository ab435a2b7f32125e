#include "common/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "gtest/gtest.h"
#include "tests/common/full_disk.h"

namespace starring {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(WriteFileAtomicallyTest, ReplacesTheWholeFile) {
  const std::string path = testing::TempDir() + "/replaced";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(100, 'a')).ok());
  ASSERT_TRUE(WriteFileAtomically(path, "b").ok());
  EXPECT_EQ(Read(path), "b");
}

// A group that shares a folder says by its umask that it may write each other's files.
TEST(WriteFileAtomicallyTest, TheUmaskDecidesWhoMayReadAndWrite) {
  const std::string path = testing::TempDir() + "/mode";
  const mode_t before = umask(0);
  for (const mode_t mask : {002, 022, 077}) {
    umask(mask);
    ASSERT_TRUE(WriteFileAtomically(path, "a").ok());
    struct stat facts = {};
    ASSERT_EQ(stat(path.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0666 & ~mask);
  }
  umask(before);
}

TEST(WriteFileAtomicallyTest, KeepsTheOldFileWhenTheNewOneDoesNotFit) {
  const std::string folder = testing::TempDir() + "/full";
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/file";
  ASSERT_TRUE(WriteFileAtomically(path, "old").ok());
  const absl::Status status = [&] {
    const FullDisk disk(1000);
    return WriteFileAtomically(path, std::string(5000, 'x'));
  }();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(Read(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

// The first process of every container has the id 1, and pods may share a folder.
TEST(WriteFileAtomicallyTest, TemporaryNamesHaveTheHostAndTheProcess) {
  char host[64] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  EXPECT_EQ(ProcessMark(), std::string(host) + "." + std::to_string(getpid()));
}

TEST(WriteFileAtomicallyTest, DoesNotFollowALinkInItsWay) {
  const std::string victim = testing::TempDir() + "/victim", path = testing::TempDir() + "/watched";
  std::ofstream(victim) << "precious";
  const std::string trap = path + ".tmp." + ProcessMark();
  std::filesystem::create_symlink(victim, trap);
  ASSERT_TRUE(WriteFileAtomically(path, "new").ok());
  EXPECT_EQ(Read(victim), "precious");
  EXPECT_EQ(Read(path), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
}

TEST(WriteFileAtomicallyTest, ALinkStaysOneAndItsTargetIsReplaced) {
  const std::string target = testing::TempDir() + "/target", path = testing::TempDir() + "/link";
  std::ofstream(target) << "old and longer";
  std::filesystem::create_symlink(target, path);
  ASSERT_TRUE(WriteFileAtomically(path, "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  EXPECT_EQ(Read(target), "new");
}

TEST(WriteFileAtomicallyTest, WritesStraightToWhatIsNoRegularFile) {
  const std::string fifo = testing::TempDir() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  ASSERT_TRUE(WriteFileAtomically(fifo, "through").ok());
  char text[16] = {};
  EXPECT_EQ(read(reader, text, sizeof(text)), 7);
  EXPECT_EQ(std::string(text), "through");
  close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));

  // As /dev/stdout of a process whose output goes to a file that has text already.
  const std::string log = testing::TempDir() + "/log";
  std::ofstream(log) << "epoch 1\n";
  const int out = open(log.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(out, 0);
  ASSERT_TRUE(WriteFileAtomically("/proc/self/fd/" + std::to_string(out), "record\n").ok());
  close(out);
  EXPECT_EQ(Read(log), "epoch 1\nrecord\n");
}

TEST(AtomicFileTest, WithoutCommitNothingIsLeft) {
  const std::string folder = testing::TempDir() + "/uncommitted";
  std::filesystem::create_directory(folder);
  for (const bool commits : {false, true}) {
    const auto file = AtomicFile::Create(folder + "/file");
    ASSERT_TRUE(file.ok()) << file.status();
    for (const std::string piece : {"one ", "two"}) {
      ASSERT_TRUE((*file)->Append(std::as_bytes(std::span(piece))).ok());
    }
    if (commits) {
      ASSERT_TRUE((*file)->Commit().ok());
    }
  }
  EXPECT_EQ(Read(folder + "/file"), "one two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(WriteFileAtomicallyTest, MakesTheFoldersOfThePath) {
  const std::string path = testing::TempDir() + "/made/deep/file";
  EXPECT_EQ(WriteFileAtomically(path, "x"), absl::OkStatus());
  EXPECT_EQ(Read(path), "x");
  EXPECT_EQ(WriteFileAtomically("/proc/nowhere/file", "x").message(),
            "cannot make the folder /proc/nowhere: No such file or directory");
}

TEST(CheckFileWritableTest, SaysWhatWritingWouldSayAndLeavesNothing) {
  const std::string folder = testing::TempDir() + "/checked";
  std::filesystem::create_directory(folder);
  EXPECT_EQ(CheckFileWritable(folder + "/file"), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::ofstream(folder + "/text") << "old";
  for (const std::string& bad : {folder, folder + "/text/file"}) {
    const absl::Status status = CheckFileWritable(bad);
    EXPECT_EQ(status.code(), WriteFileAtomically(bad, "x").code()) << bad;
    EXPECT_NE(std::string(status.message()).find(bad), std::string::npos) << status;
  }
  std::ofstream(folder + "/file") << "old";
  EXPECT_EQ(CheckFileWritable(folder + "/file"), absl::OkStatus());
  EXPECT_EQ(Read(folder + "/file"), "old");
  // A pipe that nobody reads: opening it would wait.
  ASSERT_EQ(mkfifo((folder + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(CheckFileWritable(folder + "/fifo"), absl::OkStatus());
  EXPECT_EQ(CheckFileWritable("/dev/stdout"), absl::OkStatus());
}

}  // namespace
}  // namespace starring
