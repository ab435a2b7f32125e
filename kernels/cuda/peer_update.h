// The update of an owner whose workers are GPUs that map each other's memory: the gradients are read where they are,
// and the new parameters are written where each worker reads them.
//
// The function enqueues on `stream` and returns the error of the launch.
#ifndef STARRING_KERNELS_CUDA_PEER_UPDATE_H_
#define STARRING_KERNELS_CUDA_PEER_UPDATE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/element_rows.h"
#include "kernels/cuda/peer_ranks.h"
#include "kernels/cuda/step_values.h"
#include "kernels/cuda/update_formula.h"

namespace starring::cuda {

// How a kernel tells other GPUs that it is done, and hears that it must not run. All pointers are to memory of the host
// that this GPU maps, but for `counter`.
struct PeerSignal {
  // The last block to end stores done_value, by StoreReleaseSystem: another GPU that reads it also sees what the kernel
  // has stored. Null: nothing is stored, and `counter` is not used.
  uint8_t* done = nullptr;
  uint8_t done_value = 0;
  unsigned* counter = nullptr;  // device memory; 0 before and after
  // A block that finds it not 0 touches no vector: a rank has given up, and its memory may be gone. Null: nothing is
  // looked at.
  const uint64_t* is_void = nullptr;
};

struct PeerUpdateArgs {
  Update update = Update::kSgd;
  int rank_count = 0;                          // 2 to kPeerRanksMax
  int rank = 0;                                // whose parameters are read
  ElementRows rows;                            // of the parameter vector
  const float* gradients[kPeerRanksMax] = {};  // by rank: whole vectors
  float* parameters[kPeerRanksMax] = {};       // by rank: whole vectors
  float* first = nullptr;                      // momentum_buffer or exp_avg, of the rows alone
  float* second = nullptr;                     // exp_avg_sq, of the rows alone
  // The order of the sum (common/arithmetic/reduction_order.h): as a tree, or as a chain in chunks of 1 << chunk_shift
  // elements, whose whole blocks end at whole_end. The last block has last_elements.
  bool tree = false;
  int chunk_shift = 0;
  int64_t whole_end = 0;
  int64_t last_elements = 0;
  CudaOptimizerScalars scalars;
  const CudaStepValues* bound = nullptr;  // device memory, which has the factors instead; null: scalars has them
  // Where contributions that are not finite are noted, of the ranks from first_finding on:
  // findings[rank * findings_stride] = their element + 1. Memory of the host that this GPU maps; null: nowhere.
  int64_t* findings = nullptr;
  int64_t findings_stride = 0;
  int first_finding = 0;
  PeerSignal signal;
  int64_t blocks_max = 32;
};

// parameters[r][e] = the update of parameters[rank][e] by the sum of all gradients[r][e], for all ranks r and all
// elements e of `rows`.
// Shapes:      vectors: of at least rows.end() float32; states: (rows.size()).
// Writes:      parameters are overwritten (=), states in place.
// Launch:      256 threads a block, at most blocks_max blocks, which stride over the rows; one shared byte.
// Requires:    16-byte alignment of all pointers at each row for the vector path, scalar path otherwise and in the tail
//              (all tested).
//              Nothing writes the gradients, or reads the parameters, until the kernel has ended or stored done_value.
// Cost:        4 * (rank_count + 1) bytes read and 4 * rank_count written per element, over the link but for one of
//              each, and 8 (momentum) or 16 (AdamW) of states: bound by the link, or by memory where ranks share a GPU.
//              A thread has one load of each rank under way: 32 blocks have 1 MiB of eight ranks, and leave
//              multiprocessors to the step. Two ranks need more blocks. is_void: one load from the host a block.
// Determinism: bitwise. Reference: common/arithmetic/{sum_in_order,optimizer}.h, tolerance 0.
[[nodiscard]] cudaError_t ApplyPeerUpdate(cudaStream_t stream, const PeerUpdateArgs& args);

struct PeerHopArgs {
  ElementRows rows;             // of the vectors
  const float* left = nullptr;  // a neighbour's vector
  const float* own = nullptr;   // null: there is nothing to add
  float* out = nullptr;
  // Where values that are not finite are noted, as of an update; null: nowhere.
  int64_t* left_finding = nullptr;
  int64_t* own_finding = nullptr;
  PeerSignal signal;
  int64_t blocks_max = 32;  // as of an update
};

// out[e] = left[e] + own[e], or left[e], for all elements e of `rows`.
// Shapes:      vectors: of at least rows.end() float32.
// Writes:      out is overwritten (=); it may be `own`.
// Launch:      256 threads a block, at most blocks_max blocks, which stride over the rows; one shared byte.
// Requires:    as ApplyPeerUpdate.
// Cost:        4 bytes read and 4 written per element, one of them over the link; 4 more read where it adds.
// Determinism: bitwise. Reference: common/arithmetic/sum_in_order.h, tolerance 0.
[[nodiscard]] cudaError_t RunPeerHop(cudaStream_t stream, const PeerHopArgs& args);

// *byte = value, after all that the stream did before, as other GPUs and the host see it.
// Shapes:      byte: memory that this GPU maps.
// Writes:      one byte (=); its neighbours are other processes'.
// Launch:      one thread.
// Requires:    nothing.
// Cost:        a fence of the system, and one store to another memory.
// Determinism: bitwise. Reference: none, there is nothing to compute.
[[nodiscard]] cudaError_t StoreByte(cudaStream_t stream, uint8_t* byte, uint8_t value);

}  // namespace starring::cuda

#endif  // STARRING_KERNELS_CUDA_PEER_UPDATE_H_
