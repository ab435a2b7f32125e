#include "common/atomic_file.h"

#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

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

TEST(WriteFileAtomicallyTest, KeepsTheOldFileWhenTheNewOneDoesNotFit) {
  const std::string folder = testing::TempDir() + "/full";
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/file";
  ASSERT_TRUE(WriteFileAtomically(path, "old").ok());
  signal(SIGXFSZ, SIG_IGN);  // the limit then shows as EFBIG, as a full disk does as ENOSPC
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteFileAtomically(path, std::string(5000, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(Read(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(WriteFileAtomicallyTest, NamesTheFolderThatIsNotThere) {
  EXPECT_NE(WriteFileAtomically("/nowhere/file", "x").message().find("/nowhere/file"), std::string::npos);
}

}  // namespace
}  // namespace starring
