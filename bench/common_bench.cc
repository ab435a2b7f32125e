// The inner loops of common/ in GB/s of memory moved (bytes read plus bytes written), compared with a plain memcpy.
//
//   bazel run //bench:common_bench -- --benchmark_enable_random_interleaving=true --benchmark_repetitions=5
//
// Argument: elements. 16 Ki float32 (64 KiB an array) stay in the L2 cache, 4 Mi (16 MiB an array) do not.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/arithmetic/sum_in_order.h"
#include "common/base/check.h"
#include "common/base/memory.h"
#include "server/shard/contribution_sum.h"

namespace starring {
namespace {

constexpr int64_t kSmall = 16 << 10, kLarge = 4 << 20;

// Every page is written, so that none is the kernel's shared page of zeros.
AlignedFloats Filled(int64_t count, float value) {
  AlignedFloats floats(count);
  for (float& f : floats.span()) f = value;
  return floats;
}

void SetBytes(benchmark::State& state, int64_t arrays) {
  state.SetBytesProcessed(state.iterations() * state.range(0) * arrays * static_cast<int64_t>(sizeof(float)));
}

void Memcpy(benchmark::State& state) {
  const AlignedFloats from = Filled(state.range(0), 1);
  AlignedFloats to = Filled(state.range(0), 0);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), to.span().size_bytes());
    // Nothing reads the copy, so the compiler could leave it out. Here and below this call counts as a reader.
    benchmark::ClobberMemory();
  }
  SetBytes(state, 2);
}
BENCHMARK(Memcpy)->Arg(kSmall)->Arg(kLarge);

void RunOn(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

// A cache line goes from the first of our cores to the second and back. A virtual machine's cores may be near each
// other or far, and change places while it runs: every exchange within the host depends on it.
void CoreRoundTrip(benchmark::State& state) {
  cpu_set_t ours;
  CHECK_EQ(sched_getaffinity(0, sizeof(ours), &ours), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &ours)) cores.push_back(core);
  }
  if (cores.size() < 2) return state.SkipWithError("there is one core");
  constexpr int64_t kOver = -1;
  // Two lines each, because a processor may fetch a line together with its neighbour.
  alignas(128) std::atomic<int64_t> there = 0;
  alignas(128) std::atomic<int64_t> back = 0;
  std::thread answers([&] {
    RunOn(cores[1]);
    for (int64_t sent = 0; sent != kOver; sent = there.load(std::memory_order_acquire)) {
      back.store(sent, std::memory_order_release);
    }
  });
  RunOn(cores[0]);
  int64_t sent = 0;
  for (auto _ : state) {
    there.store(++sent, std::memory_order_release);
    while (back.load(std::memory_order_acquire) != sent) {
    }
  }
  there.store(kOver, std::memory_order_release);
  answers.join();
  sched_setaffinity(0, sizeof(ours), &ours);
}
BENCHMARK(CoreRoundTrip)->UseRealTime();

// range(1): inputs; range(2): bytes from an aligned address to each input; range(3): instruction set.
void Sum(benchmark::State& state) {
  const int64_t count = state.range(0), shift = state.range(2);
  std::vector<AlignedFloats> inputs;
  std::vector<const std::byte*> pointers;
  for (int i = 0; i < state.range(1); ++i) {
    // The 16 floats more are room for the shift.
    inputs.push_back(Filled(count + 16, 1));
    pointers.push_back(reinterpret_cast<const std::byte*>(inputs.back().data()) + shift);
  }
  AlignedFloats sum = Filled(count, 0);
  const auto set = static_cast<InstructionSet>(state.range(3));
  if (set > BestInstructionSet()) return state.SkipWithError("this CPU lacks the instruction set");
  for (auto _ : state) {
    SumInOrder(pointers, sum.span(), set);
    benchmark::ClobberMemory();
  }
  SetBytes(state, state.range(1) + 1);
}
BENCHMARK(Sum)
    ->ArgNames({"", "inputs", "shift", "set"})
    // A shift of 5 bytes: a received message may begin anywhere.
    ->ArgsProduct({{kSmall, kLarge}, {2, 4}, {0, 5}, {2}})
    ->ArgsProduct({{kSmall, kLarge}, {2}, {0}, {0, 1}})
    ->Args({kLarge, 8, 5, 2});

// Arrays moved per element: gradient and parameters read, parameters written, each state vector read and written.
void Optimizer(benchmark::State& state, const OptimizerConfig& config) {
  const int64_t count = state.range(0);
  const AlignedFloats gradient = Filled(count, 1e-3f);
  AlignedFloats parameters = Filled(count, 1);
  std::vector<AlignedFloats> vectors;
  for (int i = 0; i < StateVectorCount(config); ++i) vectors.push_back(Filled(count, 0));
  std::vector<std::span<float>> spans;
  for (AlignedFloats& vector : vectors) spans.push_back(vector.span());
  const auto set = static_cast<InstructionSet>(state.range(1));
  if (set > BestInstructionSet()) return state.SkipWithError("this CPU lacks the instruction set");
  int64_t update = 0;
  for (auto _ : state) {
    ApplyOptimizer(config,
                   {.learning_rate = 1e-6f,
                    .update = ++update,
                    .gradient = gradient.span(),
                    .parameters_in = parameters.span(),
                    .parameters_out = parameters.span(),
                    .state = spans},
                   set);
    benchmark::ClobberMemory();
  }
  SetBytes(state, 3 + 2 * std::ssize(spans));
}
const OptimizerConfig kMomentum = {.momentum = 0.9, .weight_decay = 1e-4};
const OptimizerConfig kAdamW = {.kind = OptimizerKind::kAdamW, .weight_decay = 0.01};
void SgdMomentum(benchmark::State& state) { Optimizer(state, kMomentum); }
void AdamW(benchmark::State& state) { Optimizer(state, kAdamW); }
BENCHMARK(SgdMomentum)->ArgNames({"", "set"})->ArgsProduct({{kSmall, kLarge}, {0, 1, 2}});
BENCHMARK(AdamW)->ArgNames({"", "set"})->ArgsProduct({{kSmall, kLarge}, {0, 1, 2}});

// A whole step of a server: it takes contributions, sums and updates in one pass, and seals the slice.
// range(1): workers, range(2): bytes of a piece of a message (gRPC's slices), range(3): shift.
void FusedShardStep(benchmark::State& state, const OptimizerConfig& config, SumOrder order = SumOrder::kChain) {
  const int64_t count = state.range(0);
  const int world_size = static_cast<int>(state.range(1));
  ContributionSum sums =
      ContributionSum::Create(
          {.slices = {{{0, count}}}, .element_count = count, .optimizer = config, .schedule = {.base = 1e-6}},
          {.order = order, .world_size = world_size})
          .value();
  std::vector<AlignedFloats> gradients;
  for (int w = 0; w < world_size; ++w) gradients.push_back(Filled(count + 16, 1e-3f));
  const auto pieces_of = [&](const AlignedFloats& floats) {
    std::span<const std::byte> rest = std::as_bytes(floats.span()).subspan(state.range(3), count * sizeof(float));
    std::vector<std::span<const std::byte>> pieces;
    for (; !rest.empty(); rest = rest.subspan(pieces.back().size())) {
      pieces.push_back(rest.first(std::min<size_t>(rest.size(), state.range(2))));
    }
    return pieces;
  };
  CHECK_OK(sums.SetParameters(0, pieces_of(gradients[0])));
  int64_t step = 0;
  const auto run_step = [&] {
    for (int w = 0; w < world_size; ++w) {
      CHECK_OK(sums.Contribute({.from = {w, 0}, .step = step, .bucket = 0, .pieces = pieces_of(gradients[w])}, {}));
    }
    ++step;
  };
  for (int i = 0; i < 3; ++i) run_step();  // the buffers exist and their pages are mapped
  for (auto _ : state) run_step();
  SetBytes(state, world_size + 2 + 2 * StateVectorCount(config));
}
void ShardMomentum(benchmark::State& state) { FusedShardStep(state, kMomentum); }
void ShardAdamW(benchmark::State& state) { FusedShardStep(state, kAdamW); }
BENCHMARK(ShardMomentum)
    ->ArgNames({"", "workers", "piece", "shift"})
    ->ArgsProduct({{kSmall, kLarge}, {2, 4}, {1 << 20}, {5}})
    // Pieces of 8191 bytes cut elements in two.
    ->Args({kLarge, 2, 8191, 5});
// Both orders of sums, in turns with --benchmark_enable_random_interleaving.
void ShardChain(benchmark::State& state) { FusedShardStep(state, kMomentum, SumOrder::kChain); }
void ShardTree(benchmark::State& state) { FusedShardStep(state, kMomentum, SumOrder::kTree); }
BENCHMARK(ShardChain)
    ->ArgNames({"", "workers", "piece", "shift"})
    ->ArgsProduct({{kSmall}, {2, 8, 64}, {1 << 20}, {5}})
    ->ArgsProduct({{kLarge}, {2, 8}, {1 << 20}, {5}});
BENCHMARK(ShardTree)
    ->ArgNames({"", "workers", "piece", "shift"})
    ->ArgsProduct({{kSmall}, {2, 8, 64}, {1 << 20}, {5}})
    ->ArgsProduct({{kLarge}, {2, 8}, {1 << 20}, {5}});
BENCHMARK(ShardAdamW)->ArgNames({"", "workers", "piece", "shift"})->Args({kLarge, 2, 1 << 20, 5});

}  // namespace
}  // namespace starring
