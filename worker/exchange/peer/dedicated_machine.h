// The dedicated star among the ranks of one world: the last ranks are servers (server/shard/shard_rank.h), one for each
// shard.
//
// A *contribution* is this worker's gradient of one slice: the part of a bucket that a server owns
// (BucketMap::ShardSlice). Submit sends each server its contribution, and the *answer* is the slice's new parameters,
// which arrive at their place in the parameter vector. The server sums in reduction order and applies the optimizer.
//
// Cost per bucket of L elements: L elements sent and L received, in one message to and one from every server. Workers
// begin with different servers: worker r with server r mod S, so that not all send to one at a time. A server keeps the
// contributions until it has all; the receive of an answer is posted before its contribution leaves. So no message
// comes to a process that does not expect it.
//
// At most kShardSlicesMax contributions are on their way to one server, sent and not yet answered; further ones wait
// here, in order. Without that bound the connections of all workers fill the queue of the link at which they meet until
// it drops packets. All workers submit their buckets in one order, so a server always has what the oldest one needs.
#ifndef STARRING_WORKER_EXCHANGE_PEER_DEDICATED_MACHINE_H_
#define STARRING_WORKER_EXCHANGE_PEER_DEDICATED_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "common/job/bucket_map.h"
#include "common/metrics/trace.h"
#include "common/reduce/owner_map.h"
#include "common/transport/transport.h"
#include "worker/exchange/peer/bucket_machine.h"

namespace starring {

class DedicatedMachine final : public BucketMachine {
 public:
  struct Options {
    const BucketMap* buckets = nullptr;
    std::span<float> parameters;  // the parameter vector
    Transport* transport = nullptr;
    int server_count = 0;         // the last ranks of the world; at least 1
    TraceTrack* track = nullptr;  // the track of the thread that drives the machine; null: there is no trace
    int first_tag = 0;            // the machine uses tags from here on, two a bucket
  };
  // All pointers outlive the machine.
  explicit DedicatedMachine(const Options& options);

  void Submit(int64_t step, int bucket, std::span<const float> gradient) override;
  // The contributions of a bucket's nodes have one tag, so they arrive in the order of the share. Only the last one is
  // answered and counts against the bound: computing spaces out those before it.
  void SubmitNode(int64_t step, int bucket, int node, std::span<const float> gradient) override;
  void OnCompletion(uint64_t operation) override;
  bool IsReady(int bucket) const override { return missing_[bucket] == 0; }
  bool IsIdle() const override { return submitted_.empty(); }
  InFlight Oldest() const override;
  ExchangeCounters counters() const override { return counters_; }

 private:
  struct Contribution {
    int bucket = 0;
    std::span<const std::byte> bytes;
  };
  struct Server {
    std::deque<Contribution> waiting;  // to be sent, oldest first
    int unanswered = 0;                // sent, and their parameters have not arrived
  };
  enum class Awaits { kParameters, kNothing };
  void Begin(int64_t step, int bucket);
  void Send(int bucket, std::span<const float> gradient, Awaits awaits);
  void SendWaiting(int shard);
  void Post(int shard, const Contribution& contribution);
  void Complete(int bucket);

  const BucketMap& buckets_;
  const std::span<float> parameters_;
  Transport& transport_;
  const int server_count_;
  const OwnerMap owners_;
  TraceTrack* const track_;
  const int first_tag_;
  std::vector<Server> servers_;  // by shard
  // By bucket: operations that are not complete or not posted yet, and one while its last node was not submitted.
  std::vector<int> missing_;
  std::deque<InFlight> submitted_;     // oldest first; at most one entry a bucket
  std::vector<int64_t> submitted_ns_;  // by bucket, if there is a track
  ExchangeCounters counters_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_DEDICATED_MACHINE_H_
