#include "worker/device_choice.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/cpu/cpu_device.h"

namespace starring {
namespace {

CudaMath MathOf(const std::string& name) {
  if (name == "tf32") return CudaMath::kTf32;
  return name == "bf16" ? CudaMath::kBf16 : CudaMath::kFp32;
}

absl::StatusOr<DeviceChoice> ChooseGpu(const LauncherEnvironment& launcher, const WorkerOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> gpus, FindCudaDevices());
  const int gpu_count = static_cast<int>(gpus.size());
  // Without a launcher nobody says which workers are on this machine: all of them, as deploy/launch starts a star, or
  // one, which then takes any GPU.
  const bool is_launched = launcher.launcher != Launcher::kNone;
  const int local_rank = is_launched ? launcher.local_rank : options.rank;
  const int local_size = is_launched ? launcher.local_size : options.world_size;
  ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device,
                   CreateCudaDevice({.ordinal = local_rank % gpu_count, .math = MathOf(options.math)}));
  DeviceChoice choice;
  choice.cuda = device.get();
  choice.device = std::move(device);
  if (local_size > gpu_count) {
    choice.note = absl::StrCat("note: ", is_launched ? "" : "up to ", local_size, " workers share ", gpu_count, " GPU",
                               gpu_count == 1 ? "" : "s", " of this machine");
  }
  return choice;
}

absl::Status Refuse(const char* flag, const std::string& value, const absl::Status& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("flag --", flag, " cannot be \"", value, "\": ", std::string(why.message())));
}

}  // namespace

absl::StatusOr<DeviceChoice> ChooseDevice(const LauncherEnvironment& launcher, WorkerOptions* options) {
  std::string note;
  if (options->device != "cpu") {
    absl::StatusOr<DeviceChoice> gpu = ChooseGpu(launcher, *options);
    if (gpu.ok()) {
      options->device = "cuda";
      return gpu;
    }
    if (options->device == "cuda") return Refuse("device", "cuda", gpu.status());
    if (options->math != "fp32") return Refuse("math", options->math, gpu.status());
    // No GPU is no news. One that cannot be used is.
    if (FindCudaDevices().ok()) note = absl::StrCat("note: on the CPU: ", std::string(gpu.status().message()));
  }
  options->device = "cpu";
  ASSIGN_OR_RETURN(std::unique_ptr<Device> cpu, CreateCpuDevice(options->threads));
  return DeviceChoice{.device = std::move(cpu), .note = std::move(note)};
}

}  // namespace starring
