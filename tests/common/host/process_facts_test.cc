#include "common/host/process_facts.h"

#include <unistd.h>

#include <chrono>
#include <string>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(ProcessFactsTest, AMachineHasCoresMemoryAndDescriptors) {
  const v1::ProcessFacts facts = ReadProcessFacts(v1::ProcessFacts::SERVER, 3);
  EXPECT_EQ(facts.role(), v1::ProcessFacts::SERVER);
  EXPECT_EQ(facts.number(), 3);
  EXPECT_GE(facts.cores(), 1);
  EXPECT_LE(facts.cores(), sysconf(_SC_NPROCESSORS_CONF));
  EXPECT_GT(facts.memory_bytes(), int64_t{1} << 20);
  EXPECT_LE(facts.memory_bytes(), int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  EXPECT_GE(facts.descriptors(), 3);
  EXPECT_FALSE(facts.host().empty());
  EXPECT_FALSE(facts.program_version().empty());
  EXPECT_GE(facts.libraries_size(), 1);
}

// A check tells by this name whether two processes are on one machine.
TEST(ProcessFactsTest, ReadTwiceTheyAreTheSameMachine) {
  const v1::ProcessFacts first = ReadProcessFacts(v1::ProcessFacts::WORKER, 0);
  const v1::ProcessFacts second = ReadProcessFacts(v1::ProcessFacts::WORKER, 1);
  EXPECT_FALSE(first.machine().empty());
  EXPECT_EQ(first.machine(), second.machine());
  EXPECT_EQ(first.host(), second.host());
}

TEST(ProcessFactsTest, TheWallClockCountsMicrosecondsSince1970) {
  const int64_t before =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  const int64_t now = WallClockMicroseconds();
  EXPECT_GE(now, before);
  EXPECT_LT(now - before, int64_t{60} * 1'000'000);
}

}  // namespace
}  // namespace starring
