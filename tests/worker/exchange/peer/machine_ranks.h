// All ranks of a job in one thread, each with a ring's or a co-located star's machine over an in-memory network, polled
// in random order.
#ifndef STARRING_TESTS_WORKER_EXCHANGE_PEER_MACHINE_RANKS_H_
#define STARRING_TESTS_WORKER_EXCHANGE_PEER_MACHINE_RANKS_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "common/job/bucket_map.h"
#include "common/metrics/trace.h"
#include "tests/common/transport/in_memory_transport.h"
#include "tests/worker/exchange/peer/example_job.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/slice_owner.h"

namespace starring {

enum class MachineKind { kRing, kStar, kNodes };  // kNodes: a star whose ranks contribute nodes of micro-batches
std::ostream& operator<<(std::ostream& out, MachineKind kind);

// Thread safety: one thread.
class MachineRanks {
 public:
  struct Options {
    MachineKind kind = MachineKind::kRing;
    uint64_t seed = 1;  // of the order in which ranks are polled and messages arrive
    int first_tag = 16;
    int groups_in_flight_max = 0;
    bool is_on_gpu = false;  // the machines cut messages as they do where floats are a GPU's
    Trace* trace = nullptr;  // gets a track for each rank; outlives the ranks
  };
  // REQUIRES: with kRing the job's order of sums is a chain; with kNodes, and only then, the job has micro-batches.
  MachineRanks(const ExampleJob& job, const Options& options);
  ~MachineRanks();

  const BucketMap& buckets() const { return buckets_; }
  int bucket_count() const { return buckets_.bucket_count(); }
  BucketMachine& machine(int rank) { return *machines_[rank]; }
  const std::vector<float>& parameters(int rank) const { return parameters_[rank]; }
  InMemoryNetwork& network() { return network_; }
  // The elements that the rank's machine has allocated.
  int64_t scratch_elements(int rank) const;

  // Each rank goes through its steps at its own speed, as a trainer does: it submits one bucket after the other and
  // awaits all of them before the next step.
  void Run(int64_t step_count);

  // For tests that do a rank's work themselves. `gradient` is the whole vector's, `node` not the share's last.
  void SubmitNode(int rank, int64_t step, int node, std::span<const float> gradient);
  void Submit(int rank, int64_t step, std::span<const float> gradient);
  void Poll(int rank);
  // Polls all ranks, but not `except`, until each of them is idle.
  void PollUntilIdle(const std::set<int>& except = {});
  void PollAnyRank() { Poll(static_cast<int>(random_() % machines_.size())); }
  bool IsReady(int rank) const;

 private:
  class CountingOwner;

  const ExampleJob job_;
  const BucketMap buckets_;
  InMemoryNetwork network_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<CountingOwner>> owners_;
  std::vector<std::vector<float>> parameters_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<BucketMachine>> machines_;
};

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_EXCHANGE_PEER_MACHINE_RANKS_H_
