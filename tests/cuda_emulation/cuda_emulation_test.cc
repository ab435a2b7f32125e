#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring {
namespace {

using testing::Each;
using testing::ElementsAre;

// Memory that kernels may write to: any memory, in this test.
template <typename... Parameters, typename... Arguments>
cudaError_t RunGrid(dim3 blocks, dim3 threads, void (*kernel)(Parameters...), Arguments... arguments) {
  const cudaLaunchConfig_t config = {.gridDim = blocks, .blockDim = threads, .dynamicSmemBytes = 0, .stream = nullptr};
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

void WhereAmI(uint64_t* out) {
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1000 * block + thread;
}

TEST(CudaEmulation, RunsEveryThreadOfEveryBlockOnce) {
  std::vector<uint64_t> out(24 * 30);
  ASSERT_EQ(RunGrid({2, 3, 4}, {5, 3, 2}, WhereAmI, out.data()), cudaSuccess);
  for (uint64_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], 1000 * (i / 30) + i % 30);
}

// Each thread reads what its neighbour wrote before the barrier, many times over.
void Rotate(int* out, int rounds) {
  __shared__ int values[96];
  const int thread = static_cast<int>(threadIdx.x);
  values[thread] = thread + 1000 * static_cast<int>(blockIdx.x);
  for (int round = 0; round < rounds; ++round) {
    __syncthreads();
    const int next = values[(thread + 1) % 96];
    __syncthreads();
    values[thread] = next;
  }
  out[blockIdx.x * 96 + threadIdx.x] = values[thread];
}

TEST(CudaEmulation, SyncthreadsMakesThreadsWaitForEachOther) {
  std::vector<int> out(3 * 96);
  ASSERT_EQ(RunGrid({3}, {96}, Rotate, out.data(), 7), cudaSuccess);
  for (int i = 0; i < 3 * 96; ++i) EXPECT_EQ(out[i], 1000 * (i / 96) + (i % 96 + 7) % 96);
}

// A kernel without the barrier that it needs. Threads begin in another order from launch to launch, so some launches
// read the lower half too early, and some the upper half.
void ReverseWithoutABarrier(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(1 + threadIdx.x);
  out[threadIdx.x] = values[63 - threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = 0;
}

TEST(CudaEmulation, ShowsAMissingBarrierInSomeLaunch) {
  std::vector<int> out(64);
  int lower_wrong = 0, upper_wrong = 0;
  for (int launch = 0; launch < 20; ++launch) {
    ASSERT_EQ(RunGrid({1}, {64}, ReverseWithoutABarrier, out.data()), cudaSuccess);
    lower_wrong += out[0] != 64 ? 1 : 0;
    upper_wrong += out[63] != 1 ? 1 : 0;
  }
  EXPECT_GT(lower_wrong, 0);
  EXPECT_GT(upper_wrong, 0);
}

void Warps(double* sums, float* from_seven, int* below, unsigned* odd) {
  const int thread = static_cast<int>(threadIdx.x);
  double sum = thread;
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  sums[thread] = sum;
  from_seven[thread] = __shfl_sync(0xffffffffu, static_cast<float>(thread), 7);
  below[thread] = __shfl_down_sync(0xffffffffu, thread, 3);
  odd[thread] = 0;
  __syncwarp();
  if (thread % 32 < 8) odd[thread] = __ballot_sync(0xffu, thread % 2);
}

TEST(CudaEmulation, WarpsShuffleAndVote) {
  std::vector<double> sums(64);
  std::vector<float> from_seven(64);
  std::vector<int> below(64);
  std::vector<unsigned> odd(64);
  ASSERT_EQ(RunGrid({1}, {64}, Warps, sums.data(), from_seven.data(), below.data(), odd.data()), cudaSuccess);
  for (int i = 0; i < 64; ++i) {
    const int first = i / 32 * 32;
    EXPECT_EQ(sums[i], 32 * first + 496);
    EXPECT_EQ(from_seven[i], static_cast<float>(first + 7));
    EXPECT_EQ(below[i], i % 32 < 29 ? i + 3 : i);
    EXPECT_EQ(odd[i], i % 32 < 8 ? 0xaau : 0u);
  }
}

void HalfSyncs() {
  if (threadIdx.x < 32) __syncthreads();
}
void HalfAWarpShuffles(int* out) {
  if (threadIdx.x < 16) *out = __shfl_xor_sync(0xffffffffu, 1, 1);
}
void OutsideTheMask(int* out) { *out = __shfl_sync(0x1u, 1, 0); }
void FromOutsideTheMask(int* out) {
  if (threadIdx.x < 2) *out = __shfl_sync(0x3u, 1, 5);
}

TEST(CudaEmulationDeathTest, StopsWhereAGpuWouldHangOrReadGarbage) {
  int out = 0;
  EXPECT_DEATH(RunGrid({1}, {64}, HalfSyncs),
               "waits in __syncthreads, another does not come: thread [0-9]+, thread [0-9]+");
  EXPECT_DEATH(RunGrid({1}, {32}, HalfAWarpShuffles, &out), "another lane does not come: thread [0-9]+, thread [0-9]+");
  EXPECT_DEATH(RunGrid({1}, {32}, OutsideTheMask, &out), "not in its own warp mask");
  EXPECT_DEATH(RunGrid({1}, {32}, FromOutsideTheMask, &out), "from a lane outside the mask");
}

TEST(CudaEmulation, RefusesLaunchesThatAGpuRefuses) {
  EXPECT_EQ(RunGrid({1}, {1025}, HalfSyncs), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunGrid({0}, {1}, HalfSyncs), cudaErrorInvalidConfiguration);
  EXPECT_EQ(RunGrid({1, 65536}, {1}, HalfSyncs), cudaErrorInvalidConfiguration);
}

TEST(CudaEmulation, CapturedWorkRunsWhenItsGraphDoesWithTheArgumentsOfThen) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  std::vector<uint64_t> out(2);
  uint64_t* place = out.data();
  const cudaLaunchConfig_t config = {.gridDim = {1}, .blockDim = {2}, .dynamicSmemBytes = 0, .stream = stream};
  EXPECT_EQ(cudaLaunchKernelEx(&config, WhereAmI, place), cudaSuccess);
  place = nullptr;
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 1), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_THAT(out, Each(0u));
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_THAT(out, ElementsAre(0, 2));
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

class LateStreamsTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 4;

  LateStreamsTest() {
    cuda_emulation::Gpu().late = true;
    for (cudaStream_t* const stream : {&copies_, &steps_}) EXPECT_EQ(cudaStreamCreateWithFlags(stream, 0), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&event_, 0), cudaSuccess);
    EXPECT_EQ(cudaMallocHost(&pinned_, kBytes), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&device_, kBytes), cudaSuccess);
    Set(pinned_, 0);
  }
  ~LateStreamsTest() override {
    for (cudaStream_t const stream : {copies_, steps_}) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    cuda_emulation::Gpu() = {};
  }

  static void Set(void* data, uint32_t value) { *static_cast<uint32_t*>(data) = value; }
  static uint32_t Get(const void* data) { return *static_cast<const uint32_t*>(data); }
  void CopyToDevice(const void* host, cudaStream_t stream) {
    EXPECT_EQ(cudaMemcpyAsync(device_, host, kBytes, cudaMemcpyHostToDevice, stream), cudaSuccess);
  }
  void CopyToHost(void* host, cudaStream_t stream) {
    EXPECT_EQ(cudaMemcpyAsync(host, device_, kBytes, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  }

  cudaStream_t copies_ = nullptr, steps_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* pinned_ = nullptr;
  void* device_ = nullptr;
};

TEST_F(LateStreamsTest, ACopyTakesPinnedMemoryAsItIsAtTheWait) {
  Set(pinned_, 1);
  CopyToDevice(pinned_, copies_);
  Set(pinned_, 2);
  EXPECT_EQ(Get(device_), 0xffffffffu);
  EXPECT_EQ(cudaStreamSynchronize(copies_), cudaSuccess);
  EXPECT_EQ(Get(device_), 2u);
}

TEST_F(LateStreamsTest, OtherMemoryIsTheCallersAgainAtOnce) {
  uint32_t host = 1;
  CopyToDevice(&host, copies_);
  host = 2;
  CopyToHost(&host, copies_);
  EXPECT_EQ(host, 1u);
}

TEST_F(LateStreamsTest, AWaitForAnEventRunsTheWorkBeforeItAndNoMore) {
  Set(pinned_, 1);
  CopyToDevice(pinned_, copies_);
  EXPECT_EQ(cudaEventRecordWithFlags(event_, copies_, cudaEventRecordDefault), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device_, 0, kBytes, copies_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(steps_, event_, cudaEventWaitDefault), cudaSuccess);
  EXPECT_EQ(Get(device_), 0xffffffffu);
  CopyToHost(pinned_, steps_);
  EXPECT_EQ(cudaStreamSynchronize(steps_), cudaSuccess);
  EXPECT_EQ(Get(pinned_), 1u);
  EXPECT_EQ(Get(device_), 1u);
  EXPECT_EQ(cudaStreamSynchronize(copies_), cudaSuccess);
  EXPECT_EQ(Get(device_), 0u);
}

TEST_F(LateStreamsTest, AStreamThatDoesNotWaitReadsTooEarly) {
  Set(pinned_, 1);
  CopyToDevice(pinned_, copies_);
  uint32_t got = 0;
  CopyToHost(&got, steps_);
  EXPECT_EQ(got, 0xffffffffu);
}

TEST_F(LateStreamsTest, AnEventOfAGraphIsRecordedByItsLaunch) {
  ASSERT_EQ(cudaStreamBeginCapture(steps_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  CopyToDevice(pinned_, steps_);
  EXPECT_EQ(cudaEventRecordWithFlags(event_, steps_, cudaEventRecordExternal), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device_, 0, kBytes, steps_), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(steps_, &graph), cudaSuccess);
  for (const uint32_t value : {5u, 6u}) {
    Set(pinned_, value);
    EXPECT_EQ(cudaGraphLaunch(graph, steps_), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
    EXPECT_EQ(Get(device_), value);
  }
  EXPECT_EQ(cudaStreamSynchronize(steps_), cudaSuccess);
  EXPECT_EQ(Get(device_), 0u);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST(CudaEmulation, MemoryIsCountedAndCopiesKnowItsSide) {
  const int64_t before_bytes = cuda_emulation::DeviceBytes();
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 100), cudaSuccess);
  EXPECT_EQ(cuda_emulation::DeviceBytes(), before_bytes + 256);
  std::vector<char> host(100, 1);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), device, 100, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
  EXPECT_THAT(host, Each('\xff'));
  EXPECT_EQ(cudaMemcpyAsync(host.data(), device, 100, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device, host.data(), 101, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(host.data()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&device, size_t{1} << 60), cudaErrorMemoryAllocation);
  EXPECT_EQ(cuda_emulation::DeviceBytes(), before_bytes);
}

}  // namespace
}  // namespace starring
