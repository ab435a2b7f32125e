#include "common/host/stop_signals.h"

#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using ::testing::UnorderedElementsAre;

TEST(StopSignalsTest, AHangUpAsksToStopUnlessItWasIgnored) {
  signal(SIGHUP, SIG_DFL);
  EXPECT_FALSE(IgnoresHangUp());
  EXPECT_THAT(StopSignals(), UnorderedElementsAre(SIGINT, SIGTERM, SIGUSR1, SIGHUP));
  signal(SIGHUP, SIG_IGN);
  EXPECT_TRUE(IgnoresHangUp());
  EXPECT_THAT(StopSignals(), UnorderedElementsAre(SIGINT, SIGTERM, SIGUSR1));
}

}  // namespace
}  // namespace starring
