// The arrays that a shard shares with workers on its own machine: each worker's gradients, and one vector of parameters
// for the whole job. The protocol is in proto/starring/v1/parameter_server.proto.
//
// Every request says whether its worker shares memory now: a worker that cannot reach one shard's memory uses none.
// Parameters are *published*: copied to shared memory when the first worker is to read them there. When all workers
// share, ContributionSum updates them there, without a copy.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_SHARD_SHARED_ARRAYS_H_
#define STARRING_SERVER_SHARD_SHARED_ARRAYS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/layout.h"
#include "common/wire/exchange_message.h"
#include "common/wire/shared_memory.h"
#include "server/shard/contribution_sum.h"

namespace starring {

class SharedArrays {
 public:
  struct Options {
    ContributionSum* sums = nullptr;       // outlives this
    std::span<const ElementRange> slices;  // the elements that the shard owns, by bucket; outlives this
    int64_t element_count = 0;             // of the whole parameter vector
    int world_size = 1;
    std::vector<int> leaf_owners;  // LeafOwnersOf the agreement
  };
  explicit SharedArrays(const Options& options);

  // Answers a worker's SHARE with the memory of the parameters. Unavailable if the worker is on another machine, or if
  // other workers have another memory for parameters: then this worker goes on by socket.
  absl::StatusOr<v1::SharedMemory> Share(int rank, const v1::ExchangeMessage& request);

  // Notes whether the worker of a GRADIENT or FETCH_PARAMETERS shares now. FailedPrecondition if it says so and has
  // shared no memory.
  absl::Status NoteRequest(int rank, const v1::ExchangeMessage& request);
  // Whether the worker shares memory, by its last request.
  bool Shares(int rank) const { return workers_[rank].shares; }

  // A worker has an array for each node of its share. InvalidArgument if it has no such node. REQUIRES: Share(rank,
  // ...) was OK.
  absl::StatusOr<std::span<const float>> GradientOf(int rank, int node) const;
  // The memory of all the worker's arrays. REQUIRES: as above. Shared with contributions that are in it.
  const std::shared_ptr<const SharedMemory>& GradientsOf(int rank) const { return workers_[rank].gradients; }

  // Call before each contribution to `bucket`. When all workers read parameters in shared memory, ContributionSum
  // writes there from then on and needs no buffers of its own.
  void UpdateInPlaceIfAllShare(int bucket);

  // Writes the newest parameters of `bucket` to shared memory, if there is any and they are not there yet. REQUIRES: no
  // worker may read the bucket now (parameter_server.proto says when).
  void Publish(int bucket);
  // Publishes if any worker reads there. Workers that reach only this shard's memory use none, and a copy in every step
  // would be wasted on them.
  void PublishIfShared(int bucket);
  // The step whose parameters shared memory holds; below all steps if it holds none.
  int64_t published_step(int bucket) const { return buckets_[bucket].published; }

 private:
  struct Worker {
    std::shared_ptr<const SharedMemory> gradients;  // shared with contributions that are in it; null: it has none
    bool shares = false;
  };
  struct Bucket {
    int64_t published = -2;  // the step whose parameters parameters_ holds
    bool in_place = false;   // ContributionSum writes there itself
  };

  absl::Status OpenParameters(const v1::ExchangeMessage& request);

  const Options options_;
  std::vector<Worker> workers_;
  std::vector<Bucket> buckets_;
  // Null until a worker shares its own memory for gradients. Shared with slices that are in it.
  std::shared_ptr<SharedMemory> parameters_;
  int sharing_count_ = 0;  // workers that share
};

}  // namespace starring

#endif  // STARRING_SERVER_SHARD_SHARED_ARRAYS_H_
