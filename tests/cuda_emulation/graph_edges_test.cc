// Graphs whose branches wait for each other, and graphs that lack such a wait.
#include <cuda_runtime.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring {
namespace {

using cuda_emulation::EmulatedGpu;
using cuda_emulation::Gpu;

constexpr int kSeeds = 40;

enum class Edges { kAll, kNoFork, kNoJoin };

// Two branches: the first writes a gradient, the second copies it, the first overwrites it.
class GraphEdgesTest : public testing::Test {
 protected:
  ~GraphEdgesTest() override { Gpu() = {}; }

  void Fork() { Follow(main_, copies_); }
  void Join() { Follow(copies_, main_); }
  void Set(int value) {
    cuda_emulation::Enqueue(main_, [this, value] { gradient_ = value; });
  }

  // The copies of some launches of one graph. The joins at the end are complete, so CUDA accepts the capture.
  std::vector<int> CopiesOf(Edges edges) {
    for (cudaStream_t* const stream : {&main_, &copies_}) {
      EXPECT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), cudaSuccess);
    }
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    if (edges == Edges::kNoFork) Fork();  // too early
    Set(1);
    if (edges != Edges::kNoFork) Fork();
    cuda_emulation::Enqueue(copies_, [this] { copy_ = gradient_; });
    if (edges != Edges::kNoJoin) Join();
    Set(2);
    Join();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(main_, &graph), cudaSuccess);
    std::vector<int> copies;
    for (int launch = 0; launch < 3; ++launch) {
      copy_ = gradient_ = 0;
      EXPECT_EQ(cudaGraphLaunch(graph, main_), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(main_), cudaSuccess);
      EXPECT_EQ(gradient_, 2);
      copies.push_back(copy_);
    }
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    for (cudaStream_t const stream : {main_, copies_}) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    return copies;
  }

  // The seeds of `count` with which a copy is wrong.
  int WrongSeeds(Edges edges) {
    int wrong = 0;
    for (int seed = 1; seed <= kSeeds; ++seed) {
      Gpu() = {.async = true, .async_seed = static_cast<uint64_t>(seed)};
      wrong += CopiesOf(edges) == std::vector<int>{1, 1, 1} ? 0 : 1;
    }
    return wrong;
  }

  void Follow(cudaStream_t from, cudaStream_t to) {
    EXPECT_EQ(cudaEventRecord(event_, from), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(to, event_), cudaSuccess);
  }

  cudaStream_t main_ = nullptr, copies_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int gradient_ = 0, copy_ = 0;
};

TEST_F(GraphEdgesTest, WithAllEdgesEverySeedIsRight) { EXPECT_EQ(WrongSeeds(Edges::kAll), 0); }

TEST_F(GraphEdgesTest, AMissingEdgeIsFoundBySomeSeed) {
  // A branch that reads before the value is there, and one that reads when it is overwritten.
  EXPECT_GT(WrongSeeds(Edges::kNoFork), 3);
  EXPECT_GT(WrongSeeds(Edges::kNoJoin), 3);
}

TEST_F(GraphEdgesTest, LateStreamsFindAMissingJoin) {
  Gpu() = {.late = true};
  EXPECT_THAT(CopiesOf(Edges::kAll), testing::Each(1));
  EXPECT_THAT(CopiesOf(Edges::kNoJoin), testing::Each(2));
}

TEST_F(GraphEdgesTest, SynchronousStreamsFindNone) {
  for (const Edges edges : {Edges::kAll, Edges::kNoJoin}) EXPECT_THAT(CopiesOf(edges), testing::Each(1));
}

class CaptureTest : public testing::TestWithParam<EmulatedGpu> {
 protected:
  CaptureTest() {
    Gpu() = GetParam();
    for (cudaStream_t& stream : streams_) EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, 0), cudaSuccess);
  }
  ~CaptureTest() override {
    for (cudaStream_t const stream : streams_) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    Gpu() = {};
  }

  void Begin() { ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), cudaSuccess); }
  void Follow(int from, int to) {
    ASSERT_EQ(cudaEventRecord(event_, streams_[from]), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(streams_[to], event_), cudaSuccess);
  }
  void Work(int stream) {
    cuda_emulation::Enqueue(streams_[stream], [] {});
  }
  cudaError_t End() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(streams_[0], &graph);
    EXPECT_EQ(graph != nullptr, error == cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);  // also of none
    return error;
  }

  cudaStream_t streams_[3] = {};
  cudaEvent_t event_ = nullptr;
};

TEST_P(CaptureTest, WorkThatIsNotJoinedIsRefused) {
  Begin();
  Follow(0, 1);
  Work(1);
  EXPECT_EQ(End(), cudaErrorStreamCaptureUnjoined);
  Begin();
  Follow(0, 1);
  Follow(1, 0);  // joins nothing yet
  Work(1);
  EXPECT_EQ(End(), cudaErrorStreamCaptureUnjoined);
  Begin();
  Follow(0, 1);
  Work(1);
  Follow(1, 2);  // joined to another branch only
  EXPECT_EQ(End(), cudaErrorStreamCaptureUnjoined);
}

TEST_P(CaptureTest, ABranchIsJoinedThroughAnother) {
  Begin();
  Follow(0, 1);
  Work(1);
  Follow(1, 2);
  Follow(2, 0);
  EXPECT_EQ(End(), cudaSuccess);
}

TEST_P(CaptureTest, OnlyTheFirstStreamEndsTheCapture) {
  Begin();
  Follow(0, 1);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(streams_[1], &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(End(), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(streams_[1], &graph), cudaErrorInvalidValue);
}

TEST_P(CaptureTest, AnEventOfACaptureIsForThatCaptureOnly) {
  Begin();
  ASSERT_EQ(cudaEventRecord(event_, streams_[0]), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
  EXPECT_EQ(End(), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(streams_[1], event_), cudaErrorCapturedEvent);
  Begin();
  EXPECT_EQ(cudaStreamWaitEvent(streams_[0], event_), cudaErrorCapturedEvent);
  EXPECT_EQ(End(), cudaSuccess);
}

TEST_P(CaptureTest, AGraphFollowsWhatIsInTheStream) {
  std::vector<int> order;
  Begin();
  Follow(0, 1);
  cuda_emulation::Enqueue(streams_[1], [&] { order.push_back(2); });
  Follow(1, 0);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
  for (int launch = 0; launch < 20; ++launch) {
    order.clear();
    // While asynchronous streams do this, the rest becomes ready.
    cuda_emulation::Enqueue(streams_[0], [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
    cuda_emulation::Enqueue(streams_[0], [&] { order.push_back(1); });
    ASSERT_EQ(cudaGraphLaunch(graph, streams_[0]), cudaSuccess);
    cuda_emulation::Enqueue(streams_[0], [&] { order.push_back(3); });
    EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
    EXPECT_THAT(order, testing::ElementsAre(1, 2, 3));
  }
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// Streams without a thread of their own, because a death test forks.
using CaptureDeathTest = CaptureTest;

TEST_P(CaptureDeathTest, TheProcessDiesAtTheLaunchThatTheEnvironmentNames) {
  const auto launch = [this] {
    setenv("EMULATED_GPU_DIES_AT_LAUNCH", "3", 1);
    Begin();
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(streams_[0], &graph);
    for (int i = 1; i <= 2; ++i) (void)cudaGraphLaunch(graph, streams_[0]);
    std::fputs("two launches\n", stderr);
    (void)cudaGraphLaunch(graph, streams_[0]);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(launch(), testing::KilledBySignal(SIGKILL), "two launches");
}

const auto kModes = testing::Values(EmulatedGpu{}, EmulatedGpu{.late = true}, EmulatedGpu{.async = true});
std::string ModeName(const testing::TestParamInfo<EmulatedGpu>& info) {
  return info.param.late ? "Late" : info.param.async ? "Async" : "Synchronous";
}

INSTANTIATE_TEST_SUITE_P(Streams, CaptureTest, kModes, ModeName);
INSTANTIATE_TEST_SUITE_P(Streams, CaptureDeathTest, testing::Values(EmulatedGpu{}, EmulatedGpu{.late = true}),
                         ModeName);

}  // namespace
}  // namespace starring
