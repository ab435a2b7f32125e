// Ranks and servers that sum over a network in memory, all in one thread, and what their sums must be.
#ifndef STARRING_TESTS_WORKER_PYTHON_SUMMING_RANKS_H_
#define STARRING_TESTS_WORKER_PYTHON_SUMMING_RANKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/memory.h"
#include "common/reduce/arrays/element_sum.h"
#include "common/reduce/arrays/reduce_machine.h"
#include "common/reduce/arrays/reduce_ring.h"
#include "common/reduce/arrays/reduce_star.h"
#include "common/reduce/arrays/reduction.h"
#include "common/reduce/arrays/sum_server.h"
#include "common/transport/transport.h"
#include "tests/common/transport/in_memory_transport.h"
#include "worker/python/group.h"

namespace starring {

// An array of elements of one type, as bytes. `seed` and `rank` decide the values: many exponents, both signs, where
// every order of additions has bits of its own.
std::vector<std::byte> WildElements(const ReductionHead& head, int rank, uint64_t seed);

// The exact bits of the sum over `contributions`, by rank: element by element, by the rule of
// common/arithmetic/reduction_order.h.
std::vector<std::byte> ReferenceSum(Topology topology, const ReductionHead& head,
                                    const std::vector<std::vector<std::byte>>& contributions);

class SummingRanks {
 public:
  enum class Sharing { kMessages, kMemory };
  struct Options {
    Topology topology = Topology::kStar;
    int worker_count = 2;
    int server_count = 0;
    Sharing sharing = Sharing::kMessages;
    uint64_t seed = 1;
  };
  explicit SummingRanks(const Options& options);

  int worker_count() const { return options_.worker_count; }
  ReduceMachine& machine(int rank) { return *machines_[rank]; }
  SumServer& server(int number) { return *servers_[number]; }

  // Begins the next reduction of `rank` with this array, which it keeps.
  void Begin(int rank, const ReductionHead& head, std::vector<std::byte> elements);
  // The array of the rank's reduction `number`.
  const std::vector<std::byte>& elements(int rank, int64_t number) const { return arrays_[rank][number]; }
  int64_t completed_count(int rank) const { return completed_[rank]; }

  // Lets messages travel until every rank has completed what it has begun, or any part has an error: that error.
  // DeadlineExceeded if they never do.
  absl::Status Finish();

  // Tells the servers that the ranks end, and lets messages travel until all servers are over.
  absl::Status End();

 private:
  bool is_shared() const { return options_.sharing == Sharing::kMemory; }
  void CreateRingMemory();
  ReduceStarOptions StarOptions(int rank);
  ReduceRing::Options RingOptions(int rank);
  absl::Status RunUntilIdle(bool with_servers);
  absl::Status status() const;

  const Options options_;
  InMemoryNetwork network_;
  std::vector<AlignedFloats> memories_;
  std::vector<std::unique_ptr<Transport>> transports_;  // by rank of the world
  std::vector<std::unique_ptr<ReduceMachine>> machines_;
  std::vector<std::unique_ptr<SumServer>> servers_;
  std::vector<std::vector<std::vector<std::byte>>> arrays_;  // by rank and number
  std::vector<int64_t> completed_;
};

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_PYTHON_SUMMING_RANKS_H_
