#include "benchmark/benchmark.h"

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(Benchmark, RunsALoop) {
  int64_t iterations = 0;
  benchmark::RegisterBenchmark("loop", [&](benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(++iterations);
  })->Iterations(10);
  EXPECT_EQ(benchmark::RunSpecifiedBenchmarks(), 1u);
  EXPECT_GE(iterations, 10);
}

}  // namespace
}  // namespace starring
