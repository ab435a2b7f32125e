#include "common/base/mutex.h"

#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A wait that ends early would pass by chance with a shorter time.
constexpr milliseconds kLong(20);

struct Shared {
  Mutex mutex;
  ConditionVariable changed;
  int count ABSL_GUARDED_BY(mutex) = 0;

  int Read() {
    const MutexLock lock(mutex);
    return count;
  }
};

TEST(MutexTest, OneThreadAtATimeHoldsIt) {
  constexpr int kThreads = 4;
  constexpr int kTurns = 2000;
  Shared shared;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&shared] {
      for (int turn = 0; turn < kTurns; ++turn) {
        const MutexLock lock(shared.mutex);
        ++shared.count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared.Read(), kThreads * kTurns);
}

TEST(MutexTest, UnlockInsideALockLetsOthersIn) {
  Shared shared;
  const MutexLock lock(shared.mutex);
  shared.mutex.Unlock();
  std::thread other([&shared] {
    const MutexLock inner(shared.mutex);
    shared.count = 1;
  });
  other.join();
  shared.mutex.Lock();
  EXPECT_EQ(shared.count, 1);
}

TEST(ConditionVariableTest, WaitLetsGoOfTheMutexAndHoldsItAgain) {
  Shared shared;
  std::thread other([&shared] {
    const MutexLock lock(shared.mutex);
    shared.count = 1;
    shared.changed.NotifyOne();
  });
  {
    const MutexLock lock(shared.mutex);
    shared.changed.Wait(shared.mutex, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared.mutex) { return shared.count == 1; });
    ++shared.count;  // under ThreadSanitizer: not a race, as the mutex is held again
  }
  other.join();
  EXPECT_EQ(shared.Read(), 2);
}

TEST(ConditionVariableTest, NotifyAllWakesEveryThread) {
  Shared shared;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&shared] {
      const MutexLock lock(shared.mutex);
      shared.changed.Wait(shared.mutex, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared.mutex) { return shared.count > 0; });
      ++shared.count;
    });
  }
  {
    const MutexLock lock(shared.mutex);
    shared.count = 1;
  }
  shared.changed.NotifyAll();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared.Read(), 4);
}

TEST(ConditionVariableTest, AWaitWithAnEndSaysWhetherTheConditionHolds) {
  Shared shared;
  const auto never = [] { return false; };
  const auto always = [] { return true; };
  const MutexLock lock(shared.mutex);
  const auto begin = steady_clock::now();
  EXPECT_FALSE(shared.changed.WaitFor(shared.mutex, kLong, never));
  EXPECT_GE(steady_clock::now() - begin, kLong);
  EXPECT_TRUE(shared.changed.WaitFor(shared.mutex, milliseconds(0), always));
  EXPECT_FALSE(shared.changed.WaitUntil(shared.mutex, begin, never));
  EXPECT_TRUE(shared.changed.WaitUntil(shared.mutex, begin, always));
}

TEST(ConditionVariableTest, AWaitWithoutAConditionEndsByItself) {
  Shared shared;
  const MutexLock lock(shared.mutex);
  shared.changed.WaitFor(shared.mutex, milliseconds(1));
  shared.count = 1;  // the mutex is held again
}

}  // namespace
}  // namespace starring
