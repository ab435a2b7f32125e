// The part of the driver's interface that the CUDA runtime lacks: streams that wait for values in memory and write
// them, and the attributes that say what the device can do of it. kernels/cuda/gpu_libraries.h loads it
// (CudaDriverLibrary).
#ifndef STARRING_TESTS_CUDA_EMULATION_INCLUDE_CUDA_H_
#define STARRING_TESTS_CUDA_EMULATION_INCLUDE_CUDA_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

enum CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_NOT_SUPPORTED = 801,
};
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUstream = cudaStream_t;
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;

enum CUdevice_attribute {
  CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES = 98,
  CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
  CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125,
};

enum CUstreamWaitValue_flags {
  CU_STREAM_WAIT_VALUE_GEQ = 0,
  CU_STREAM_WAIT_VALUE_EQ = 1,
  CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30,
};
enum CUstreamWriteValue_flags { CU_STREAM_WRITE_VALUE_DEFAULT = 0, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 1 };
enum CUstreamBatchMemOpType {
  CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
  CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2,
  CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES = 3,
  CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4,
  CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5,
};

struct CUstreamMemOpWaitValueParams_st {
  CUstreamBatchMemOpType operation;
  CUdeviceptr address;
  union {
    cuuint32_t value;
    cuuint64_t value64;
  };
  unsigned flags;
  CUdeviceptr alias;
};
using CUstreamMemOpWriteValueParams_st = CUstreamMemOpWaitValueParams_st;
struct CUstreamMemOpFlushRemoteWritesParams_st {
  CUstreamBatchMemOpType operation;
  unsigned flags;
};
union CUstreamBatchMemOpParams {
  CUstreamBatchMemOpType operation;
  CUstreamMemOpWaitValueParams_st waitValue;
  CUstreamMemOpWriteValueParams_st writeValue;
  CUstreamMemOpFlushRemoteWritesParams_st flushRemoteWrites;
  cuuint64_t pad[6];
};

CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device);
CUresult cuGetErrorName(CUresult error, const char** name);
CUresult cuGetErrorString(CUresult error, const char** text);
CUresult cuMemGetAddressRange(CUdeviceptr* begin, size_t* size_bytes, CUdeviceptr address);
CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags);

#endif  // STARRING_TESTS_CUDA_EMULATION_INCLUDE_CUDA_H_
