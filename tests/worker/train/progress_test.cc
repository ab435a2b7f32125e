#include "worker/train/progress.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Printed(Progress::Style style, const std::function<void(Progress&)>& run) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  {
    Progress progress({.style = style, .out = out, .epochs = 3, .steps_per_epoch = 100, .end_step = 300});
    run(progress);
  }
  std::fclose(out);
  std::string result(text, size);
  free(text);
  return result;
}

void RunSteps(Progress& progress) {
  for (int step = 0; step < 100; ++step) {  // ten steps a second for ten seconds
    progress.Step({.step = step, .global_count = 64, .batch = 32, .loss = {.loss_sum = 16, .correct = 28}},
                  absl::UnixEpoch() + absl::Milliseconds(100) * step);
  }
  progress.EpochDone(
      {.epoch = 0, .train_loss = 0.25, .test_accuracy = 0.9912, .seconds = 10, .samples_per_second = 640});
}

TEST(ProgressTest, ALiveLineShowsRateAndTimeLeftAndIsClearedAfterAnEpoch) {
  const std::string text = Printed(Progress::Style::kLive, RunSteps);
  EXPECT_THAT(text, HasSubstr("\repoch 1/3 [==========>"));
  EXPECT_THAT(text, HasSubstr("loss 0.5000  accuracy 87.50%  640 samples/s  ETA 0:2"));
  EXPECT_THAT(text, HasSubstr("\r\x1b[Kepoch 1/3  loss 0.2500  test accuracy 99.12%  10.00 s  640 samples/s\n"));
}

TEST(ProgressTest, ANoteStaysAtTheEndOfTheLiveLineAndIsAPlainLine) {
  const auto run = [](Progress& progress) {
    progress.Note("rank 1 is slow");
    RunSteps(progress);
    progress.Note("");
    progress.Step({.step = 150, .global_count = 64, .batch = 32, .loss = {.loss_sum = 16, .correct = 28}},
                  absl::UnixEpoch() + absl::Hours(1));
    progress.Step({.step = 151, .global_count = 64, .batch = 32, .loss = {.loss_sum = 16, .correct = 28}},
                  absl::UnixEpoch() + absl::Hours(2));
  };
  const std::string live = Printed(Progress::Style::kLive, run);
  EXPECT_THAT(live, HasSubstr("ETA 0:20  rank 1 is slow\x1b[K"));
  EXPECT_THAT(live.substr(live.rfind("epoch 2/3")), Not(HasSubstr("slow")));
  EXPECT_EQ(Printed(Progress::Style::kPlain, run).find("rank 1 is slow\nepoch"), 0u);
  EXPECT_EQ(Printed(Progress::Style::kNone, run), "");
}

// A run that is stopped in the middle of an epoch has one, and its result follows.
TEST(ProgressTest, NothingFollowsALiveLine) {
  const auto step = [](Progress& progress) {
    for (const int second : {1, 2}) {
      progress.Step({.step = second, .global_count = 64, .batch = 32, .loss = {.loss_sum = 16, .correct = 28}},
                    absl::UnixEpoch() + absl::Seconds(second));
    }
  };
  const auto print = [&](Progress& progress) {
    step(progress);
    progress.EndLine();
    progress.EndLine();
    progress.Message("stopped");
  };
  EXPECT_THAT(Printed(Progress::Style::kLive, print), EndsWith("\x1b[K\r\x1b[Kstopped\n"));
  EXPECT_THAT(Printed(Progress::Style::kLive, step), EndsWith("\x1b[K\r\x1b[K"));
  EXPECT_THAT(Printed(Progress::Style::kPlain, print), Not(HasSubstr("\x1b")));
}

TEST(ProgressTest, PlainLinesAreFewAndHoldNoControlCharacters) {
  const std::string text = Printed(Progress::Style::kPlain, RunSteps);
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(ProgressTest, NoneIsSilentButForMessages) {
  EXPECT_EQ(Printed(Progress::Style::kNone, RunSteps), "");
  EXPECT_EQ(Printed(Progress::Style::kNone, [](Progress& progress) { progress.Message("disk full"); }), "disk full\n");
}

}  // namespace
}  // namespace starring
