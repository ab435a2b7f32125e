#include "common/base/error_origin.h"

#include "absl/status/status.h"
#include "common/base/status.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using Kind = ErrorOrigin::Kind;

TEST(ErrorOriginTest, StaysWithTheErrorOnItsWayUp) {
  const ErrorOrigin origin = {.kind = Kind::kServer, .number = 3};
  const absl::Status marked = WithOrigin(absl::UnavailableError("gone"), origin);
  EXPECT_EQ(OriginOf(marked), origin);
  const absl::Status annotated = Annotate(Annotate(marked, "joining"), "step 1");
  EXPECT_EQ(annotated.message(), "step 1: joining: gone");
  EXPECT_EQ(OriginOf(annotated), origin);
  const ErrorOrigin other = {.kind = Kind::kNotFinite, .number = int64_t{1} << 40};
  EXPECT_EQ(OriginOf(WithOrigin(annotated, other)), other);
}

TEST(ErrorOriginTest, WithoutAMarkItIsTheProcess) {
  EXPECT_EQ(OriginOf(absl::InternalError("an illegal memory access")).kind, Kind::kProcess);
  EXPECT_EQ(OriginOf(absl::OkStatus()).kind, Kind::kProcess);
}

TEST(ErrorOriginTest, TwoKindsAreTheJobs) {
  for (int kind = 0; kind < ErrorOrigin::kKindCount; ++kind) {
    const ErrorOrigin origin = {.kind = static_cast<Kind>(kind)};
    EXPECT_EQ(IsOfJob(origin), origin.kind == Kind::kNotFinite || origin.kind == Kind::kOtherLoss) << kind;
  }
}

}  // namespace
}  // namespace starring
