#include "server/shard_memory.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/star/star_job.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ShardMemoryTest, CountsBuffersStateAndWhatWorkersWaitWith) {
  const JobSpec spec = MakeJob(0, 4, 1 << 20, 1 << 20);
  const auto agreement = ParseAgreement(SerializeAgreement(spec));
  ASSERT_TRUE(agreement.ok());
  // Three buffers and a shared one, momentum, and what four workers wait with; a little for bookkeeping.
  const int64_t slice = 4 * (1 << 20) / 2;
  const int64_t needed = ShardMemoryNeeded(*agreement, 0, 2);
  EXPECT_GE(needed, slice * (3 + 1 + 1 + 4));
  EXPECT_LE(needed, slice * (3 + 1 + 1 + 4) + 10'000);
  EXPECT_TRUE(CheckShardMemory(*agreement, 0, 2, needed).ok());
  const absl::Status refused = CheckShardMemory(*agreement, 0, 2, needed - 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("needs 0.019 GB"), HasSubstr("--memory_limit_gb")));
}

}  // namespace
}  // namespace starring
