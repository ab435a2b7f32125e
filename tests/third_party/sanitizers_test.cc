#include <climits>
#include <cstdlib>
#include <thread>

#include "gtest/gtest.h"

#if defined(STARRING_ASAN)
#include <sanitizer/lsan_interface.h>
#endif

namespace starring {
namespace {

#if defined(STARRING_ASAN)
TEST(SanitizersDeathTest, AddressSeesUseAfterFree) {
  EXPECT_DEATH(
      {
        int* volatile number = new int(1);
        delete number;
        *number = 2;
      },
      "heap-use-after-free");
}

TEST(SanitizersDeathTest, LeaksAreSeenInSpiteOfTheSuppressions) {
  EXPECT_DEATH(
      {
        int* volatile leaked = new int[1000];
        leaked[0] = 1;
        leaked = nullptr;
        __lsan_do_leak_check();
      },
      "4000 byte\\(s\\) leaked");
}
#endif

#if defined(STARRING_UBSAN)
TEST(SanitizersDeathTest, UndefinedStopsAtSignedOverflow) {
  volatile int largest = INT_MAX;
  EXPECT_DEATH({ largest = largest + 1; }, "signed integer overflow");
}
#endif

#if defined(STARRING_TSAN)
TEST(SanitizersDeathTest, ThreadSeesARace) {
  EXPECT_DEATH(
      {
        int counter = 0;
        std::thread other([&counter] { ++counter; });
        ++counter;
        other.join();
        std::exit(counter);
      },
      "data race");
}
#endif

}  // namespace
}  // namespace starring
