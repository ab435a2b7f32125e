#include "bench/gpu_wait_spike/verdict.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring::gpu_wait {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Verdict, PercentilesAreSamples) {
  std::vector<double> samples(1000);
  std::iota(samples.rbegin(), samples.rend(), 1);  // 1000 to 1
  EXPECT_EQ(Percentile(samples, 50), 500);
  EXPECT_EQ(Percentile(samples, 99), 990);
  EXPECT_EQ(Percentile(samples, 100), 1000);
  EXPECT_EQ(Percentile({7}, 1), 7);
  EXPECT_EQ(Percentile({7, 9}, 50), 7);
  EXPECT_EQ(Percentile({7, 9}, 99), 9);
}

TEST(Verdict, ALineHasPercentilesOrTheError) {
  EXPECT_THAT(PingPongLine("a way", absl::OkStatus(), {1, 2, 3}),
              AllOf(HasSubstr("a way"), HasSubstr("3 rounds"), HasSubstr("2.00 us"), HasSubstr("3.00 us")));
  EXPECT_THAT(PingPongLine("a way", absl::InternalError("cudaX: why"), {1}), HasSubstr("FAILED: cudaX: why"));
  EXPECT_THAT(PingPongLine("a way", absl::OkStatus(), {}), HasSubstr("FAILED: no samples"));
  EXPECT_THAT(YieldLine("a wait", absl::OkStatus(), {.alone_ms = {50}, .waited_for_ms = {100}}),
              AllOf(HasSubstr("50.00 ms"), HasSubstr("100.00 ms"), HasSubstr("2.00")));
  EXPECT_THAT(YieldLine("a wait", absl::InternalError("cudaX: why"), {}), HasSubstr("FAILED: cudaX: why"));
  EXPECT_THAT(YieldLine("a wait", absl::OkStatus(), {.alone_ms = {50}}), HasSubstr("FAILED: no samples"));
}

TEST(Verdict, AWaitThatCostsTheOtherProcessNothingYields) {
  const auto judge = [](double with_it) { return JudgeYield({.alone_ms = {50}, .waited_for_ms = {with_it}}); };
  EXPECT_EQ(judge(50), Yields::kYes);
  EXPECT_EQ(judge(55), Yields::kYes);
  EXPECT_EQ(judge(56), Yields::kInPart);
  EXPECT_EQ(judge(74), Yields::kInPart);
  EXPECT_EQ(judge(75), Yields::kNo);
  EXPECT_EQ(JudgeYield({}), Yields::kUnknown);
}

TEST(Verdict, TheWayFollowsFromWhatYields) {
  EXPECT_THAT(YieldVerdict(Yields::kYes, Yields::kNo),
              AllOf(HasSubstr("memory operations yields the GPU"), HasSubstr("kernel keeps the GPU"),
                    HasSubstr(": streams may wait by memory operations")));
  EXPECT_THAT(YieldVerdict(Yields::kNo, Yields::kYes), HasSubstr(": streams may wait by a spinning kernel"));
  EXPECT_THAT(YieldVerdict(Yields::kInPart, Yields::kNo), HasSubstr(": pace waits by the host, or use MPS"));
  EXPECT_THAT(YieldVerdict(Yields::kUnknown, Yields::kUnknown), HasSubstr(": nothing is decided"));
}

TEST(Verdict, OnlyADaemonThatLivesRuns) {
  const std::string folder = ::testing::TempDir() + "/mps";
  std::filesystem::create_directories(folder);
  EXPECT_FALSE(FindMpsDaemon(folder + "/none").runs);
  EXPECT_THAT(FindMpsDaemon(folder + "/none").text, HasSubstr("no daemon in"));
  std::ofstream(folder + "/control") << "";
  EXPECT_THAT(FindMpsDaemon(folder).text, HasSubstr("has a pipe, but no"));
  const auto write_pid = [&](int64_t pid) { std::ofstream(folder + "/nvidia-cuda-mps-control.pid") << pid << "\n"; };
  write_pid(getpid());
  EXPECT_TRUE(FindMpsDaemon(folder).runs);
  write_pid(2'000'000'000);  // above the kernel's limit for process numbers
  EXPECT_FALSE(FindMpsDaemon(folder).runs);
  EXPECT_THAT(FindMpsDaemon(folder).text, HasSubstr("2000000000, is gone"));
}

}  // namespace
}  // namespace starring::gpu_wait
