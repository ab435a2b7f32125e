#include "worker/check/check_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>

namespace starring {
namespace {

constexpr int kAllPairsMax = 16;
constexpr double kTestSeconds = 0.1;
// A shorter test measures the start of a connection.
constexpr double kTestSecondsMin = 0.02;
constexpr double kAllTestsSeconds = 20;

}  // namespace

std::vector<int> RingTargets(int rank, int world_size) {
  std::set<int> targets;
  if (world_size <= kAllPairsMax) {
    for (int other = 0; other < world_size; ++other) targets.insert(other);
  } else {
    targets.insert(0);
    targets.insert((rank + world_size - 1) % world_size);
    for (int distance = 1; distance < world_size; distance *= 2) targets.insert((rank + distance) % world_size);
  }
  targets.erase(rank);
  return {targets.begin(), targets.end()};
}

BandwidthPlan PlanBandwidth(int tests_per_rank, int world_size) {
  const double tests = static_cast<double>(tests_per_rank) * world_size;
  if (tests * kTestSeconds <= kAllTestsSeconds) return {.seconds = kTestSeconds, .rank_stride = 1};
  const int stride = std::max(1, static_cast<int>(std::ceil(tests * kTestSecondsMin / kAllTestsSeconds)));
  const int testers = (world_size + stride - 1) / stride;
  return {.seconds = std::clamp(kAllTestsSeconds / (static_cast<double>(tests_per_rank) * testers), kTestSecondsMin,
                                kTestSeconds),
          .rank_stride = stride};
}

}  // namespace starring
