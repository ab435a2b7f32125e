#include "worker/python/gpu/gpu_context.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace starring {
namespace {

// The elements of a vector access. A thread with one such access has enough work.
constexpr int64_t kElementsOfThread = 4;

CudaDriver::Address AddressOf(const std::byte* memory) { return std::bit_cast<CudaDriver::Address>(memory); }
std::byte* PointerTo(CudaDriver::Address address) { return std::bit_cast<std::byte*>(address); }

static_assert(std::size(kGpuStarSumNames) == kElementTypeCount && std::size(kGpuRingAddNames) == kElementTypeCount &&
              std::size(kGpuRingCopyNames) == kElementTypeCount);

}  // namespace

absl::StatusOr<std::unique_ptr<GpuContext>> GpuContext::Create(int ordinal, std::span<const unsigned char> image) {
  if (image.empty()) {
    return absl::UnavailableError("this libstarring.so was built without nvcc, and so has no kernels for a GPU");
  }
  ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Load());
  auto context = absl::WrapUnique(new GpuContext(driver));
  const std::string gpu = absl::StrCat("GPU ", ordinal);
  RETURN_IF_ERROR(driver.StatusOf(driver.init(0), "starting the CUDA driver"));
  CudaDriver::Device device = -1;
  RETURN_IF_ERROR(driver.StatusOf(driver.device_get(&device, ordinal), "looking for it"), gpu);
  RETURN_IF_ERROR(driver.StatusOf(driver.primary_context_retain(&context->context_, device), "taking its context"),
                  gpu);
  context->device_ = device;
  const Scope scope(*context);
  RETURN_IF_ERROR(scope.status(), gpu);
  RETURN_IF_ERROR(context->FindKernels(image), gpu);
  return context;
}

GpuContext::~GpuContext() {
  if (device_ < 0) return;
  if (module_ != nullptr) {
    const Scope scope(*this);
    driver_.module_unload(module_);
  }
  driver_.primary_context_release(device_);
}

absl::Status GpuContext::FindKernels(std::span<const unsigned char> image) {
  RETURN_IF_ERROR(driver_.StatusOf(driver_.module_load(&module_, image.data()), "loading the kernels"));
  for (int type = 0; type < kElementTypeCount; ++type) {
    const struct {
      CudaDriver::Function* function;
      const char* name;
    } kernels[] = {{&star_sums_[type], kGpuStarSumNames[type]},
                   {&ring_adds_[type], kGpuRingAddNames[type]},
                   {&ring_copies_[type], kGpuRingCopyNames[type]}};
    for (const auto& [function, name] : kernels) {
      RETURN_IF_ERROR(driver_.StatusOf(driver_.module_get_function(function, module_, name), name));
    }
  }
  return absl::OkStatus();
}

absl::Status GpuContext::MakeCurrent() const {
  return driver_.StatusOf(driver_.context_set_current(context_), "taking the GPU's context");
}

GpuContext::Scope::Scope(const GpuContext& context) : context_(context) {
  const CudaDriver& driver = context.driver_;
  status_ = driver.StatusOf(driver.context_push(context.context_), "taking the GPU's context");
}

GpuContext::Scope::~Scope() {
  CudaDriver::Context popped = nullptr;
  if (status_.ok()) context_.driver_.context_pop(&popped);
}

absl::StatusOr<std::byte*> GpuContext::Allocate(int64_t size_bytes) const {
  CudaDriver::Address address = 0;
  RETURN_IF_ERROR(
      driver_.StatusOf(driver_.allocate(&address, static_cast<size_t>(size_bytes)), "allocating GPU memory"),
      size_bytes, " bytes");
  return PointerTo(address);
}

void GpuContext::Free(std::byte* memory) const { driver_.free(AddressOf(memory)); }

absl::StatusOr<std::string> GpuContext::Export(const std::byte* memory) const {
  CudaDriver::IpcHandle handle = {};
  RETURN_IF_ERROR(driver_.StatusOf(driver_.ipc_export(&handle, AddressOf(memory)), "sharing GPU memory"));
  return std::string(handle.bytes, sizeof(handle.bytes));
}

absl::StatusOr<std::byte*> GpuContext::Open(const std::string& name) const {
  CudaDriver::IpcHandle handle = {};
  if (name.size() != sizeof(handle.bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a name of GPU memory has ", sizeof(handle.bytes), " bytes, and not ", name.size()));
  }
  std::memcpy(handle.bytes, name.data(), sizeof(handle.bytes));
  CudaDriver::Address address = 0;
  RETURN_IF_ERROR(driver_.StatusOf(driver_.ipc_open(&address, handle, CudaDriver::kLazyEnablePeerAccess),
                                   "mapping another process's GPU memory"));
  return PointerTo(address);
}

void GpuContext::Close(std::byte* memory) const { driver_.ipc_close(AddressOf(memory)); }

absl::StatusOr<CudaDriver::Event> GpuContext::RecordEvent(CudaDriver::Stream stream) const {
  CudaDriver::Event event = nullptr;
  RETURN_IF_ERROR(driver_.StatusOf(driver_.event_create(&event, CudaDriver::kEventDisableTiming), "making an event"));
  const absl::Status status = driver_.StatusOf(driver_.event_record(event, stream), "recording an event");
  if (status.ok()) return event;
  DestroyEvent(event);
  return status;
}

void GpuContext::DestroyEvent(CudaDriver::Event event) const { driver_.event_destroy(event); }

absl::Status GpuContext::Wait(CudaDriver::Event event, CudaDriver::Stream stream) const {
  return driver_.StatusOf(driver_.stream_wait_event(stream, event, 0), "waiting for an event");
}

absl::Status GpuContext::CopyOnDevice(const std::byte* from, std::byte* to, int64_t size_bytes,
                                      CudaDriver::Stream stream) const {
  return driver_.StatusOf(
      driver_.copy_on_device(AddressOf(to), AddressOf(from), static_cast<size_t>(size_bytes), stream),
      "copying on the GPU");
}

absl::Status GpuContext::Sum(ElementType type, const GpuStarSum& sum, CudaDriver::Stream stream) const {
  return Launch(star_sums_[static_cast<int>(type)], sum.end - sum.begin, &sum, stream);
}

absl::Status GpuContext::Add(ElementType type, const GpuRingAdd& add, CudaDriver::Stream stream) const {
  return Launch(ring_adds_[static_cast<int>(type)], add.chunk.count, &add, stream);
}

absl::Status GpuContext::Copy(ElementType type, const GpuRingCopy& copy, CudaDriver::Stream stream) const {
  return Launch(ring_copies_[static_cast<int>(type)], copy.chunk.count, &copy, stream);
}

absl::Status GpuContext::Launch(CudaDriver::Function kernel, int64_t elements, const void* argument,
                                CudaDriver::Stream stream) const {
  if (elements == 0) return absl::OkStatus();
  constexpr int64_t kOfBlock = kGpuSumThreads * kElementsOfThread;
  const int64_t blocks = std::min<int64_t>((elements + kOfBlock - 1) / kOfBlock, kGpuSumBlocksMax);
  // The driver only reads the argument.
  void* arguments[] = {const_cast<void*>(argument)};
  return driver_.StatusOf(
      driver_.launch(kernel, static_cast<unsigned>(blocks), 1, 1, kGpuSumThreads, 1, 1, 0, stream, arguments, nullptr),
      "launching a sum");
}

absl::Status GpuContext::CopyToDevice(const void* from, std::byte* to, int64_t size_bytes,
                                      CudaDriver::Stream stream) const {
  const char* const what = "copying to the GPU";
  RETURN_IF_ERROR(
      driver_.StatusOf(driver_.copy_to_device(AddressOf(to), from, static_cast<size_t>(size_bytes), stream), what));
  return driver_.StatusOf(driver_.stream_synchronize(stream), what);
}

absl::Status GpuContext::CopyToHost(const std::byte* from, void* to, int64_t size_bytes,
                                    CudaDriver::Stream stream) const {
  const char* const what = "copying from the GPU";
  RETURN_IF_ERROR(
      driver_.StatusOf(driver_.copy_to_host(to, AddressOf(from), static_cast<size_t>(size_bytes), stream), what));
  return driver_.StatusOf(driver_.stream_synchronize(stream), what);
}

}  // namespace starring
