#include "common/security/job_secret.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/security/hmac_sha256.h"
#include "common/security/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::string PathOf(const std::string& name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  unlink(path.c_str());
  return path;
}

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// With mode 0600.
std::string Write(const std::string& name, const std::string& content) {
  const std::string path = PathOf(name);
  std::ofstream(path, std::ios::binary) << content;
  chmod(path.c_str(), 0600);
  return path;
}

TEST(JobSecretTest, IsReadAsItWasMade) {
  const std::string path = PathOf("made");
  const mode_t before = umask(0);  // a careless user's
  ASSERT_TRUE(MakeJobSecret(path).ok());
  umask(before);
  struct stat facts;
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600u);
  const auto secret = JobSecret::Load(path);
  ASSERT_TRUE(secret.ok()) << secret.status();
  EXPECT_EQ(secret->private_key() + secret->certificate(), Content(path));
}

// Hosts have copies of the file, whose path and date may differ. Any other content is another secret.
TEST(JobSecretTest, TheKeysFollowFromTheFile) {
  const std::string path = PathOf("digest");
  ASSERT_TRUE(MakeJobSecret(path).ok());
  using Use = JobSecret::KeyUse;
  const auto secret = JobSecret::Load(path);
  ASSERT_TRUE(secret.ok()) << secret.status();
  const std::string copy = Write("digest_copy", Content(path));
  const std::string other = Write("digest_other", Content(path) + "\n");
  const std::string digest = absl::HexStringToBytes(Sha256Hex(std::string_view(Content(path))));
  for (const Use use : {Use::kRequests, Use::kRanks}) {
    const std::string key = secret->KeyFor(use);
    EXPECT_EQ(key.size(), 32u);
    EXPECT_EQ(JobSecret::Load(copy)->KeyFor(use), key);
    EXPECT_NE(JobSecret::Load(other)->KeyFor(use), key);
    EXPECT_NE(key, digest) << "what one use shows is worth nothing for another";
  }
  EXPECT_NE(secret->KeyFor(Use::kRequests), secret->KeyFor(Use::kRanks));
  // Programs in other languages derive them, too.
  EXPECT_EQ(secret->KeyFor(Use::kRanks), HmacSha256(digest, "starring tcp ranks"));
  EXPECT_EQ(secret->KeyFor(Use::kRequests), HmacSha256(digest, "starring grpc requests"));
}

TEST(JobSecretTest, AFileThatOthersMayUseIsRefused) {
  const std::string path = PathOf("mode");
  ASSERT_TRUE(MakeJobSecret(path).ok());
  for (const mode_t mode : {0640, 0604, 0620, 0610, 0644, 0666}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const absl::Status status = JobSecret::Load(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), AllOf(HasSubstr(path), HasSubstr("mode 06"), HasSubstr("chmod 600")));
  }
  ASSERT_EQ(chmod(path.c_str(), 0400), 0);
  EXPECT_TRUE(JobSecret::Load(path).ok());
}

// Kubernetes and systemd hand a secret over as a file that a group may read.
TEST(JobSecretTest, ACopyIsTheOwnersAlone) {
  const std::string given = PathOf("given"), copy = PathOf("copy");
  ASSERT_TRUE(MakeJobSecret(given).ok());
  for (const mode_t mode : {0440, 0640, 0400, 0600}) {
    ASSERT_EQ(chmod(given.c_str(), mode), 0);
    unlink(copy.c_str());
    const mode_t before = umask(0);
    EXPECT_TRUE(CopyJobSecret(given, copy).ok());
    umask(before);
    struct stat facts;
    ASSERT_EQ(stat(copy.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0600u);
    EXPECT_TRUE(JobSecret::Load(copy).ok());
    EXPECT_EQ(Content(copy), Content(given));
  }
  EXPECT_TRUE(CopyJobSecret(given, copy).ok()) << "a container that is started again";
  ASSERT_EQ(chmod(copy.c_str(), 0640), 0);
  EXPECT_THAT(Message(CopyJobSecret(given, copy)), HasSubstr("never overwritten")) << "others could have read it";
  ASSERT_EQ(chmod(copy.c_str(), 0600), 0);
  const std::string other = PathOf("other");
  ASSERT_TRUE(MakeJobSecret(other).ok());
  EXPECT_THAT(Message(CopyJobSecret(other, copy)), HasSubstr("never overwritten"));
  EXPECT_EQ(Content(copy), Content(given));
}

TEST(JobSecretTest, ACopyOfAFileForEveryoneIsRefused) {
  const std::string given = PathOf("given_to_all"), copy = PathOf("no_copy");
  ASSERT_TRUE(MakeJobSecret(given).ok());
  for (const mode_t mode : {0444, 0644, 0604, 0660, 0620, 0450, 0441}) {
    ASSERT_EQ(chmod(given.c_str(), mode), 0);
    EXPECT_THAT(Message(CopyJobSecret(given, copy)), AllOf(HasSubstr(given), HasSubstr("at most 0640")));
  }
  EXPECT_THAT(Message(CopyJobSecret(Write("given_text", "a password"), copy)), HasSubstr("no private key"));
  EXPECT_THAT(Message(CopyJobSecret("/nowhere/secret", copy)), HasSubstr("/nowhere/secret"));
  EXPECT_NE(access(copy.c_str(), F_OK), 0);
}

TEST(JobSecretTest, AMissingFileSaysHowToMakeIt) {
  const absl::Status status = JobSecret::Load("/nowhere/secret").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("/nowhere/secret"), HasSubstr("--make_secret=")));
}

TEST(JobSecretTest, WhatIsNoSecretIsRefused) {
  const auto error = [](const std::string& path) { return Message(JobSecret::Load(path).status()); };
  EXPECT_THAT(error(Write("text", "a password")), HasSubstr("no private key"));
  EXPECT_THAT(error(Write("empty", "")), HasSubstr("no private key"));
  EXPECT_THAT(error(Write("long", std::string(kSecretFileBytesMax + 1, 'x'))), HasSubstr("at most"));
  EXPECT_THAT(error(::testing::TempDir()), HasSubstr("is no file"));
  const std::string pipe = PathOf("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error(pipe), HasSubstr("is no file"));  // Load does not wait for a process that writes to the pipe
}

TEST(JobSecretTest, AnExistingFileIsNeverOverwritten) {
  const std::string path = Write("there", "precious");
  const absl::Status status = MakeJobSecret(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(Message(status), HasSubstr("never overwritten"));
  EXPECT_EQ(Content(path), "precious");
  EXPECT_FALSE(MakeJobSecret("/nowhere/secret").ok());
}

}  // namespace
}  // namespace starring
