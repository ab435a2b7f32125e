#include "common/transport/mpi/mpi_names.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/transport/mpi/mpi_runtime.h"

namespace starring {
namespace {

// This process is the whole job, and has the names itself.
class MpiNamesTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Open MPI names its files after process ids, which repeat from sandbox to sandbox.
    char folder[] = "/tmp/starring_mpi.XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    setenv("TMPDIR", folder, /*replace=*/1);
    auto runtime = MpiRuntime::Start({});
    CHECK_OK(runtime);
    runtime_ = *std::move(runtime);
  }
  static void TearDownTestSuite() {
    runtime_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  static std::string folder_;
  static std::unique_ptr<MpiRuntime> runtime_;
};

std::string MpiNamesTest::folder_;
std::unique_ptr<MpiRuntime> MpiNamesTest::runtime_;

TEST_F(MpiNamesTest, TextsOfAnyLengthAreFound) {
  for (const size_t bytes : {0, 1, 1'000, 10'000}) {
    const std::string name = std::to_string(bytes);
    EXPECT_EQ(LookUpMpiName(*runtime_, name).value(), std::nullopt);
    const std::string text(bytes, 'x');
    ASSERT_TRUE(PublishMpiName(*runtime_, name, text).ok());
    EXPECT_EQ(LookUpMpiName(*runtime_, name).value(), text);
  }
}

TEST_F(MpiNamesTest, ATransportOverTheWorldCarriesMessages) {
  const std::unique_ptr<MpiTransport> transport = CreateMpiTransport(*runtime_, MpiCommunicator::kWorld);
  struct Poster final : Transport::Poster {
    void OnCompletion(uint64_t) override {}
  } poster;
  const std::byte sent{7};
  std::byte received{0};
  transport->PostReceive(0, 1, {&received, 1}, {.poster = &poster, .operation = 1});
  transport->PostSend(0, 1, {&sent, 1}, {.poster = &poster, .operation = 2});
  std::vector<Transport::Token> completed;
  while (completed.size() < 2) CHECK_OK(transport->Poll(completed));
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace starring
