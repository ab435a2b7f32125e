#include "common/base/not_written.h"

#include "common/base/status.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(NotWrittenTest, IsKnownByItsMarkAndNotByItsCode) {
  const absl::Status status = NotWrittenError("no space");
  EXPECT_EQ(status.message(), "no space");
  EXPECT_TRUE(IsNotWritten(status));
  EXPECT_TRUE(IsNotWritten(Annotate(status, "step 7")));
  EXPECT_FALSE(IsNotWritten(absl::Status(status.code(), "no space")));
  EXPECT_FALSE(IsNotWritten(absl::OkStatus()));
}

TEST(NotWrittenTest, AnyErrorOfAFileBecomesOne) {
  EXPECT_EQ(NotWritten(absl::OkStatus(), "the trace"), absl::OkStatus());
  const absl::Status status = NotWritten(absl::NotFoundError("no folder"), "the trace");
  EXPECT_TRUE(IsNotWritten(status));
  EXPECT_EQ(status.message(), "could not write the trace: no folder");
  // Seen: "the predictions was not written".
  EXPECT_EQ(NotWritten(absl::NotFoundError("x"), "the predictions").message(), "could not write the predictions: x");
}

}  // namespace
}  // namespace starring
