// Streams that work by themselves, what they wait for, and the host's waits for them.
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/counters.h"
#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring {
namespace {

using cuda_emulation::EmulatedGpu;
using cuda_emulation::Gpu;
using testing::ElementsAre;

constexpr size_t kWordBytes = sizeof(uint32_t);

// Two streams, an event, a word of device memory, and two words of pinned memory with zeros.
class StreamsTest : public testing::Test {
 protected:
  explicit StreamsTest(const EmulatedGpu& machine) {
    Gpu() = machine;
    for (cudaStream_t* const stream : {&first_, &second_}) EXPECT_EQ(cudaStreamCreateWithFlags(stream, 0), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, 0), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&device_, kWordBytes), cudaSuccess);
    EXPECT_EQ(cudaMallocHost(&pinned_, 2 * sizeof(uint64_t)), cudaSuccess);
    Word(0) = Word(1) = 0;
  }
  ~StreamsTest() override {
    for (cudaStream_t const stream : {first_, second_}) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    Gpu() = {};
  }

  uint64_t& Word(int i) { return static_cast<uint64_t*>(pinned_)[i]; }
  void Write(int i, uint64_t value) { std::atomic_ref<uint64_t>(Word(i)).store(value); }
  uint64_t Read(int i) { return std::atomic_ref<uint64_t>(Word(i)).load(); }

  CUstreamBatchMemOpParams Operation(CUstreamBatchMemOpType type, int i, uint64_t value, unsigned flags = 0) {
    CUstreamBatchMemOpParams operation = {};
    operation.waitValue = {
        .operation = type, .address = reinterpret_cast<CUdeviceptr>(&Word(i)), .value64 = value, .flags = flags};
    return operation;
  }
  CUresult Enqueue(cudaStream_t stream, std::vector<CUstreamBatchMemOpParams> operations) {
    return cuStreamBatchMemOp(stream, static_cast<unsigned>(operations.size()), operations.data(), 0);
  }
  void WaitForWord(cudaStream_t stream, int i, uint64_t value) {
    EXPECT_EQ(Enqueue(stream, {Operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, i, value, CU_STREAM_WAIT_VALUE_EQ)}),
              CUDA_SUCCESS);
  }
  void WriteWord(cudaStream_t stream, int i, uint64_t value) {
    EXPECT_EQ(Enqueue(stream, {Operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, i, value)}), CUDA_SUCCESS);
  }

  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* device_ = nullptr;
  void* pinned_ = nullptr;
};

class AsyncStreamsTest : public StreamsTest {
 protected:
  AsyncStreamsTest() : StreamsTest({.async = true}) {}
};

// Fails within a minute, which is also the time that every loop below takes at most.
template <typename Done>
bool Becomes(Done done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return done();
}

TEST_F(AsyncStreamsTest, WorkIsDoneWhileNobodyWaits) {
  WriteWord(first_, 0, 7);
  EXPECT_TRUE(Becomes([&] { return Read(0) == 7; }));
}

TEST_F(AsyncStreamsTest, AParkedStreamKeepsNoOtherFromWorking) {
  WaitForWord(first_, 0, 1);
  WriteWord(first_, 1, 5);
  EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device_, 0, kWordBytes, second_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(second_), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(first_), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  EXPECT_EQ(Read(1), 0u);
  WriteWord(second_, 0, 1);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  EXPECT_EQ(Read(1), 5u);
}

TEST_F(AsyncStreamsTest, AStreamWaitsForAnEventOfAnother) {
  WaitForWord(first_, 0, 1);
  WriteWord(first_, 1, 1);
  EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(second_, event_), cudaSuccess);
  WriteWord(second_, 1, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(Read(1), 0u);
  Write(0, 1);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(Read(1), 2u);
}

TEST_F(AsyncStreamsTest, MemoryIsFreedWhenTheWorkThatUsesItIsDone) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kWordBytes), cudaSuccess);
  WaitForWord(first_, 0, 1);
  EXPECT_EQ(cudaMemsetAsync(memory, 0, kWordBytes, first_), cudaSuccess);
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    Write(0, 1);
  });
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(first_), cudaSuccess);
  host.join();
}

TEST_F(AsyncStreamsTest, AWaitWithoutAnEndEndsAtTheDeadline) {
  Gpu().wait_deadline_ms = 20;
  WaitForWord(first_, 0, 1);
  EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorLaunchTimeout);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaErrorLaunchTimeout);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchTimeout);
  Gpu().wait_deadline_ms = 60'000;
  Write(0, 1);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
}

// The order in which two streams write, in bits.
class OrderTest : public StreamsTest {
 protected:
  OrderTest() : StreamsTest({.async = true}) {}

  std::vector<uint32_t> OrderWith(uint64_t seed) {
    Gpu().async_seed = seed;
    cudaStream_t streams[2] = {};
    for (cudaStream_t const stream : {first_, second_}) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    for (cudaStream_t& stream : streams) EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaSuccess);
    first_ = streams[0];
    second_ = streams[1];
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(second_, event_), cudaSuccess);
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < 8; ++i) {
      cuda_emulation::Enqueue(i % 2 == 0 ? first_ : second_, [&order, i] { order.push_back(i % 2); });
    }
    EXPECT_EQ(cudaEventRecord(event_, second_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(first_, event_), cudaSuccess);
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(graph, first_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return order;
  }
};

TEST_F(OrderTest, ASeedIsAnOrderOfTheBranches) {
  std::set<std::vector<uint32_t>> orders;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<uint32_t> order = OrderWith(seed);
    EXPECT_EQ(order.size(), 8u);
    EXPECT_EQ(OrderWith(seed), order) << "seed " << seed;
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 10u);
}

// The driver's operations, in every mode of the streams.
class MemoryOperationsTest : public StreamsTest, public testing::WithParamInterface<EmulatedGpu> {
 protected:
  MemoryOperationsTest() : StreamsTest(GetParam()) {}
};

TEST_P(MemoryOperationsTest, AStreamWritesAndWaits) {
  Word(0) = 0xffffffff00000000;
  ASSERT_EQ(Enqueue(first_, {Operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, 0, 3),
                             Operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, 0, 3, CU_STREAM_WAIT_VALUE_EQ),
                             Operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, 0, 2, CU_STREAM_WAIT_VALUE_GEQ),
                             // Counters wrap around: 3 is 13 after this.
                             Operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, 0, 0xfffffff6, CU_STREAM_WAIT_VALUE_GEQ),
                             Operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, 0, 0xffffffff00000003, CU_STREAM_WAIT_VALUE_EQ),
                             Operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, 1, 4)}),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(Read(0), 0xffffffff00000003);
  EXPECT_EQ(Read(1), 4u);
}

TEST_P(MemoryOperationsTest, AStreamWaitsForTheHost) {
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(Read(1), 0u);
    Write(0, 9);
  });
  WaitForWord(first_, 0, 9);
  WriteWord(first_, 1, 1);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(Read(1), 1u);
  host.join();
}

TEST_P(MemoryOperationsTest, ABatchIsANodeOfAGraph) {
  ASSERT_EQ(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  WriteWord(first_, 0, 1);
  ASSERT_EQ(Enqueue(first_, {Operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, 0, 1, CU_STREAM_WAIT_VALUE_EQ),
                             Operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, 1, 6)}),
            CUDA_SUCCESS);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
  EXPECT_EQ(Read(0), 0u);
  for (int launch = 0; launch < 2; ++launch) {
    Write(0, 0);
    Write(1, 0);
    cuda_emulation::TakeCounts();
    EXPECT_EQ(cudaGraphLaunch(graph, first_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    EXPECT_EQ(Read(1), 6u);
    const cuda_emulation::WorkCounts counts = cuda_emulation::TakeCounts();
    EXPECT_EQ(counts.memory_operations, 2);
    EXPECT_EQ(counts.nodes(), 2);
  }
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_P(MemoryOperationsTest, RefusesWhatADriverRefuses) {
  const auto write = Operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, 0, 1);
  EXPECT_EQ(Enqueue(first_, std::vector(255, write)), CUDA_SUCCESS);
  EXPECT_EQ(Enqueue(first_, std::vector(256, write)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Enqueue(first_, {}), CUDA_ERROR_INVALID_VALUE);
  auto elsewhere = write;
  uint32_t stack = 0;
  elsewhere.writeValue.address = reinterpret_cast<CUdeviceptr>(&stack);
  // The first operation of a refused batch is not done.
  EXPECT_EQ(Enqueue(first_, {Operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, 1, 1), elsewhere}), CUDA_ERROR_INVALID_VALUE);
  auto askew = write;
  askew.writeValue.address += 2;
  EXPECT_EQ(Enqueue(first_, {askew}), CUDA_ERROR_INVALID_VALUE);
  const auto flushed =
      Operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, 0, 1, CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_FLUSH);
  EXPECT_EQ(Enqueue(first_, {flushed}), CUDA_ERROR_NOT_SUPPORTED);
  Gpu().flushes_remote_writes = true;
  EXPECT_EQ(Enqueue(first_, {flushed}), CUDA_SUCCESS);
  Gpu().has_64_bit_operations = false;
  EXPECT_EQ(Enqueue(first_, {Operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, 0, 1)}), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(Read(1), 0u);
}

TEST_P(MemoryOperationsTest, AWaitWithoutAnEndEndsAtTheDeadline) {
  Gpu().wait_deadline_ms = 20;
  const CUresult enqueued = Enqueue(first_, {Operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, 0, 1, CU_STREAM_WAIT_VALUE_EQ)});
  if (enqueued == CUDA_SUCCESS) {
    EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorLaunchTimeout);
  } else {
    EXPECT_EQ(enqueued, CUDA_ERROR_LAUNCH_TIMEOUT);  // synchronous streams wait at once
  }
  Write(0, 1);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
}

std::string ModeName(const testing::TestParamInfo<EmulatedGpu>& mode) {
  return mode.param.late ? "Late" : mode.param.async ? "Async" : "Synchronous";
}

INSTANTIATE_TEST_SUITE_P(Streams, MemoryOperationsTest,
                         testing::Values(EmulatedGpu{}, EmulatedGpu{.late = true}, EmulatedGpu{.async = true}),
                         ModeName);

TEST(DriverTest, SaysWhatTheDeviceCanDo) {
  const auto attributes = [] {
    std::vector<int> values;
    for (const int number : {98, 122, 125}) {
      values.push_back(-1);
      EXPECT_EQ(cuDeviceGetAttribute(&values.back(), static_cast<CUdevice_attribute>(number), 0), CUDA_SUCCESS);
    }
    return values;
  };
  EXPECT_THAT(attributes(), ElementsAre(0, 1, 1));
  Gpu() = {.ipc = EmulatedGpu::Ipc::kNothing, .has_64_bit_operations = false, .flushes_remote_writes = true};
  EXPECT_THAT(attributes(), ElementsAre(1, 0, 0));
  Gpu() = {};
  CUdevice device = -1;
  EXPECT_EQ(cuDeviceGet(&device, 1), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
  const char* name = nullptr;
  EXPECT_EQ(cuGetErrorName(CUDA_ERROR_NOT_SUPPORTED, &name), CUDA_SUCCESS);
  EXPECT_STREQ(name, "cudaErrorNotSupported");
}

}  // namespace
}  // namespace starring
