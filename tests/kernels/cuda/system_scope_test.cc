#include "kernels/cuda/system_scope.h"

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring::cuda {
namespace {

using testing::ElementsAre;

template <typename Word>
__global__ void StoreAndLoad(Word* words) {
  StoreReleaseSystem(&words[1], static_cast<Word>(0x1234567890abcdef));
  words[3] = LoadAcquireSystem(&words[1]);
}

cudaLaunchConfig_t One() { return {.gridDim = {1}, .blockDim = {1}, .dynamicSmemBytes = 0, .stream = nullptr}; }

template <typename Word>
std::vector<Word> WordsAfterStoreAndLoad() {
  std::vector<Word> words(5, 7);
  const cudaLaunchConfig_t config = One();
  EXPECT_EQ(cudaLaunchKernelEx(&config, StoreAndLoad<Word>, words.data()), cudaSuccess);
  return words;
}

TEST(SystemScopeTest, WordsOfEverySizeAreStoredAndLoadedAlone) {
  EXPECT_THAT(WordsAfterStoreAndLoad<uint8_t>(), ElementsAre(7, 0xef, 7, 0xef, 7));
  EXPECT_THAT(WordsAfterStoreAndLoad<uint32_t>(), ElementsAre(7, 0x90abcdef, 7, 0x90abcdef, 7));
  EXPECT_THAT(WordsAfterStoreAndLoad<uint64_t>(), ElementsAre(7, 0x1234567890abcdef, 7, 0x1234567890abcdef, 7));
}

struct Exchange {
  uint64_t data = 0, ready = 0, answer = 0;
  uint64_t took_ns = 0;
};

__global__ void AwaitWord(Exchange* exchange) {
  const uint64_t begin = GlobalTimerNs();
  while (LoadAcquireSystem(&exchange->ready) != 1) __nanosleep(1000);
  exchange->answer = exchange->data + 1;
  exchange->took_ns = GlobalTimerNs() - begin;
  __threadfence_system();
  StoreReleaseSystem(&exchange->ready, 2);
}

TEST(SystemScopeTest, AKernelThatWaitsForTheHostSeesWhatTheHostWroteBefore) {
  constexpr auto kDelay = std::chrono::milliseconds(3);
  Exchange exchange;
  std::atomic_ref<uint64_t> ready(exchange.ready);
  std::thread host([&] {
    std::this_thread::sleep_for(kDelay);
    exchange.data = 41;
    ready.store(1, std::memory_order_release);
  });
  const cudaLaunchConfig_t config = One();
  EXPECT_EQ(cudaLaunchKernelEx(&config, AwaitWord, &exchange), cudaSuccess);
  EXPECT_EQ(ready.load(), 2u);
  EXPECT_EQ(exchange.answer, 42u);
  EXPECT_LT(exchange.took_ns, 60'000'000'000u);
  host.join();
}

// The parameters of a kernel that are a struct stay where the launch put them.
__global__ void SumOf(const __grid_constant__ Exchange exchange, uint64_t* sum) {
  *sum = exchange.data + exchange.answer;
}

TEST(SystemScopeTest, AGridConstantIsAParameter) {
  uint64_t sum = 0;
  const cudaLaunchConfig_t config = One();
  EXPECT_EQ(cudaLaunchKernelEx(&config, SumOf, Exchange{.data = 3, .answer = 4}, &sum), cudaSuccess);
  EXPECT_EQ(sum, 7u);
}

}  // namespace
}  // namespace starring::cuda
