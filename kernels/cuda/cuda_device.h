// The GPU side of kernels/device.h: cuBLASLt for matrix products, cuDNN for convolutions if it is asked for, and
// kernels of our own for the rest. A training step needs more than a Device, which is here too: streams, events, pinned
// memory, graphs.
//
// This header includes no CUDA, so that callers compile without it. In a build without a CUDA toolkit the functions at
// the end fail and say so.
//
// Operations run on the device's own stream. Their errors (a launch that is refused, a kernel that fails) are kept, and
// Synchronize returns the first one, Internal with the library's own text. After an error the device's results must not
// be used.
//
// Bits: the same inputs and shapes give the same bits on every run on GPUs of one model with one version of cuBLASLt
// and cuDNN. Algorithms are chosen once, by shape; the workspace has one size; no sum uses atomics. (cuBLAS documents
// this under "Results reproducibility"; its workspace and stream are ours alone. For cuDNN see cudnn_product.h.)
//
// Thread safety: the thread that created a device uses it, its operations and its graphs, and creates no device on
// another GPU. One other thread may use a CudaStream that is not stream(). Any thread may use an event and pinned
// memory.
#ifndef STARRING_KERNELS_CUDA_CUDA_DEVICE_H_
#define STARRING_KERNELS_CUDA_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/element_range.h"
#include "kernels/cuda/element_rows.h"
#include "kernels/cuda/peer_ranks.h"
#include "kernels/cuda/step_values.h"
#include "kernels/device.h"

namespace starring {

class CudaWatch;  // kernels/cuda/cuda_watch.h

// The rounding of the inputs of matrix products: none in fp32, to 10 bits of mantissa in tf32, to 7 in bf16. Sums are
// always float32. Stored values are of the specs' elements, which are kBfloat16 with kBf16 alone.
enum class CudaMath { kFp32, kTf32, kBf16 };

// Convolutions by kernels of our own, or by cuDNN where it has engines for the shape. kAuto: by cuDNN if it can be
// loaded and used.
enum class CudaConvolutions { kOwn, kCudnn, kAuto };

struct CudaDeviceOptions {
  int ordinal = 0;  // CUDA's number of the GPU
  CudaMath math = CudaMath::kFp32;
  CudaConvolutions convolutions = CudaConvolutions::kOwn;
  // Limit of the temporary memory for the columns of one convolution (kernels/cuda/im2col.h). A batch whose columns do
  // not fit is treated in chunks of a multiple of four images, at least four. This size is enough for any layer of the
  // shipped models at batch 512 in a few chunks. Half of it would keep the columns in an H100's cache, but leave
  // multiprocessors idle in small layers.
  int64_t columns_bytes_max = int64_t{256} << 20;
  // Folders to search for cuBLASLt and cuDNN if the loader does not find them; see library_search.h.
  std::vector<std::string> library_folders;
  // Watches every call that may wait for the GPU. Outlives the device and everything that it creates; may be null.
  CudaWatch* watch = nullptr;
};

struct CudaDeviceInfo {
  int ordinal = 0;
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int compute_major = 0, compute_minor = 0;
  int64_t memory_bytes = 0;
  std::string uuid;        // 16 bytes: no two GPUs, or parts of one, have the same
  std::string bus_id;      // "0000:3b:00": parts of one GPU (MIG) have the same
  bool has_ipc = true;     // CUDA says that other processes can map its memory
  int unreached_gpu = -1;  // the first GPU of those that the driver shows whose memory this one does not reach
};

// A point in a stream. Recording it again moves it.
class CudaEvent {
 public:
  virtual ~CudaEvent() = default;
  // Blocks this thread until the stream has reached the last Record; returns at once if there was none.
  virtual absl::Status Wait() = 0;
  // Whether Wait would return at once. Never blocks.
  virtual absl::StatusOr<bool> HasPassed() = 0;
};

// A queue of copies and waits, in order.
class CudaStream {
 public:
  virtual ~CudaStream() = default;  // waits for what is queued
  // In a capture of this stream, Record and Wait become nodes of the graph, which act whenever it is launched. So a
  // captured bucket is known to be complete while the rest of the graph still runs.
  virtual absl::Status Record(CudaEvent* event) = 0;
  virtual absl::Status Wait(CudaEvent* event) = 0;  // holds back work that is queued from now on, not this thread
  // Asynchronous only if `host` is pinned. It must then stay, unchanged, until the stream has passed this point.
  virtual absl::Status CopyToDevice(const void* host, void* device, int64_t size_bytes) = 0;
  virtual absl::Status CopyToHost(const void* device, void* host, int64_t size_bytes) = 0;
  virtual absl::Status CopyOnDevice(const void* from, void* to, int64_t size_bytes) = 0;
  virtual absl::Status Synchronize() = 0;
  // CUDA's own stream, a cudaStream_t, for a library that enqueues work.
  virtual void* native() = 0;
};

// Host memory that the GPU reads and writes directly; 64-byte aligned, not initialised, freed by the destructor.
class PinnedBuffer {
 public:
  virtual ~PinnedBuffer() = default;
  virtual void* data() = 0;
  virtual int64_t size_bytes() const = 0;
};

// The update of one owner's range by the gradients of ranks whose GPUs map each other's memory. All memory is device
// memory that this GPU maps.
struct CudaPeerUpdate {
  ElementRows rows;                            // of the parameter vector
  int64_t element_count = 0;                   // of the parameter vector
  ReductionOrder reduction;                    // with 2 to kPeerRanksMax ranks
  int rank = 0;                                // the owner
  const float* gradients[kPeerRanksMax] = {};  // by rank: whole vectors
  float* parameters[kPeerRanksMax] = {};       // by rank: whole vectors; the owner's are read, all are written
  float learning_rate = 0;
  int64_t update = 1;                   // counts from 1
  std::vector<std::span<float>> state;  // of the rows alone, one for each state vector of the optimizer
};

// One hop of a ring of such ranks: out = left + own in the rows of these vectors; own null: out = left.
struct CudaPeerHop {
  ElementRows rows;
  const float* left = nullptr;
  const float* own = nullptr;
  float* out = nullptr;
};

// Rows of floats that follow each other in one place, `packed`, and begin `step` floats apart in another one, `apart`.
// REQUIRES: step >= length; step * count < 2^31.
struct CudaRows {
  int64_t count = 0;
  int64_t length = 0;
  int64_t step = 0;
};

// Arithmetic on device memory on a stream of its own, for a thread other than the device's: an exchange treats
// gradients and parameters that stay on the GPU with it. Errors are kept, as the device's are.
//
// Thread safety: one thread at a time, any thread.
class CudaVectorMath {
 public:
  virtual ~CudaVectorMath() = default;  // waits for what is queued; before its device
  // sum = a + b; sum may be either.
  virtual void Add(const float* a, const float* b, float* sum, int64_t count) = 0;
  // As CudaDevice's, never with bound values.
  virtual void ApplyOptimizer(const OptimizerConfig& config, const UpdateArgs& args) = 0;
  // ApplyOptimizer with the sum of all ranks' gradients, in the order of `reduction`, and with the bits of a CPU's sum.
  virtual void ApplyPeerUpdate(const OptimizerConfig& config, const CudaPeerUpdate& update) = 0;
  virtual void RunPeerHop(const CudaPeerHop& hop) = 0;
  virtual void CopyToDevice(const void* host, void* device, int64_t size_bytes) = 0;
  virtual void CopyToHost(const void* device, void* host, int64_t size_bytes) = 0;
  // Between two places that this GPU maps: its own memory, or that of another process (CudaDevice::OpenShared).
  virtual void CopyOnDevice(const void* from, void* to, int64_t size_bytes) = 0;
  // The same for rows, in one kernel.
  virtual void PackRows(const CudaRows& rows, const float* apart, float* packed) = 0;
  virtual void UnpackRows(const CudaRows& rows, const float* packed, float* apart) = 0;
  // `event` is over when all that was queued before is done. Returns the first error of all calls so far.
  virtual absl::Status Record(CudaEvent* event) = 0;
  // Waits, and returns the first error of all calls so far.
  virtual absl::Status Synchronize() = 0;
  // Makes this GPU the calling thread's current one: MPI asks CUDA for it when it is given device memory.
  virtual absl::Status MakeCurrent() = 0;
};

// Words in memory of the host through which the GPUs of several processes wait for each other, each in the order of a
// stream. Calls enqueue on a stream, captured or not, and return the error of that.
//
// A captured wait has the word and the value of its capture. CUDA knows nothing of the order that such waits make. So
// within a process nothing that another process needs may be enqueued behind a wait for that process.
//
// Thread safety: the device's thread.
class CudaPeerBoard {
 public:
  virtual ~CudaPeerBoard() = default;  // unpins the memory; before its device
  // *byte = value, after all that is on `stream` so far, as other GPUs and hosts see it.
  virtual absl::Status Store(CudaStream* stream, uint8_t* byte, uint8_t value) = 0;
  // Work that is enqueued on `stream` from now on runs after each word has had its value. Words are aligned.
  struct Wait {
    const uint64_t* word = nullptr;
    uint64_t value = 0;
  };
  virtual absl::Status Await(CudaStream* stream, std::span<const Wait> waits) = 0;
  // How an update or a hop tells others that it is done, and hears that it must not run.
  struct Signal {
    // Becomes `value` when the results are there, as Store's byte; null: no byte does.
    uint8_t* done = nullptr;
    uint8_t value = 0;
    // Not null: where this is not 0 no vector is touched, since a rank may have gone.
    const uint64_t* is_void = nullptr;
  };
  // As CudaVectorMath::ApplyPeerUpdate, with the learning rate and the number of the update that `values` has, in
  // device memory, when the work runs. All calls of this and RunPeerHop are for one stream.
  struct Update {
    const CudaStepValues* values = nullptr;  // null: those of the CudaPeerUpdate
    // If the gradient of a rank from first_finding on is not finite: findings[rank * findings_stride] = one of its
    // elements + 1.
    int64_t* findings = nullptr;
    int64_t findings_stride = 0;
    int first_finding = 0;
    Signal signal;
  };
  virtual absl::Status ApplyPeerUpdate(CudaStream* stream, const OptimizerConfig& config, const CudaPeerUpdate& update,
                                       const Update& more) = 0;
  // As CudaVectorMath::RunPeerHop; an element + 1 that is not finite is noted in *left_finding or *own_finding.
  struct Hop {
    int64_t* left_finding = nullptr;  // null: not looked at
    int64_t* own_finding = nullptr;
    Signal signal;
  };
  virtual absl::Status RunPeerHop(CudaStream* stream, const CudaPeerHop& hop, const Hop& more) = 0;
};

// Work that was captured, and that one call launches.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;  // before its device
  // Enqueues all of it on the device's stream.
  virtual absl::Status Launch() = 0;
};

// The memory that AllocateShared takes. A handle names the block in which CUDA put an allocation. Allocations of whole
// units have blocks of their own, so their handles share nothing else.
inline constexpr int64_t kCudaSharedUnitBytes = int64_t{2} << 20;
constexpr int64_t CudaSharedBytes(int64_t size_bytes) {
  return (size_bytes + kCudaSharedUnitBytes - 1) / kCudaSharedUnitBytes * kCudaSharedUnitBytes;
}

class CudaDevice : public Device {
 public:
  virtual const CudaDeviceInfo& info() const = 0;
  virtual CudaStream* stream() = 0;  // where operations run
  // The GPU's memory that no process has allocated; the memory of operations and of the libraries' workspaces, without
  // the operations' counters, which are a few KiB.
  virtual absl::StatusOr<int64_t> FreeBytes() const = 0;
  virtual int64_t operations_bytes() const = 0;

  // "9.19.0"; empty where convolutions are computed by kernels of our own. cudnn_status then says why: Unavailable
  // where there is no cuDNN or it was not asked for, otherwise cuDNN's own error.
  virtual std::string cudnn_version() const = 0;
  virtual const absl::Status& cudnn_status() const = 0;
  // For every convolution created so far, by its shape: the engines of cuDNN, or "own" where it has none.
  virtual const std::map<std::string, std::string>& engines() const = 0;

  virtual absl::StatusOr<std::unique_ptr<CudaStream>> CreateStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<CudaEvent>> CreateEvent() = 0;
  // ResourceExhausted with the number of bytes when there is no such memory.
  virtual absl::StatusOr<std::unique_ptr<PinnedBuffer>> AllocatePinned(int64_t size_bytes) = 0;

  virtual absl::StatusOr<std::unique_ptr<CudaVectorMath>> CreateVectorMath() = 0;

  // Memory that other processes of this host may map: Allocate's, of a whole number of CUDA's blocks.
  virtual absl::StatusOr<std::unique_ptr<DeviceBuffer>> AllocateShared(int64_t size_bytes) = 0;
  // The bytes that name it to other processes. It must not be freed while one of them maps it.
  virtual absl::StatusOr<std::string> Export(DeviceBuffer* shared) = 0;
  // Maps memory that another process exports, whatever its GPU; unmaps it when destroyed. Internal with CUDA's own text
  // where this GPU does not reach that memory.
  virtual absl::StatusOr<std::unique_ptr<DeviceBuffer>> OpenShared(const std::string& exported, int64_t size_bytes) = 0;

  // Pins the caller's host memory until the buffer is destroyed; the memory must live longer. kRead: the GPU only reads
  // it. Memory that is mapped read-only can be pinned in no other way, and on some machines not at all.
  enum class PinFor { kRead, kReadAndWrite };
  virtual absl::StatusOr<std::unique_ptr<PinnedBuffer>> Pin(const void* data, int64_t size_bytes, PinFor use) = 0;

  // Pins `memory` of the host, which several processes may map, until the board ends. Every byte, word and finding that
  // the board is given is in it. Unavailable, with the reason, where the streams of this GPU cannot wait for words.
  virtual absl::StatusOr<std::unique_ptr<CudaPeerBoard>> MapBoard(std::span<std::byte> memory) = 0;
  // The watch of the options; may be null.
  virtual CudaWatch* watch() const = 0;

  // Fork: work queued on `other` from now on follows the work that is on stream() so far. Join: the other way round. In
  // a capture of stream(), work queued on `other` between the first Fork and the Join becomes part of the graph.
  // Several Forks may precede one Join, which must come before EndCapture.
  virtual absl::Status Fork(CudaStream* other) = 0;
  virtual absl::Status Join(CudaStream* other) = 0;

  // Calls on stream() between the two are not run but kept. Allocate, Create..., Synchronize and Result must not be
  // called between them; running an operation never allocates. Everything that a graph refers to, operations included,
  // must live as long as the graph.
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<std::unique_ptr<CudaGraph>> EndCapture() = 0;

  // From now on Dropout, Loss, ApplyOptimizer and GatherSamples read their step, epoch, first sample,
  // loss scale and factors from `values`, in device memory, at the time when they run on the GPU, and ignore their
  // arguments. So one captured graph serves every step. Null: they read their arguments. A graph keeps the binding that
  // it was captured with. Dropout's backward reads `values` too: they must not change between forward and backward.
  virtual void BindStepValues(const CudaStepValues* values) = 0;
  // From now on Loss writes its sums to `result`, in device memory, and its Result must not be called;
  // and ApplyOptimizer searches gradients as FindNonFinite does. Null: back to Result.
  virtual void BindStepResult(CudaStepResult* result) = 0;
  // If any of `count` values is NaN or infinite, result->non_finite_element becomes the index of one that is; otherwise
  // it stays as it was. `result` is device memory, or pinned memory, which costs nothing while all values are finite.
  virtual void FindNonFinite(const float* values, int64_t count, CudaStepResult* result) = 0;

  // Enqueues on stream() a note of the time, in nanoseconds of the GPU's own clock. `place` as FindNonFinite's result.
  virtual void Stamp(uint64_t* place) = 0;

  // common/arithmetic/optimizer.h's ApplyOptimizer over spans of device memory, with the same bits. See BindStepResult.
  virtual void ApplyOptimizer(const OptimizerConfig& config, const UpdateArgs& args) = 0;

  // out = (value - offset[channel]) * scale[channel], as worker/data/normalization.h. All device memory;
  // `channels` interleaved, `count` values in all, below 2^31.
  struct Values {
    const void* values = nullptr;
    int64_t value_bytes = 1;  // 1: uint8, 4: float32
    int64_t count = 0, channels = 0;
    const float* offset = nullptr;  // (channels)
    const float* scale = nullptr;   // (channels)
    Elements out;
  };
  virtual void NormalizeValues(const Values& values) = 0;

  // Takes a batch from a data set that is on the GPU: images go to out_images, cropped, flipped and normalised as by
  // worker/data/loader.h, with the same bits, and their labels to out_labels, or their targets to out_targets. All
  // pointers are device memory.
  struct SampleGather {
    int64_t batch = 0;
    int64_t height = 0, width = 0, channels = 0;  // of an image
    const uint32_t* samples = nullptr;            // (batch): numbers in the data set, which are not checked
    int64_t value_bytes = 1;                      // of the images, as in Values
    const void* images = nullptr;                 // (count, height, width, channels)
    const uint16_t* labels = nullptr;             // (count); null with targets
    const float* targets = nullptr;               // (count, target_values); null with labels
    int64_t target_values = 0;                    // of a sample; 0 with labels
    // If not 0, images are cropped and flipped at random, with so many pixels of zeros on each side.
    int64_t crop_padding = 0;
    uint64_t seed = 0;              // of the random crops
    int64_t epoch = 0;              // of the random crops, unless step values are bound
    const float* offset = nullptr;  // (channels)
    const float* scale = nullptr;   // (channels)
    Elements out_images;            // (batch, height, width, channels)
    int32_t* out_labels = nullptr;  // (batch)
    float* out_targets = nullptr;   // (batch, target_values)
  };
  virtual void GatherSamples(const SampleGather& gather) = 0;
};

// The factors of update number `update`, which counts from 1, for CudaStepValues::optimizer.
CudaOptimizerScalars MakeCudaOptimizerScalars(const OptimizerConfig& config, float learning_rate, int64_t update);

// The GPUs that the driver shows, in its order. Unavailable, with the versions, where the driver is too old for this
// build; NotFound where there is no driver or it shows no GPU.
[[nodiscard]] absl::StatusOr<std::vector<CudaDeviceInfo>> FindCudaDevices(CudaWatch* watch = nullptr);

// Makes a GPU the calling thread's current one, with a context, for a library that asks CUDA for the current GPU.
// ResourceExhausted where its memory is too full for the context.
absl::Status MakeCudaDeviceCurrent(int ordinal, CudaWatch* watch = nullptr);

// As FindCudaDevices; and InvalidArgument for an ordinal that does not exist, FailedPrecondition for a GPU older than
// compute capability 8.0, ResourceExhausted with the numbers where its memory is too full, Unavailable where cuBLASLt
// cannot be loaded, or cuDNN with kCudnn.
[[nodiscard]] absl::StatusOr<std::unique_ptr<CudaDevice>> CreateCudaDevice(const CudaDeviceOptions& options);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_DEVICE_H_
