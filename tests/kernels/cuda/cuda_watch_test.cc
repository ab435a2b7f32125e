#include "kernels/cuda/cuda_watch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

struct Report {
  std::atomic<int> count = 0;
  std::string call, late_peers;  // of the first report
  Clock::time_point at;

  CudaWatch::Options After(milliseconds deadline) {
    return {.deadline = deadline, .hangs = [this](const char* name, const std::string& late) {
              if (count == 0) {
                call = name;
                late_peers = late;
                at = Clock::now();
              }
              ++count;
            }};
  }
  void Await() const {
    while (count == 0) std::this_thread::sleep_for(milliseconds(1));
  }
};

TEST(CudaWatch, NamesTheCallThatDoesNotReturnAtTheDeadline) {
  Report report;
  CudaWatch watch(report.After(milliseconds(40)));
  { const CudaWatch::Call other(&watch, "copying"); }
  const Clock::time_point begin = Clock::now();
  {
    const CudaWatch::Call call(&watch, "waiting");
    report.Await();
  }
  EXPECT_EQ(report.call, "waiting");
  EXPECT_GE(report.at - begin, milliseconds(40));
}

TEST(CudaWatch, CallsThatReturnMayFollowEachOtherForLongerThanTheDeadline) {
  Report report;
  CudaWatch watch(report.After(milliseconds(40)));
  const Clock::time_point begin = Clock::now();
  Clock::duration longest{0};
  while (Clock::now() - begin < milliseconds(120)) {
    const Clock::time_point call_begin = Clock::now();
    {
      const CudaWatch::Call call(&watch, "waiting");
      std::this_thread::sleep_for(milliseconds(1));
    }
    longest = std::max(longest, Clock::now() - call_begin);
  }
  // On a busy machine one call may last for the deadline, and is reported rightly.
  EXPECT_TRUE(report.count == 0 || longest >= milliseconds(40)) << report.count << " reports";
}

TEST(CudaWatch, SaysForWhichPeersTheGpuWaits) {
  Report report;
  CudaWatch watch(report.After(milliseconds(8)));
  watch.AskForPeers([] { return std::string("rank 1"); });
  {
    const CudaWatch::Call call(&watch, "waiting");
    report.Await();
  }
  EXPECT_EQ(report.late_peers, "rank 1");
  watch.AskForPeers(nullptr);
  Report other;
  CudaWatch own(other.After(milliseconds(8)));
  own.Report("copying");
  EXPECT_EQ(other.call, "copying");
  EXPECT_EQ(other.late_peers, "");
}

TEST(CudaWatch, OneThreadsCallsDoNotHideAnothers) {
  Report report;
  CudaWatch watch(report.After(milliseconds(20)));
  const CudaWatch::Call call(&watch, "waiting");
  std::thread other([&] {
    while (report.count == 0) const CudaWatch::Call brief(&watch, "launching");
  });
  other.join();
  EXPECT_EQ(report.call, "waiting");
}

TEST(CudaWatch, ReportsACallOnceAndTheNextOneToo) {
  Report report;
  CudaWatch watch(report.After(milliseconds(8)));
  {
    const CudaWatch::Call call(&watch, "waiting");
    report.Await();
    std::this_thread::sleep_for(milliseconds(30));
    EXPECT_EQ(report.count, 1);
  }
  report.count = 0;
  const CudaWatch::Call call(&watch, "copying");
  report.Await();
  EXPECT_EQ(report.call, "copying");
}

// A call may be without a watch: then no thread looks at it.
TEST(CudaWatch, ACallNeedsNoWatch) { const CudaWatch::Call call(nullptr, "waiting"); }

}  // namespace
}  // namespace starring
