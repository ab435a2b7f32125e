// The properties of the emulated machine. Tests change them to see what a program does on a worse one.
//
// Thread safety: one thread, while no device is in use.
#ifndef STARRING_TESTS_CUDA_EMULATION_EMULATED_GPU_H_
#define STARRING_TESTS_CUDA_EMULATION_EMULATED_GPU_H_

#include <atomic>
#include <cstdint>

namespace starring::cuda_emulation {

struct EmulatedGpu {
  int driver_version = 13000;  // 0: no driver
  int driver_error = 0;        // a cudaError_t that every call of the driver returns, as with a broken one
  int count = 2;
  int compute_major = 9;
  int64_t memory_bytes = int64_t{2} << 30;
  bool fits_context = true;   // otherwise other processes have so much of the memory that no context fits
  bool has_epilogues = true;  // cuBLASLt adds biases and applies ReLUs
  int cudnn_version = 0;      // as cudnnGetVersion returns it, 91900; 0: there is no cuDNN
  bool cudnn_starts = true;   // otherwise cudnnCreate fails
  bool cudnn_fuses = true;    // its engines add biases and apply ReLUs
  int cudnn_first_engine = 7;
  int cudnn_channels_refused = 0;  // cuDNN has no engine for so many channels of x
  // The memory that cudaHostRegister accepts: memory for reading and writing, and memory registered as read-only.
  bool registers_memory = true, registers_read_only = true;
  int64_t pinned_bytes_max = int64_t{1} << 40;  // of one allocation
  // Streams do nothing before they are waited for, and then no more than the wait needs. So a host or a stream that
  // does not wait for work that it needs computes wrong results. Must not change while streams are in use.
  bool late = false;
  // Streams work by themselves, on one thread of the process, in an order that `async_seed` decides. Whenever several
  // streams, or several branches of a graph, have work, any of them may be next, and some work is held back for a
  // while. So work that does not wait for what it needs computes wrong results with some seeds. Must not change while
  // streams are in use.
  bool async = false;
  uint64_t async_seed = 1;
  // The host's waits for a stream fail with cudaErrorLaunchTimeout when no work has ended for so long.
  int wait_deadline_ms = 45'000;
  // Faults of memory that processes share by CUDA IPC.
  enum class Ipc {
    kWorks,
    kNothing,      // no handle is made, and none is opened
    kFull,         // there is too little memory to open a handle
    kOneWay,       // this process's writes to another's memory stay in this process
    kCorrupt,      // every eighth piece of work that writes to another's memory gets one bit wrong there
    kLateVisible,  // a piece of work's writes to another's memory arrive when three more have ended, or at the close
  };
  Ipc ipc = Ipc::kWorks;
  bool accesses_peers = true;  // one GPU accesses the other's memory
  bool is_one_gpu = false;     // they are parts of one GPU (MIG), which is one device of the PCI bus
  // Attributes 122 and 98 of the driver's interface.
  bool has_64_bit_operations = true, flushes_remote_writes = false;
  // If false, kernels, products and memsets are counted (counters.h) but not run, and memory begins with zeros: for
  // shapes that would take the emulation minutes.
  bool runs_work = true;
  // Marks the memory that kernels read and write. Products are counted but not run. Set it before memory is allocated.
  bool counts_bytes = false;
};
// The machine of this process. At the start it has the values above, except for those that the environment sets, for
// whole programs:
//   EMULATED_GPU_CUDNN=91900
//   EMULATED_GPU_CUDNN_ENGINE=7
//   EMULATED_GPU_DEADLINE_MS=45000
//   EMULATED_GPU_DIES_AT_LAUNCH=n     the process kills itself at the n-th launch of a graph
//   EMULATED_GPU_HANGS_AT_LAUNCH=n    Hangs() is true from the n-th launch of a graph on
//   EMULATED_GPU_IPC=nothing, full, one_way, corrupt or late_visible
//   EMULATED_GPU_MIG=yes              all are parts of one GPU
//   EMULATED_GPU_NANS_AT_LAUNCH=n     products give NaN from the n-th launch of a graph on
//   EMULATED_GPU_PEERS=no             no GPU accesses another's memory
//   EMULATED_GPU_REFUSES_KERNEL=n     the n-th launch of a kernel, captured or not, is an error, and no other one
//   EMULATED_GPU_REGISTERS=nothing or writable
//   EMULATED_GPU_SAYS_BYTES=yes       the process ends with a line that says how many bytes of its GPU it has not freed
//   EMULATED_GPU_SAYS_COUNTS=yes      the same for what its GPU was given to do, and how often its host waited
//   EMULATED_GPU_STOPS_AT_LAUNCH=n    the process stops itself (SIGSTOP) at the n-th launch of a graph
//   EMULATED_GPU_STREAMS=late, async or async:7, whose number is the seed
//   EMULATED_GPU_WAITS=no             streams cannot wait for 64-bit words
EmulatedGpu& Gpu();

// While this is true, no call returns that waits for the GPU or may wait for it. Any thread.
std::atomic<bool>& Hangs();

// While this is true, products that begin give NaN. Any thread.
std::atomic<bool>& GivesNans();

// The GPU that the calling thread has made its current one; -1: none.
int CurrentGpu();

// The memory that is allocated now, without that of other processes which this one has opened.
int64_t DeviceBytes();

}  // namespace starring::cuda_emulation

#endif  // STARRING_TESTS_CUDA_EMULATION_EMULATED_GPU_H_
