#include "common/host/log.h"

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::MatchesRegex;

constexpr absl::Time kNow = absl::FromUnixMillis(1'800'000'000'123);

TEST(LogTest, AStampIsUtcWithMilliseconds) {
  EXPECT_EQ(LogStamp(LogTime::kIso, kNow), "2027-01-15T08:00:00.123Z ");
  EXPECT_EQ(LogStamp(LogTime::kNone, kNow), "");
}

TEST(LogTest, EveryLineHasStampNameAndLevel) {
  LogLines lines("server 1", LogTime::kIso);
  EXPECT_EQ(lines.Take("begins", LogLevel::kNote, kNow), "2027-01-15T08:00:00.123Z server 1: begins\n");
  EXPECT_EQ(lines.Take("slow", LogLevel::kWarning, kNow), "2027-01-15T08:00:00.123Z server 1: warning: slow\n");
  EXPECT_EQ(lines.Take("slow", LogLevel::kError, kNow), "2027-01-15T08:00:00.123Z server 1: error: slow\n");
}

TEST(LogTest, ALineThatComesAgainIsCounted) {
  LogLines lines("worker 0", LogTime::kNone);
  EXPECT_EQ(lines.Take("lost", LogLevel::kNote, kNow), "worker 0: lost\n");
  EXPECT_EQ(lines.Take("lost", LogLevel::kNote, kNow), "");
  EXPECT_EQ(lines.Take("lost", LogLevel::kNote, kNow), "");
  EXPECT_EQ(lines.Take("found", LogLevel::kNote, kNow),
            "worker 0: the line before came 2 more times\nworker 0: found\n");
  EXPECT_EQ(lines.Take("lost", LogLevel::kNote, kNow), "worker 0: lost\n");
}

TEST(LogTest, ALongRowOfOneLineShowsItsCountEachMinute) {
  LogLines lines("worker 0", LogTime::kNone);
  EXPECT_NE(lines.Take("lost", LogLevel::kNote, kNow), "");
  EXPECT_EQ(lines.Take("lost", LogLevel::kNote, kNow + absl::Seconds(59)), "");
  EXPECT_EQ(lines.Take("lost", LogLevel::kNote, kNow + absl::Seconds(60)),
            "worker 0: the line before came 2 more times\n");
  EXPECT_EQ(lines.Take("lost", LogLevel::kNote, kNow + absl::Seconds(61)), "");
  EXPECT_EQ(lines.Take("lost", LogLevel::kNote, kNow + absl::Seconds(121)),
            "worker 0: the line before came 2 more times\n");
}

TEST(LogTest, ACommandLineThatIsWrongElsewhereStillSaysIt) {
  const auto asked = [](std::initializer_list<const char*> words) {
    return AskedLogTime(static_cast<int>(words.size()), words.begin());
  };
  EXPECT_EQ(asked({"worker"}), LogTime::kAuto);
  EXPECT_EQ(asked({"worker", "--nonsense", "--log_time=none"}), LogTime::kNone);
  EXPECT_EQ(asked({"launch", "--log_time=iso", "--", "--log_time=none"}), LogTime::kIso);
}

TEST(LogTest, TheLogOfTheProcess) {
  NameLog("worker 3", LogTime::kNone);
  testing::internal::CaptureStderr();
  std::thread([] { Log("from a thread"); }).join();
  Log("at the end", LogLevel::kError);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "worker 3: from a thread\nworker 3: error: at the end\n");
  // The captured stream is a file.
  NameLog("worker 3");
  ClearBeforeLog("<clear>");
  testing::internal::CaptureStderr();
  Log("text");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), MatchesRegex("<clear>20[0-9-]+T[0-9:.]+Z worker 3: text\n"));
}

}  // namespace
}  // namespace starring
