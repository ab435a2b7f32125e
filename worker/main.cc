// //worker: one training process. --help shows its flags, worker/README.md says how to start it.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/atomic_file.h"
#include "common/base/memory.h"
#include "common/base/not_written.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/flags/command_line.h"
#include "common/host/exhausted.h"
#include "common/host/host_identity.h"
#include "common/host/launcher_environment.h"
#include "common/host/log.h"
#include "common/host/machine_limits.h"
#include "common/host/standard_streams.h"
#include "common/job/bucket_map.h"
#include "common/job/cells.h"
#include "common/job/leaf_shares.h"
#include "common/metrics/metrics.h"
#include "common/metrics/trace.h"
#include "common/transport/mpi/mpi_runtime.h"
#include "common/transport/tcp/openssl_tls.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "common/transport/tcp/tcp_transport.h"
#include "common/watch/progress_state.h"
#include "common/watch/stall_report.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_watch.h"
#include "worker/check/check.h"
#include "worker/check/meeting.h"
#include "worker/checkpoint/checkpoint_place.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/checkpointer.h"
#include "worker/checkpoint/warm_start.h"
#include "worker/data/dataset.h"
#include "worker/data/normalization.h"
#include "worker/elastic/elastic_run.h"
#include "worker/exchange/local/local_exchange.h"
#include "worker/exchange/peer/nccl/nccl_library.h"
#include "worker/exchange/peer/nccl/nccl_transport.h"
#include "worker/exchange/peer/peer_exchange.h"
#include "worker/exchange/star/star_exchange.h"
#include "worker/model/layer_file.h"
#include "worker/model/network.h"
#include "worker/model/network_graph.h"
#include "worker/options/deciding_facts.h"
#include "worker/options/device_choice.h"
#include "worker/options/worker_options.h"
#include "worker/predict/predict.h"
#include "worker/report/dashboards.h"
#include "worker/report/run_record.h"
#include "worker/step/cuda_training_step.h"
#include "worker/step/gpu_memory.h"
#include "worker/step/training_step.h"
#include "worker/train/known_answer.h"
#include "worker/train/segment.h"
#include "worker/train/stop_request.h"
#include "worker/train/train_result.h"
#include "worker/train/trainer.h"

namespace starring {
namespace {

constexpr absl::Duration kReadingWorthALine = absl::Seconds(2);

// The instruments that observe the run; each is null unless its flag asks for it. The order matters: a member may refer
// to those above it, so it must be destroyed before them.
struct Instruments {
  std::unique_ptr<Trace> trace;
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<WorkerMetrics> worker_metrics;
  std::unique_ptr<Tensorboard> tensorboard;

  std::vector<RunObserver*> observers(int rank) const {
    std::vector<RunObserver*> all;
    if (worker_metrics != nullptr) all.push_back(worker_metrics.get());
    if (tensorboard != nullptr && rank == 0) all.push_back(tensorboard.get());
    return all;
  }
};

absl::StatusOr<Instruments> CreateInstruments(const WorkerOptions& options) {
  Instruments instruments;
  if (!options.trace.empty()) {
    ASSIGN_OR_RETURN(instruments.trace, Trace::Create({.path = options.trace, .number = options.rank}));
  }
  // Rank r takes the port + r, because the ranks of one machine cannot share one. 0 stays 0: the system chooses.
  if (options.metrics_port >= 0) {
    const int port = options.metrics_port == 0 ? 0 : options.metrics_port + options.rank;
    ASSIGN_OR_RETURN(instruments.metrics, Metrics::Start({.address = options.metrics_address, .port = port}));
    instruments.worker_metrics = std::make_unique<WorkerMetrics>(instruments.metrics.get());
    Log(absl::StrCat("metrics at ", instruments.metrics->url()));
  }
  // Any worker of an elastic run may become rank 0.
  if (options.rank == 0 || options.elastic) RETURN_IF_ERROR(CheckRunRecord(options.record));
  if (!options.tensorboard_dir.empty() && (options.rank == 0 || options.elastic)) {
    ASSIGN_OR_RETURN(
        instruments.tensorboard,
        Tensorboard::Create({.dir = options.tensorboard_dir, .steps_per_point = options.tensorboard_every_steps}));
  }
  return instruments;
}

// The parts that a job needs to train, once or for each generation of an elastic run.
struct JobParts {
  const LauncherEnvironment* launcher = nullptr;
  const DeviceChoice* choice = nullptr;
  CudaTrainingStepOptions cuda_step;
  MpiRuntime* mpi = nullptr;
  absl::StatusOr<NcclLibrary> nccl = absl::UnavailableError("not loaded");  // with --sync=nccl
  CudaWatch* watch = nullptr;
  const Instruments* instruments = nullptr;
  TrainOptions training;  // TrainJob fills in the segment, and the members that are made for the segment

  const WorkerOptions& options() const { return *training.worker; }
};

void SayInLog(const std::string& line) { Log(line); }

// How this process reports that it is stuck, and what it tells the other processes about itself.
StallOptions MakeStallOptions(const WorkerOptions& options, const ProgressState* progress, Progress::Style style) {
  // On a terminal the report replaces the live line; the next step writes that line again.
  if (style == Progress::Style::kLive && isatty(STDERR_FILENO) != 0) ClearBeforeLog("\r\x1b[K");
  return {.times = {.report_after = absl::ToChronoMilliseconds(options.stall_report)},
          .progress = progress,
          .say = SayInLog};
}

// The bytes that a rank may send before their receive is posted (TcpRendezvousOptions).
int64_t UnexpectedBytesMax(const WorkerOptions& options) {
  if (options.micro_batches == 0 || options.server_ranks > 0) return 0;
  return TcpUnexpectedBytesMax(options.world_size,
                               DealLeavesEvenly(static_cast<int>(options.micro_batches), options.world_size));
}

// How the ranks of --transport=tcp find each other.
absl::StatusOr<TcpRendezvousOptions> MakeRendezvousOptions(const WorkerOptions& options) {
  ASSIGN_OR_RETURN(std::shared_ptr<const TlsContext> tls, TlsContextOf(options.security));
  return TcpRendezvousOptions{.rank = options.rank,
                              .world_size = options.world_size + options.server_ranks,
                              .server_count = options.server_ranks,
                              .rendezvous = options.rendezvous,
                              .listener = std::nullopt,
                              .bound_fd = options.rendezvous_fd,
                              .ports = options.port_range,
                              .run_id = options.run_id,
                              .token = options.security.rank_key,
                              .insecure = options.insecure,
                              .tls = std::move(tls),
                              .join_deadline = options.join_deadline,
                              .exchange_deadline = options.exchange_deadline,
                              .unexpected_bytes_max = UnexpectedBytesMax(options),
                              .stall_report = options.stall_report,
                              .say = SayInLog};
}

// The transport of the messages between ranks.
struct PeerTransport {
  std::unique_ptr<Transport> transport;
  MpiTransport* mpi = nullptr;    // the network, if it is MPI's
  NcclTransport* nccl = nullptr;  // the transport itself, with --sync=nccl
};

// The one place that chooses it. Over TCP it returns when all ranks are connected.
absl::StatusOr<PeerTransport> CreateTransport(const JobParts& parts) {
  const WorkerOptions& options = parts.options();
  PeerTransport peers;
  if (options.UsesMpi()) {
    std::unique_ptr<MpiTransport> transport = CreateMpiTransport(*parts.mpi);
    peers.mpi = transport.get();
    peers.transport = std::move(transport);
  } else {
    ASSIGN_OR_RETURN(TcpRendezvousOptions rendezvous, MakeRendezvousOptions(options));
    ASSIGN_OR_RETURN(peers.transport, ConnectFullMesh(std::move(rendezvous)));
  }
  if (options.sync == Sync::kNccl) {
    const int ordinal = parts.choice->cuda->info().ordinal;
    auto nccl = std::make_unique<NcclTransport>(
        std::move(peers.transport),
        NcclTransport::Options{.gpu = parts.choice->cuda.get(),
                               .library = parts.nccl,
                               .may_share_gpus = parts.launcher->nccl_may_share_gpus,
                               .watch = parts.watch,
                               .enter_gpu = [ordinal] { (void)MakeCudaDeviceCurrent(ordinal); }});
    peers.nccl = nccl.get();
    peers.transport = std::move(nccl);
  }
  return peers;
}

PeerExchange::Algorithm AlgorithmOf(const WorkerOptions& options) {
  if (options.RanksChoose()) return PeerExchange::Algorithm::kFastest;
  const Cell& cell = options.cell();
  if (cell.placement == Placement::kEachRank) return PeerExchange::Algorithm::kAllreduce;
  if (cell.placement == Placement::kServers) return PeerExchange::Algorithm::kDedicated;
  return cell.sync == Sync::kRing ? PeerExchange::Algorithm::kRing : PeerExchange::Algorithm::kDirect;
}

PeerExchange::HostSharing SharingOf(const WorkerOptions& options) {
  if (options.same_host == SameHost::kSharedMemory) {
    const bool may_send = options.cell().placement == Placement::kServers;
    return may_send ? PeerExchange::HostSharing::kIfPossible : PeerExchange::HostSharing::kRequired;
  }
  // Memory of a GPU does not come into the host's.
  const bool may =
      options.RanksAreOwners() && !options.asked.same_host.has_value() && options.cuda_aware_mpi == CudaAwareMpi::kOff;
  return may ? PeerExchange::HostSharing::kIfPossible : PeerExchange::HostSharing::kNever;
}

// While a GPU computes, most cores of a rank are idle: several threads then add the gradients that come into memory of
// the host. A CPU's ranks have use for all cores. Ranks that share memory are all on this host, so each has its part of
// the cores, unless the launcher has given it some of its own.
int UpdateThreadsOf(const WorkerOptions& options, const LauncherEnvironment& launcher, const CudaDevice* cuda) {
  constexpr int kThreadsMax = 4;  // more do not read memory faster
  if (cuda == nullptr) return 1;
  const bool has_own_cores = launcher.launcher == Launcher::kSlurm || !launcher.cores_per_worker.empty();
  const int cores = CountedCores(launcher.core_limits) / (has_own_cores ? 1 : std::max(1, options.world_size));
  return std::clamp(cores - options.threads - options.loader_threads, 1, kThreadsMax);
}

absl::StatusOr<std::unique_ptr<GradientExchange>> CreateExchange(const JobParts& parts, const Segment& segment,
                                                                 StallOptions stall) {
  const WorkerOptions& options = parts.options();
  CudaDevice* const cuda = parts.choice->cuda.get();
  const Cell& cell = options.cell();
  if (!cell.Exchanges()) {
    const bool step_updates = cuda != nullptr && parts.cuda_step.optimizer.has_value();
    return CreateLocalExchange(parts.training.track,
                               step_updates ? LocalUpdates::kTrainingStep : LocalUpdates::kExchange);
  }
  if (cell.contact == Contact::kServers) {
    return CreateStarExchange({.addresses = options.servers,
                               .lanes = options.lanes,
                               .run_id = options.run_id,
                               .security = options.security,
                               .same_host = options.same_host,
                               .trace = parts.training.trace,
                               .stall = std::move(stall),
                               .superseded = options.elastic ? segment.is_over : nullptr});
  }
  // All others go over one transport, and differ in the way of the messages. Without a device the exchange takes and
  // gives host memory.
  ASSIGN_OR_RETURN(PeerTransport peers, CreateTransport(parts));
  return std::make_unique<PeerExchange>(
      std::move(peers.transport),
      PeerExchange::Options{
          .algorithm = AlgorithmOf(options),
          .sharing = SharingOf(options),
          .shares_gpu_memory = options.same_host == SameHost::kGpuMemory,
          .gpus_wait = options.gpu_waits == GpuWaits::kGraph && options.same_host == SameHost::kGpuMemory,
          .gpu = cuda,
          .update_threads = UpdateThreadsOf(options, *parts.launcher, cuda),
          .server_count = options.server_ranks,
          .mpi = peers.mpi,
          .nccl = peers.nccl,
          .trace = parts.training.trace,
          .device = options.cuda_aware_mpi != CudaAwareMpi::kOff ? cuda : nullptr,
          .tries_device_memory = options.cuda_aware_mpi == CudaAwareMpi::kTry,
          .stall = std::move(stall)});
}

// Too little memory of the GPU is refused as a wrong flag is: a restart with the same flags cannot help.
absl::Status RefuseIfOutOfGpuMemory(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kResourceExhausted) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(status.message()), ": give a smaller --global_batch, more GPUs or --device=cpu"));
}

// The exchange and the step, each of which may hold memory of the other.
struct ExchangeAndStep {
  std::unique_ptr<GradientExchange> exchange;
  std::unique_ptr<TrainingStep> step;

  ExchangeAndStep() = default;
  ExchangeAndStep(ExchangeAndStep&&) = default;
  // In this order: the exchange stops using the step's memory, the step ends, the exchange ends. The step has pinned
  // memory of the exchange, so the exchange must outlive it.
  ~ExchangeAndStep() {
    if (exchange == nullptr || exchange->Release()) {
      step.reset();
      return;
    }
    // An operation in flight may still write into both. The process is about to end, so their memory is not freed.
    static_cast<void>(step.release());
    static_cast<void>(exchange.release());
  }
};

ExchangeBytes ExchangeBytesOf(const WorkerOptions& options) {
  if (options.cuda_aware_mpi != CudaAwareMpi::kOff && options.cell().May(Cell::kGpuMemory)) {
    const auto of = [algorithm = AlgorithmOf(options), optimizer = options.optimizer, rank = options.rank,
                     cut = BucketMap::Options{.bucket_bytes = options.bucket_bytes,
                                              .world_size = options.BucketWorldSize()}](int64_t element_count) {
      BucketMap::Options with_count = cut;
      with_count.element_count = element_count;
      const absl::StatusOr<BucketMap> buckets = BucketMap::Create(with_count);
      // TrainJob refuses a wrong cut, with its reason.
      return buckets.ok() ? PeerExchange::CudaAwareBytes(algorithm, optimizer, *buckets, rank) : int64_t{0};
    };
    return {.of = of};
  }
  if (options.world_size == 1) return {};
  if (options.sync == Sync::kNccl) {
    const auto of = [optimizer = options.optimizer](int64_t element_count) {
      return PeerExchange::NcclBytes(optimizer, element_count);
    };
    return {.of = of, .has_other_way = false};
  }
  if (options.same_host != SameHost::kGpuMemory) return {};
  return {.of = [optimizer = options.optimizer, world_size = options.world_size](int64_t element_count) {
    return PeerExchange::SharedGpuBytes(optimizer, element_count, world_size);
  }};
}

// How the network stores activations.
Element ElementOf(const WorkerOptions& options) {
  return options.math == CudaMath::kBf16 ? Element::kBfloat16 : Element::kFloat32;
}

// All options but the device and the place of the data set, which depend on the GPU's memory.
CudaTrainingStepOptions MakeCudaStepOptions(const WorkerOptions& options, const NetworkOptions& shape,
                                            const TrainAndTest& data) {
  // Only a single worker applies the optimizer on its GPU, and not with --clip_norm, whose norm is computed in host
  // memory. In a star or a ring the owners of the slices do.
  const bool step_updates = !options.cell().Exchanges() && options.optimizer.clip_norm == 0;
  return {.optimizer = step_updates ? std::optional(options.optimizer) : std::nullopt,
          .graphs = options.cuda_graph ? CudaGraphs::kCaptured : CudaGraphs::kNone,
          .data = &data,
          .element = shape.element,
          .augment = options.augment,
          .seed = options.seed,
          .batch_max = shape.batch_max,
          .evaluation_batch_max = shape.evaluation_batch_max};
}

absl::StatusOr<ExchangeAndStep> CreateExchangeAndStep(const JobParts& job, const BucketMap& buckets,
                                                      const Segment& segment, StallOptions stall) {
  const WorkerOptions& options = job.options();
  ExchangeAndStep work;
  ASSIGN_OR_RETURN(work.exchange, CreateExchange(job, segment, std::move(stall)));
  const TrainingStepParts parts{
      .network = job.training.network,
      .exchange = work.exchange.get(),
      .buckets = &buckets,
      .rank = options.rank,
      .world_size = options.world_size,
      .micro_batches = static_cast<int>(options.micro_batches),
      .leaf_owners = segment.leaf_owners,
      .on_leaf = segment.on_leaf,
      .exchange_part = options.cell().Exchanges() ? StepPart::kExposedExchange : StepPart::kOptimizer,
      .trace = job.training.trace};
  if (job.choice->cuda == nullptr) {
    ASSIGN_OR_RETURN(work.step, CreateCpuTrainingStep(parts, job.choice->cpu.get()));
    return work;
  }
  CudaTrainingStepOptions cuda_step = job.cuda_step;
  cuda_step.device = job.choice->cuda.get();
  auto step = CreateCudaTrainingStep(parts, cuda_step);
  if (!step.ok()) return RefuseIfOutOfGpuMemory(step.status());
  work.step = *std::move(step);
  return work;
}

// Ends this process when the GPU, or the driver, has not answered for --exchange_deadline_s. No destructor runs:
// destructors would wait for the GPU too. The peers see the process end.
class GpuHangWatch {
 public:
  explicit GpuHangWatch(const WorkerOptions& options)
      : deadline_(options.exchange_deadline),
        watch_({.deadline = absl::ToChronoNanoseconds(deadline_),
                .hangs = [this](const char* call, const std::string& late) { End(call, late); }}) {}
  CudaWatch* watch() { return &watch_; }
  // The work that this process is doing; the message names it.
  ProgressState* state() { return &state_; }
  void NameGpu(const CudaDeviceInfo& info) { gpu_ = absl::StrCat("GPU ", info.ordinal, " (", info.name, ")"); }

 private:
  [[noreturn]] void End(const char* call, const std::string& late_peers) const {
    std::fflush(stdout);
    if (!late_peers.empty()) {
      // The own GPU waits for theirs, and the call for it.
      Log(absl::StrCat(call, " has taken ", absl::FormatDuration(deadline_), ": ", gpu_, " waits for ", late_peers,
                       ": see what that process says; start again with --resume from the last checkpoint, or give a "
                       "larger --exchange_deadline_s where a step may take so long"),
          LogLevel::kError);
      _exit(kExitPeerMissing);
    }
    const WorkState work = state_.Read(ProgressState::Clock::now());
    const std::string when = work.phase == WorkPhase::kUnknown ? "" : absl::StrCat(", ", DescribeWork(work));
    Log(absl::StrCat(gpu_, " does not answer: ", call, " has taken ", absl::FormatDuration(deadline_), when,
                     ": nvidia-smi and the kernel's log (Xid) say what became of it; start again without it, with "
                     "--resume from the last checkpoint, or give a larger --exchange_deadline_s where a step may take "
                     "so long"),
        LogLevel::kError);
    _exit(kExitFailed);
  }

  const absl::Duration deadline_;
  std::string gpu_ = "the CUDA driver";
  ProgressState state_;
  CudaWatch watch_;  // last: its thread calls End, which reads the members above
};

// Mapped files are read once before the first step, for their checksum: a person who waits should know for what.
std::string DescribeReading(const TrainAndTest& data, absl::Duration reading) {
  int64_t bytes = 0;
  for (const Dataset* set : {&data.train, &data.test}) bytes += set->count * set->image_bytes();
  return absl::StrFormat("data: %.1f MB, checked in %.1f s, %s", static_cast<double>(bytes) / 1e6,
                         absl::ToDoubleSeconds(reading),
                         data.train.mapped == nullptr ? "in memory" : "mapped: the system keeps what fits");
}

void PrintHead(const WorkerOptions& options, const Network& network, const TrainAndTest& data,
               const DeviceChoice& choice, const GpuMemoryNeed& gpu_memory) {
  const char* const co_located = IsCoLocated(options.cell()) ? "co-located " : "";
  std::string topology = absl::StrCat(co_located, options.RanksChoose() ? "auto" : SyncName(options.sync), " with ",
                                      options.world_size, options.world_size == 1 ? " worker" : " workers");
  if (options.elastic) topology = absl::StrCat("elastic star, ", options.micro_batches, " micro-batches");
  std::printf("%s, %lld parameters, on %s (%lld training images), %s, on %s\n", options.model.c_str(),
              static_cast<long long>(network.layout().parameter_count()), options.dataset.name.c_str(),
              static_cast<long long>(data.train.count), topology.c_str(), choice.device()->name().c_str());
  if (!data.class_names.empty()) std::printf("%s\n", DescribeClassNames(data.class_names).c_str());
  if (!choice.note.empty()) std::printf("%s\n", choice.note.c_str());
  // A person who asks for a ring or a star hardly means a job of one process.
  if (options.world_size == 1 && options.asked.world_size == 0 && options.cell().Exchanges() && !options.elastic) {
    std::printf(
        "note: this is the only worker: mpirun, srun or launch starts several, or --rank and --world_size say so\n");
  }
  if (options.micro_batches > 0 && network.statistics_size() > 0) {
    std::printf(
        "batch norm takes each micro-batch by itself: the model learns otherwise with another --micro_batches\n");
  }
  if (choice.cuda != nullptr) std::printf("%s\n", DescribeGpuMemory(gpu_memory, *choice.cuda).c_str());
  std::fflush(stdout);
}

void PrintResult(const WorkerOptions& options, const TrainResult& result) {
  // An elastic run that was ordered to end has no step in its last generation.
  std::string step_time = result.steps > 0 ? absl::StrFormat(", p50 %.3f ms a step", result.step_summary.p50_ms) : "";
  if (result.steps == 0 && result.resumed_from_step > 0) step_time = ", 0 of them by this run";
  std::printf("%s after %lld steps%s, parameters %.12s\n", result.stopped_early ? "stopped" : "done",
              static_cast<long long>(result.next_step), step_time.c_str(), result.parameter_sha256.c_str());
  if (result.converged) {
    std::printf("--early_stop=%lld: epoch %lld has the lowest test loss, %.4f\n",
                static_cast<long long>(options.early_stop), static_cast<long long>(result.best.epoch),
                result.best.test_loss);
  }
  if (result.best_saved_step > 0) {
    std::printf("epoch %lld, which has the lowest test loss, is saved in %s/best\n",
                static_cast<long long>(result.best_saved_step / result.steps_per_epoch),
                options.checkpoint_dir.c_str());
  }
  if (result.checkpoint_saved) {
    const char* const then = result.stopped_early ? ": --resume goes on from there" : "";
    // Any worker of an elastic run may have saved, and all of them need the folder to go on.
    const char* const where =
        options.elastic ? " goes on from there, with the folder on each worker's host, " : " goes on from there, ";
    const std::string use = absl::StrCat(
        options.elastic ? absl::StrCat(" on ", HostName()) : "",
        result.stopped_early ? absl::StrCat(": --checkpoint_dir=", result.checkpoint_dir, " --resume", where) : ": ",
        "--evaluate and --predict take that folder");
    std::printf("saved in %s%s\n", result.checkpoint_dir.c_str(), options.saves_by_default ? use.c_str() : then);
  } else if (options.checkpoint_dir.empty()) {
    std::printf("nothing was saved: --checkpoint_dir=FOLDER saves parameters and state there\n");
  }
}

Progress::Style ChooseStyle(const WorkerOptions& options, const LauncherEnvironment& launcher) {
  if (options.rank != 0) return Progress::Style::kNone;
  // mpirun gives its ranks a terminal even when its own output goes to a file.
  const bool is_terminal = launcher.output_is_ours && isatty(STDOUT_FILENO) != 0;
  return options.progress.value_or(is_terminal ? Progress::Style::kLive : Progress::Style::kPlain);
}

// The facts about this machine that decide the bits. Ranks on machines of several kinds may train together.
Facts MachineFacts(const WorkerOptions& options, const DeviceChoice& choice) {
  if (choice.cuda == nullptr) return CpuArithmetic(options.isa.value_or(BestInstructionSet()));
  // "cuda:1 (NVIDIA H100 ...)": GPUs of one kind compute alike, so the ordinal is left out.
  const std::string name = choice.device()->name();
  return {{"arithmetic.gpu", name.substr(name.find('('))}};
}

// With micro-batches any worker may compute any part of the sum, so the workers compare what they compute.
Facts FactsOfAnswer(const KnownAnswer& answer, Facts machine_facts) {
  // Its name sorts behind those of the facts that may be the cause: a refusal names the first that differs.
  machine_facts.emplace_back("known_answer.first_leaf", answer.sha256);
  return machine_facts;
}

// TrainOptions::device_facts of a run that is not elastic. The arguments outlive the function that is returned.
std::function<absl::StatusOr<Facts>()> DeviceFactsOf(const TrainOptions& training, const CudaDevice* cuda) {
  const WorkerOptions& options = *training.worker;
  if (options.micro_batches > 0 && options.world_size > 1) {
    return [&training]() -> absl::StatusOr<Facts> {
      ASSIGN_OR_RETURN(const KnownAnswer answer,
                       ComputeKnownAnswer(*training.worker, *training.data, training.network));
      return FactsOfAnswer(answer, training.machine_facts);
    };
  }
  if (cuda == nullptr || cuda->cudnn_version().empty()) return nullptr;
  return [cuda] { return DeviceFacts(*cuda); };
}

// The last line and the run record. Only rank 0 writes them: it has gathered the other ranks' part of both.
absl::Status ReportRun(const JobParts& parts, const ExchangeAndStep& work, const TrainResult& result) {
  const DeviceChoice& choice = *parts.choice;
  WorkerOptions options = parts.options();
  const ExchangeFacts exchange_facts = work.exchange->facts();
  const std::optional<ExchangeChoice>& exchange_choice = exchange_facts.choice;
  if (exchange_choice.has_value()) options.sync = exchange_choice->sync;
  if (result.checkpoint_saved) options.checkpoint_dir = result.checkpoint_dir;
  if (options.rank != 0) return absl::OkStatus();
  if (ChooseStyle(options, *parts.launcher) != Progress::Style::kNone) PrintResult(options, result);
  std::fflush(stdout);
  if (options.record.empty()) return absl::OkStatus();
  std::map<std::string, std::string> versions = LibraryVersions(), engines;
  if (parts.mpi != nullptr) versions["mpi"] = parts.mpi->library().Name();
  if (options.sync == Sync::kNccl && parts.nccl.ok()) versions["nccl"] = nccl::VersionText(parts.nccl->version);
  if (choice.cuda != nullptr && !choice.cuda->cudnn_version().empty()) {
    versions["cudnn"] = choice.cuda->cudnn_version();
    engines = choice.cuda->engines();
  }
  Facts facts = parts.training.facts;
  std::ranges::copy(parts.training.machine_facts, std::back_inserter(facts));
  return WriteRunRecord({.options = &options,
                         .data = parts.training.data,
                         .result = &result,
                         .facts = std::move(facts),
                         .device = choice.device()->name(),
                         .gpu_transfer = options.sync == Sync::kNccl && options.world_size > 1
                                             ? "nccl"
                                             : std::string(work.step->transfer()),
                         .data_on_gpu = work.step->batch_format() == Loader::Format::kSamples,
                         .cores_per_worker = parts.launcher->cores_per_worker,
                         .cores_per_server = parts.launcher->cores_per_server,
                         .cpu_quota = parts.launcher->core_limits.quota,
                         .versions = std::move(versions),
                         .engines = std::move(engines),
                         .sync_reason = exchange_choice.has_value() ? exchange_choice->reason : "",
                         .same_host_reason = exchange_facts.same_host_reason});
}

absl::StatusOr<TrainResult> TrainJob(const JobParts& parts, const Segment& segment) {
  const WorkerOptions& options = parts.options();
  TrainOptions training = parts.training;
  ASSIGN_OR_RETURN(const BucketMap buckets,
                   BucketMap::Create({.element_count = training.network->layout().element_count(),
                                      .bucket_bytes = options.bucket_bytes,
                                      .world_size = options.BucketWorldSize()}));
  // The rank of an elastic run's worker is known only now.
  training.progress = ChooseStyle(options, *parts.launcher);
  ASSIGN_OR_RETURN(
      const ExchangeAndStep work,
      CreateExchangeAndStep(parts, buckets, segment, MakeStallOptions(options, training.state, training.progress)));
  training.exchange = work.exchange.get();
  training.buckets = &buckets;
  training.step = work.step.get();
  training.report = [&](const TrainResult& result) { return ReportRun(parts, work, result); };
  training.observers = parts.instruments->observers(options.rank);
  training.segment = segment;
  return Train(training);
}

// Sets the options of each generation.
absl::Status TrainElastic(JobParts parts, WorkerOptions* options) {
  TrainOptions& training = parts.training;
  RETURN_IF_ERROR(Checkpointer::CheckFolder(*options));
  ASSIGN_OR_RETURN(const KnownAnswer answer, ComputeKnownAnswer(*options, *training.data, training.network));
  Facts facts = FactsOfAnswer(answer, training.machine_facts);
  // Computed once, and given to each generation.
  training.device_facts = [facts] { return facts; };
  std::ranges::copy(training.facts, std::back_inserter(facts));
  // All workers have shown the same data, so each of them computes the normalization alone.
  training.normalization = NormalizationOf(training.data->train, options->normalize);
  int64_t first_step = 0;
  if (options->resume) {
    ASSIGN_OR_RETURN(first_step, Checkpointer::NewestStep(*options, training.network));
  }
  return RunElastic({.options = options,
                     .data = training.data,
                     .network = training.network,
                     .facts = std::move(facts),
                     .first_step = first_step,
                     .trial_leaf_seconds = answer.seconds,
                     .state = training.state,
                     .stop_requested = StopRequested,
                     .say = SayInLog,
                     .train = [&](const Segment& segment) { return TrainJob(parts, segment); }});
}

// The options are a copy, in which ChooseDevice replaces "auto" by its choice.
absl::Status RunJob(WorkerOptions options, const LauncherEnvironment& launcher, MpiRuntime* mpi,
                    const Instruments& instruments, GpuHangWatch* gpu_hang_watch) {
  TraceTrack* const track = AddTrack(instruments.trace.get(), {.name = "compute"});
  ASSIGN_OR_RETURN(const LayerFile layers, LayerFile::Load(options.model));
  options.dataset.target = TargetOf(LossOf(layers).kind);
  const absl::Time begin = SteadyNow();
  ASSIGN_OR_RETURN(const TrainAndTest data, LoadDataset(options.dataset));
  const absl::Duration reading = SteadyNow() - begin;
  ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevice(launcher, &options, gpu_hang_watch->watch()));
  if (choice.cuda != nullptr) gpu_hang_watch->NameGpu(choice.cuda->info());
  // The parts of a batch differ by one sample at most, and the arena must hold the largest: hence the rounding up.
  const int64_t part_count = options.micro_batches > 0 ? options.micro_batches : options.world_size;
  const NetworkOptions network_options{.height = data.train.height,
                                       .width = data.train.width,
                                       .channels = data.train.channels,
                                       .outputs = data.train.outputs(),
                                       .batch_max = (options.global_batch + part_count - 1) / part_count,
                                       .evaluation_batch_max = kEvaluationBatch,
                                       .seed = options.seed,
                                       .element = ElementOf(options),
                                       .track = track};
  CudaTrainingStepOptions cuda_step = MakeCudaStepOptions(options, network_options, data);
  GpuMemoryNeed gpu_memory;
  if (choice.cuda != nullptr) {
    // The plan comes before any allocation on the GPU, so that a training that does not fit is refused with numbers.
    ASSIGN_OR_RETURN(gpu_memory, PlanGpuMemory(layers, network_options, options.data_on_gpu, *choice.cuda, &cuda_step,
                                               ExchangeBytesOf(options)));
  }
  absl::StatusOr<std::unique_ptr<Network>> created = Network::Create(layers, network_options, choice.device());
  if (!created.ok()) return choice.cuda == nullptr ? created.status() : RefuseIfOutOfGpuMemory(created.status());
  const std::unique_ptr<Network> network = *std::move(created);
  // The head is printed before the ranks meet, so that a person who waits for a missing rank sees the job's settings.
  const Progress::Style style = ChooseStyle(options, launcher);
  if (style != Progress::Style::kNone) PrintHead(options, *network, data, choice, gpu_memory);
  if (style != Progress::Style::kNone && reading > kReadingWorthALine) {
    std::printf("%s\n", DescribeReading(data, reading).c_str());
  }
  std::optional<WarmStart> warm_start;
  if (!options.warm_start.empty()) {
    ASSIGN_OR_RETURN(warm_start, WarmStart::Load(options.warm_start));
  }
  CheckpointWriter checkpoint_writer(options.checkpoint_deadline);
  JobParts parts{.launcher = &launcher,
                 .choice = &choice,
                 .cuda_step = cuda_step,
                 .mpi = mpi,
                 .watch = gpu_hang_watch->watch(),
                 .instruments = &instruments,
                 .training = {.worker = &options,
                              .data = &data,
                              .network = network.get(),
                              .checkpoint_writer = &checkpoint_writer,
                              .layer_file = layers.text(),
                              .facts = DecidingFacts(layers, data, launcher),
                              .machine_facts = MachineFacts(options, choice),
                              .trace = instruments.trace.get(),
                              .track = track,
                              .state = gpu_hang_watch->state()}};
  if (options.sync == Sync::kNccl) parts.nccl = NcclLibrary::Load(launcher.gpu_library_folders);
  if (options.saves_by_default) parts.training.default_dir = DefaultCheckpointDir(options, absl::Now());
  if (warm_start.has_value()) {
    parts.training.warm_start = &*warm_start;
    std::ranges::copy(warm_start->facts(), std::back_inserter(parts.training.facts));
  }
  if (options.elastic) return TrainElastic(std::move(parts), &options);
  parts.training.device_facts = DeviceFactsOf(parts.training, choice.cuda.get());
  ASSIGN_OR_RETURN(const TrainResult result, TrainJob(parts, {.stop = StopRequested}));
  return result.reported;
}

// The exchange among ranks that evaluate together, and the memory that it is given.
struct EvaluatingExchange {
  std::unique_ptr<std::array<float, EvaluatingRanks::kStartValues>> start_values;
  std::unique_ptr<GradientExchange> exchange;

  ~EvaluatingExchange() {
    if (exchange == nullptr || exchange->Release()) return;
    // An operation in flight may still write there. The process is about to end, so nothing is freed.
    static_cast<void>(start_values.release());
    static_cast<void>(exchange.release());
  }
};

// The ranks meet as they would for a training.
absl::StatusOr<EvaluatingRanks> MeetToEvaluate(const JobParts& parts, const TrainAndTest& data,
                                               EvaluatingExchange* work) {
  const WorkerOptions& options = parts.options();
  if (!options.cell().Exchanges()) return EvaluatingRanks();
  CudaDevice* const cuda = parts.choice->cuda.get();
  ASSIGN_OR_RETURN(work->exchange,
                   CreateExchange(parts, {}, MakeStallOptions(options, parts.training.state, Progress::Style::kNone)));
  work->start_values = std::make_unique<std::array<float, EvaluatingRanks::kStartValues>>();
  EvaluatingRanks ranks{.exchange = work->exchange.get(),
                        .job = {.rank = options.rank,
                                .world_size = options.world_size,
                                .sum_order = options.sum_order,
                                .deterministic = options.IsDeterministic(),
                                .agreed_flags = AgreedFlags(WorkerFlags(), &options),
                                .join_deadline = options.join_deadline,
                                .exchange_deadline = options.exchange_deadline},
                        .bucket_world_size = options.BucketWorldSize(),
                        .start_values = *work->start_values};
  for (const Facts& facts :
       {DatasetFacts(data), EnvironmentFacts(*parts.launcher), MachineFacts(options, *parts.choice)}) {
    std::ranges::copy(facts, std::back_inserter(ranks.job.agreed_flags));
  }
  if (cuda != nullptr && !cuda->cudnn_version().empty()) ranks.device_facts = [cuda] { return DeviceFacts(*cuda); };
  return ranks;
}

void PrintEvaluation(const Evaluation& evaluation) {
  if (!evaluation.note.empty()) std::printf("%s\n", evaluation.note.c_str());
  if (!evaluation.has_labels) return;
  std::printf("%s: %s, of %lld samples\n", evaluation.folder.c_str(), ToString(evaluation.quality).c_str(),
              static_cast<long long>(evaluation.samples));
  const std::string confused = MostConfused(evaluation.quality, evaluation.class_names);
  if (!confused.empty()) std::printf("%s\n", confused.c_str());
}

// --evaluate and --predict.
absl::Status PredictJob(WorkerOptions options, const LauncherEnvironment& launcher, MpiRuntime* mpi,
                        GpuHangWatch* gpu_hang_watch) {
  if (!options.out.empty()) RETURN_IF_ERROR(NotWritten(CheckFileWritable(options.out), "the predictions"));
  const std::string& checkpoint = options.predict.empty() ? options.evaluate : options.predict;
  options.dataset.for_prediction = options.dataset.test_fraction == 0;
  options.dataset.labels_may_be_rare = true;
  const ModelInput input = InputOf(checkpoint);
  options.dataset.columns_min = input.columns;
  options.dataset.target = input.target;
  ASSIGN_OR_RETURN(const TrainAndTest data, LoadDataset(options.dataset));
  if (!data.test.has_labels && options.predict.empty()) {
    return absl::InvalidArgumentError(
        "the test set has no labels, with which --evaluate compares: give them, or ask "
        "for --predict");
  }
  // The ranks exchange sums alone, by messages: NCCL has nothing to add.
  if (options.sync == Sync::kNccl) options.sync = Sync::kRing;
  ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevice(launcher, &options, gpu_hang_watch->watch()));
  if (choice.cuda != nullptr) gpu_hang_watch->NameGpu(choice.cuda->info());
  // So they need no choice of the fastest way, and nothing leaves a GPU's memory.
  options.asked.sync = options.sync;
  options.cuda_aware_mpi = CudaAwareMpi::kOff;
  if (options.same_host == SameHost::kGpuMemory) options.same_host = SameHost::kSocket;
  const JobParts parts{.launcher = &launcher,
                       .choice = &choice,
                       .mpi = mpi,
                       .training = {.worker = &options, .state = gpu_hang_watch->state()}};
  EvaluatingExchange work;
  ASSIGN_OR_RETURN(EvaluatingRanks ranks, MeetToEvaluate(parts, data, &work));
  const absl::StatusOr<Evaluation> asked = Predict({.checkpoint = checkpoint,
                                                    .data = &data,
                                                    .is_split = options.dataset.test_fraction > 0,
                                                    .out = options.out,
                                                    .device = choice.device(),
                                                    .element = ElementOf(options),
                                                    .ranks = std::move(ranks),
                                                    .state = gpu_hang_watch->state(),
                                                    .stop = StopRequested});
  if (!asked.ok()) return choice.cuda == nullptr ? asked.status() : RefuseIfOutOfGpuMemory(asked.status());
  if (options.rank == 0) PrintEvaluation(*asked);
  if (!options.out.empty()) std::printf("predictions in %s\n", options.out.c_str());
  return absl::OkStatus();
}

// This machine's GPUs in a few words: "2 x NVIDIA H200". Empty if there are none.
std::string GpusText(const WorkerOptions& options, CudaWatch* watch) {
  if (options.device == DeviceKind::kCpu) return "";
  const absl::StatusOr<std::vector<CudaDeviceInfo>> gpus = FindCudaDevices(watch);
  if (!gpus.ok() || gpus->empty()) return "";
  return absl::StrCat(gpus->size(), " x ", gpus->front().name);
}

// NCCL's version, or why a job could not use it.
absl::StatusOr<std::string> NcclText(const LauncherEnvironment& launcher, const std::string& gpus) {
  if (gpus.empty()) return absl::UnavailableError("no GPU is seen: start workers where GPUs are, or give --sync=ring");
  const absl::StatusOr<NcclLibrary> library = NcclLibrary::Load(launcher.gpu_library_folders);
  if (library.ok()) return nccl::VersionText(library->version);
  return absl::UnavailableError(absl::StrCat(std::string(library.status().message()), nccl::kInstall));
}

int Check(const WorkerOptions& options, const LauncherEnvironment& launcher, std::unique_ptr<MpiRuntime> mpi,
          TcpRendezvousOptions rendezvous, CudaWatch* watch) {
  // A signal may end the process at once: there is no step to finish and nothing to save.
  RestoreStopSignals();
  const std::string gpus = GpusText(options, watch);
  absl::StatusOr<std::string> nccl = "";
  if (options.sync == Sync::kNccl) nccl = NcclText(launcher, gpus);
  const CheckOutcome outcome = RunCheck({.options = &options,
                                         .launcher = &launcher,
                                         .mpi = mpi.get(),
                                         .rendezvous = &rendezvous,
                                         .gpu = gpus,
                                         .nccl = nccl.ok() ? *nccl : "",
                                         .no_nccl = std::string(nccl.status().message()),
                                         .print = [](const std::string& text) {
                                           std::fputs(text.c_str(), stdout);
                                           std::fflush(stdout);
                                         }});
  if (mpi != nullptr && outcome.mpi_is_stuck) mpi->ExitWithoutFinalize(outcome.exit_code);
  return outcome.exit_code;
}

int Main(int argc, char** argv) {
  // These calls come before any thread: a thread may read the environment, and signals must find their handlers.
  OpenStandardStreams();
  ExplainExhaustion("worker");
  EnterUsersFolder("worker");
  KeepFreedMemory();
  setenv("NCCL_COMM_BLOCKING", "0", 1);     // it would win over our flag, and calls would wait for other ranks
  setenv("GRPC_VERBOSITY", "NONE", 0);      // our own messages say what gRPC's log would
  setenv("OMP_WAIT_POLICY", "PASSIVE", 0);  // spinning OpenMP threads would take the exchange's core
  InstallStopSignals();
  signal(SIGXFSZ, SIG_IGN);  // at the limit of a file's size write() then fails, as on a full disk
  signal(SIGPIPE, SIG_IGN);  // a reader of the output may leave (head, a pager): the training goes on without it
  const LauncherEnvironment launcher = ReadLauncherEnvironment(getenv);
  absl::StatusOr<WorkerOptions> options = ParseWorkerOptions(argc, argv, launcher);
  absl::Status status = options.status();
  // The rank of an elastic run changes, the number that the process was given does not.
  NameLog(absl::StrCat("worker ", options.ok() ? options->rank : launcher.rank),
          options.ok() ? options->log_time : AskedLogTime(argc, argv));
  // MPI starts before the instruments: it sets variables of the environment, and metrics have threads, which must not
  // read the environment meanwhile.
  std::optional<GpuHangWatch> gpu_hang_watch;
  if (status.ok()) gpu_hang_watch.emplace(*options);
  std::unique_ptr<MpiRuntime> mpi;
  if (status.ok() && options->UsesMpi()) {
    // An MPI library that knows CUDA takes the GPU that is current in MPI_Init. A check sends nothing from a GPU.
    if (!options->check) MakeGpuCurrent(launcher, *options, gpu_hang_watch->watch());
    absl::StatusOr<std::unique_ptr<MpiRuntime>> started =
        MpiRuntime::Start(launcher, {.join_deadline = options->check ? kGatherDeadline : options->join_deadline,
                                     .stall_report = options->stall_report,
                                     .note = options->check ? OwnPlace(launcher) : "",
                                     .library = options->mpi});
    status = started.status();
    if (status.ok()) mpi = *std::move(started);
  }
  // Before the data is read, which may take a while.
  TcpRendezvousOptions rendezvous;
  if (status.ok() && options->cell().contact == Contact::kRendezvous) {
    absl::StatusOr<TcpRendezvousOptions> made = MakeRendezvousOptions(*options);
    status = made.ok() ? CheckRendezvousOptions(*made) : made.status();
    if (status.ok()) rendezvous = *std::move(made);
  }
  if (status.ok() && options->check) {
    return Check(*options, launcher, std::move(mpi), std::move(rendezvous), gpu_hang_watch->watch());
  }
  const bool predicts = status.ok() && !(options->evaluate.empty() && options->predict.empty());
  if (predicts) status = PredictJob(*options, launcher, mpi.get(), &*gpu_hang_watch);
  Instruments instruments;
  if (status.ok() && !predicts) {
    absl::StatusOr<Instruments> created = CreateInstruments(*options);
    status = created.status();
    if (status.ok()) instruments = *std::move(created);
  }
  if (status.ok() && !predicts) {
    status = RunJob(*std::move(options), launcher, mpi.get(), instruments, &*gpu_hang_watch);
    // Write the trace even if training failed; that is when it is needed.
    if (instruments.trace != nullptr) status.Update(NotWritten(instruments.trace->Write(), "the trace"));
  }
  if (status.ok()) return kExitOk;
  std::fflush(stdout);
  Log(std::string(status.message()), LogLevel::kError);
  // MPI_Finalize would wait for the peers, and they may have failed too. A file that is not written has ended no peer.
  if (mpi != nullptr && !IsNotWritten(status)) mpi->ExitWithoutFinalize(ExitCode(status));
  return ExitCode(status);
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) { return starring::Main(argc, argv); }
