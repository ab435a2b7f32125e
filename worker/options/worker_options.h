// The worker's flags and the values that a command line gives them.
//
// A flag is declared in this file alone: a field of WorkerOptions, whose initial value is the default, and a row of
// worker_flags::kRows, which has all else that is known about the flag (common/flags/flag_table.h says what follows
// from it). After a change: bazel run //worker/options:flag_pages -- "$PWD" writes the tables that pages and the
// PyTorch peer read.
#ifndef STARRING_WORKER_OPTIONS_WORKER_OPTIONS_H_
#define STARRING_WORKER_OPTIONS_WORKER_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/arithmetic/instruction_set.h"
#include "common/arithmetic/optimizer.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "common/flags/flag_table.h"
#include "common/host/launcher_environment.h"
#include "common/host/log.h"
#include "common/job/cells.h"
#include "common/job/sync.h"
#include "common/network/port_range.h"
#include "common/security/security_flags.h"
#include "common/security/transport_security.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/data/dataset.h"

namespace starring {

enum class DeviceKind { kAuto, kCpu, kCuda };
// Whether ranks with GPUs may send from their memory: kAuto where MPI can.
enum class CudaAwareMpi { kOff, kAuto, kTry };
// Whether the host of a rank waits for other ranks, or its GPU, in the graph of a step.
enum class GpuWaits { kHost, kGraph };
// How rank 0 tells a person about the run: a line that each step rewrites, a line now and then, or nothing.
enum class ProgressStyle { kLive, kPlain, kNone };

// Where a run saves without --checkpoint_dir, in the folder in which the worker was started.
inline constexpr char kDefaultCheckpointsDir[] = "starring-checkpoints";

// The names that the command line has for the values. An empty optional is "auto".
inline constexpr Choice<SameHost> kResolvedSameHosts[] = {
    {"shared_memory", SameHost::kSharedMemory}, {"socket", SameHost::kSocket}, {"gpu_memory", SameHost::kGpuMemory}};
inline constexpr Choice<std::optional<SameHost>> kSameHosts[] = {{"auto", std::nullopt},
                                                                 {"shared_memory", SameHost::kSharedMemory},
                                                                 {"socket", SameHost::kSocket},
                                                                 {"gpu_memory", SameHost::kGpuMemory}};
inline constexpr Choice<GpuWaits> kGpuWaits[] = {{"host", GpuWaits::kHost}, {"graph", GpuWaits::kGraph}};
inline constexpr Choice<MapData> kMapData[] = {
    {"auto", MapData::kAuto}, {"never", MapData::kNever}, {"always", MapData::kAlways}};
inline constexpr Choice<Cifar100Labels> kCifar100Labels[] = {{"fine", Cifar100Labels::kFine},
                                                             {"coarse", Cifar100Labels::kCoarse}};
inline constexpr Choice<Augment> kAugments[] = {{"none", Augment::kNone}, {"crop_flip", Augment::kCropFlip}};
inline constexpr Choice<Normalize> kNormalizes[] = {{"channels", Normalize::kChannels}, {"none", Normalize::kNone}};
inline constexpr Choice<OptimizerKind> kOptimizers[] = {{"sgd", OptimizerKind::kSgd}, {"adamw", OptimizerKind::kAdamW}};
inline constexpr Choice<ScheduleKind> kSchedules[] = {
    {"constant", ScheduleKind::kConstant}, {"step", ScheduleKind::kStep}, {"cosine", ScheduleKind::kCosine}};
inline constexpr Choice<std::optional<InstructionSet>> kInstructionSets[] = {{"auto", std::nullopt},
                                                                             {"baseline", InstructionSet::kBaseline},
                                                                             {"avx2", InstructionSet::kAvx2},
                                                                             {"avx512", InstructionSet::kAvx512}};
inline constexpr Choice<DeviceKind> kDevices[] = {
    {"auto", DeviceKind::kAuto}, {"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}};
inline constexpr Choice<CudaMath> kMaths[] = {
    {"fp32", CudaMath::kFp32}, {"tf32", CudaMath::kTf32}, {"bf16", CudaMath::kBf16}};
inline constexpr Choice<CudaConvolutions> kConvolutions[] = {
    {"auto", CudaConvolutions::kAuto}, {"cudnn", CudaConvolutions::kCudnn}, {"own", CudaConvolutions::kOwn}};
inline constexpr Choice<DataOnGpu> kDataOnGpus[] = {
    {"auto", DataOnGpu::kAuto}, {"on", DataOnGpu::kOn}, {"off", DataOnGpu::kOff}};
inline constexpr Choice<SumOrder> kSumOrders[] = {{"chain", SumOrder::kChain}, {"tree", SumOrder::kTree}};
inline constexpr Choice<CudaAwareMpi> kCudaAwareMpis[] = {
    {"off", CudaAwareMpi::kOff}, {"auto", CudaAwareMpi::kAuto}, {"try", CudaAwareMpi::kTry}};
inline constexpr Choice<std::optional<ProgressStyle>> kProgressStyles[] = {{"auto", std::nullopt},
                                                                           {"live", ProgressStyle::kLive},
                                                                           {"plain", ProgressStyle::kPlain},
                                                                           {"none", ProgressStyle::kNone}};

// Without a value: auto.
const char* InstructionSetName(std::optional<InstructionSet> isa);

// A default-constructed value is what the worker gets without any flag, but for the fields that ParseWorkerOptions
// resolves.
struct WorkerOptions {
  // The command line's values of the fields for which the worker may choose a value itself.
  struct Asked {
    std::optional<Sync> sync;
    std::optional<TransportKind> transport;
    std::optional<SameHost> same_host;
    int rank = -1;
    int world_size = 0;
    std::optional<int64_t> bucket_bytes = 0;   // 0: the usual size; empty: auto
    std::optional<int64_t> micro_batches = 0;  // 0: none, or auto with --elastic; empty: auto
    int prefetch_depth = -1;
    std::string checkpoint_dir;  // empty: the default; "none": none
  };
  Asked asked;

  Sync sync = Sync::kLocal;
  TransportKind transport = TransportKind::kNone;  // kNone with kLocal only
  int rank = 0;
  int world_size = 1;
  std::vector<std::string> servers;  // star: one address per shard, in shard order; empty: the ranks are the owners
  int server_ranks = 0;              // star over tcp: servers, which are ranks after the workers; 0: as above
  std::string rendezvous;            // tcp: where rank 0 listens for the others
  std::string mpi = "auto";          // as LoadMpiLibrary
  PortRange port_range;              // of the port at which this process listens; without one any
  int rendezvous_fd = -1;            // rank 0's socket that is bound there; -1: it makes one
  std::string run_id;                // which attempt of which job this is; equal on all workers
  bool check = false;                // dial all peers and end, instead of training
  absl::Duration join_deadline = absl::Seconds(60);

  int lanes = 1;
  // With servers: kSharedMemory where it is possible. Without them: kSharedMemory or an error.
  SameHost same_host = SameHost::kSharedMemory;
  int64_t bucket_bytes = 1 << 20;
  SumOrder sum_order = SumOrder::kChain;
  bool elastic = false;       // also where --coordinator is given
  std::string coordinator;    // host:port of shard 0, in an elastic run
  int64_t micro_batches = 0;  // leaves of the sum (common/job/leaf_shares.h); 0: a worker's part of the batch is one
  absl::Duration exchange_deadline = absl::Seconds(60);
  absl::Duration stall_report = absl::Seconds(4);

  std::string model = "lenet5";
  DatasetOptions dataset = {.name = "fashion-mnist"};
  Augment augment = Augment::kNone;
  Normalize normalize = Normalize::kChannels;

  int64_t epochs = 5;
  int64_t max_steps = 0;  // 0: no limit
  int64_t global_batch = 64;
  uint64_t seed = 1;

  OptimizerConfig optimizer = {.momentum = 0.9};
  // total_steps is 0 until the trainer knows the steps of an epoch.
  LearningRateSchedule schedule = {.kind = ScheduleKind::kCosine, .base = 0.05};

  int threads = 1;
  std::optional<InstructionSet> isa;  // cpu; without a value: the best of this machine
  int loader_threads = 1;
  int prefetch_depth = 0;
  DeviceKind device = DeviceKind::kAuto;            // ChooseDevice resolves kAuto
  CudaMath math = CudaMath::kFp32;                  // cuda
  CudaConvolutions conv = CudaConvolutions::kAuto;  // cuda: ChooseDevice resolves kAuto; kAuto on the CPU
  bool share_gpus = false;
  bool cuda_graph = true;
  GpuWaits gpu_waits = GpuWaits::kHost;
  DataOnGpu data_on_gpu = DataOnGpu::kAuto;
  CudaAwareMpi cuda_aware_mpi = CudaAwareMpi::kOff;

  std::string checkpoint_dir;  // empty: nothing is saved, or where saves_by_default says
  // No flag says where to save: into a folder of kDefaultCheckpointsDir, which is made when there is something to save.
  bool saves_by_default = false;
  bool saves_at_end_alone = false;  // and at a stop
  int64_t checkpoint_every_epochs = 5;
  int64_t checkpoint_every_steps = 0;
  absl::Duration checkpoint_deadline = absl::Seconds(300);
  bool resume = false;
  std::string warm_start;
  int64_t early_stop = 0;
  bool save_best = false;

  std::string evaluate;  // a checkpoint; then nothing is trained
  std::string predict;   // likewise
  std::string out;       // of predict

  std::string record;
  bool record_losses = false;
  std::string trace;
  std::string tensorboard_dir;
  int64_t tensorboard_every_steps = 20;
  int metrics_port = -1;  // rank 0's, the others' follow; 0: free ones; -1: none
  std::string metrics_address = "127.0.0.1";
  LogTime log_time = LogTime::kAuto;
  std::optional<ProgressStyle> progress;  // without a value: as stdout is

  bool insecure = false;  // tcp: strangers may join
  SecurityFiles security_files;
  TransportSecurity security;  // grpc, tcp: what the files above hold

  // The row of this job. While --sync=auto measures, `sync` and `same_host` are those of its first candidate.
  const Cell& cell() const;
  // A ring, or a star without servers. common/reduce/owner_map.h decides which elements each rank owns.
  bool RanksAreOwners() const { return cell().placement == Placement::kRanks; }
  // Servers of a star, however they are reached.
  int ServerCount() const { return servers.empty() ? server_ranks : static_cast<int>(servers.size()); }
  // BucketMap::Options::world_size.
  int BucketWorldSize() const { return ServerCount() > 0 ? 1 : world_size; }
  // The size of buckets is chosen in the first steps. Without other ranks there is nothing to choose.
  bool TriesBucketSizes() const { return !asked.bucket_bytes.has_value() && cell().May(Cell::kAutoBuckets); }
  // The owners among the ranks measure at the start how they exchange, and `sync` is only their first candidate.
  bool RanksChoose() const;
  // Flags and seed decide the bits, not a library. All that the ranks may choose between are alike in this.
  bool IsDeterministic() const { return cell().May(Cell::kDeterministic); }
  bool UsesMpi() const { return transport == TransportKind::kMpi; }
  // A star whose servers have loopback addresses: the whole job is on this machine.
  bool ServersAreHere() const;
  // That, or ranks that meet at a loopback address.
  bool JobIsHere() const;
};

// Steps in an epoch of `train_count` samples, and in a run that begins at step 0.
inline int64_t StepsPerEpoch(const WorkerOptions& options, int64_t train_count) {
  return (train_count + options.global_batch - 1) / options.global_batch;
}
inline int64_t EndStep(const WorkerOptions& options, int64_t train_count) {
  const int64_t end = StepsPerEpoch(options, train_count) * options.epochs;
  return options.max_steps > 0 ? std::min(end, options.max_steps) : end;
}

namespace worker_flags {

using W = WorkerOptions;
using Asked = WorkerOptions::Asked;
using Data = DatasetOptions;
using Rate = LearningRateSchedule;

// Whatever is finite in float32: people try where training breaks.
inline constexpr double kLearningRateMax = 1e38;
// Whatever is finite in float32, where PyTorch computes with it.
inline constexpr double kClipNormMax = 1e38;
// A launcher has fewer descriptors.
inline constexpr int kInheritedFdMax = 65'535;

inline constexpr FlagRow kRows[] = {
    {"sync", "job",
     "how gradients are synchronised; star: by servers, or without them by the ranks themselves; auto: star with "
     "--servers or --server_ranks; with --rendezvous or under mpirun or srun ring or star, whichever takes less time "
     "at the start; else local; as controls, mpi: plain MPI_Allreduce, nccl: NCCL's allreduce between GPUs",
     OneOfAt<kSyncs, &W::asked, &Asked::sync>(), kSameOnAllRanks, OneOfAt<kResolvedSyncs, &W::sync>()},
    {"transport", "job",
     "what carries gradients and parameters; auto: grpc with --servers, tcp with --rendezvous, else mpi, which needs "
     "mpirun or srun; does not change the bits",
     OneOfAt<kTransports, &W::asked, &Asked::transport>(), kSameOnAllRanks,
     OneOfAt<kResolvedTransports, &W::transport>()},
    {"mpi", "job", "over mpi: the library; auto: the launcher's", TextAt<&W::mpi>("auto, openmpi, mpich or a path")},
    {"rank", "job", "the worker's number; -1: as mpirun or srun says, or 0, which tcp refuses",
     WholeAt<&W::asked, &Asked::rank>(-1, kWorldSizeMax - 1), kNotRecorded},
    {"world_size", "job", "number of workers; 0: as mpirun or srun says, else 1, which tcp refuses",
     WholeAt<&W::asked, &Asked::world_size>(0, kWorldSizeMax), kInJobSpec, WholeAt<&W::world_size>(1, kWorldSizeMax)},
    {"servers", "job", "star: address of every server shard, in shard order", TextAt<&W::servers>("host:port,...")},
    {"server_ranks", "job", "star over tcp: servers that meet the workers; 0: ranks own the parameters",
     WholeAt<&W::server_ranks>(0, kShardCountMax), kSameOnAllRanks},
    {"rendezvous", "job",
     "tcp: where rank 0 listens, and the other ranks find it: an address of rank 0's host that they reach, and a free "
     "port",
     TextAt<&W::rendezvous>("host:port")},
    {"port_range", "job", "listen at ports such as 7000-7100; over mpi for --check alone; empty: any",
     TextAt<&W::port_range>(kPortRangeForm), kNotRecorded},
    {"rendezvous_fd", "job", "rank 0 over tcp: an inherited socket that is bound there; -1: none",
     WholeAt<&W::rendezvous_fd>(-1, kInheritedFdMax), kNotRecorded},
    {"run_id", "job",
     "name of the run, the same on every worker; a server, and rank 0 over tcp, refuses the workers of another run; "
     "empty: the number of the Slurm job, if there is one",
     TextAt<&W::run_id>("name")},
    {"check", "job",
     "instead of training: dials every process that this job would talk to; rank 0 prints one table, and says that the "
     "job is ready or what to mend; exit code 0, 2 or 3",
     SwitchAt<&W::check>(), kNotRecorded},
    {"join_deadline_s", "job", "seconds for all workers and servers to show up",
     SecondsAt<&W::join_deadline>(1, kDeadlineSecondsMax)},

    {"lanes", "exchange", "star: lanes, each a TCP connection, to each server", WholeAt<&W::lanes>(1, kLanesMax)},
    {"same_host", "exchange",
     "ring, star: how arrays travel inside one machine; auto: in shared memory, with --servers for those that are "
     "here, with ranks if all are, else by --transport; --sync=auto measures both; gpu_memory: ranks on GPUs that map "
     "each other's memory; does not change the bits",
     OneOfAt<kSameHosts, &W::asked, &Asked::same_host>(), 0, OneOfAt<kResolvedSameHosts, &W::same_host>()},
    {"gpu_waits", "exchange", "with gpu_memory: hosts wait for ranks, or GPUs in a step's graph",
     OneOfAt<kGpuWaits, &W::gpu_waits>(), kSameOnAllRanks},
    {"bucket_bytes", "exchange",
     "unit of exchange, in whole blocks; does not change the bits; 0: 4 MiB if a star's servers have loopback "
     "addresses and share memory, or with --same_host=gpu_memory, 128 KiB a server, at most 1 MiB, if they are "
     "elsewhere, else 1 MiB; auto: the "
     "fastest of 256 KiB, 1 MiB and 4 MiB in the first 30 steps, on CPUs, by ring and co-located star",
     WholeOrAutoAt<&W::asked, &Asked::bucket_bytes>(0, kBucketBytesMax), kInJobSpec,
     WholeAt<&W::bucket_bytes>(1, kBucketBytesMax)},
    {"sum_order", "exchange",
     "in which order the workers' gradients are added, part of what decides the bits: chain: as a ring passes them on; "
     "tree: in pairs, with star and local only, and always with --micro_batches",
     OneOfAt<kSumOrders, &W::sum_order>(), kInJobSpec | kSameWhenResumed},
    {"micro_batches", "exchange",
     "parts of a global batch, computed one by one and added as a tree, so that bits do not depend on the number of "
     "workers; 0: none, or auto with --elastic; auto: the most, up to 32, of 16 samples or more; on CPUs",
     WholeOrAutoAt<&W::asked, &Asked::micro_batches>(0, kMicroBatchesMax), kSameOnAllRanks | kSameWhenResumed,
     WholeAt<&W::micro_batches>(0, kMicroBatchesMax)},
    {"elastic", "exchange",
     "workers may join and leave while the job runs, and it survives what dies: a star with servers that were started "
     "with --elastic; rank and number of workers come from --coordinator",
     SwitchAt<&W::elastic>(), kSameOnAllRanks},
    {"coordinator", "exchange",
     "where shard 0 of an elastic run listens; it tells the other servers' addresses; implies --elastic",
     TextAt<&W::coordinator>("host:port")},
    {"exchange_deadline_s", "exchange", "seconds for any one bucket to be exchanged, or for a GPU to answer",
     SecondsAt<&W::exchange_deadline>(1, kDeadlineSecondsMax)},
    {"stall_report_s", "exchange", "seconds until a process that waits for a peer names it",
     SecondsAt<&W::stall_report>(1, kDeadlineSecondsMax)},

    {"model", "model",
     "logreg, mlp, tabular_mlp, lenet5, mnist_cnn, resnet18, resnet20, mobilenet_v2, or the path of a layer file",
     TextAt<&W::model>("name or file"), kSameContent | kPeerTakes},

    {"dataset", "data", "mnist, fashion-mnist, kmnist, emnist-SPLIT, cifar10, cifar100, npy, csv, libsvm, synthetic",
     TextAt<&W::dataset, &Data::name>("name"), kSameOnAllRanks | kSameWhenResumed | kPeerTakes},
    {"data_dir", "data", "folder of the files, or .npz, .csv, .libsvm; Debian's fashion-mnist needs none",
     TextAt<&W::dataset, &Data::data_dir>("folder"), kSameContent | kPeerTakes},
    {"cifar100_labels", "data", "cifar100: classes, 100 or the 20 to which they belong",
     OneOfAt<kCifar100Labels, &W::dataset, &Data::cifar100_labels>(), kSameContent | kPeerTakes},
    {"csv_label", "data", "csv: the column of the labels, by its name or its number from 1 on",
     TextAt<&W::dataset, &Data::csv_label>("name or number"), kSameContent | kPeerTakes},
    {"test_fraction", "data", "your files without a test set: the part of samples that becomes one",
     ValueAt<&W::dataset, &Data::test_fraction>(RealBelow(0, 1)), kSameContent | kPeerTakes},
    {"split_seed", "data", "--test_fraction: the seed by which its samples are drawn",
     WholeAt<&W::dataset, &Data::split_seed>(0, std::numeric_limits<uint64_t>::max()), kSameContent | kPeerTakes},
    {"map_data", "data",
     "files that are not compressed: map them, or read them into memory; auto: map, but float64 only if memory is "
     "short; always: map, and expect that they do not stay in memory; does not change the bits",
     OneOfAt<kMapData, &W::dataset, &Data::map_data>()},
    {"augment", "data", "crop_flip: random crop with padding 4, and horizontal flip", OneOfAt<kAugments, &W::augment>(),
     kSameOnAllRanks | kSameWhenResumed | kPeerTakes},
    {"normalize", "data", "channels: to mean 0, deviation 1; none: numbers stay, pixels / 255",
     OneOfAt<kNormalizes, &W::normalize>(), kSameOnAllRanks | kSameWhenResumed | kPeerTakes},
    {"synthetic_train_count", "data", "synthetic: training images",
     WholeAt<&W::dataset, &Data::synthetic_train_count>(1, kDatasetImagesMax), kSameContent},
    {"synthetic_test_count", "data", "synthetic: test images",
     WholeAt<&W::dataset, &Data::synthetic_test_count>(1, kDatasetImagesMax), kSameContent},
    {"synthetic_size", "data", "synthetic: height and width of an image",
     WholeAt<&W::dataset, &Data::synthetic_height>(1, kImageSideMax), kSameContent},
    {"synthetic_channels", "data", "synthetic: channels of an image",
     WholeAt<&W::dataset, &Data::synthetic_channels>(1, kImageChannelsMax), kSameContent},

    {"epochs", "training", "passes over the training set", WholeAt<&W::epochs>(1, kEpochCountMax),
     kSameOnAllRanks | kPeerTakes},
    {"max_steps", "training", "stop after this step of the run; 0: no limit", WholeAt<&W::max_steps>(0, kStepCountMax),
     kSameOnAllRanks | kPeerTakes},
    {"early_stop", "training", "stop after so many epochs without a lower test loss; 0: never",
     WholeAt<&W::early_stop>(0, kEpochCountMax), kSameOnAllRanks},
    {"global_batch", "training", "samples per step, all workers together",
     WholeAt<&W::global_batch>(1, kGlobalBatchMax), kSameOnAllRanks | kSameWhenResumed | kPeerTakes},
    {"seed", "training", "seed of everything random", WholeAt<&W::seed>(0, std::numeric_limits<uint64_t>::max()),
     kSameOnAllRanks | kSameWhenResumed | kPeerTakes},

    {"optimizer", "optimizer", "update rule, with PyTorch's semantics",
     OneOfAt<kOptimizers, &W::optimizer, &OptimizerConfig::kind>(), kInJobSpec | kSameWhenResumed | kPeerTakes},
    {"learning_rate", "optimizer", "base learning rate",
     ValueAt<&W::schedule, &Rate::base>(RealAbove(0, kLearningRateMax)), kInJobSpec | kSaidWhenResumed | kPeerTakes},
    {"momentum", "optimizer", "sgd: momentum", ValueAt<&W::optimizer, &OptimizerConfig::momentum>(RealBelow(0, 1)),
     kInJobSpec | kSaidWhenResumed | kPeerTakes},
    {"nesterov", "optimizer", "sgd: Nesterov's momentum", SwitchAt<&W::optimizer, &OptimizerConfig::nesterov>(),
     kInJobSpec | kSaidWhenResumed | kPeerTakes},
    {"weight_decay", "optimizer", "sgd: added to the gradient; adamw: decoupled",
     ValueAt<&W::optimizer, &OptimizerConfig::weight_decay>(Real(0, 1e6)), kInJobSpec | kSaidWhenResumed | kPeerTakes},
    {"beta1", "optimizer", "adamw: decay of the mean", ValueAt<&W::optimizer, &OptimizerConfig::beta1>(RealBelow(0, 1)),
     kInJobSpec | kSaidWhenResumed},
    {"beta2", "optimizer", "adamw: decay of the mean square",
     ValueAt<&W::optimizer, &OptimizerConfig::beta2>(RealBelow(0, 1)), kInJobSpec | kSaidWhenResumed},
    {"epsilon", "optimizer", "adamw: added to the root of the mean square",
     ValueAt<&W::optimizer, &OptimizerConfig::epsilon>(RealAbove(0, 1)), kInJobSpec | kSaidWhenResumed},
    {"clip_norm", "optimizer",
     "a step's whole gradient is scaled down to this norm if it is longer; 0: never; not with servers",
     ValueAt<&W::optimizer, &OptimizerConfig::clip_norm>(Real(0, kClipNormMax)),
     kInJobSpec | kSameWhenResumed | kPeerTakes},

    {"schedule", "schedule", "learning rate over steps", OneOfAt<kSchedules, &W::schedule, &Rate::kind>(),
     kInJobSpec | kSaidWhenResumed | kPeerTakes},
    {"warmup_steps", "schedule", "steps of linear warm-up",
     WholeAt<&W::schedule, &Rate::warmup_steps>(0, kStepCountMax), kInJobSpec | kSaidWhenResumed | kPeerTakes},
    {"decay_steps", "schedule", "step: multiply the rate by --decay_gamma every so many steps",
     WholeAt<&W::schedule, &Rate::decay_steps>(0, kStepCountMax), kInJobSpec | kSaidWhenResumed | kPeerTakes},
    {"decay_gamma", "schedule", "step: the factor", ValueAt<&W::schedule, &Rate::gamma>(RealAbove(0, 1)),
     kInJobSpec | kSaidWhenResumed | kPeerTakes},
    {"total_steps", "schedule", "cosine: step at which the rate reaches 0; 0: the end of --epochs",
     WholeAt<&W::schedule, &Rate::total_steps>(0, kStepCountMax), kInJobSpec | kSaidWhenResumed | kPeerTakes},

    {"threads", "processor", "compute threads of this worker; another number changes the bits",
     WholeAt<&W::threads>(1, kComputeThreadsMax), kSameOnAllRanks | kSaidWhenResumed | kPeerTakes},
    {"isa", "processor",
     "cpu: instruction set of its loops; another one changes the bits; baseline: the one that every x86-64 has; auto: "
     "the best of this machine",
     OneOfAt<kInstructionSets, &W::isa>(), kSameOnAllRanks | kSaidWhenResumed},
    {"loader_threads", "processor", "threads that fill a batch; their number does not change the batch",
     WholeAt<&W::loader_threads>(1, kLoaderThreadsMax)},
    {"prefetch_depth", "processor",
     "batches filled ahead of the trainer; 0: the trainer fills each batch itself; -1: 3 if affinity and CPU quota "
     "grant "
     "more cores than --threads, else 0",
     WholeAt<&W::asked, &Asked::prefetch_depth>(-1, kPrefetchDepthMax), 0,
     WholeAt<&W::prefetch_depth>(0, kPrefetchDepthMax)},
    {"device", "processor", "auto: cuda where the driver shows a GPU, else cpu", OneOfAt<kDevices, &W::device>(),
     kSameOnAllRanks | kSaidWhenResumed | kPeerTakes},
    {"math", "processor",
     "cuda: the format that matrix products round their factors to; sums are always fp32; bf16 also stores activations "
     "and their gradients in bf16",
     OneOfAt<kMaths, &W::math>(), kSameOnAllRanks | kSaidWhenResumed | kPeerTakes},
    {"conv", "processor",
     "cuda: who computes convolutions; cudnn: deterministic engines that its heuristics choose, never by timing; "
     "own: Starring's kernels and cuBLASLt, which have no bf16; auto: own in fp32, else cudnn where it is found",
     OneOfAt<kConvolutions, &W::conv>(), kSameOnAllRanks | kSaidWhenResumed},
    {"share_gpus", "processor", "cuda: workers may share a GPU; else more workers than GPUs are refused",
     SwitchAt<&W::share_gpus>(), kPeerTakes},
    {"cuda_graph", "processor", "cuda: a step is captured once and launched as a whole; does not change the bits",
     SwitchAt<&W::cuda_graph>()},
    {"data_on_gpu", "processor",
     "cuda: the GPU has the data set and makes the batches; auto: if it takes at most half of the free memory; does "
     "not change the bits",
     OneOfAt<kDataOnGpus, &W::data_on_gpu>()},
    {"cuda_aware_mpi", "processor",
     "cuda over mpi; auto: MPI sends from GPU to GPU if the library says that it can and passes a test at the start; "
     "try: the test alone decides, and may end the process; off: through pinned host memory; does not change the bits",
     OneOfAt<kCudaAwareMpis, &W::cuda_aware_mpi>(), kSameOnAllRanks},

    // A checkpoint is collective: a rank that had none to write would leave the others waiting.
    {"checkpoint_dir", "checkpoint",
     "folder for checkpoints; none: none are written; empty: one is written at the end or a stop, or as often as "
     "--checkpoint_every_epochs or _steps say, into starring-checkpoints/RUN here",
     TextAt<&W::asked, &Asked::checkpoint_dir>("folder or none"), kGivenOnAllRanks,
     TextAt<&W::checkpoint_dir>("folder")},
    {"checkpoint_every_epochs", "checkpoint", "epochs between checkpoints",
     WholeAt<&W::checkpoint_every_epochs>(1, kEpochCountMax), kSameOnAllRanks},
    {"checkpoint_every_steps", "checkpoint", "steps of the run between further checkpoints; 0: none",
     WholeAt<&W::checkpoint_every_steps>(0, kStepCountMax), kSameOnAllRanks},
    {"save_best", "checkpoint", "the epoch with the lowest test loss is kept in the folder `best` of --checkpoint_dir",
     SwitchAt<&W::save_best>(), kSameOnAllRanks},
    {"checkpoint_deadline_s", "checkpoint", "seconds to wait, at the end or a stop, for the last checkpoint",
     SecondsAt<&W::checkpoint_deadline>(1, kDeadlineSecondsMax)},
    {"resume", "checkpoint", "continue from the newest whole checkpoint in --checkpoint_dir, if any",
     SwitchAt<&W::resume>()},
    {"warm_start", "checkpoint", "safetensors to begin with; with --resume a checkpoint comes first",
     TextAt<&W::warm_start>("file"), kSameContent},

    {"evaluate", "after training",
     "instead of training: loss and metrics of this checkpoint on the test set; any number of workers has the same "
     "bits",
     TextAt<&W::evaluate>("folder"), kGivenOnAllRanks},
    {"predict", "after training", "by one process: the same, and its predictions for the test set go to --out",
     TextAt<&W::predict>("folder")},
    {"out", "after training", "the predictions, in the order of the samples: FILE.csv or FILE.npy",
     TextAt<&W::out>("file")},

    {"record", "output", "rank 0 writes the run record, JSON, to this file", TextAt<&W::record>("file"), kPeerTakes},
    {"record_losses", "output", "--record has every step's loss; all workers have this flag or none",
     SwitchAt<&W::record_losses>(), kSameOnAllRanks | kPeerTakes},
    {"trace", "output",
     "every worker writes a timeline (Chrome trace events) at the end; trace.json becomes trace.worker-RANK.json",
     TextAt<&W::trace>("file")},
    {"tensorboard_dir", "output", "rank 0 writes a TensorBoard event file into this folder",
     TextAt<&W::tensorboard_dir>("folder")},
    {"tensorboard_every_steps", "output", "steps between two points of TensorBoard's step/ curves",
     WholeAt<&W::tensorboard_every_steps>(1, kStepCountMax)},
    {"metrics_port", "output",
     "serves live numbers at http://ADDRESS:PORT/metrics (Prometheus); rank r takes this port + r; 0: a free one; -1: "
     "none",
     WholeAt<&W::metrics_port>(-1, kPortMax)},
    {"metrics_address", "output", "address of --metrics_port; 0.0.0.0: every address of the machine",
     TextAt<&W::metrics_address>("address")},
    {"progress", "output", "progress of rank 0; auto: live on a terminal, else plain",
     OneOfAt<kProgressStyles, &W::progress>()},
    {"log_time", "output", kLogTimeMeaning, OneOfAt<kLogTimes, &W::log_time>(), kNotRecorded},

    {"insecure", "security",
     "tcp: without --job_secret, also meet at an address other than loopback: any process that reaches it can join",
     SwitchAt<&W::insecure>(), kNotRecorded},
};
inline constexpr auto kAllRows = JoinRows(kRows, kSecurityRows<&W::security_files>);

}  // namespace worker_flags

const FlagTable& WorkerFlags();

// AgreedFlags of `options`, with where a run without --checkpoint_dir saves: to save is collective.
std::vector<std::pair<std::string, std::string>> AgreedWorkerFlags(const WorkerOptions& options);

// Reads argv and what the launcher (mpirun, srun) says. InvalidArgument names the flag, its value and the way out.
absl::StatusOr<WorkerOptions> ParseWorkerOptions(int argc, const char* const* argv,
                                                 const LauncherEnvironment& launcher);

}  // namespace starring

#endif  // STARRING_WORKER_OPTIONS_WORKER_OPTIONS_H_
