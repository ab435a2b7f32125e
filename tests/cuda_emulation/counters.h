// Counts the work that the emulated GPU was given, and the bytes of its memory that kernels read and wrote.
//
// Bytes. A kernel's traffic is the number of different 32-byte sectors of device memory that it read, and of those that
// it wrote, times 32: the bytes that must move between kernels if each has a cache as large as its tensors. A GPU moves
// less where one kernel's output is still in the cache when the next one reads it, and more where the cache is too
// small. Each sector that a kernel touches is seen only if the kernel was compiled with calls at every access
// (tests/cuda_emulation:counted_cuda_device); a product of cuBLASLt counts each factor and its result once.
//
// Thread safety: any thread may count. One thread calls the other functions, while no device is in use.
#ifndef STARRING_TESTS_CUDA_EMULATION_COUNTERS_H_
#define STARRING_TESTS_CUDA_EMULATION_COUNTERS_H_

#include <cstddef>
#include <cstdint>

namespace starring::cuda_emulation {

enum class Work { kKernel, kLibrary, kCopy, kMemset, kMemoryOperation };

// Captured work counts whenever its graph is launched.
struct WorkCounts {
  int64_t kernels = 0;
  int64_t library_calls = 0;  // products of cuBLASLt, which may make a second kernel of one
  int64_t copies = 0;         // between host and device, or on the device
  int64_t memsets = 0;
  int64_t memory_operations = 0;  // batches of the driver's cuStreamBatchMemOp
  int64_t events = 0;             // recorded by a graph, or waited for in one
  int64_t graph_launches = 0;
  int64_t host_waits = 0;  // calls of the host that return when an event or a stream has passed
  int64_t copied_bytes = 0;
  int64_t read_bytes = 0, written_bytes = 0;  // by kernels and library calls, while EmulatedGpu::counts_bytes

  int64_t nodes() const { return kernels + library_calls + copies + memsets + memory_operations + events; }
};
// The counts of all devices since the last call.
WorkCounts TakeCounts();

// The functions below are for the emulation itself.
void Count(Work work, int64_t copied_bytes = 0);
void CountEvent();
void CountGraphLaunch();
void CountHostWait();

// Memory whose sectors are counted; null when none is left. Freed memory is not used again.
void* AllocateCounted(size_t size_bytes);
bool IsCounted(const void* data);
// Accesses are marked until EndTraffic, which adds them to the counts and removes the marks.
void BeginTraffic();
void EndTraffic();
void AddTraffic(int64_t read_bytes, int64_t written_bytes);

enum class Access { kRead, kWrite };
extern struct Marking {  // the memory whose accesses are marked now; empty: none
  uintptr_t begin = 0;
  size_t size_bytes = 0;
} marking;
void MarkSectors(Access access, size_t offset, size_t size_bytes);
inline void MarkAccess(Access access, const void* data, size_t size_bytes) {
  const size_t offset = reinterpret_cast<uintptr_t>(data) - marking.begin;
  if (offset < marking.size_bytes) MarkSectors(access, offset, size_bytes);
}

}  // namespace starring::cuda_emulation

#endif  // STARRING_TESTS_CUDA_EMULATION_COUNTERS_H_
