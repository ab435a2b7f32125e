#include "common/base/status.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace starring {
namespace {

absl::Status Fail() { return absl::DataLossError("3 bytes, expected 16"); }
absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::OutOfRangeError("negative");
  return std::make_unique<int>(value);
}

TEST(StatusTest, AnnotateKeepsCodeAndPayload) {
  absl::Status status = Fail();
  status.SetPayload("url", absl::Cord("payload"));
  const absl::Status annotated = Annotate(status, "reading header");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(annotated.message(), "reading header: 3 bytes, expected 16");
  EXPECT_EQ(annotated.GetPayload("url"), absl::Cord("payload"));
}

TEST(StatusTest, AnnotateLeavesOkAlone) { EXPECT_TRUE(Annotate(absl::OkStatus(), "anything").ok()); }

TEST(StatusTest, ReturnIfErrorReturnsOnAnErrorOnly) {
  const auto run = [](bool fails) -> absl::Status {
    RETURN_IF_ERROR(fails ? Fail() : absl::OkStatus());
    return absl::AbortedError("reached the end");
  };
  EXPECT_EQ(run(true).message(), "3 bytes, expected 16");
  EXPECT_EQ(run(false).message(), "reached the end");
}

TEST(StatusTest, ContextIsMadeOnAnErrorOnly) {
  int made = 0;
  const auto context = [&] { return "context " + std::to_string(++made); };
  const auto run = [&](bool fails) -> absl::Status {
    RETURN_IF_ERROR(fails ? Fail() : absl::OkStatus(), "file ", context());
    return absl::OkStatus();
  };
  EXPECT_TRUE(run(false).ok());
  EXPECT_EQ(made, 0);
  EXPECT_EQ(run(true).message(), "file context 1: 3 bytes, expected 16");
}

TEST(StatusTest, AssignOrReturnMovesTheValueOut) {
  const auto run = [](int value) -> absl::StatusOr<int> {
    ASSIGN_OR_RETURN(const std::unique_ptr<int> made, Make(value), "value ", value);
    std::unique_ptr<int> again;
    ASSIGN_OR_RETURN(again, Make(*made + 1));
    return *again;
  };
  EXPECT_EQ(run(4).value(), 5);
  EXPECT_EQ(run(-1).status().message(), "value -1: negative");
}

}  // namespace
}  // namespace starring
