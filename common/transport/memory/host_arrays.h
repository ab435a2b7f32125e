// The arrays of a job in memory that its processes share (host_memory.h): each worker's piece has its gradients, an
// array for each node of its share (common/job/leaf_shares.h), and rank 0's has the parameters as well. Servers need no
// piece of their own.
//
// Thread safety: plain values and pure functions.
#ifndef STARRING_COMMON_TRANSPORT_MEMORY_HOST_ARRAYS_H_
#define STARRING_COMMON_TRANSPORT_MEMORY_HOST_ARRAYS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/transport/memory/host_memory.h"

namespace starring {

// Each as long as the parameter vector.
struct HostArrays {
  std::vector<std::span<const float>> gradients;  // by contributor: by rank, or node of a share
  std::vector<std::span<float>> own_gradients;    // this rank's, to write, by node of its share; none at a server
  std::span<float> parameters;                    // one for all
};

// Equal on all processes.
struct HostArraysShape {
  int64_t element_count = 0;  // of the parameter vector
  int bucket_count = 0;       // the most that the job may have
  int micro_batches = 0;      // as JobSpec's
  int worker_count = 1;
};

// HostMemory::Options with the pieces' lengths, access and layout, and the board's buckets.
HostMemory::Options HostArraysMemory(const HostArraysShape& shape);
// REQUIRES: `memory` was made with these options.
HostArrays DivideHostMemory(const HostArraysShape& shape, int rank, HostMemory& memory);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MEMORY_HOST_ARRAYS_H_
