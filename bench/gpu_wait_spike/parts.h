// The experiments, each as a part that both processes of a pair run.
//
// A part fails with CUDA's own error; Unavailable says that there is no GPU.
#ifndef STARRING_BENCH_GPU_WAIT_SPIKE_PARTS_H_
#define STARRING_BENCH_GPU_WAIT_SPIKE_PARTS_H_

#include "absl/status/status.h"
#include "bench/gpu_wait_spike/pair.h"

namespace starring::gpu_wait {

// Notes versions, the GPU and its attributes; the last note has those that decide how streams may wait.
absl::Status NoteAttributes(Peer& peer);

// CUDA IPC; each notes what was seen.
absl::Status ShareMemory(Peer& peer);       // each process reads and overwrites the other's memory
absl::Status ShareEvent(Peer& peer);        // process 1 waits for an event of process 0
absl::Status ShareInnerMemory(Peer& peer);  // where a handle of a small allocation, or of the middle of one, leads
absl::Status OpenOwnMemory(Peer& peer);     // a process opens its own handle

// The pings and pongs of two streams.
enum class WaitWay { kHostPolls, kHostBlocks, kMemoryOperation, kSpinningKernel };
enum class WordPlace { kHostPage, kDeviceMemory };
enum class Capture { kNo, kGraph };

struct PingPong {
  WaitWay way = WaitWay::kHostPolls;
  WordPlace place = WordPlace::kHostPage;
  Capture capture = Capture::kNo;
  int rounds = 0;
};
// Leaves the microseconds of each round in series 0. A round: a kernel of process 0, its word, a kernel of process 1,
// its word. Stops early, with fewer rounds, after some seconds.
absl::Status RunPingPong(Peer& peer, const PingPong& job);

// Leaves in series 0 the microseconds from one kernel to the next of process 0, while process 1 does nothing.
absl::Status RunKernelsAlone(Peer& peer);

// The work of process 1 while process 0 computes.
enum class Meanwhile { kWaitsByMemoryOperation, kWaitsByMemoryOperationOnDevice, kWaitsBySpinningKernel, kComputes };
// Leaves the milliseconds of process 0's kernels: in series 0 without, in series 1 with the work of process 1.
absl::Status RunYield(Peer& peer, Meanwhile meanwhile);

}  // namespace starring::gpu_wait

#endif  // STARRING_BENCH_GPU_WAIT_SPIKE_PARTS_H_
