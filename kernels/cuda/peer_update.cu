#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/peer_update.h"
#include "kernels/cuda/system_scope.h"

namespace starring::cuda {
namespace {

// The largest power of two below `count`, which is at least 2.
__host__ __device__ constexpr int PowerBelow(int count) { return count <= 2 ? 1 : 2 * PowerBelow((count + 1) / 2); }

// The sum of the leaves [kBegin, kEnd), as SumOrder::kTree says.
template <int kBegin, int kEnd, int kWidth>
__device__ inline Pack<float, kWidth> TreeSum(const Pack<float, kWidth>* leaves) {
  if constexpr (kEnd - kBegin == 1) {
    return leaves[kBegin];
  } else {
    constexpr int kMiddle = kBegin + PowerBelow(kEnd - kBegin);
    Pack<float, kWidth> sum = TreeSum<kBegin, kMiddle>(leaves);
    sum += TreeSum<kMiddle, kEnd>(leaves);
    return sum;
  }
}

template <int kRanks>
__device__ inline int FirstRankOf(const PeerUpdateArgs& g, int64_t e) {
  if (g.tree) return 0;
  // Chunks of whole blocks have a power of two of elements, and those of the last block a kRanks-th of it.
  const int64_t chunk = e < g.whole_end ? (e >> g.chunk_shift) % kRanks : (e - g.whole_end) * kRanks / g.last_elements;
  return static_cast<int>((chunk + 1) % kRanks);
}

// A store of 8 aligned bytes is one access, and any of the elements will do, since the run ends.
template <int kRanks, int kWidth>
__device__ inline void NoteNonFinite(const PeerUpdateArgs& g, const Pack<float, kWidth>* in, int first_rank,
                                     int64_t e) {
#pragma unroll
  for (int j = 0; j < kRanks; ++j) {
    const int rank = first_rank + j < kRanks ? first_rank + j : first_rank + j - kRanks;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      if (rank >= g.first_finding && !IsFinite(in[j].v[k])) g.findings[rank * g.findings_stride] = e + k + 1;
    }
  }
}

// Elements [e, e + kWidth), whose sums begin with the same rank; their states are at `s`. No `__restrict__` and no
// read-only cache: peers write these arrays between two launches.
template <int kRanks, Update kUpdate, int kWidth>
__device__ inline void UpdateElements(const PeerUpdateArgs& g, int64_t e, int64_t s) {
  Pack<float, kWidth> in[kRanks];
  const int first_rank = FirstRankOf<kRanks>(g, e);
  // All loads come before the first addition: a load from another GPU takes a microsecond.
#pragma unroll
  for (int j = 0; j < kRanks; ++j) {
    const int rank = first_rank + j < kRanks ? first_rank + j : first_rank + j - kRanks;
    in[j] = LoadPack<kWidth>(g.gradients[rank] + e);
  }
  // A captured graph would repeat the factors of its capture.
  const CudaOptimizerScalars scalars = g.bound != nullptr ? g.bound->optimizer : g.scalars;
  // All ranks have equal parameters. The own copy is read, which needs no link.
  const Pack<float, kWidth> before = LoadPack<kWidth>(g.parameters[g.rank] + e);
  Pack<float, kWidth> out, first = {}, second = {};
  if constexpr (kUpdate != Update::kSgd) first = LoadPack<kWidth>(g.first + s);
  if constexpr (kUpdate == Update::kAdamW) second = LoadPack<kWidth>(g.second + s);
  // After the last load: it waits for the gradients.
  if (g.findings != nullptr) NoteNonFinite<kRanks, kWidth>(g, in, first_rank, e);
  Pack<float, kWidth> sum;
  if (g.tree) {
    sum = TreeSum<0, kRanks>(in);
  } else {
    sum = in[0];
#pragma unroll
    for (int j = 1; j < kRanks; ++j) sum += in[j];
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    out.v[k] = UpdateOne<kUpdate>(scalars, sum.v[k], before.v[k], first.v[k], second.v[k]);
  }
  if constexpr (kUpdate != Update::kSgd) StorePack(first, g.first + s);
  if constexpr (kUpdate == Update::kAdamW) StorePack(second, g.second + s);
#pragma unroll
  // The owner writes the result into every rank's vector, so no second exchange gathers parameters.
  for (int rank = 0; rank < kRanks; ++rank) {
    // In a ring the owner has one vector.
    if (kRanks == 2 && rank == 1 && g.parameters[1] == g.parameters[0]) break;
    StorePack(out, g.parameters[rank] + e);
  }
}

// Where element number i of the rows is in the vector.
__device__ inline int64_t ElementAt(const ElementRows& rows, int64_t i) {
  if (i >= rows.in_rows) return rows.tail.begin + i - rows.in_rows;
  const int64_t row = i >> rows.row_shift;
  return rows.begin + row * rows.stride + (i - (row << rows.row_shift));
}

// This thread's part of the rows.
template <int kRanks, Update kUpdate>
__device__ inline void UpdateRange(const PeerUpdateArgs& g, int64_t packs) {
  const int64_t stride = int64_t{gridDim.x} * kBlockThreads;
  const int64_t thread = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  for (int64_t i = thread; i < packs; i += stride) {
    const int64_t s = kPackFloats * i;
    const int64_t e = ElementAt(g.rows, s);
    // The boundaries of chunks are multiples of a pack, but those of the last block are not.
    if (g.tree || e < g.whole_end) {
      UpdateElements<kRanks, kUpdate, kPackFloats>(g, e, s);
    } else {
      for (int k = 0; k < kPackFloats; ++k) UpdateElements<kRanks, kUpdate, 1>(g, e + k, s + k);
    }
  }
  const int64_t size = g.rows.in_rows + g.rows.tail.end - g.rows.tail.begin;
  for (int64_t s = kPackFloats * packs + thread; s < size; s += stride) {
    UpdateElements<kRanks, kUpdate, 1>(g, ElementAt(g.rows, s), s);
  }
}

// Every thread of a block calls when it has stored its results. The fences are of the system: a block's stores are read
// by other GPUs, and the word must not arrive there before them.
__device__ inline void SayDone(const PeerSignal& signal) {
  if (signal.done == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  const unsigned last = gridDim.x - 1;
  if (atomicInc(signal.counter, last) != last) return;
  __threadfence_system();
  StoreReleaseSystem(signal.done, signal.done_value);
}

// Whether the block must leave the vectors alone; the same for all its threads.
__device__ inline bool IsVoid(const PeerSignal& signal) {
  if (signal.is_void == nullptr) return false;
  __shared__ bool is_void;
  if (threadIdx.x == 0) is_void = LoadAcquireSystem(signal.is_void) != 0;
  __syncthreads();
  return is_void;
}

// A table of pointers in constant memory can be indexed by a register; a copy of it in each thread would be in local
// memory.
template <int kRanks, Update kUpdate>
__global__ void __launch_bounds__(kBlockThreads)
    PeerUpdateKernel(const __grid_constant__ PeerUpdateArgs g, int64_t packs) {
  if (!IsVoid(g.signal)) UpdateRange<kRanks, kUpdate>(g, packs);
  SayDone(g.signal);
}

template <int kWidth>
__device__ inline void NoteNonFinite(int64_t* finding, const Pack<float, kWidth>& values, int64_t e) {
  if (finding == nullptr) return;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    if (!IsFinite(values.v[k])) *finding = e + k + 1;
  }
}

// This thread's elements of a hop, of those from `begin` to `end` in its rows. A thread has kFlights loads under way:
// one at a time would leave a link idle for most of the microsecond that each takes.
template <int kWidth>
__device__ inline void RunHop(const PeerHopArgs& g, int64_t begin, int64_t end) {
  constexpr int kFlights = 4;
  const int64_t stride = int64_t{gridDim.x} * kBlockThreads * kWidth;
  const int64_t thread = begin + (int64_t{blockIdx.x} * kBlockThreads + threadIdx.x) * kWidth;
  for (int64_t i = thread; i < end; i += kFlights * stride) {
    Pack<float, kWidth> sums[kFlights], own[kFlights];
#pragma unroll
    for (int k = 0; k < kFlights; ++k) {
      const int64_t at = i + k * stride;
      if (at >= end) break;
      const int64_t e = ElementAt(g.rows, at);
      sums[k] = LoadPack<kWidth>(g.left + e);
      // `out` may be `own`, so no load may come after the first store.
      if (g.own != nullptr) own[k] = LoadPack<kWidth>(g.own + e);
    }
#pragma unroll
    for (int k = 0; k < kFlights; ++k) {
      const int64_t at = i + k * stride;
      if (at >= end) break;
      const int64_t e = ElementAt(g.rows, at);
      NoteNonFinite(g.left_finding, sums[k], e);
      if (g.own != nullptr) {
        NoteNonFinite(g.own_finding, own[k], e);
        sums[k] += own[k];
      }
      StorePack(sums[k], g.out + e);
    }
  }
}

__global__ void __launch_bounds__(kBlockThreads) PeerHopKernel(PeerHopArgs g, int64_t packs) {
  if (!IsVoid(g.signal)) {
    RunHop<kPackFloats>(g, 0, kPackFloats * packs);
    RunHop<1>(g, kPackFloats * packs, g.rows.in_rows + g.rows.tail.end - g.rows.tail.begin);
  }
  SayDone(g.signal);
}

__global__ void StoreByteKernel(uint8_t* byte, uint8_t value) {
  __threadfence_system();
  StoreReleaseSystem(byte, value);
}

// The packs of a launch: none in the tail, and none anywhere if a row would begin inside a pack.
int64_t PacksOf(const ElementRows& rows, bool aligned) {
  aligned = aligned && rows.begin % kPackFloats == 0 && rows.stride % kPackFloats == 0 && rows.row_shift >= 2;
  return aligned ? rows.in_rows / kPackFloats : 0;
}

LaunchShape ShapeFor(const ElementRows& rows, int64_t packs, int64_t blocks_max) {
  const int64_t threads = std::max(packs, rows.size() - kPackFloats * packs);
  return {.blocks = std::min(blocks_max, CeilDivide(threads, kBlockThreads))};
}

template <int kRanks, Update kUpdate>
cudaError_t Run(cudaStream_t stream, const PeerUpdateArgs& args) {
  bool aligned = AlignedForPacks(args.first, args.second);
  for (int rank = 0; rank < kRanks; ++rank) {
    aligned = aligned && AlignedForPacks(args.gradients[rank], args.parameters[rank]);
  }
  const int64_t packs = PacksOf(args.rows, aligned);
  return Launch(stream, ShapeFor(args.rows, packs, args.blocks_max), PeerUpdateKernel<kRanks, kUpdate>, args, packs);
}

template <int kRanks>
cudaError_t RunFor(cudaStream_t stream, const PeerUpdateArgs& args) {
  // The number of ranks is a constant of the kernel: loops unroll, and `in` of UpdateElements stays in registers.
  if (args.rank_count > kRanks) {
    if constexpr (kRanks < kPeerRanksMax) return RunFor<kRanks + 1>(stream, args);
    return cudaErrorInvalidValue;
  }
  switch (args.update) {
    case Update::kSgd:
      return Run<kRanks, Update::kSgd>(stream, args);
    case Update::kMomentum:
      return Run<kRanks, Update::kMomentum>(stream, args);
    case Update::kNesterov:
      return Run<kRanks, Update::kNesterov>(stream, args);
    case Update::kAdamW:
      return Run<kRanks, Update::kAdamW>(stream, args);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t ApplyPeerUpdate(cudaStream_t stream, const PeerUpdateArgs& args) {
  if (args.rank_count < 2 || args.blocks_max < 1) return cudaErrorInvalidValue;
  return RunFor<2>(stream, args);
}

cudaError_t RunPeerHop(cudaStream_t stream, const PeerHopArgs& args) {
  const int64_t packs = PacksOf(args.rows, AlignedForPacks(args.left, args.own, args.out));
  return Launch(stream, ShapeFor(args.rows, packs, args.blocks_max), PeerHopKernel, args, packs);
}

cudaError_t StoreByte(cudaStream_t stream, uint8_t* byte, uint8_t value) {
  return Launch(stream, {.blocks = 1, .threads = 1}, StoreByteKernel, byte, value);
}

}  // namespace starring::cuda
