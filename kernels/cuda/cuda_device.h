// The GPU side of kernels/device.h: cuBLASLt for matrix products, cuDNN for convolutions if it is asked for, kernels of
// our own for the rest; and what a trainer needs beside a Device: streams, events, pinned memory, graphs.
//
// The header knows no CUDA, so that callers compile without it. In a build without a CUDA toolkit both functions at the
// end fail with Unavailable, saying so.
//
// Operations run on the device's own stream. Their errors (a launch that is refused, a kernel that fails) are kept, and
// Synchronize returns the first of them, Internal with the library's own text; what follows an error is not to be used.
//
// Bits: the same inputs and shapes give the same bits on every run on GPUs of one model with one version of cuBLASLt
// and cuDNN: algorithms are chosen by shape once, the workspace has one size, and nothing sums by atomics. (cuBLAS
// documents this: "Results reproducibility"; its workspace and stream are ours alone. Of cuDNN: cudnn_product.h.)
//
// Thread safety: a device, its operations and its graphs are used by one thread, the one that created it, and that one
// creates no device on another GPU. A CudaStream other than stream() may be used by one other thread, an event and
// pinned memory by any.
#ifndef STARRING_KERNELS_CUDA_CUDA_DEVICE_H_
#define STARRING_KERNELS_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arithmetic/optimizer.h"
#include "kernels/cuda/step_values.h"
#include "kernels/device.h"

namespace starring {

class CudaWatch;  // kernels/cuda/cuda_watch.h

// What matrix products round their inputs to: fp32 not at all, tf32 to 10 bits of mantissa, bf16 to 7. Sums are
// float32, and so is all that is stored.
enum class CudaMath { kFp32, kTf32, kBf16 };

// Who computes convolutions: kernels of our own, or cuDNN where it has engines for the shape. kAuto: cuDNN if it can be
// loaded and used.
enum class CudaConvolutions { kOwn, kCudnn, kAuto };

struct CudaDeviceOptions {
  int ordinal = 0;  // CUDA's number of the GPU
  CudaMath math = CudaMath::kFp32;
  CudaConvolutions convolutions = CudaConvolutions::kOwn;
  // Of temporary memory for the columns of one convolution (kernels/cuda/im2col.h). More images than fit in it, or
  // than four, are treated in chunks. Half would keep the columns in an H100's cache but leave multiprocessors idle in
  // small layers: enough for any layer of the shipped models at batch 512 in few chunks.
  int64_t columns_bytes_max = int64_t{256} << 20;
  // Where cuBLASLt and cuDNN are looked for if the loader does not find them by itself, see library_search.h.
  std::vector<std::string> library_folders;
  // Of every call that may wait for the GPU. Outlives the device and all that it creates; null: nobody looks.
  CudaWatch* watch = nullptr;
};

struct CudaDeviceInfo {
  int ordinal = 0;
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int compute_major = 0, compute_minor = 0;
  int64_t memory_bytes = 0;
};

// A point in a stream. Recorded again, it is the newer point.
class CudaEvent {
 public:
  virtual ~CudaEvent() = default;
  // Blocks this thread until the last Record was reached; at once if there was none.
  virtual absl::Status Wait() = 0;
};

// A queue of copies and waits, in order.
class CudaStream {
 public:
  virtual ~CudaStream() = default;  // waits for what is queued
  // In a capture of this stream, Record and Wait become nodes of the graph that act whenever it is launched; so can one
  // captured bucket be known as complete while the rest of the graph still runs.
  virtual absl::Status Record(CudaEvent* event) = 0;
  virtual absl::Status Wait(CudaEvent* event) = 0;  // what is queued from now on, not this thread
  // Asynchronous only where `host` is pinned: then it must stay, unchanged, until the stream was there.
  virtual absl::Status CopyToDevice(const void* host, void* device, int64_t size_bytes) = 0;
  virtual absl::Status CopyToHost(const void* device, void* host, int64_t size_bytes) = 0;
  virtual absl::Status CopyOnDevice(const void* from, void* to, int64_t size_bytes) = 0;
  virtual absl::Status Synchronize() = 0;
};

// Host memory that the GPU reads and writes directly; 64-byte aligned, not initialised, freed by the destructor.
class PinnedBuffer {
 public:
  virtual ~PinnedBuffer() = default;
  virtual void* data() = 0;
  virtual int64_t size_bytes() const = 0;
};

// Arithmetic on device memory on a stream of its own, for a thread beside the device's: what an exchange does to
// gradients and parameters that stay on the GPU. Errors are kept, as the device's are.
//
// Thread safety: one thread at a time, any thread.
class CudaVectorMath {
 public:
  virtual ~CudaVectorMath() = default;  // waits for what is queued; before its device
  // sum = a + b; sum may be either.
  virtual void Add(const float* a, const float* b, float* sum, int64_t count) = 0;
  // As CudaDevice's, never with bound values.
  virtual void ApplyOptimizer(const OptimizerConfig& config, const UpdateArgs& args) = 0;
  virtual void CopyToDevice(const void* host, void* device, int64_t size_bytes) = 0;
  virtual void CopyToHost(const void* device, void* host, int64_t size_bytes) = 0;
  // Waits; the first error of all calls so far.
  virtual absl::Status Synchronize() = 0;
  // Makes this GPU the calling thread's current one, for a library that asks CUDA which that is: MPI with device
  // memory.
  virtual absl::Status MakeCurrent() = 0;
};

// Captured work that one call launches.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;  // before its device
  // Enqueues all of it on the device's stream.
  virtual absl::Status Launch() = 0;
};

class CudaDevice : public Device {
 public:
  virtual const CudaDeviceInfo& info() const = 0;
  virtual CudaStream* stream() = 0;  // where operations run
  // Of the GPU's memory: what no process has taken, and what operations and the workspaces of libraries have.
  virtual absl::StatusOr<int64_t> FreeBytes() const = 0;
  virtual int64_t operations_bytes() const = 0;

  // "9.19.0"; empty where convolutions are computed by kernels of our own, and then why: Unavailable where there is no
  // cuDNN, or it was not asked for; else what it said.
  virtual std::string cudnn_version() const = 0;
  virtual const absl::Status& cudnn_status() const = 0;
  // Of every convolution created so far, by its shape: the engines of cuDNN, or "own" where it has none.
  virtual const std::map<std::string, std::string>& engines() const = 0;

  virtual absl::StatusOr<std::unique_ptr<CudaStream>> CreateStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<CudaEvent>> CreateEvent() = 0;
  // ResourceExhausted with the number of bytes when there is no such memory.
  virtual absl::StatusOr<std::unique_ptr<PinnedBuffer>> AllocatePinned(int64_t size_bytes) = 0;

  virtual absl::StatusOr<std::unique_ptr<CudaVectorMath>> CreateVectorMath() = 0;

  // Host memory of the caller's, made pinned until the buffer ends; the memory must live longer. kRead: the GPU only
  // reads it; memory that is mapped read-only can be pinned in no other way, and on some machines in none.
  enum class PinFor { kRead, kReadAndWrite };
  virtual absl::StatusOr<std::unique_ptr<PinnedBuffer>> Pin(const void* data, int64_t size_bytes, PinFor use) = 0;

  // Fork: what is queued on `other` from now on follows what is on stream() so far. Join: the other way round. In a
  // capture of stream(), what is queued on `other` between the first Fork and the Join becomes part of the graph.
  // Forks need no Join between them, but the last one must have one before EndCapture.
  virtual absl::Status Fork(CudaStream* other) = 0;
  virtual absl::Status Join(CudaStream* other) = 0;

  // What is called on stream() between the two is not run but kept. Allocate, Create..., Synchronize and Result must
  // not be called between; operations allocate nothing, wherever they are called.
  // Everything a graph refers to, its operations too, must live as long as the graph.
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<std::unique_ptr<CudaGraph>> EndCapture() = 0;

  // From now on Dropout, SoftmaxCrossEntropy, ApplyOptimizer and GatherSamples read their step, epoch, first sample,
  // loss scale and factors from `values`, device memory, when they run on the GPU, and not from their arguments: a
  // captured graph serves every step. Null: from their arguments. What is bound when a graph is captured stays bound in
  // it. Dropout's backward reads it too: the values must not change between forward and backward.
  virtual void BindStepValues(const CudaStepValues* values) = 0;
  // From now on SoftmaxCrossEntropy writes its sums to `result`, device memory, and its Result is not to be called; and
  // ApplyOptimizer looks for gradients that are not finite, as FindNonFinite does. Null: back to Result.
  virtual void BindStepResult(CudaStepResult* result) = 0;
  // If any of `count` values is NaN or infinite, result->non_finite_element is the index of one that is; else it stays
  // as it was. `result`: device memory, or pinned, which costs nothing while all values are finite.
  virtual void FindNonFinite(const float* values, int64_t count, CudaStepResult* result) = 0;

  // common/arithmetic/optimizer.h's ApplyOptimizer over spans of device memory, to the same bits. See also
  // BindStepResult.
  virtual void ApplyOptimizer(const OptimizerConfig& config, const UpdateArgs& args) = 0;

  // out = (pixel - offset[channel]) * scale[channel], as worker/data/normalization.h. All device memory;
  // `channels` interleaved, `count` values in all, below 2^31.
  struct Pixels {
    const uint8_t* pixels = nullptr;
    int64_t count = 0, channels = 0;
    const float* offset = nullptr;  // (channels)
    const float* scale = nullptr;   // (channels)
    float* out = nullptr;
  };
  virtual void NormalizePixels(const Pixels& pixels) = 0;

  // A batch from a data set that is on the GPU: images to out_images, as the loader crops, flips and normalises them
  // (worker/data/loader.h), to the same bits, and their labels to out_labels. All pointers are device memory.
  struct SampleGather {
    int64_t batch = 0;
    int64_t height = 0, width = 0, channels = 0;  // of an image
    const uint32_t* samples = nullptr;            // (batch): numbers in the data set, which it does not check
    const uint8_t* images = nullptr;              // (count, height, width, channels)
    const uint8_t* labels = nullptr;              // (count)
    // Pixels of zeros on each side of an image that is cropped and flipped at random; 0: it is taken as it is.
    int64_t crop_padding = 0;
    uint64_t seed = 0;              // of the crops
    int64_t epoch = 0;              // likewise; bound step values have it instead
    const float* offset = nullptr;  // (channels)
    const float* scale = nullptr;   // (channels)
    float* out_images = nullptr;    // (batch, height, width, channels)
    int32_t* out_labels = nullptr;  // (batch)
  };
  virtual void GatherSamples(const SampleGather& gather) = 0;
};

// For CudaStepValues::optimizer: the factors of update number `update` (from 1).
CudaOptimizerScalars MakeCudaOptimizerScalars(const OptimizerConfig& config, float learning_rate, int64_t update);

// The GPUs that the driver shows, in its order. Unavailable, with the versions, where there is no driver or it is too
// old for this build; NotFound where the driver shows none.
absl::StatusOr<std::vector<CudaDeviceInfo>> FindCudaDevices(CudaWatch* watch = nullptr);

// Makes a GPU the calling thread's current one, with a context, for a library that asks CUDA which that is.
absl::Status MakeCudaDeviceCurrent(int ordinal, CudaWatch* watch = nullptr);

// As FindCudaDevices; and InvalidArgument for an ordinal that does not exist, FailedPrecondition for a GPU older than
// compute capability 8.0, ResourceExhausted with the numbers where its memory is too full, Unavailable where cuBLASLt
// cannot be loaded, or cuDNN with kCudnn.
absl::StatusOr<std::unique_ptr<CudaDevice>> CreateCudaDevice(const CudaDeviceOptions& options);

}  // namespace starring

#endif  // STARRING_KERNELS_CUDA_CUDA_DEVICE_H_
