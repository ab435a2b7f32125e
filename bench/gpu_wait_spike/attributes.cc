#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/gpu_wait_spike/gpu.h"
#include "bench/gpu_wait_spike/parts.h"
#include "common/base/status.h"

namespace starring::gpu_wait {
namespace {

struct Attribute {
  CUdevice_attribute number;
  const char* text;
};

constexpr Attribute kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, "compute mode (0 default, 2 prohibited, 3 exclusive process)"},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessors"},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, "engines for copies"},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "unified addressing"},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, "can map host memory"},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, "registers host memory"},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, "registered memory has the host's address"},
    {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, "native atomics with the host"},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, "compute preemption"},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, "stream memory operations, version 1"},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, "64-bit stream memory operations"},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, "wait for NOR"},
    {CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, "wait with a flush of remote writes"},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, "events between processes"},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "exports memory as file descriptor"},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, "exports memory to a fabric"},
    {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, "memory synchronisation domains"},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, "order of remote writes (0 none, 100 owner, 200 all)"},
    {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, "multicast (NVLS)"},
    {CU_DEVICE_ATTRIBUTE_MPS_ENABLED, "contexts are shared through MPS"},
};

// CUDA encodes 12.4 as 12040.
std::string VersionText(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// The text has the form of nvidia-smi -L, so that a reader can find the GPU there.
std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string FirstLineOf(const char* path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? line : absl::StrCat("no ", path);
}

}  // namespace

absl::Status NoteAttributes(Peer& peer) {
  if (peer.index() != 0) return absl::OkStatus();
  // Without a driver the runtime's calls would fail as Internal. The caller needs Unavailable, which says that there is
  // no GPU.
  RETURN_IF_ERROR(DriverLibrary::Load().status());
  int driver_version = 0, runtime_version = 0, count = 0;
  RETURN_IF_ERROR(CudaStatus(cudaDriverGetVersion(&driver_version), "cudaDriverGetVersion"));
  RETURN_IF_ERROR(CudaStatus(cudaRuntimeGetVersion(&runtime_version), "cudaRuntimeGetVersion"));
  peer.Note(absl::StrCat("CUDA of the driver ", VersionText(driver_version), ", of this program ",
                         VersionText(runtime_version)));
  peer.Note(FirstLineOf("/proc/driver/nvidia/version"));
  ASSIGN_OR_RETURN(const std::unique_ptr<Gpu> gpu, Gpu::Open(&peer));
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  cudaDeviceProp properties = {};
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties"));
  const std::string name = properties.name;
  peer.Note(absl::StrFormat("GPU 0 of %d: %s, compute capability %d.%d, %s, %s", count, name, properties.major,
                            properties.minor, UuidText(properties.uuid),
                            name.find("MIG") == std::string::npos ? "no MIG slice by its name" : "a MIG slice"));
  for (const Attribute& attribute : kAttributes) {
    const absl::StatusOr<int> value = gpu->Attribute(attribute.number);
    // An older driver does not know the newest attributes.
    peer.Note(absl::StrFormat("%3d  %-60s %s", static_cast<int>(attribute.number), attribute.text,
                              value.ok() ? absl::StrCat(*value) : std::string(value.status().message())));
  }
  const auto said = [&](CUdevice_attribute attribute) {
    return gpu->Attribute(attribute).value_or(0) != 0 ? "yes" : "no";
  };
  peer.Note(absl::StrCat("stream memory operations of 64 bits ",
                         said(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS), ", with a flush of remote writes ",
                         said(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES), ", events between processes ",
                         said(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED)));
  return absl::OkStatus();
}

}  // namespace starring::gpu_wait
