// Chooses the device on which this worker trains.
#ifndef STARRING_WORKER_OPTIONS_DEVICE_CHOICE_H_
#define STARRING_WORKER_OPTIONS_DEVICE_CHOICE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/host/launcher_environment.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/device.h"
#include "worker/options/worker_options.h"

namespace starring {

struct DeviceChoice {
  std::unique_ptr<CudaDevice> cuda;  // null: this worker trains on `cpu`
  std::unique_ptr<Device> cpu;       // null: on `cuda`
  std::string note;                  // what a person should know about the choice; may be empty

  Device* device() const { return cuda != nullptr ? cuda.get() : cpu.get(); }
};

// The GPU whose number is this worker's among those of its machine. --device=auto is resolved in `options`: a GPU where
// the driver shows one that can be used, else the CPU; and so is --conv=auto: in tf32 and bf16 cudnn where it can be
// used, else own, and auto on the CPU. InvalidArgument with the reason where --device=cuda, --math, --conv=cudnn or
// --sync=nccl cannot be had, and where the machine has more workers than GPUs; with --share_gpus worker r takes GPU r
// modulo their number.
//
// Which workers are on this machine: mpirun, srun and deploy/launch tell, and a star started by hand whose servers have
// loopback addresses is here as a whole. For any other star started by hand it is unknown: then r is the rank, nothing
// is refused, and the note says how many workers may share. Ranks of srun --gpus-per-task have GPUs of their own,
// however many each sees.
//
// `watch` outlives the device; null: no watch reports a GPU that does not answer.
absl::StatusOr<DeviceChoice> ChooseDevice(const LauncherEnvironment& launcher, WorkerOptions* options,
                                          CudaWatch* watch = nullptr);

// The facts besides the flags that must be equal on all ranks' devices, for JobSpec::agreed_flags. They are the version
// of cuDNN, and the engines that cuDNN has chosen for every shape of a convolution so far.
std::vector<std::pair<std::string, std::string>> DeviceFacts(const CudaDevice& device);

// Makes the GPU that ChooseDevice will take the calling thread's current one: an MPI library that knows CUDA takes the
// current GPU for this process's when it starts. Does nothing if there is no usable GPU; ChooseDevice reports why.
void MakeGpuCurrent(const LauncherEnvironment& launcher, const WorkerOptions& options, CudaWatch* watch = nullptr);

}  // namespace starring

#endif  // STARRING_WORKER_OPTIONS_DEVICE_CHOICE_H_
