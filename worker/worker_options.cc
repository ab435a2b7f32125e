#include "worker/worker_options.h"

#include <algorithm>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/flags/command_line.h"
#include "common/flags/flag_table.h"
#include "common/host/host_port.h"
#include "common/limits.h"
#include "common/security/security_flags.h"
#include "common/status.h"

ABSL_FLAG(
    std::string, sync, "auto",
    "how gradients are synchronised; auto: star with --servers, ring under mpirun or srun, else local; mpi: plain "
    "MPI_Allreduce, as a control");
ABSL_FLAG(int, rank, -1, "number of this worker, from 0; -1: as mpirun or srun says, else 0");
ABSL_FLAG(int, world_size, 0, "number of workers; 0: as mpirun or srun says, else 1");
ABSL_FLAG(std::string, servers, "", "star: address of every server shard, in shard order");
ABSL_FLAG(std::string, run_id, "",
          "star: name of the run, the same on every worker; a server refuses the workers of another; empty: the "
          "number of the Slurm job, if there is one");
ABSL_FLAG(int, lanes, 2, "star: streams to each server");
ABSL_FLAG(std::string, same_host, "shared_memory",
          "star, if all servers are on this machine: how arrays travel; does not change the bits");
ABSL_FLAG(int64_t, bucket_bytes, 0,
          "unit of exchange, rounded up to whole reduction blocks; does not change the bits; 0: 4 MiB for a star whose "
          "servers have loopback addresses and share memory, else 1 MiB");
ABSL_FLAG(int, join_deadline_s, 60, "seconds for all workers and servers to show up");
ABSL_FLAG(int, exchange_deadline_s, 60, "seconds for any one bucket to be exchanged, or for a GPU to answer");
ABSL_FLAG(int, stall_report_s, 4, "seconds of waiting for peers after which a process says who keeps it waiting");
ABSL_FLAG(std::string, model, "lenet5", "logreg, mlp, lenet5, mnist_cnn, resnet20, or the path of a layer file");
ABSL_FLAG(std::string, dataset, "fashion-mnist", "what to train on");
ABSL_FLAG(std::string, data_dir, "", "folder of the data set's files; fashion-mnist is found by itself on Debian");
ABSL_FLAG(std::string, augment, "none", "crop_flip: random crop with padding 4, and horizontal flip");
ABSL_FLAG(int64_t, synthetic_train_count, 60000, "synthetic: training images");
ABSL_FLAG(int64_t, synthetic_test_count, 10000, "synthetic: test images");
ABSL_FLAG(int64_t, synthetic_size, 28, "synthetic: height and width of an image");
ABSL_FLAG(int64_t, synthetic_channels, 1, "synthetic: channels of an image");
ABSL_FLAG(int64_t, epochs, 5, "passes over the training set");
ABSL_FLAG(int64_t, max_steps, 0, "stop after this step of the run; 0: no limit");
ABSL_FLAG(int64_t, global_batch, 64, "samples per step, all workers together");
ABSL_FLAG(uint64_t, seed, 1, "seed of everything random");
ABSL_FLAG(std::string, optimizer, "sgd", "update rule, with PyTorch's semantics");
ABSL_FLAG(double, learning_rate, 0.05, "base learning rate");
ABSL_FLAG(double, momentum, 0.9, "sgd: momentum");
ABSL_FLAG(bool, nesterov, false, "sgd: Nesterov's momentum");
ABSL_FLAG(double, weight_decay, 0.0, "sgd: added to the gradient; adamw: decoupled");
ABSL_FLAG(double, beta1, 0.9, "adamw: decay of the mean");
ABSL_FLAG(double, beta2, 0.999, "adamw: decay of the mean square");
ABSL_FLAG(double, epsilon, 1e-8, "adamw: added to the root of the mean square");
ABSL_FLAG(std::string, schedule, "constant", "learning rate over steps");
ABSL_FLAG(int64_t, warmup_steps, 0, "steps of linear warm-up");
ABSL_FLAG(int64_t, decay_steps, 0, "step: multiply the rate by --decay_gamma every so many steps");
ABSL_FLAG(double, decay_gamma, 0.1, "step: the factor");
ABSL_FLAG(int64_t, total_steps, 0, "cosine: step at which the rate reaches 0; 0: the end of --epochs");
ABSL_FLAG(int, threads, 1, "compute threads of this worker; part of what decides the bits");
ABSL_FLAG(
    std::string, isa, "auto",
    "cpu: instruction set of its loops, part of what decides the bits; baseline: what every x86-64 has; auto: the "
    "best of this machine");
ABSL_FLAG(int, loader_threads, 1, "threads that fill a batch; the batch does not depend on it");
ABSL_FLAG(int, prefetch_depth, -1,
          "batches filled ahead of the trainer; 0: by the trainer itself; -1: 0 on one core, else 3");
ABSL_FLAG(std::string, device, "auto", "auto: cuda where the driver shows a GPU, else cpu");
ABSL_FLAG(std::string, math, "fp32", "cuda: what matrix products round their factors to; sums are fp32 always");
ABSL_FLAG(
    std::string, conv, "auto",
    "cuda: who computes convolutions: cudnn; own: kernels of ours and cuBLASLt; auto: cudnn where it is found, by "
    "deterministic engines that its heuristics choose for each shape, never by timing; with --math=bf16 its "
    "convolutions are in tf32");
ABSL_FLAG(bool, share_gpus, false,
          "cuda: workers may share a GPU; without it more workers on a machine than it has GPUs are refused");
ABSL_FLAG(bool, cuda_graph, true, "cuda: a step is captured once and launched as a whole; does not change the bits");
ABSL_FLAG(std::string, data_on_gpu, "auto",
          "cuda: the data set is copied to the GPU, which makes its batches itself; auto: if it takes at most half of "
          "the free memory; does not change the bits");
ABSL_FLAG(std::string, cuda_aware_mpi, "off",
          "cuda in a ring: auto: MPI sends from GPU to GPU where the library says that it can, and can; off: through "
          "pinned host memory; does not change the bits");
ABSL_FLAG(std::string, checkpoint_dir, "", "folder for checkpoints; empty: none are written");
ABSL_FLAG(int64_t, checkpoint_every_epochs, 5, "epochs between checkpoints");
ABSL_FLAG(int64_t, checkpoint_every_steps, 0,
          "steps of the run between checkpoints, in addition to those of --checkpoint_every_epochs; 0: none");
ABSL_FLAG(int, checkpoint_deadline_s, 300,
          "seconds that all ranks wait at the end, or at a stop, for the checkpoint to be on the disk");
ABSL_FLAG(bool, resume, false, "continue from the newest complete checkpoint in --checkpoint_dir, if there is one");
ABSL_FLAG(std::string, record, "", "rank 0 writes the run record, JSON, to this file");
ABSL_FLAG(bool, record_losses, false, "the run record has the loss of every step; the same on every worker");
ABSL_FLAG(std::string, trace, "",
          "every worker writes a timeline (Chrome trace events) at the end; trace.json makes trace.worker-RANK.json");
ABSL_FLAG(std::string, tensorboard_dir, "", "rank 0 writes a TensorBoard event file into this folder");
ABSL_FLAG(int64_t, tensorboard_every_steps, 20, "steps between two points of TensorBoard's step/ curves");
ABSL_FLAG(int, metrics_port, -1,
          "serves live numbers at http://ADDRESS:PORT/metrics (Prometheus); rank r takes this port + r; 0: a free one; "
          "-1: none");
ABSL_FLAG(std::string, metrics_address, "127.0.0.1",
          "address of --metrics_port; 0.0.0.0: every address of the machine");
ABSL_FLAG(std::string, progress, "auto", "lines of rank 0; auto: live on a terminal, else plain");
ABSL_FLAG(bool, check, false,
          "instead of training: dials every process that this job would talk to, prints one table (rank 0) and whether "
          "the job is ready, or what to mend; exit code 0, 2 or 3");

namespace starring {
namespace {

// Whatever is finite in float32: people try where training breaks.
constexpr double kLearningRateMax = 1e38;

// The first is not chosen yet: it depends on other flags.
constexpr Choice<std::optional<Sync>> kSyncs[] = {
    {"auto", std::nullopt}, {"local", Sync::kLocal}, {"star", Sync::kStar}, {"ring", Sync::kRing}, {"mpi", Sync::kMpi}};
constexpr Choice<SameHost> kSameHosts[] = {{"shared_memory", SameHost::kSharedMemory}, {"socket", SameHost::kSocket}};
constexpr Choice<bool> kAugments[] = {{"none", false}, {"crop_flip", true}};
constexpr Choice<OptimizerKind> kOptimizers[] = {{"sgd", OptimizerKind::kSgd}, {"adamw", OptimizerKind::kAdamW}};
constexpr Choice<ScheduleKind> kSchedules[] = {
    {"constant", ScheduleKind::kConstant}, {"step", ScheduleKind::kStep}, {"cosine", ScheduleKind::kCosine}};
constexpr Choice<std::optional<InstructionSet>> kInstructionSets[] = {{"auto", std::nullopt},
                                                                      {"baseline", InstructionSet::kBaseline},
                                                                      {"avx2", InstructionSet::kAvx2},
                                                                      {"avx512", InstructionSet::kAvx512}};
constexpr Choice<CudaAwareMpi> kCudaAwareMpis[] = {{"off", CudaAwareMpi::kOff}, {"auto", CudaAwareMpi::kAuto}};
constexpr Choice<DataOnGpu> kDataOnGpus[] = {
    {"auto", DataOnGpu::kAuto}, {"on", DataOnGpu::kOn}, {"off", DataOnGpu::kOff}};
constexpr Choice<ProgressStyle> kProgressStyles[] = {{"auto", ProgressStyle::kAuto},
                                                     {"live", ProgressStyle::kLive},
                                                     {"plain", ProgressStyle::kPlain},
                                                     {"none", ProgressStyle::kNone}};

constexpr FlagRow kRows[] = {
    {"sync", "job", OneOf(kSyncs)},
    {"rank", "job", Whole(-1, kWorldSizeMax - 1)},
    {"world_size", "job", Whole(0, kWorldSizeMax)},
    {"servers", "job", Text("host:port,...")},
    {"run_id", "job", Text("name")},
    {"check", "job", Switch()},
    {"join_deadline_s", "job", Whole(1, kDeadlineSecondsMax)},
    {"lanes", "exchange", Whole(1, kLanesMax)},
    {"same_host", "exchange", OneOf(kSameHosts)},
    {"bucket_bytes", "exchange", Whole(0, kBucketBytesMax)},
    {"exchange_deadline_s", "exchange", Whole(1, kDeadlineSecondsMax)},
    {"stall_report_s", "exchange", Whole(1, kDeadlineSecondsMax)},
    {"model", "model", Text("name or file")},
    {"dataset", "data", OneOf("mnist", "fashion-mnist", "cifar10", "synthetic")},
    {"data_dir", "data", Text("folder")},
    {"augment", "data", OneOf(kAugments)},
    {"synthetic_train_count", "data", Whole(1, kDatasetImagesMax)},
    {"synthetic_test_count", "data", Whole(1, kDatasetImagesMax)},
    {"synthetic_size", "data", Whole(1, kImageSideMax)},
    {"synthetic_channels", "data", Whole(1, kImageChannelsMax)},
    {"epochs", "training", Whole(1, kEpochCountMax)},
    {"max_steps", "training", Whole(0, kStepCountMax)},
    {"global_batch", "training", Whole(1, kGlobalBatchMax)},
    {"seed", "training", AnyWhole()},
    {"optimizer", "optimizer", OneOf(kOptimizers)},
    {"learning_rate", "optimizer", RealAbove(0, kLearningRateMax)},
    {"momentum", "optimizer", RealBelow(0, 1)},
    {"nesterov", "optimizer", Switch()},
    {"weight_decay", "optimizer", Real(0, 1e6)},
    {"beta1", "optimizer", RealBelow(0, 1)},
    {"beta2", "optimizer", RealBelow(0, 1)},
    {"epsilon", "optimizer", RealAbove(0, 1)},
    {"schedule", "schedule", OneOf(kSchedules)},
    {"warmup_steps", "schedule", Whole(0, kStepCountMax)},
    {"decay_steps", "schedule", Whole(0, kStepCountMax)},
    {"decay_gamma", "schedule", RealAbove(0, 1)},
    {"total_steps", "schedule", Whole(0, kStepCountMax)},
    {"threads", "processor", Whole(1, kComputeThreadsMax)},
    {"isa", "processor", OneOf(kInstructionSets)},
    {"loader_threads", "processor", Whole(1, kLoaderThreadsMax)},
    {"prefetch_depth", "processor", Whole(-1, kPrefetchDepthMax)},
    {"device", "processor", OneOf("auto", "cpu", "cuda")},
    {"math", "processor", OneOf("fp32", "tf32", "bf16")},
    {"conv", "processor", OneOf("auto", "cudnn", "own")},
    {"share_gpus", "processor", Switch()},
    {"cuda_graph", "processor", Switch()},
    {"data_on_gpu", "processor", OneOf(kDataOnGpus)},
    {"cuda_aware_mpi", "processor", OneOf(kCudaAwareMpis)},
    {"checkpoint_dir", "checkpoint", Text("folder")},
    {"checkpoint_every_epochs", "checkpoint", Whole(1, kEpochCountMax)},
    {"checkpoint_every_steps", "checkpoint", Whole(0, kStepCountMax)},
    {"checkpoint_deadline_s", "checkpoint", Whole(1, kDeadlineSecondsMax)},
    {"resume", "checkpoint", Switch()},
    {"record", "output", Text("file")},
    {"record_losses", "output", Switch()},
    {"trace", "output", Text("file")},
    {"tensorboard_dir", "output", Text("folder")},
    {"tensorboard_every_steps", "output", Whole(1, kStepCountMax)},
    {"metrics_port", "output", Whole(-1, kPortMax)},
    {"metrics_address", "output", Text("address")},
    {"progress", "output", OneOf(kProgressStyles)},
};
constexpr auto kAllRows = JoinRows(kRows, kSecurityRows);
constexpr FlagTable kTable = {.program = "worker", .purpose = "one training process.", .rows = kAllRows};

bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:");
}

absl::Status Refuse(absl::string_view flag, absl::string_view value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("flag --", flag, " cannot be \"", value, "\": ", why));
}

absl::Status ReadOptimizer(OptimizerConfig& optimizer) {
  optimizer.kind = ValueOf(kOptimizers, absl::GetFlag(FLAGS_optimizer));
  const bool sgd = optimizer.kind == OptimizerKind::kSgd;
  optimizer.momentum = sgd ? static_cast<float>(absl::GetFlag(FLAGS_momentum)) : 0.0f;
  optimizer.nesterov = absl::GetFlag(FLAGS_nesterov);
  optimizer.weight_decay = static_cast<float>(absl::GetFlag(FLAGS_weight_decay));
  optimizer.beta1 = static_cast<float>(absl::GetFlag(FLAGS_beta1));
  optimizer.beta2 = static_cast<float>(absl::GetFlag(FLAGS_beta2));
  optimizer.epsilon = static_cast<float>(absl::GetFlag(FLAGS_epsilon));
  if (!sgd && optimizer.nesterov)
    return Refuse("nesterov", "true", "--optimizer=adamw has no momentum to look ahead with");
  return ValidateOptimizer(optimizer);
}

absl::Status ReadSchedule(LearningRateSchedule& schedule) {
  schedule.kind = ValueOf(kSchedules, absl::GetFlag(FLAGS_schedule));
  schedule.base = absl::GetFlag(FLAGS_learning_rate);
  schedule.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  schedule.decay_steps = absl::GetFlag(FLAGS_decay_steps);
  schedule.gamma = absl::GetFlag(FLAGS_decay_gamma);
  schedule.total_steps = absl::GetFlag(FLAGS_total_steps);
  if (schedule.kind == ScheduleKind::kStep && schedule.decay_steps == 0) {
    return Refuse("decay_steps", "0", "--schedule=step needs at least 1");
  }
  return absl::OkStatus();
}

// Who this process is among how many, and how they talk.
absl::Status ReadTopology(const LauncherEnvironment& launcher, WorkerOptions& options) {
  const std::string sync = absl::GetFlag(FLAGS_sync);
  const std::string servers = absl::GetFlag(FLAGS_servers);
  if (!servers.empty()) options.servers = absl::StrSplit(servers, ',');
  const Sync usual = !servers.empty() ? Sync::kStar : launcher.world_size > 1 ? Sync::kRing : Sync::kLocal;
  options.sync = ValueOf(kSyncs, sync).value_or(usual);
  const int rank = absl::GetFlag(FLAGS_rank);
  const int world_size = absl::GetFlag(FLAGS_world_size);
  options.rank = rank >= 0 ? rank : launcher.rank;
  options.world_size = world_size > 0 ? world_size : launcher.world_size;
  if (options.world_size > kWorldSizeMax) {
    return Refuse("world_size", absl::StrCat(options.world_size), absl::StrCat("at most ", kWorldSizeMax, " workers"));
  }
  if (options.rank >= options.world_size) {
    return Refuse("rank", absl::StrCat(options.rank),
                  absl::StrCat("ranks count from 0 to world_size - 1, and --world_size is ", options.world_size));
  }
  if (options.sync == Sync::kStar) {
    if (servers.empty()) return Refuse("sync", "star", "it needs --servers=host:port,... (deploy/launch starts them)");
    if (options.servers.size() > kShardCountMax) {
      return Refuse("servers", absl::StrCat(options.servers.size(), " addresses"),
                    absl::StrCat("at most ", kShardCountMax, " servers"));
    }
    for (const std::string& server : options.servers) {
      ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(server), "--servers");
      if (host_port.port == 0) return Refuse("servers", server, "no server listens on port 0: give the one it prints");
    }
    return absl::OkStatus();
  }
  if (!servers.empty())
    return Refuse("servers", servers, absl::StrCat("--sync=", sync, " has no servers: drop one of the two"));
  if (options.sync == Sync::kLocal && options.world_size > 1) {
    return Refuse("sync", sync,
                  absl::StrCat("one process cannot be one of ", options.world_size,
                               " workers: give --servers, or start with mpirun for the ring"));
  }
  if ((options.sync == Sync::kRing || options.sync == Sync::kMpi) &&
      ((rank >= 0 && rank != launcher.rank) || (world_size > 0 && world_size != launcher.world_size))) {
    return Refuse("rank", absl::StrCat(rank, "\" of \"", world_size),
                  absl::StrCat("the launcher says rank ", launcher.rank, " of ", launcher.world_size,
                               ": in a ring mpirun numbers the workers, drop --rank and --world_size"));
  }
  return absl::OkStatus();
}

// What protects the connections to the servers.
absl::Status ReadSecurity(const LauncherEnvironment& launcher, WorkerOptions& options) {
  options.run_id = absl::GetFlag(FLAGS_run_id);
  if (options.run_id.empty()) options.run_id = launcher.run_id;
  if (options.run_id.size() > kRunIdBytesMax) {
    return Refuse("run_id", options.run_id, absl::StrCat("it may have at most ", kRunIdBytesMax, " bytes"));
  }
  const SecurityFiles files = SecurityFlags();
  if (options.sync != Sync::kStar) {
    for (const std::string& word : SecurityFlagWords(files)) {
      return absl::InvalidArgumentError(absl::StrCat("flag ", word, " protects the connections of a star, and --sync=",
                                                     SyncName(options.sync), " has none: drop it"));
    }
  }
  ASSIGN_OR_RETURN(options.security, LoadTransportSecurity(files));
  return absl::OkStatus();
}

void ReadData(WorkerOptions& options) {
  DatasetOptions& dataset = options.dataset;
  dataset.name = absl::GetFlag(FLAGS_dataset);
  dataset.data_dir = absl::GetFlag(FLAGS_data_dir);
  dataset.synthetic_train_count = absl::GetFlag(FLAGS_synthetic_train_count);
  dataset.synthetic_test_count = absl::GetFlag(FLAGS_synthetic_test_count);
  dataset.synthetic_height = dataset.synthetic_width = absl::GetFlag(FLAGS_synthetic_size);
  dataset.synthetic_channels = absl::GetFlag(FLAGS_synthetic_channels);
  dataset.seed = options.seed;
  options.augment = ValueOf(kAugments, absl::GetFlag(FLAGS_augment));
}

// Where arrays travel, small buckets overlap better. In shared memory a bucket is just a message to every server and
// one back, and on few cores these cost more than the overlap gains.
int64_t DefaultBucketBytes(const WorkerOptions& options) {
  const bool shares = options.ServersAreHere() && options.same_host == SameHost::kSharedMemory;
  return shares ? 4 << 20 : 1 << 20;
}

absl::Status ReadRun(const LauncherEnvironment& launcher, WorkerOptions& options) {
  options.model = absl::GetFlag(FLAGS_model);
  options.epochs = absl::GetFlag(FLAGS_epochs);
  options.max_steps = absl::GetFlag(FLAGS_max_steps);
  options.global_batch = absl::GetFlag(FLAGS_global_batch);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.loader_threads = absl::GetFlag(FLAGS_loader_threads);
  options.prefetch_depth = absl::GetFlag(FLAGS_prefetch_depth);
  if (options.prefetch_depth < 0) options.prefetch_depth = launcher.cores > options.threads ? 3 : 0;
  options.bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes);
  if (options.bucket_bytes == 0) options.bucket_bytes = DefaultBucketBytes(options);
  options.checkpoint_dir = absl::GetFlag(FLAGS_checkpoint_dir);
  options.checkpoint_every_epochs = absl::GetFlag(FLAGS_checkpoint_every_epochs);
  options.checkpoint_every_steps = absl::GetFlag(FLAGS_checkpoint_every_steps);
  options.resume = absl::GetFlag(FLAGS_resume);
  options.record = absl::GetFlag(FLAGS_record);
  options.record_losses = absl::GetFlag(FLAGS_record_losses);
  options.trace = absl::GetFlag(FLAGS_trace);
  options.tensorboard_dir = absl::GetFlag(FLAGS_tensorboard_dir);
  options.tensorboard_every_steps = absl::GetFlag(FLAGS_tensorboard_every_steps);
  options.metrics_port = absl::GetFlag(FLAGS_metrics_port);
  options.check = absl::GetFlag(FLAGS_check);
  options.metrics_address = absl::GetFlag(FLAGS_metrics_address);
  if (options.metrics_port + options.rank > kPortMax) {
    return Refuse("metrics_port", absl::StrCat(options.metrics_port),
                  absl::StrCat("rank ", options.rank, " would take ", options.metrics_port + options.rank,
                               ", and ports end at ", kPortMax));
  }
  options.join_deadline = absl::Seconds(absl::GetFlag(FLAGS_join_deadline_s));
  options.exchange_deadline = absl::Seconds(absl::GetFlag(FLAGS_exchange_deadline_s));
  options.checkpoint_deadline = absl::Seconds(absl::GetFlag(FLAGS_checkpoint_deadline_s));
  options.stall_report = absl::Seconds(absl::GetFlag(FLAGS_stall_report_s));
  if (options.resume && options.checkpoint_dir.empty()) return Refuse("resume", "true", "it needs --checkpoint_dir");
  options.progress = ValueOf(kProgressStyles, absl::GetFlag(FLAGS_progress));
  options.device = absl::GetFlag(FLAGS_device);
  options.math = absl::GetFlag(FLAGS_math);
  options.isa = ValueOf(kInstructionSets, absl::GetFlag(FLAGS_isa));
  if (options.isa.has_value() && options.device == "cuda") {
    return Refuse("isa", absl::GetFlag(FLAGS_isa), "--device=cuda computes on the GPU: drop one of the two");
  }
  if (options.device == "cpu" && options.math != "fp32") {
    return Refuse("math", options.math, "--device=cpu computes in fp32: drop one of the two");
  }
  options.conv = absl::GetFlag(FLAGS_conv);
  if (options.device == "cpu" && options.conv == "cudnn") {
    return Refuse("conv", options.conv, "--device=cpu computes convolutions by oneDNN: drop one of the two");
  }
  options.share_gpus = absl::GetFlag(FLAGS_share_gpus);
  options.cuda_graph = absl::GetFlag(FLAGS_cuda_graph);
  options.data_on_gpu = ValueOf(kDataOnGpus, absl::GetFlag(FLAGS_data_on_gpu));
  options.cuda_aware_mpi = ValueOf(kCudaAwareMpis, absl::GetFlag(FLAGS_cuda_aware_mpi));
  return absl::OkStatus();
}

}  // namespace

const char* SyncName(Sync sync) { return NameOf(kSyncs, std::optional(sync)); }
const char* CudaAwareMpiName(CudaAwareMpi cuda_aware_mpi) { return NameOf(kCudaAwareMpis, cuda_aware_mpi); }
const char* DataOnGpuName(DataOnGpu data_on_gpu) { return NameOf(kDataOnGpus, data_on_gpu); }
const char* InstructionSetName(std::optional<InstructionSet> isa) { return NameOf(kInstructionSets, isa); }
const char* SameHostName(SameHost same_host) { return NameOf(kSameHosts, same_host); }
const char* ScheduleName(ScheduleKind kind) { return NameOf(kSchedules, kind); }

bool WorkerOptions::ServersAreHere() const {
  return sync == Sync::kStar && std::all_of(servers.begin(), servers.end(), IsLoopback);
}

std::vector<std::pair<std::string, std::string>> WorkerOptions::AgreedFlags() const {
  return {{"model", model},
          {"dataset", dataset.name},
          {"augment", NameOf(kAugments, augment)},
          {"epochs", absl::StrCat(epochs)},
          {"max_steps", absl::StrCat(max_steps)},
          {"global_batch", absl::StrCat(global_batch)},
          {"seed", absl::StrCat(seed)},
          {"threads", absl::StrCat(threads)},
          {"isa", InstructionSetName(isa)},
          {"device", device},
          {"math", math},
          {"conv", conv},
          {"cuda_aware_mpi", CudaAwareMpiName(cuda_aware_mpi)},
          // A checkpoint is collective: a rank that had none to write would leave the others waiting.
          {"checkpoint_dir", checkpoint_dir.empty() ? "" : "(given)"},
          {"checkpoint_every_epochs", absl::StrCat(checkpoint_every_epochs)},
          {"checkpoint_every_steps", absl::StrCat(checkpoint_every_steps)},
          {"record_losses", record_losses ? "true" : "false"}};
}

const FlagTable& WorkerFlags() { return kTable; }

absl::StatusOr<WorkerOptions> ParseWorkerOptions(int argc, const char* const* argv,
                                                 const LauncherEnvironment& launcher) {
  RETURN_IF_ERROR(ParseFlags(argc, argv, kTable, FlagFilePart::kWorker).status());
  WorkerOptions options;
  options.seed = absl::GetFlag(FLAGS_seed);
  options.lanes = absl::GetFlag(FLAGS_lanes);
  options.same_host = ValueOf(kSameHosts, absl::GetFlag(FLAGS_same_host));
  RETURN_IF_ERROR(ReadTopology(launcher, options));
  RETURN_IF_ERROR(ReadSecurity(launcher, options));
  RETURN_IF_ERROR(ReadRun(launcher, options));
  ReadData(options);
  RETURN_IF_ERROR(ReadOptimizer(options.optimizer));
  RETURN_IF_ERROR(ReadSchedule(options.schedule));
  return options;
}

}  // namespace starring
