// What the emulated machine has: tests change it to see what a program says of a worse one.
//
// Thread safety: one thread, and no device in use meanwhile.
#ifndef STARRING_TESTS_CUDA_EMULATION_EMULATED_GPU_H_
#define STARRING_TESTS_CUDA_EMULATION_EMULATED_GPU_H_

#include <atomic>
#include <cstdint>

namespace starring::cuda_emulation {

struct EmulatedGpu {
  int driver_version = 13000;  // 0: no driver
  int driver_error = 0;        // a cudaError_t that the driver answers everything with, as a broken one does
  int count = 2;
  int compute_major = 9;
  int64_t memory_bytes = int64_t{2} << 30;
  bool has_epilogues = true;  // cuBLASLt adds biases and applies ReLUs
  int cudnn_version = 0;      // as cudnnGetVersion says it, 91900; 0: there is no cuDNN
  bool cudnn_starts = true;   // else cudnnCreate fails
  bool cudnn_fuses = true;    // its engines add biases and apply ReLUs
  int cudnn_first_engine = 7;
  int cudnn_channels_refused = 0;  // it has no engine for so many channels of x
  // What cudaHostRegister takes: memory for reading and writing, and memory that is said to be read only.
  bool registers_memory = true, registers_read_only = true;
  int64_t pinned_bytes_max = int64_t{1} << 40;  // of one allocation
  // Streams do nothing before somebody waits for them, and then no more than it takes: what the host or another stream
  // does without waiting for what it needs comes out wrong. Not to be changed while streams are in use.
  bool late = false;
  // Without it kernels, products and memsets are counted (counters.h) and not run, and memory begins with zeros: for
  // shapes that would take the emulation minutes.
  bool runs_work = true;
  // Marks what kernels read and write. Products are counted and not run. Memory must be allocated after this is set.
  bool counts_bytes = false;
};
// As above but for what the environment says, for whole programs: EMULATED_GPU_REGISTERS=nothing, or =writable;
// EMULATED_GPU_STREAMS=late; EMULATED_GPU_CUDNN=91900, EMULATED_GPU_CUDNN_ENGINE=7; EMULATED_GPU_HANGS_AT_LAUNCH=n: it
// Hangs from the n-th launch of a graph on.
EmulatedGpu& Gpu();

// While it is true no call returns that waits for the GPU, or may wait for it. Any thread.
std::atomic<bool>& Hangs();

// The GPU that the calling thread has made its current one; -1: none.
int CurrentGpu();

// What is allocated now.
int64_t DeviceBytes();

}  // namespace starring::cuda_emulation

#endif  // STARRING_TESTS_CUDA_EMULATION_EMULATED_GPU_H_
