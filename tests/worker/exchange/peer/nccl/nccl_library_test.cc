#include "worker/exchange/peer/nccl/nccl_library.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(NcclLibrary, NamesReleasesOfBothEncodings) {
  EXPECT_EQ(nccl::VersionText(2803), "2.8.3");
  EXPECT_EQ(nccl::VersionText(nccl::kVersionMin), "2.14.0");
  EXPECT_EQ(nccl::VersionText(22705), "2.27.5");
  EXPECT_EQ(nccl::VersionText(nccl::kVersionOfSharedGpus), "2.30.0");
}

TEST(NcclLibrary, HasEveryFunction) {
  const absl::StatusOr<NcclLibrary> library = NcclLibrary::Load({});
  ASSERT_EQ(library.status(), absl::OkStatus());
  EXPECT_EQ(library->version, 22705);
  EXPECT_STREQ(library->get_error_string(nccl::Result::kInvalidUsage), "invalid usage");
}

TEST(NcclLibrary, RefusesAnOldReleaseWithBothVersions) {
  setenv("NCCL_STUB_VERSION", "2803", 1);
  const absl::Status status = NcclLibrary::Load({}).status();
  unsetenv("NCCL_STUB_VERSION");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "NCCL 2.8.3 is found, 2.14.0 or newer is expected");
}

}  // namespace
}  // namespace starring
