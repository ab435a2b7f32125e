// The memory that the emulation knows, by address: the device's, also that of other processes, and pinned memory.
//
// Thread safety: any thread.
#ifndef STARRING_TESTS_CUDA_EMULATION_MEMORY_H_
#define STARRING_TESTS_CUDA_EMULATION_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace starring::cuda_emulation {

inline constexpr size_t kPageBytes = 4096;

struct Block {
  // kPages can be exported, and has a page after it that nothing can touch. kOpened is another process's.
  enum class Kind { kHeap, kCounted, kPages, kOpened };
  size_t size_bytes = 0;
  Kind kind = Kind::kHeap;
  int gpu = 0;
};

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Block> device;
  std::map<uintptr_t, size_t> pinned;
  int64_t device_bytes = 0;
};
Memory& TheMemory();

// The block of the device's memory that this address is in, and where it begins.
bool FindBlock(void* data, void** begin, Block* block);

bool IsDevice(const void* data, size_t size_bytes);
bool IsPinned(const void* data, size_t size_bytes);

// Addresses for `size_bytes`, a multiple of a page, and for a page after them that nothing can touch. Null: none left.
void* ReserveBeforeGuard(size_t size_bytes);
// Also what is mapped there by now.
void ReleaseWithGuard(void* data, size_t size_bytes);

// ipc.cc.

// Ends the export of a block that is being freed. Stops the process if another one still has it open: on a GPU that is
// undefined behaviour.
void EndExport(void* data);

// Runs a piece of work, with the faults that memory of other processes has (EmulatedGpu::ipc).
void RunWork(const std::function<void()>& work);

// The address at which other processes see the contents of `data`. It is another one only for memory that is visible
// late.
void* VisibleAddress(void* data);

// A number that is the same for all processes of this machine until it is booted again.
uint64_t BootNumber();

}  // namespace starring::cuda_emulation

#endif  // STARRING_TESTS_CUDA_EMULATION_MEMORY_H_
