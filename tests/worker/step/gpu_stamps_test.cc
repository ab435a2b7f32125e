#include "worker/step/gpu_stamps.h"

#include <chrono>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "common/metrics/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/step/step_timer.h"

namespace starring {
namespace {

using std::chrono::milliseconds;

class GpuStampsTest : public testing::Test {
 protected:
  GpuStampsTest() {
    stamps_ = GpuStamps::Create(device_.get(), 4, 2).value();
    EXPECT_TRUE(stamps_->Begin(&timer_, nullptr).ok());
  }

  // A step of as many segments as there are waits, each before its segment. Streams are synchronous here.
  void Run(int64_t step, std::initializer_list<milliseconds> waits) {
    const int slot = static_cast<int>(step % 4);
    timer_.BeginStep();
    stamps_->BeginStep(slot);
    for (const milliseconds wait : waits) {
      std::this_thread::sleep_for(wait);
      stamps_->BeginSegment();
      stamps_->EndSegment();
    }
    stamps_->Ran(slot, stamps_->segment_count());
    stamps_->Finish(slot, step);
    timer_.EndStep();
  }

  std::unique_ptr<CudaDevice> device_ = CreateCudaDevice({}).value();
  StepTimer timer_{2};
  std::unique_ptr<GpuStamps> stamps_;
};

TEST_F(GpuStampsTest, AddsUpTheGapsOfAStep) {
  Run(0, {milliseconds(0)});
  Run(1, {milliseconds(100)});  // of the warm-up
  Run(2, {milliseconds(3)});
  Run(3, {milliseconds(3), milliseconds(5)});
  Run(4, {milliseconds(3)});
  const StepSummary exposed = stamps_->exposed();
  EXPECT_EQ(exposed.steps_measured, 3);
  EXPECT_GE(exposed.p50_ms, 3);
  EXPECT_GE(exposed.max_ms, 8);
  EXPECT_LT(exposed.max_ms, 100);
}

TEST_F(GpuStampsTest, AnEvaluationIsNoGap) {
  for (int64_t step = 0; step < 3; ++step) Run(step, {milliseconds(0)});
  ASSERT_TRUE(stamps_->Settle().ok());
  Run(3, {milliseconds(100)});
  Run(4, {milliseconds(1)});
  const StepSummary exposed = stamps_->exposed();
  EXPECT_EQ(exposed.steps_measured, 2);
  EXPECT_LT(exposed.max_ms, 100);
}

// A stamp is a node: each launch writes it anew.
TEST_F(GpuStampsTest, AGraphStampsWheneverItIsLaunched) {
  ASSERT_TRUE(device_->BeginCapture().ok());
  stamps_->BeginStep(1);
  stamps_->BeginSegment();
  stamps_->EndSegment();
  const auto graph = device_->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int64_t step = 0; step < 4; ++step) {
    timer_.BeginStep();
    std::this_thread::sleep_for(milliseconds(step == 3 ? 7 : 1));
    ASSERT_TRUE((*graph)->Launch().ok());
    stamps_->Ran(1, 1);
    stamps_->Finish(1, step);
    timer_.EndStep();
  }
  EXPECT_EQ(stamps_->exposed().steps_measured, 2);
  EXPECT_GE(stamps_->exposed().p50_ms, 1);
  EXPECT_GE(stamps_->exposed().max_ms, 7);
}

// The trace has the host's clock, and so has the emulated GPU.
TEST_F(GpuStampsTest, DrawsTheGpusRow) {
  const auto trace = Trace::Create({.path = testing::TempDir() + "/stamps.json"}).value();
  TraceTrack* const track = AddTrack(trace.get(), {.name = "GPU"});
  ASSERT_TRUE(stamps_->Begin(&timer_, track).ok());
  Run(0, {milliseconds(0)});
  Run(1, {milliseconds(2), milliseconds(2)});
  EXPECT_EQ(track->kept_count(), 5);  // compute; exposed exchange, compute, twice
  ASSERT_TRUE(trace->Write().ok());
  std::ifstream file(Trace::PathOf({.path = testing::TempDir() + "/stamps.json"}));
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), testing::HasSubstr("exposed exchange"));
}

}  // namespace
}  // namespace starring
