// The worker's command line, resolved: the value of every flag, checked for contradictions.
#ifndef STARRING_WORKER_WORKER_OPTIONS_H_
#define STARRING_WORKER_WORKER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/arithmetic/instruction_set.h"
#include "common/arithmetic/optimizer.h"
#include "common/flags/flag_table.h"
#include "common/security/transport_security.h"
#include "worker/data/dataset.h"
#include "worker/launcher_environment.h"

namespace starring {

enum class Sync { kLocal, kStar, kRing, kMpi };
const char* SyncName(Sync sync);
// How a star's arrays travel between a worker and the servers of its own machine.
enum class SameHost { kSharedMemory, kSocket };
const char* SameHostName(SameHost same_host);
const char* ScheduleName(ScheduleKind kind);

// Whether a ring of GPUs may send from their memory: kAuto where MPI can.
enum class CudaAwareMpi { kOff, kAuto };
// Without a value: auto.
const char* InstructionSetName(std::optional<InstructionSet> isa);
const char* CudaAwareMpiName(CudaAwareMpi cuda_aware_mpi);
const char* DataOnGpuName(DataOnGpu data_on_gpu);

enum class ProgressStyle { kAuto, kLive, kPlain, kNone };

struct WorkerOptions {
  Sync sync = Sync::kLocal;
  int rank = 0;
  int world_size = 1;
  std::vector<std::string> servers;  // star: one address per shard, in shard order
  int lanes = 2;                     // star: streams per server
  std::string run_id;                // which attempt of which job this is; equal on all workers
  TransportSecurity security;        // star: as the servers have it
  SameHost same_host = SameHost::kSharedMemory;

  std::string model;
  DatasetOptions dataset;
  bool augment = false;

  int64_t epochs = 0;
  int64_t max_steps = 0;  // 0: no limit
  int64_t global_batch = 0;
  uint64_t seed = 0;

  OptimizerConfig optimizer;
  LearningRateSchedule schedule;  // cosine: total_steps 0 until the trainer knows the steps per epoch

  int threads = 1;
  int loader_threads = 0;
  int prefetch_depth = 0;
  std::optional<InstructionSet> isa;  // cpu; without a value: the best of this machine
  std::string device;                 // auto, cpu or cuda; ChooseDevice resolves auto
  std::string math;                   // cuda: fp32, tf32 or bf16
  std::string conv;                   // cuda: auto, cudnn or own; ChooseDevice resolves auto; empty on the CPU
  bool share_gpus = false;
  bool cuda_graph = true;
  DataOnGpu data_on_gpu = DataOnGpu::kAuto;
  CudaAwareMpi cuda_aware_mpi = CudaAwareMpi::kOff;
  int64_t bucket_bytes = 0;

  std::string checkpoint_dir;
  int64_t checkpoint_every_epochs = 0;
  int64_t checkpoint_every_steps = 0;  // beside the one above; 0: none
  bool resume = false;
  std::string record;
  bool record_losses = false;
  std::string trace;
  std::string tensorboard_dir;
  int64_t tensorboard_every_steps = 0;
  std::string metrics_address;
  int metrics_port = -1;  // -1: none; 0: a free one; else rank 0's, the others' follow
  ProgressStyle progress = ProgressStyle::kAuto;
  bool check = false;  // dial all peers and end, instead of training

  absl::Duration join_deadline;
  absl::Duration exchange_deadline;
  absl::Duration checkpoint_deadline = absl::Seconds(300);
  absl::Duration stall_report;

  // A star whose servers have loopback addresses: the whole job is on this machine.
  bool ServersAreHere() const;

  // What every rank must have set alike, as (flag, value), for JobSpec::agreed_flags.
  std::vector<std::pair<std::string, std::string>> AgreedFlags() const;
};

// Every flag of the worker.
const FlagTable& WorkerFlags();

// Reads argv and what the launcher (mpirun, srun) says. InvalidArgument names the flag, its value and the way out.
absl::StatusOr<WorkerOptions> ParseWorkerOptions(int argc, const char* const* argv,
                                                 const LauncherEnvironment& launcher);

}  // namespace starring

#endif  // STARRING_WORKER_WORKER_OPTIONS_H_
