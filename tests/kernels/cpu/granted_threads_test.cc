#include "kernels/cpu/granted_threads.h"

#include <omp.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

// OpenMP reads its variables when the process starts: BUILD sets OMP_DYNAMIC, OMP_MAX_ACTIVE_LEVELS and
// OMP_THREAD_LIMIT.
TEST(GrantedThreadsTest, NeitherLoadNorLevelsTakeThreadsAway) {
  ASSERT_NE(omp_get_dynamic(), 0);
  ASSERT_EQ(omp_get_max_active_levels(), 0);
  EXPECT_EQ(GrantThreads(3), absl::OkStatus());
  int granted = 0;
#pragma omp parallel num_threads(3)
#pragma omp single
  granted = omp_get_num_threads();
  EXPECT_EQ(granted, 3);
  EXPECT_EQ(omp_get_dynamic(), 0) << "the load of the machine may grow";
}

TEST(GrantedThreadsTest, ALimitIsRefusedByItsName) {
  ASSERT_EQ(omp_get_thread_limit(), 3);
  const absl::Status status = GrantThreads(4);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::StartsWith("OpenMP grants 3 threads, because OMP_THREAD_LIMIT is 3: "));
}

}  // namespace
}  // namespace starring
