// The functions of NVIDIA's driver that sums in GPU memory need (CUDA driver API 11 and newer), loaded by dlopen:
// libstarring.so links no CUDA, and starts on machines without a GPU. The types are those of NVIDIA's cuda.h, whose
// headers the build of a wheel does not have.
//
// Thread safety: immutable after Load.
#ifndef STARRING_WORKER_PYTHON_GPU_CUDA_DRIVER_H_
#define STARRING_WORKER_PYTHON_GPU_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace starring {

struct CudaDriver {
  using Result = int;                  // CUresult; 0: success
  using Device = int;                  // CUdevice
  using Address = unsigned long long;  // CUdeviceptr
  using Context = struct CUctx_st*;
  using Stream = struct CUstream_st*;
  using Event = struct CUevent_st*;
  using Module = struct CUmod_st*;
  using Function = struct CUfunc_st*;
  struct IpcHandle {  // CUipcMemHandle
    char bytes[64];
  };
  static constexpr unsigned kStreamNonBlocking = 1;     // CU_STREAM_NON_BLOCKING
  static constexpr unsigned kEventBlockingSync = 1;     // CU_EVENT_BLOCKING_SYNC
  static constexpr unsigned kEventDisableTiming = 2;    // CU_EVENT_DISABLE_TIMING
  static constexpr unsigned kLazyEnablePeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

  // Unavailable, with the loader's text or the missing function's name.
  [[nodiscard]] static absl::StatusOr<CudaDriver> Load();

  // Internal, with `what`, the error's name and its text; OK for success.
  absl::Status StatusOf(Result result, const char* what) const;

  Result (*init)(unsigned flags) = nullptr;
  Result (*device_get)(Device* device, int ordinal) = nullptr;
  Result (*get_error_name)(Result error, const char** name) = nullptr;
  Result (*get_error_string)(Result error, const char** text) = nullptr;
  Result (*primary_context_retain)(Context* context, Device device) = nullptr;
  Result (*primary_context_release)(Device device) = nullptr;
  Result (*context_set_current)(Context context) = nullptr;
  Result (*context_push)(Context context) = nullptr;
  Result (*context_pop)(Context* context) = nullptr;
  Result (*module_load)(Module* module, const void* image) = nullptr;
  Result (*module_unload)(Module module) = nullptr;
  Result (*module_get_function)(Function* function, Module module, const char* name) = nullptr;
  Result (*launch)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** arguments,
                   void** extra) = nullptr;
  Result (*allocate)(Address* address, size_t size_bytes) = nullptr;
  Result (*free)(Address address) = nullptr;
  Result (*ipc_export)(IpcHandle* handle, Address address) = nullptr;
  Result (*ipc_open)(Address* address, IpcHandle handle, unsigned flags) = nullptr;
  Result (*ipc_close)(Address address) = nullptr;
  Result (*copy_on_device)(Address to, Address from, size_t size_bytes, Stream stream) = nullptr;
  Result (*copy_to_device)(Address to, const void* from, size_t size_bytes, Stream stream) = nullptr;
  Result (*copy_to_host)(void* to, Address from, size_t size_bytes, Stream stream) = nullptr;
  Result (*stream_create)(Stream* stream, unsigned flags) = nullptr;
  Result (*stream_destroy)(Stream stream) = nullptr;
  Result (*stream_synchronize)(Stream stream) = nullptr;
  Result (*stream_wait_event)(Stream stream, Event event, unsigned flags) = nullptr;
  Result (*event_create)(Event* event, unsigned flags) = nullptr;
  Result (*event_destroy)(Event event) = nullptr;
  Result (*event_record)(Event event, Stream stream) = nullptr;
  Result (*event_synchronize)(Event event) = nullptr;
};

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_GPU_CUDA_DRIVER_H_
