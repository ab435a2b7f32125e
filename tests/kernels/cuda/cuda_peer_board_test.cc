// The board (kernels/cuda/cuda_peer_board.h) on the emulated GPU, with streams that go on by themselves.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/arithmetic/optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/cuda_emulation/counters.h"
#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring {
namespace {

using Wait = CudaPeerBoard::Wait;

struct alignas(64) Memory {
  std::atomic<uint64_t> words[512] = {};
  const uint64_t* Word(int i) const { return reinterpret_cast<const uint64_t*>(&words[i]); }
  uint8_t* Byte(int i, int byte) { return reinterpret_cast<uint8_t*>(&words[i]) + byte; }
};

class CudaPeerBoardTest : public testing::Test {
 protected:
  CudaPeerBoardTest() {
    cuda_emulation::Gpu() = {.async = true};
    device_ = CreateCudaDevice({}).value();
    stream_ = device_->CreateStream().value();
    done_ = device_->CreateEvent().value();
  }
  ~CudaPeerBoardTest() override {
    done_.reset();
    stream_.reset();
    device_.reset();
    cuda_emulation::Gpu() = {};
  }
  absl::StatusOr<std::unique_ptr<CudaPeerBoard>> Map() {
    return device_->MapBoard(std::as_writable_bytes(std::span(memory_.words)));
  }
  bool Passes(std::chrono::milliseconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!done_->HasPassed().value()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }

  Memory memory_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<CudaEvent> done_;
};

TEST_F(CudaPeerBoardTest, AStreamWaitsForEveryWord) {
  const auto board = Map().value();
  std::vector<Wait> waits;  // more than the driver takes at once
  for (int i = 0; i < 300; ++i) waits.push_back({.word = memory_.Word(i), .value = 7});
  cuda_emulation::TakeCounts();
  ASSERT_TRUE(board->Await(stream_.get(), waits).ok());
  ASSERT_TRUE(stream_->Record(done_.get()).ok());
  EXPECT_EQ(cuda_emulation::TakeCounts().memory_operations, 2);
  for (int i = 0; i < 299; ++i) memory_.words[i].store(7);
  EXPECT_FALSE(Passes(std::chrono::milliseconds(20)));
  memory_.words[299].store(8);
  EXPECT_FALSE(Passes(std::chrono::milliseconds(20)));
  memory_.words[299].store(7);
  EXPECT_TRUE(Passes(std::chrono::seconds(20)));
}

TEST_F(CudaPeerBoardTest, AStoreIsOfOneByteAndFollowsTheStream) {
  const auto board = Map().value();
  memory_.words[1].store(0x1111111111111111);
  const Wait wait = {.word = memory_.Word(0), .value = 1};
  ASSERT_TRUE(board->Await(stream_.get(), {&wait, 1}).ok());
  ASSERT_TRUE(board->Store(stream_.get(), memory_.Byte(1, 3), 0x55).ok());
  ASSERT_TRUE(stream_->Record(done_.get()).ok());
  EXPECT_FALSE(Passes(std::chrono::milliseconds(20)));
  EXPECT_EQ(memory_.words[1].load(), 0x1111111111111111u);
  memory_.words[0].store(1);
  EXPECT_TRUE(Passes(std::chrono::seconds(20)));
  EXPECT_EQ(memory_.words[1].load(), 0x1111111155111111u);
}

TEST_F(CudaPeerBoardTest, AnUpdateReadsItsFactorsWhenItRunsAndSaysThatItIsDone) {
  const auto board = Map().value();
  constexpr int64_t kCount = 40'000;  // so that several blocks have a part
  const auto floats = device_->Allocate(4 * kCount * kFloatBytes).value();
  const auto values = device_->Allocate(sizeof(CudaStepValues)).value();
  std::vector<float> ones(4 * kCount, 1.0f);
  device_->CopyToDevice(ones.data(), floats->floats(), 4 * kCount * kFloatBytes);
  CudaPeerUpdate update = {.rows = ElementRange{0, kCount},
                           .element_count = kCount,
                           .reduction = {.order = SumOrder::kChain, .world_size = 2},
                           .learning_rate = 100.0f};
  for (int rank = 0; rank < 2; ++rank) {
    update.gradients[rank] = floats->floats() + rank * kCount;
    update.parameters[rank] = floats->floats() + (2 + rank) * kCount;
  }
  const CudaStepValues step = {.optimizer = {.learning_rate = 0.25f}};
  device_->CopyToDevice(&step, values->data(), sizeof(step));
  ASSERT_TRUE(device_->Synchronize().ok());
  auto* const findings = reinterpret_cast<int64_t*>(&memory_.words[100]);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(board
                    ->ApplyPeerUpdate(stream_.get(), OptimizerConfig{}, update,
                                      {.values = static_cast<const CudaStepValues*>(values->data()),
                                       .findings = findings,
                                       .findings_stride = 3,
                                       .signal = {.done = memory_.Byte(round, 5), .value = 9}})
                    .ok());
  }
  ASSERT_TRUE(stream_->Synchronize().ok());
  for (int round = 0; round < 2; ++round) EXPECT_EQ(memory_.words[round].load(), uint64_t{9} << 40);
  EXPECT_EQ(findings[0], 0);
  EXPECT_EQ(findings[3], 0);
  std::vector<float> parameters(2 * kCount);
  device_->CopyToHost(floats->floats() + 2 * kCount, parameters.data(), 2 * kCount * kFloatBytes);
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_THAT(parameters, testing::Each(0.0f));  // 1 - 2 * 0.25 * (1 + 1)
}

TEST_F(CudaPeerBoardTest, AMachineThatCannotIsRefusedWithTheReason) {
  cuda_emulation::Gpu().has_64_bit_operations = false;
  EXPECT_EQ(Map().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Map().status().message()), testing::HasSubstr("cannot wait for 64-bit words"));
  cuda_emulation::Gpu().has_64_bit_operations = true;
  cuda_emulation::Gpu().registers_memory = false;
  EXPECT_EQ(Map().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Map().status().message()), testing::HasSubstr("cudaHostRegister"));
}

}  // namespace
}  // namespace starring
