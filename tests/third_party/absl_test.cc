#include <string>
#include <string_view>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/debugging/failure_signal_handler.h"
#include "absl/debugging/symbolize.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, answer, 41, "a flag that the test sets");
ABSL_FLAG(absl::Duration, patience, absl::Seconds(1), "a flag of a library type");

namespace starring {
namespace {

TEST(Absl, FlagsParseAndReflect) {
  std::vector<const char*> arguments = {"program", "--answer=42", "--patience=250ms", "rest"};
  const std::vector<char*> rest =
      absl::ParseCommandLine(static_cast<int>(arguments.size()), const_cast<char**>(arguments.data()));
  EXPECT_EQ(absl::GetFlag(FLAGS_answer), 42);
  EXPECT_EQ(absl::GetFlag(FLAGS_patience), absl::Milliseconds(250));
  EXPECT_NE(absl::FindCommandLineFlag("answer"), nullptr);
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_STREQ(rest[1], "rest");
}

TEST(Absl, StatusAndStatusOr) {
  const absl::StatusOr<int> refused = absl::InvalidArgumentError("no");
  EXPECT_EQ(refused.status().ToString(), "INVALID_ARGUMENT: no");
  EXPECT_EQ(*absl::StatusOr<int>(3), 3);
}

TEST(Absl, Strings) {
  int64_t number = 0;
  EXPECT_TRUE(absl::SimpleAtoi("12345678901", &number));
  EXPECT_EQ(absl::StrCat("n", number), "n12345678901");
  EXPECT_EQ(absl::StrFormat("%.3f|%5d", 0.5, 7), "0.500|    7");
  const std::vector<std::string> parts = absl::StrSplit("a,b,c", ',');
  EXPECT_EQ(absl::StrJoin(parts, "-"), "a-b-c");
}

TEST(Absl, ContainersHashSpanCleanup) {
  absl::flat_hash_map<std::string, int> map = {{"one", 1}};
  for (int i = 0; i < 100; ++i) map[absl::StrCat(i)] = i;
  EXPECT_EQ(map.size(), 101u);
  EXPECT_EQ(absl::HashOf(1, 2), absl::HashOf(1, 2));
  const absl::InlinedVector<int, 2> vector = {1, 2, 3};
  EXPECT_EQ(absl::MakeConstSpan(vector).size(), 3u);
  bool ran = false;
  {
    absl::Cleanup cleanup = [&ran] { ran = true; };
  }
  EXPECT_TRUE(ran);
}

TEST(Absl, TimeAndSynchronization) {
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  absl::Notification notification;
  EXPECT_FALSE(notification.WaitForNotificationWithTimeout(absl::Milliseconds(1)));
  EXPECT_LT(absl::UnixEpoch(), absl::Now());
  EXPECT_EQ(absl::FormatTime(absl::UnixEpoch(), absl::UTCTimeZone()), "1970-01-01T00:00:00+00:00");
}

TEST(Absl, SymbolizerLinks) {
  absl::InitializeSymbolizer("program");
  absl::InstallFailureSignalHandler({});
}

}  // namespace
}  // namespace starring
