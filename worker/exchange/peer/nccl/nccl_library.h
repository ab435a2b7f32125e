// The part of NCCL's C interface that we use, and the library, which is opened when a job asks for it.
//
// It is declared here and not included, because no CUDA toolkit has NCCL's header. Functions, types and numbers are
// those of NCCL's user guide (docs.nvidia.com/deeplearning/nccl/user-guide, "NCCL API") and of the binary interface of
// libnccl.so.2, which adds functions and numbers, but changes none.
//
// The library stays loaded until the process ends.
//
// Thread safety: immutable after Load.
#ifndef STARRING_WORKER_EXCHANGE_PEER_NCCL_NCCL_LIBRARY_H_
#define STARRING_WORKER_EXCHANGE_PEER_NCCL_NCCL_LIBRARY_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace starring {
namespace nccl {

using Communicator = struct CommunicatorOfNccl*;

enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,  // the network, or another process
  kInProgress = 7,   // a communicator that does not block: the call goes on, and get_async_error says when it is over
};
enum class DataType : int { kFloat32 = 7 };
enum class Operation : int { kSum = 0 };

struct UniqueId {
  char bytes[128];
};

// As NCCL 2.14 has it. Newer releases read the fields of the version that is named, and take their defaults for others.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

// get_version's number.
inline constexpr int kVersionMin = 21400;           // communicators that do not block
inline constexpr int kVersionOfSharedGpus = 23000;  // NCCL_MULTI_RANK_GPU_ENABLE=1 lets ranks share a GPU
// The way out of an error of Load.
inline constexpr char kInstall[] =
    ": install NCCL on every host (a wheel of nvidia-nccl, or libnccl2), or give --sync=star";
// "2.27.5"
std::string VersionText(int version);

}  // namespace nccl

struct NcclLibrary {
  // OpenGpuLibrary (library_search.h) searches `folders`. Unavailable with the loader's text, the missing function's
  // name, or both versions where the release is older than kVersionMin.
  [[nodiscard]] static absl::StatusOr<NcclLibrary> Load(const std::vector<std::string>& folders);

  int version = 0;
  nccl::Result (*get_unique_id)(nccl::UniqueId* id) = nullptr;
  // `communicator` is set at once, and stays where it is until the call is over.
  nccl::Result (*comm_init_rank_config)(nccl::Communicator* communicator, int rank_count, nccl::UniqueId id, int rank,
                                        nccl::Config* config) = nullptr;
  nccl::Result (*comm_get_async_error)(nccl::Communicator communicator, nccl::Result* error) = nullptr;
  // Also ends what is in flight, and waits for no other rank.
  nccl::Result (*comm_abort)(nccl::Communicator communicator) = nullptr;
  // `stream` is a cudaStream_t.
  nccl::Result (*all_reduce)(const void* contribution, void* sum, size_t count, nccl::DataType type,
                             nccl::Operation operation, nccl::Communicator communicator, void* stream) = nullptr;
  const char* (*get_error_string)(nccl::Result result) = nullptr;
  const char* (*get_last_error)(nccl::Communicator communicator) = nullptr;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_NCCL_NCCL_LIBRARY_H_
