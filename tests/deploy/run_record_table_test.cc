#include "deploy/run_record_table.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

std::string Record(const std::string& sync, const std::string& digest, const std::string& more_config = "") {
  return absl::StrCat(
      R"({"config": {"sync": ")", sync, R"(", "world_size": 2, "server_count": )", sync == "star" ? 3 : 0,
      R"(, "seed": "18446744073709551615", "from_the_future": [1])", more_config,
      R"(}, "host": {"versions": {}}, "epochs": [{"epoch": 0, "samples_per_second": 5, "test_accuracy": 0.5},
          {"epoch": 1, "samples_per_second": 14400.4, "test_accuracy": 0.88125}],
         "steps": 938, "step_ms": {"p50": 1.2345}, "breakdown_ms": {"exposed_exchange": 0.5},
         "parameter_sha256": ")",
      digest, "\"}");
}

RunSummary Parsed(const std::string& json) {
  const absl::StatusOr<RunSummary> run = ParseRunRecord("test.json", json);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.value_or(RunSummary());
}

TEST(ParseRunRecordTest, TakesTheLastEpoch) {
  const RunSummary run = Parsed(Record("star", "abc"));
  EXPECT_EQ(run.sync, "star");
  EXPECT_EQ(run.world_size, 2);
  EXPECT_EQ(run.server_count, 3);
  EXPECT_EQ(run.samples_per_second, 14400.4);
  EXPECT_EQ(run.test_accuracy, 0.88125);
  EXPECT_EQ(run.step_ms_p50, 1.2345);
  EXPECT_EQ(run.exposed_exchange_ms, 0.5);
  EXPECT_EQ(run.parameter_sha256, "abc");
}

TEST(ParseRunRecordTest, RefusesWhatIsNone) {
  EXPECT_EQ(ParseRunRecord("x.json", "{").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(ParseRunRecord("x.json", "{}").status().message(), HasSubstr("x.json is no run record"));
}

TEST(FormatTableTest, OneLineARun) {
  const std::string digest = "0123456789abcdef0123";
  EXPECT_EQ(FormatTable({Parsed(Record("star", digest)), Parsed(Record("ddp", digest))}),
            "sync   workers servers  samples/s  step ms p50  exposed exchange ms  test accuracy  parameter digest\n"
            "star         2       3      14400        1.234                0.500        88.12 %  0123456789ab\n"
            "ddp          2       -      14400        1.234                0.500        88.12 %  0123456789ab\n");
}

TEST(CompareDigestsTest, SaysThatStarAndRingAgree) {
  const absl::StatusOr<std::string> text =
      CompareDigests({Parsed(Record("star", "a")), Parsed(Record("ring", "a")), Parsed(Record("ddp", "b"))});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "star 2x3 and ring 2: the same parameters, bit for bit\n");
}

TEST(CompareDigestsTest, FailsWhereTheyDiffer) {
  const absl::Status status = CompareDigests({Parsed(Record("star", "aaa")), Parsed(Record("ring", "bbb"))}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "star 2x3 and ring 2 ended with different parameters: aaa and bbb");
}

TEST(CompareDigestsTest, ALibraryMayAddInAnotherOrder) {
  for (const std::string sync : {"mpi", "nccl"}) {
    const absl::StatusOr<std::string> text = CompareDigests({Parsed(Record("ring", "a")), Parsed(Record(sync, "b"))});
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, "");
  }
}

TEST(CompareDigestsTest, OtherJobsMayDiffer) {
  for (const std::string more :
       {R"(, "threads": 2)", R"(, "learning_rate": 0.1)", R"(, "model": "mlp")", R"(, "isa": "avx2")",
        R"(, "math": "tf32")", R"(, "conv": "own")", R"(, "synthetic_size": 8)", R"(, "synthetic_channels": 3)"}) {
    const absl::StatusOr<std::string> text =
        CompareDigests({Parsed(Record("star", "a")), Parsed(Record("ring", "b", more))});
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, "");
  }
}

}  // namespace
}  // namespace starring
