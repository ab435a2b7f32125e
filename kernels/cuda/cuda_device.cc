#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime.h>

#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_operations.h"
#include "kernels/cuda/cuda_peer_board.h"
#include "kernels/cuda/cuda_peer_memory.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/cuda_watch.h"
#include "kernels/cuda/cudnn_descriptor.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/pixels.h"
#include "kernels/cuda/stamp.h"
#include "kernels/shape_checks.h"

namespace starring {
namespace {

constexpr int kComputeMajorMin = 8;  // Ampere: older GPUs have no tf32, and nvcc compiles for none of them here

const char* Name(CudaMath math) {
  switch (math) {
    case CudaMath::kTf32:
      return "tf32";
    case CudaMath::kBf16:
      return "bf16";
    case CudaMath::kFp32:
      break;
  }
  return "fp32";
}

class CudaBuffer : public DeviceBuffer {
 public:
  explicit CudaBuffer(CudaMemory memory) : memory_(std::move(memory)) {}
  void* data() override { return memory_.data(); }
  int64_t size_bytes() const override { return memory_.size_bytes(); }

 private:
  CudaMemory memory_;
};

class CudaPinnedBuffer : public PinnedBuffer {
 public:
  explicit CudaPinnedBuffer(PinnedMemory memory) : memory_(std::move(memory)) {}
  void* data() override { return memory_.data(); }
  int64_t size_bytes() const override { return memory_.size_bytes(); }

 private:
  PinnedMemory memory_;
};

// Memory of another owner, such as an exchange, which must be unpinned before the owner unmaps it.
class RegisteredBuffer : public PinnedBuffer {
 public:
  RegisteredBuffer(CudaWatch* watch, void* data, int64_t size_bytes)
      : watch_(watch), data_(data), size_bytes_(size_bytes) {}
  ~RegisteredBuffer() override {
    const CudaWatch::Call call(watch_, "unpinning memory");
    cudaHostUnregister(data_);
  }
  void* data() override { return data_; }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  CudaWatch* const watch_;
  void* const data_;
  const int64_t size_bytes_;
};

class ExecutableGraph : public CudaGraph {
 public:
  ExecutableGraph(CudaWatch* watch, cudaGraphExec_t graph, cudaStream_t stream)
      : watch_(watch), graph_(graph), stream_(stream) {}
  ~ExecutableGraph() override {
    const CudaWatch::Call call(watch_, "freeing a graph");
    cudaGraphExecDestroy(graph_);
  }
  absl::Status Launch() override {
    const CudaWatch::Call call(watch_, "launching a graph");
    return CudaStatus(cudaGraphLaunch(graph_, stream_), "launching a graph");
  }

 private:
  CudaWatch* const watch_;
  const cudaGraphExec_t graph_;
  const cudaStream_t stream_;
};

class CudaDeviceOnCublasLt : public CudaDevice {
 public:
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const CudaDeviceInfo& info,
                                                            const CudaDeviceOptions& options) {
    // CreateCudaDevice has made the GPU current. Libraries take the current one for theirs.
    ASSIGN_OR_RETURN(auto stream, OwnedCudaStream::Create(info.ordinal, options.watch));
    auto device = absl::WrapUnique(new CudaDeviceOnCublasLt(info, std::move(stream)));
    CudaContext& context = device->context_;
    context.watch = options.watch;
    context.scratch = CudaScratch(options.watch);
    context.counters = CudaCounters(options.watch);
    context.math = options.math;
    context.columns_bytes_max = options.columns_bytes_max;
    ASSIGN_OR_RETURN(device->fork_, device->CreateEvent());
    ASSIGN_OR_RETURN(device->join_, device->CreateEvent());
    ASSIGN_OR_RETURN(context.cublaslt, CublasLtLibrary::Load(options.library_folders));
    // Everything that can fail is created here, with messages that name the GPU, and not in the middle of a run.
    if (const cublasStatus_t status = context.cublaslt.create(&context.cublaslt_handle);
        status != CUBLAS_STATUS_SUCCESS) {
      return absl::InternalError(absl::StrCat("cublasLtCreate: ", context.cublaslt.get_status_string(status)));
    }
    ASSIGN_OR_RETURN(context.workspace, context.Allocate(CudaContext::kWorkspaceBytes), "cuBLAS's workspace");
    if (options.convolutions == CudaConvolutions::kOwn) return device;
    // With kAuto a machine without cuDNN is no error: our own kernels compute convolutions, and cudnn_status says why.
    device->cudnn_status_ = device->OpenCudnn(options.library_folders);
    if (options.convolutions == CudaConvolutions::kCudnn) RETURN_IF_ERROR(device->cudnn_status_);
    return device;
  }

  ~CudaDeviceOnCublasLt() override {
    // Work that is still queued uses the handles below and the memory of the context.
    // An error has no caller to go to.
    (void)stream_->Synchronize();
    context_.products.clear();  // before the handle that they were made with
    if (context_.cudnn_handle != nullptr) context_.cudnn.destroy(context_.cudnn_handle);
    if (context_.cublaslt_handle != nullptr) context_.cublaslt.destroy(context_.cublaslt_handle);
  }

  std::string name() const override {
    const size_t version = context_.cublaslt.get_version();
    return absl::StrCat("cuda:", info_.ordinal, " (", info_.name, ", sm_", info_.compute_major, info_.compute_minor,
                        ", cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100,
                        cudnn_version().empty() ? "" : ", cuDNN ", cudnn_version(), ", ", Name(context_.math), ")");
  }
  const CudaDeviceInfo& info() const override { return info_; }
  CudaStream* stream() override { return stream_.get(); }
  absl::StatusOr<int64_t> FreeBytes() const override {
    size_t free_bytes = 0, total_bytes = 0;
    const CudaWatch::Call call(context_.watch, "asking for free memory");
    RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
    return static_cast<int64_t>(free_bytes);
  }
  int64_t operations_bytes() const override { return context_.allocated_bytes + context_.scratch.size_bytes(); }
  std::string cudnn_version() const override {
    return context_.cudnn_handle == nullptr ? "" : CudnnVersion(context_.cudnn);
  }
  const absl::Status& cudnn_status() const override { return cudnn_status_; }
  const std::map<std::string, std::string>& engines() const override { return context_.engines; }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t size_bytes) override {
    ASSIGN_OR_RETURN(CudaMemory memory, CudaMemory::Create(size_bytes, context_.watch));
    if (size_bytes > 0) {
      RETURN_IF_ERROR(
          CudaStatus(cudaMemsetAsync(memory.data(), 0, static_cast<size_t>(size_bytes), context_.stream), "zeroing"));
      // Other streams may copy into the buffer as soon as this returns, and do not wait for stream_.
      RETURN_IF_ERROR(stream_->Synchronize());
    }
    return std::make_unique<CudaBuffer>(std::move(memory));
  }

  absl::StatusOr<std::unique_ptr<LayerOperation>> CreateOperation(const OperationSpec& spec) override {
    RETURN_IF_ERROR(CheckShape(spec));
    return std::visit([this](const auto& s) { return CreateCudaOperation(&context_, s); }, spec);
  }
  absl::StatusOr<std::unique_ptr<BatchNorm>> CreateBatchNorm(const BatchNormSpec& spec) override {
    return CreateCudaBatchNorm(&context_, spec);
  }
  absl::StatusOr<std::unique_ptr<Dropout>> CreateDropout(const DropoutSpec& spec) override {
    return CreateCudaDropout(&context_, spec);
  }
  absl::StatusOr<std::unique_ptr<Loss>> CreateLoss(const LossSpec& spec) override {
    return CreateCudaLoss(&context_, spec);
  }

  void Relu(ConstElements x, Elements y, int64_t count) override {
    context_.Keep(cuda::Relu(context_.stream, x, y, count), "relu");
  }
  void ReluBackward(ConstElements y, ConstElements dy, Elements dx, int64_t count) override {
    context_.Keep(cuda::ReluBackward(context_.stream, y, dy, dx, count), "relu backward");
  }
  void Add(ConstElements a, ConstElements b, Activation activation, Elements y, int64_t count) override {
    const auto add = activation == Activation::kRelu ? cuda::AddRelu : cuda::Add;
    context_.Keep(add(context_.stream, a, b, y, count), "add");
  }
  void AddReluBackward(ConstElements y, ConstElements a, ConstElements b, Elements dx, int64_t count) override {
    context_.Keep(cuda::AddReluBackward(context_.stream, y, a, b, dx, count), "add and relu backward");
  }
  void Cast(const float* from, Elements to, int64_t count) override {
    context_.Keep(cuda::Cast(context_.stream, from, to, count), "cast");
  }
  void ApplyOptimizer(const OptimizerConfig& config, const UpdateArgs& args) override {
    context_.Keep(EnqueueUpdate(context_.stream, config, args, context_.bound, context_.bound_result), "optimizer");
  }
  void NormalizeValues(const Values& v) override {
    context_.Keep(cuda::NormalizeValues(context_.stream, {.count = v.count,
                                                          .channels = v.channels,
                                                          .value_bytes = v.value_bytes,
                                                          .values = v.values,
                                                          .offset = v.offset,
                                                          .scale = v.scale,
                                                          .out = v.out}),
                  "normalize values");
  }
  void GatherSamples(const SampleGather& g) override {
    cuda::GatherArgs args{.batch = g.batch,
                          .height = g.height,
                          .width = g.width,
                          .channels = g.channels,
                          .samples = g.samples,
                          .value_bytes = g.value_bytes,
                          .images = g.images,
                          .labels = g.labels,
                          .targets = g.targets,
                          .target_values = g.target_values,
                          .padding = g.crop_padding,
                          .seed = g.seed,
                          .bound = context_.bound,
                          .offset = g.offset,
                          .scale = g.scale,
                          .out_images = g.out_images,
                          .out_labels = g.out_labels,
                          .out_targets = g.out_targets};
    // The epoch is used only while no step values are bound, as in an evaluation.
    args.values.epoch = g.epoch;
    context_.Keep(cuda::GatherSamples(context_.stream, args), "gather samples");
  }

  void CopyToDevice(const void* host, void* device, int64_t size_bytes) override {
    context_.Keep(stream_->CopyToDevice(host, device, size_bytes));
  }
  void CopyToHost(const void* device, void* host, int64_t size_bytes) override {
    context_.Keep(stream_->CopyToHost(device, host, size_bytes));
  }
  absl::Status Synchronize() override {
    context_.Keep(stream_->Synchronize());
    return context_.first_error;
  }

  absl::StatusOr<std::unique_ptr<CudaStream>> CreateStream() override {
    ASSIGN_OR_RETURN(std::unique_ptr<CudaStream> stream, OwnedCudaStream::Create(info_.ordinal, context_.watch));
    return stream;
  }
  absl::StatusOr<std::unique_ptr<CudaEvent>> CreateEvent() override {
    return CreateCudaEvent(info_.ordinal, context_.watch);
  }
  absl::StatusOr<std::unique_ptr<PinnedBuffer>> AllocatePinned(int64_t size_bytes) override {
    ASSIGN_OR_RETURN(PinnedMemory memory, PinnedMemory::Create(size_bytes, context_.watch));
    return std::make_unique<CudaPinnedBuffer>(std::move(memory));
  }

  absl::StatusOr<std::unique_ptr<CudaVectorMath>> CreateVectorMath() override {
    return CreateCudaVectorMath(info_.ordinal, context_.watch);
  }

  absl::StatusOr<std::unique_ptr<DeviceBuffer>> AllocateShared(int64_t size_bytes) override {
    return Allocate(CudaSharedBytes(size_bytes));
  }
  absl::StatusOr<std::string> Export(DeviceBuffer* shared) override { return ExportCudaMemory(shared->data()); }
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> OpenShared(const std::string& exported, int64_t size_bytes) override {
    return OpenCudaMemory(exported, size_bytes, context_.watch);
  }

  absl::StatusOr<std::unique_ptr<PinnedBuffer>> Pin(const void* data, int64_t size_bytes, PinFor use) override {
    // CUDA's interface has no pointer to const. It does not write to memory that is registered as read-only.
    void* const memory = const_cast<void*>(data);
    const unsigned flags = use == PinFor::kRead ? cudaHostRegisterReadOnly : cudaHostRegisterDefault;
    const CudaWatch::Call call(context_.watch, "pinning memory");
    const cudaError_t error = cudaHostRegister(memory, static_cast<size_t>(size_bytes), flags);
    if (error != cudaSuccess) cudaGetLastError();  // clears the error, which the next launch would report otherwise
    // The caller decides what that means: memory that cannot be pinned can still be copied.
    RETURN_IF_ERROR(CudaStatus(error, "cudaHostRegister"));
    return std::make_unique<RegisteredBuffer>(context_.watch, memory, size_bytes);
  }

  absl::StatusOr<std::unique_ptr<CudaPeerBoard>> MapBoard(std::span<std::byte> memory) override {
    return MapCudaPeerBoard(info_.ordinal, memory, context_.watch);
  }
  CudaWatch* watch() const override { return context_.watch; }

  absl::Status Fork(CudaStream* other) override {
    // Every CudaStream is an OwnedCudaStream, since CreateStream makes them all.
    return static_cast<OwnedCudaStream*>(other)->Follow(stream_.get(), fork_.get());
  }
  absl::Status Join(CudaStream* other) override {
    auto* const branch = static_cast<OwnedCudaStream*>(other);
    RETURN_IF_ERROR(stream_->Follow(branch, join_.get()));
    // Work that is queued on the branch from here on belongs to no graph until the next Fork.
    branch->EndBranch();
    return absl::OkStatus();
  }

  absl::Status BeginCapture() override { return stream_->BeginCapture(); }
  absl::StatusOr<std::unique_ptr<CudaGraph>> EndCapture() override {
    // The captured graph is a description only. The executable one is a copy, which is what lives on.
    ASSIGN_OR_RETURN(const cudaGraph_t graph, stream_->EndCapture());
    const absl::Cleanup destroy = [graph] { cudaGraphDestroy(graph); };
    // An operation that failed is missing in the graph, which would then compute something else.
    RETURN_IF_ERROR(context_.first_error, "capturing a graph");
    cudaGraphExec_t executable = nullptr;
    const CudaWatch::Call call(context_.watch, "instantiating a graph");
    RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "instantiating a graph"));
    return std::make_unique<ExecutableGraph>(context_.watch, executable, context_.stream);
  }

  void BindStepValues(const CudaStepValues* values) override { context_.bound = values; }
  void BindStepResult(CudaStepResult* result) override { context_.bound_result = result; }
  void FindNonFinite(const float* values, int64_t count, CudaStepResult* result) override {
    context_.Keep(cuda::FindNonFinite(context_.stream, values, count, result), "looking for NaN");
  }
  void Stamp(uint64_t* place) override { context_.Keep(cuda::Stamp(context_.stream, place), "stamp"); }

 private:
  CudaDeviceOnCublasLt(const CudaDeviceInfo& info, std::unique_ptr<OwnedCudaStream> stream)
      : info_(info), stream_(std::move(stream)) {
    context_.stream = stream_->get();
  }

  absl::Status OpenCudnn(const std::vector<std::string>& folders) {
    ASSIGN_OR_RETURN(const CudnnLibrary library, CudnnLibrary::Load(folders));
    cudnn::Handle handle = nullptr;
    RETURN_IF_ERROR(CudnnStatus(library, library.create(&handle), "cudnnCreate"));
    // The context takes the handle only when it is complete: a device that is half cuDNN's would fail in a step.
    const absl::Status status = CudnnStatus(library, library.set_stream(handle, context_.stream), "cudnnSetStream");
    if (!status.ok()) {
      library.destroy(handle);
      return status;
    }
    context_.cudnn = library;
    context_.cudnn_handle = handle;
    return absl::OkStatus();
  }

  const CudaDeviceInfo info_;
  // Members end in the opposite order: the context's memory first, then the events, then the stream.
  const std::unique_ptr<OwnedCudaStream> stream_;
  std::unique_ptr<CudaEvent> fork_, join_;
  absl::Status cudnn_status_ = absl::UnavailableError("cuDNN was not asked for");
  CudaContext context_;
};

// 13010 is 13.1.
std::string Version(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// The oldest driver for a major version of CUDA.
const char* DriverOf(int cuda_major) {
  return cuda_major == 12 ? "525 or newer" : cuda_major == 13 ? "580 or newer" : "see its release notes";
}

// NotFound where there is no driver: --device=auto then computes on the CPU and says nothing.
absl::Status NoDriver(cudaError_t error) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  // CUDA answers cudaErrorInsufficientDriver in both cases. A version of 0 tells them apart: there is no driver.
  if (driver == 0) {
    return absl::NotFoundError(
        absl::StrCat("there is no CUDA driver (libcuda.so.1): this build needs one of CUDA ", Version(runtime)));
  }
  // Any driver of the same major version works: CUDA Compatibility, "Minor Version Compatibility".
  const int major = runtime / 1000;
  return absl::UnavailableError(
      absl::StrCat("the driver is one of CUDA ", Version(driver), ", this build needs one of CUDA ", major, " (",
                   DriverOf(major), "): ", cudaGetErrorString(error),
                   ": update the driver, or build with a toolkit as old (deploy/README.md, The driver of a GPU)"));
}

}  // namespace

absl::StatusOr<std::vector<CudaDeviceInfo>> FindCudaDevices(CudaWatch* watch) {
  // This call initialises the driver, which may not return if a GPU hangs.
  const CudaWatch::Call call(watch, "asking for GPUs");
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();  // clears the error, which the next call would report otherwise
  if (error == cudaErrorInsufficientDriver) return NoDriver(error);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return absl::NotFoundError("the CUDA driver shows no GPU");
  }
  RETURN_IF_ERROR(CudaStatus(error, "counting GPUs"));
  std::vector<CudaDeviceInfo> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties = {};
    RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "asking a GPU for its properties"));
    devices.push_back({.ordinal = ordinal,
                       .name = properties.name,
                       .compute_major = properties.major,
                       .compute_minor = properties.minor,
                       .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                       .uuid = std::string(properties.uuid.bytes, sizeof(properties.uuid.bytes)),
                       .bus_id = absl::StrFormat("%04x:%02x:%02x", properties.pciDomainID, properties.pciBusID,
                                                 properties.pciDeviceID)});
  }
  return devices;
}

namespace {

// Only for the GPU that is used: each answer may take the driver a while. An answer only says which exchange is worth a
// try, so a driver that has none refuses no job.
void AskAboutSharing(int gpu_count, CudaDeviceInfo* info) {
  // CUDA has an attribute for events that processes share, and none for memory. Where it lacks one, it lacks the other.
  int has_ipc = 1;
  if (cudaDeviceGetAttribute(&has_ipc, cudaDevAttrIpcEventSupport, info->ordinal) == cudaSuccess) {
    info->has_ipc = has_ipc != 0;
  }
  for (int other = gpu_count - 1; other >= 0; --other) {
    if (other == info->ordinal) continue;
    int reaches = 0;
    const cudaError_t error = cudaDeviceCanAccessPeer(&reaches, info->ordinal, other);
    if (error == cudaSuccess && reaches == 0) info->unreached_gpu = other;
  }
  cudaGetLastError();  // clears an error, which the next launch would report otherwise
}

}  // namespace

absl::Status MakeCudaDeviceCurrent(int ordinal, CudaWatch* watch) {
  const CudaWatch::Call call(watch, "making a GPU current");
  cudaError_t error = cudaSetDevice(ordinal);
  // cudaSetDevice creates no context before CUDA 12; cudaFree does.
  if (error == cudaSuccess) error = cudaFree(nullptr);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which the next launch would report otherwise
    cudaDeviceProp properties = {};
    cudaGetDeviceProperties(&properties, ordinal);
    // Without a context, CUDA does not say how much of the memory is free.
    return absl::ResourceExhaustedError(absl::StrCat(
        "GPU ", ordinal, ": of its ", properties.totalGlobalMem,
        " bytes too few are free for a context of this process: nvidia-smi shows which processes have them"));
  }
  return Annotate(CudaStatus(error, "making a GPU current"), absl::StrCat("GPU ", ordinal));
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CreateCudaDevice(const CudaDeviceOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> devices, FindCudaDevices(options.watch));
  // Each refusal names the GPU and what is missing, before any library is loaded.
  if (options.ordinal < 0 || options.ordinal >= std::ssize(devices)) {
    return absl::InvalidArgumentError(
        absl::StrCat("GPU ", options.ordinal, " does not exist: the driver shows ", devices.size(), ", from 0"));
  }
  CudaDeviceInfo info = devices[static_cast<size_t>(options.ordinal)];
  if (info.compute_major < kComputeMajorMin) {
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", info.ordinal, " (", info.name, ") has compute capability ", info.compute_major, ".",
                     info.compute_minor, ": at least ", kComputeMajorMin, ".0 is needed"));
  }
  // This creates the context. Everything below allocates on the current GPU.
  RETURN_IF_ERROR(MakeCudaDeviceCurrent(options.ordinal, options.watch));
  {
    const CudaWatch::Call call(options.watch, "asking a GPU what it shares");
    AskAboutSharing(static_cast<int>(devices.size()), &info);
  }
  ASSIGN_OR_RETURN(auto device, CudaDeviceOnCublasLt::Create(info, options), "GPU ", info.ordinal, " (", info.name,
                   ")");
  return device;
}

}  // namespace starring
