// Servers and workers ask for descriptors on machines that allow more or fewer than they need.
#include <sys/resource.h>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/star/star_fixture.h"

namespace {
rlimit descriptors = {.rlim_cur = 1024, .rlim_max = 4096};  // what the machine allows
}  // namespace

// These replace the C library's functions.
extern "C" int getrlimit(__rlimit_resource_t resource, rlimit* limit) noexcept {
  if (resource != RLIMIT_NOFILE) return prlimit(0, static_cast<__rlimit_resource>(resource), nullptr, limit);
  *limit = descriptors;
  return 0;
}
extern "C" int setrlimit(__rlimit_resource_t resource, const rlimit* limit) noexcept {
  if (resource != RLIMIT_NOFILE) return prlimit(0, static_cast<__rlimit_resource>(resource), limit, nullptr);
  descriptors = *limit;
  return 0;
}

namespace starring {
namespace {

using ::testing::HasSubstr;

TEST(DescriptorLimitsTest, AServerTakesAsManyAsTheLargestJobNeeds) {
  descriptors = {.rlim_cur = 1024, .rlim_max = RLIM_INFINITY};
  const Servers servers(1);
  EXPECT_EQ(descriptors.rlim_cur, static_cast<rlim_t>(kDescriptorsMax));
}

TEST(DescriptorLimitsTest, AWorkerTakesWhatItNeedsOrIsRefused) {
  constexpr rlim_t kNeeded = kOtherDescriptorsMax + 2 * 4;
  const StarOptions options = {.addresses = {"a:1", "b:1"}, .lanes = 4};
  descriptors = {.rlim_cur = 16, .rlim_max = kNeeded};
  EXPECT_TRUE(CreateStarExchange(options).ok());
  EXPECT_EQ(descriptors.rlim_cur, kNeeded);
  descriptors = {.rlim_cur = 16, .rlim_max = kNeeded - 1};
  const absl::Status status = CreateStarExchange(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("2 servers with --lanes=4 need 72 descriptors, this process may open 71"));
}

}  // namespace
}  // namespace starring
