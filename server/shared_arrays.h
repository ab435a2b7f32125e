// The arrays that a shard shares with workers of its own machine (proto/starring/v1/parameter_server.proto): each
// worker's gradients, and one vector of parameters for the whole job.
//
// A worker that shares says in every request whether it does so now. Parameters are *published*: copied to shared
// memory when the first worker is to read them there. When all workers share, ContributionSum updates them there,
// without a copy.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_SHARED_ARRAYS_H_
#define STARRING_SERVER_SHARED_ARRAYS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout.h"
#include "common/wire/exchange_message.h"
#include "common/wire/shared_memory.h"
#include "server/contribution_sum.h"

namespace starring {

class SharedArrays {
 public:
  struct Options {
    ContributionSum* sums = nullptr;       // outlives this
    std::span<const ElementRange> slices;  // what the shard owns, by bucket; outlives this
    int64_t element_count = 0;             // of the whole parameter vector
    int world_size = 1;
  };
  explicit SharedArrays(const Options& options);

  // A worker's SHARE. Unavailable if the worker is elsewhere, or other workers have another memory for parameters: then
  // it stays with the socket. Else where the parameters are.
  absl::StatusOr<v1::SharedMemory> Share(int rank, const v1::ExchangeMessage& request);

  // A GRADIENT or FETCH_PARAMETERS says whether its worker shares now.
  // FailedPrecondition if it asks as if it shared, and shares no memory.
  absl::Status NoteRequest(int rank, const v1::ExchangeMessage& request);
  // What its last request said.
  bool Shares(int rank) const { return workers_[rank].shares; }

  // REQUIRES: Share(rank, ...) was OK. Shared with contributions that lie there.
  const std::shared_ptr<const SharedMemory>& GradientsOf(int rank) const { return workers_[rank].gradients; }

  // To be called before a contribution to `bucket`: when all workers read parameters in shared memory,
  // ContributionSum needs no buffers of its own.
  void UpdateInPlaceIfAllShare(int bucket);

  // Writes the newest parameters of `bucket` to shared memory, if there is any and they are not there yet. Not while a
  // worker may read the bucket's: see parameter_server.proto.
  void Publish(int bucket);
  // The same if a worker reads there: a star that shares memory at this shard only, and so at none, is not to pay for
  // it in every step.
  void PublishIfShared(int bucket);
  // The step whose parameters shared memory holds; below all steps if it holds none.
  int64_t published_step(int bucket) const { return buckets_[bucket].published; }

 private:
  struct Worker {
    std::shared_ptr<const SharedMemory> gradients;  // shared with contributions that lie there; null: it has none
    bool shares = false;
  };
  struct Bucket {
    int64_t published = -2;  // the step whose parameters parameters_ holds
    bool in_place = false;   // ContributionSum writes them there itself
  };

  absl::Status OpenParameters(const v1::ExchangeMessage& request);

  const Options options_;
  std::vector<Worker> workers_;
  std::vector<Bucket> buckets_;
  // Null until a worker shares its own for gradients. Shared with slices that lie there.
  std::shared_ptr<SharedMemory> parameters_;
  int sharing_count_ = 0;  // workers that share
};

}  // namespace starring

#endif  // STARRING_SERVER_SHARED_ARRAYS_H_
