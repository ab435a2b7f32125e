#include "worker/data/files/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/data_files.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const MappedFile> MapPath(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  auto file = MappedFile::Map(path, descriptor, static_cast<int64_t>(std::filesystem::file_size(path)));
  close(descriptor);
  CHECK_OK(file);
  return *std::move(file);
}

std::string Content(int64_t bytes) {
  std::string content(static_cast<size_t>(bytes), '\0');
  for (int64_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(1 + i % 250);
  return content;
}

TEST(MappedFileTest, HasTheContentOfTheFile) {
  const std::string folder = MakeFolder("mapped_file"), content = Content(10000);
  const auto file = MapPath(WriteFile(folder, "file", content));
  EXPECT_EQ(std::string(file->bytes().begin(), file->bytes().end()), content);
  std::vector<uint8_t> part(100);
  file->ReadAt(9900, part);
  EXPECT_EQ(std::string(part.begin(), part.end()), content.substr(9900));
  file->ExpectRandomReads();
  file->AskAhead(5000, 3000);
  EXPECT_TRUE(file->Check().ok());
}

TEST(MappedFileTest, WhatWasCutIsZerosAndNoted) {
  const std::string folder = MakeFolder("mapped_file_cut");
  const std::string path = WriteFile(folder, "file", Content(40000)),
                    other_path = WriteFile(folder, "other", Content(50));
  const auto file = MapPath(path), other = MapPath(other_path);
  std::filesystem::resize_file(path, 100);
  EXPECT_EQ(file->bytes()[99], 100);
  // The first is in the last page that is left, where the system itself has zeros.
  for (const size_t at : {101, 30000, 30001, 39999, 8192}) EXPECT_EQ(file->bytes()[at], 0);
  EXPECT_EQ(file->Check().message(),
            path +
                " was cut while it was in use: expected 40000 bytes, found 100: leave a file of data as it is until "
                "the run ends");
  EXPECT_TRUE(other->Check().ok());
}

TEST(MappedFileTest, AFileThatIsCutAndWrittenAgainHasChanged) {
  const std::string path = WriteFile(MakeFolder("mapped_file_again"), "file", Content(9000));
  const auto file = MapPath(path);
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(file->bytes()[8999], 0);
  std::filesystem::resize_file(path, 9000);
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  EXPECT_EQ(file->Check().message(),
            path +
                " was changed while it was in use: it had 9000 bytes and has 9000: write another file and leave this "
                "one as it is until the run ends");
}

TEST(MappedFileTest, AReadBehindTheEndIsNoted) {
  const std::string path = WriteFile(MakeFolder("mapped_file_read"), "file", Content(9000));
  const auto file = MapPath(path);
  std::filesystem::resize_file(path, 8000);
  std::vector<uint8_t> part(2000, 7);
  file->ReadAt(7000, part);
  EXPECT_EQ(part[999], 1 + 7999 % 250);
  EXPECT_EQ(part[1000], 0);
  EXPECT_THAT(file->Check().message(), HasSubstr("expected 9000 bytes, found 8000"));
}

TEST(MappedFileTest, AnEntryIsFreeAgain) {
  const std::string path = WriteFile(MakeFolder("mapped_file_many"), "file", Content(10));
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<const MappedFile>> files;
    while (files.size() < MappedFile::kMappedFilesMax) files.push_back(MapPath(path));
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const auto refused = MappedFile::Map(path, descriptor, 10);
    close(descriptor);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.status().message(), HasSubstr("the mapped file number 257 of this process, the limit is 256"));
  }
}

// Another file's SIGBUS ends the process as without us.
TEST(MappedFileDeathTest, OtherBusErrorsStayDeadly) {
  const std::string folder = MakeFolder("mapped_file_other");
  const auto file = MapPath(WriteFile(folder, "file", Content(10)));
  const std::string path = WriteFile(folder, "foreign", Content(40000));
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto* const foreign =
      static_cast<const volatile char*>(mmap(nullptr, 40000, PROT_READ, MAP_SHARED, descriptor, 0));
  close(descriptor);
  std::filesystem::resize_file(path, 10);
  // A sanitizer's handler, which was there before, ends the process otherwise than the signal would.
  EXPECT_DEATH((void)foreign[30000], "");
  EXPECT_DEATH(kill(getpid(), SIGBUS), "");
}

void SayAndGiveBack(int number) {
  (void)!write(STDERR_FILENO, "seen\n", 5);
  MappedFile::CatchBusErrors();
  raise(number);
}

// As Python's faulthandler does, which is enabled after the file was mapped.
TEST(MappedFileDeathTest, AHandlerThatCameLaterGetsTheForeignOnes) {
  const std::string path = WriteFile(MakeFolder("mapped_file_later"), "file", Content(40000));
  const auto file = MapPath(path);
  const auto use = [&file, &path] {
    struct sigaction action = {};
    action.sa_handler = SayAndGiveBack;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGBUS, &action, nullptr);
    MappedFile::CatchBusErrors();
    std::filesystem::resize_file(path, 10);
    if (file->bytes()[30000] != 0) return;
    kill(getpid(), SIGBUS);
  };
  EXPECT_EXIT(use(), ::testing::KilledBySignal(SIGBUS), "seen");
}

}  // namespace
}  // namespace starring
