// The messages that a check sends by MPI. This process is the whole job and answers its own messages.
#include "common/transport/mpi/mpi_probe.h"

#include <mpi.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/steady_time.h"
#include "common/transport/mpi/mpi_runtime.h"
#include "gtest/gtest.h"

namespace {
std::vector<int64_t> sent_bytes;  // of each message
}  // namespace

// Replaces MPI's function, notes the size and calls the original through MPI's profiling interface.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  sent_bytes.push_back(count);
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

namespace starring {
namespace {

absl::Time Soon() { return SteadyNow() + absl::Seconds(20); }

class MpiProbeTest : public testing::Test {
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
  MpiProbe probe_{runtime_.get()};
};

std::string MpiProbeTest::folder_;
std::unique_ptr<MpiRuntime> MpiProbeTest::runtime_;

TEST_F(MpiProbeTest, GathersTextsThatAreNotTooLong) {
  const std::string longest(kCheckCardBytesMax - 1, 'x');
  const auto texts = probe_.Gather(longest, Soon());
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(*texts, std::vector<std::string>{longest});
  EXPECT_FALSE(probe_.Gather(longest + "x", Soon()).ok());
}

// Even if it has much time: a test must not fill a fast link for long.
TEST_F(MpiProbeTest, ABandwidthTestSendsNoMoreThanAllowed) {
  sent_bytes.clear();
  const auto measured = probe_.Measure(0, 15, Soon());
  ASSERT_TRUE(measured.ok()) << measured.status();
  std::erase(sent_bytes, 1);  // pings and answers
  ASSERT_FALSE(sent_bytes.empty());
  EXPECT_EQ(*std::max_element(sent_bytes.begin(), sent_bytes.end()), kCheckPayloadBytesMax);
  EXPECT_EQ(std::accumulate(sent_bytes.begin(), sent_bytes.end(), int64_t{0}), kCheckBandwidthBytesMax);
}

}  // namespace
}  // namespace starring
