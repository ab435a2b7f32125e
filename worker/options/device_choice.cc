#include "worker/options/device_choice.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "kernels/cpu/cpu_device.h"

namespace starring {
namespace {

// The workers of this machine, as far as a launcher or the flags tell.
struct WorkersHere {
  int rank = 0;  // this worker's among them
  int count = 0;
  enum class Is { kExact, kAtLeast, kAtMost } is = Is::kExact;

  std::string Text() const {
    const char* const how = is == Is::kExact ? "" : is == Is::kAtLeast ? "at least " : "up to ";
    return absl::StrCat(how, count, " workers");
  }
};

WorkersHere FindWorkersHere(const LauncherEnvironment& launcher, const WorkerOptions& options) {
  using Is = WorkersHere::Is;
  // srun tells how many ranks are before this one on the host, and not how many come after it.
  if (launcher.launcher != Launcher::kNone) {
    return {launcher.local_rank, launcher.local_size,
            launcher.launcher == Launcher::kSlurm ? Is::kAtLeast : Is::kExact};
  }
  // Without a launcher the rank is taken for the number on this machine, which is right if all workers are here.
  const bool all_here = launcher.by_deploy_launch || options.JobIsHere();
  return {options.rank, options.world_size, all_here ? Is::kExact : Is::kAtMost};
}

int OrdinalOf(const WorkersHere& workers, int gpu_count) { return workers.rank % gpu_count; }

std::string GpusText(int count) { return absl::StrCat(count, count == 1 ? " GPU" : " GPUs"); }

// Refuses only what is known to be too many: for a star started by hand it is unknown which workers are here.
absl::Status CheckGpusSuffice(const LauncherEnvironment& launcher, const WorkerOptions& options, int gpu_count) {
  const WorkersHere workers = FindWorkersHere(launcher, options);
  if (options.share_gpus || launcher.has_own_gpus || workers.is == WorkersHere::Is::kAtMost ||
      workers.count <= gpu_count) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(workers.Text(), " on this machine, but the driver shows worker ", options.rank, " only ",
                   GpusText(gpu_count), ": start fewer, let them share with --share_gpus, or give --device=cpu"));
}

// ResolveConv refuses a missing cuDNN, and names the flag: here kAuto stands for cuDNN if it is there. In fp32 cuDNN's
// deterministic engines are slower than our kernels: on an H100 a step of resnet20 took 3.44 ms with them and 2.20
// without (batch 64), one of mnist_cnn 2.67 and 2.27 (512). In tf32 they have tensor cores, which our kernels have not.
CudaConvolutions ConvolutionsToTry(const WorkerOptions& options) {
  const bool own = options.conv == CudaConvolutions::kOwn ||
                   (options.conv == CudaConvolutions::kAuto && options.math == CudaMath::kFp32);
  return own ? CudaConvolutions::kOwn : CudaConvolutions::kAuto;
}

absl::StatusOr<DeviceChoice> ChooseGpu(const LauncherEnvironment& launcher, const WorkerOptions& options, int gpu_count,
                                       CudaWatch* watch) {
  const WorkersHere workers = FindWorkersHere(launcher, options);
  DeviceChoice choice;
  ASSIGN_OR_RETURN(choice.cuda, CreateCudaDevice({.ordinal = OrdinalOf(workers, gpu_count),
                                                  .math = options.math,
                                                  .convolutions = ConvolutionsToTry(options),
                                                  .library_folders = launcher.gpu_library_folders,
                                                  .watch = watch}));
  // Reached with --share_gpus, or where it is unknown how many workers are here.
  if (workers.count > gpu_count && !launcher.has_own_gpus) {
    choice.note = absl::StrCat("note: ", workers.Text(), " share ", GpusText(gpu_count), " of this machine");
  }
  return choice;
}

absl::Status Refuse(absl::string_view flag, absl::string_view value, const absl::Status& why) {
  return RefuseFlag(flag, value, std::string(why.message()));
}

// A machine without cuDNN is common and not worth a note. A cuDNN that cannot be used is.
absl::Status ResolveConv(DeviceChoice* choice, WorkerOptions* options) {
  const absl::Status cudnn = choice->cuda->cudnn_status();
  if (!cudnn.ok() && options->conv == CudaConvolutions::kCudnn) {
    return Refuse("conv", "cudnn", Annotate(cudnn, "give --conv=auto or --conv=own, or see why"));
  }
  if (!cudnn.ok() && !absl::IsUnavailable(cudnn)) {
    absl::StrAppend(&choice->note, choice->note.empty() ? "" : "\n",
                    "note: convolutions by kernels of our own: ", std::string(cudnn.message()));
  }
  options->conv = cudnn.ok() ? CudaConvolutions::kCudnn : CudaConvolutions::kOwn;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceChoice> ChooseDevice(const LauncherEnvironment& launcher, WorkerOptions* options,
                                          CudaWatch* watch) {
  std::string note;
  if (options->device != DeviceKind::kCpu) {
    const absl::StatusOr<std::vector<CudaDeviceInfo>> gpus = FindCudaDevices(watch);
    absl::Status why = gpus.status();
    if (gpus.ok()) {
      const int gpu_count = static_cast<int>(gpus->size());
      // The limit holds for --device=auto too: falling back to the CPU without a word would leave GPUs idle.
      RETURN_IF_ERROR(CheckGpusSuffice(launcher, *options, gpu_count));
      absl::StatusOr<DeviceChoice> gpu = ChooseGpu(launcher, *options, gpu_count, watch);
      if (gpu.ok()) {
        options->device = DeviceKind::kCuda;
        if (options->micro_batches > 0) {
          return RefuseFlag("micro_batches", absl::StrCat(options->micro_batches),
                            "a step on a GPU computes its batch at once: give --device=cpu");
        }
        if (options->TriesBucketSizes()) {
          return RefuseFlag("bucket_bytes", "auto",
                            "a step on a GPU prepares its copies for one size: give a number, or --device=cpu");
        }
        RETURN_IF_ERROR(ResolveConv(&*gpu, options));
        return gpu;
      }
      why = gpu.status();
    }
    if (options->device == DeviceKind::kCuda) return Refuse("device", "cuda", why);
    if (options->sync == Sync::kNccl) return Refuse("sync", "nccl", why);
    // These two flags ask for what only a GPU has. With --device=auto the CPU would ignore them without a word.
    if (options->math != CudaMath::kFp32) return Refuse("math", NameOf(kMaths, options->math), why);
    if (options->conv == CudaConvolutions::kCudnn) return Refuse("conv", "cudnn", why);
    // A machine without a GPU is common and not worth a note. A GPU that cannot be used is, and so is a driver that
    // cannot tell whether there is one.
    if (!absl::IsNotFound(why)) note = absl::StrCat("note: on the CPU: ", std::string(why.message()));
  }
  options->device = DeviceKind::kCpu;
  // The ranks compare resolved flags, and a flag without effect must not make them differ.
  options->conv = CudaConvolutions::kAuto;
  // oneDNN chooses its instruction set by itself. With --isa the bits must not depend on what this processor has.
  if (options->isa.has_value()) RETURN_IF_ERROR(LimitOnednn(*options->isa), "--isa");
  absl::StatusOr<std::unique_ptr<Device>> cpu =
      CreateCpuDevice({.threads = options->threads, .instruction_set = options->isa.value_or(BestInstructionSet())});
  if (absl::IsInvalidArgument(cpu.status())) return Refuse("threads", absl::StrCat(options->threads), cpu.status());
  RETURN_IF_ERROR(cpu.status());
  return DeviceChoice{.cpu = *std::move(cpu), .note = std::move(note)};
}

std::vector<std::pair<std::string, std::string>> DeviceFacts(const CudaDevice& device) {
  std::vector<std::pair<std::string, std::string>> facts;
  if (device.cudnn_version().empty()) return facts;
  facts.emplace_back("cudnn.version", device.cudnn_version());
  // Each shape is a fact of its own, so that a refusal names the shape and both engines.
  for (const auto& [shape, engines] : device.engines()) {
    facts.emplace_back(absl::StrCat("cudnn.engines of a convolution ", shape), engines);
  }
  return facts;
}

void MakeGpuCurrent(const LauncherEnvironment& launcher, const WorkerOptions& options, CudaWatch* watch) {
  if (options.device == DeviceKind::kCpu) return;
  const absl::StatusOr<std::vector<CudaDeviceInfo>> gpus = FindCudaDevices(watch);
  if (!gpus.ok()) return;
  const int ordinal = OrdinalOf(FindWorkersHere(launcher, options), static_cast<int>(gpus->size()));
  (void)MakeCudaDeviceCurrent(ordinal, watch);  // ChooseDevice meets the same error
}

}  // namespace starring
