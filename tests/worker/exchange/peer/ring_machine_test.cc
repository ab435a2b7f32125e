// The ring's own limits; rank_machines_test.cc has the bits.
#include "worker/exchange/peer/ring_machine.h"

#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "gtest/gtest.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "tests/worker/exchange/peer/machine_ranks.h"

namespace starring {
namespace {

TEST(RingMachine, KeepsOperationsAndMemoryBounded) {
  const ExampleJob job = {.element_count = 48 * ReductionBlockElements(2), .bucket_bytes = 1, .world_size = 2};
  MachineRanks ranks(job, {.kind = MachineKind::kRing, .seed = 5});
  ranks.Run(2);
  EXPECT_LE(ranks.network().operations_in_flight_max(), kRingOperationsInFlightMax);
  EXPECT_EQ(ranks.scratch_elements(0), kRingOperationsInFlightMax / 4 * kChunkElementsMax);
}

}  // namespace
}  // namespace starring
