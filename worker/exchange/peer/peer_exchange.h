// The exchange among ranks of one world: ring, co-located star, mpi and nccl among equals, and the dedicated star over
// TCP, whose last ranks are servers. A BucketMachine decides what happens to a bucket; this class starts and ends the
// job with the peers, waits, and decides which thread drives the transport.
//
// Threads. At any time at most one thread posts and polls, and with it is inside MPI: the thread that holds the mutex.
// In every call, above all in Await, that is the trainer's own thread: it has nothing else to do then, and no result
// waits for another thread to wake up. Between those calls, while the trainer computes, a background thread drives the
// messages in flight, because neither Open MPI nor TCP moves them on by itself. It does so in short visits, and waits
// in between without the mutex (Transport::Wait). With nothing in flight it sleeps until the next Submit and looks for
// notices twenty times a second. With shared memory it sleeps until another rank rings (host_board.h): a Submit need
// not wake it.
//
// Memory. Gradients and parameters are in host memory, unless all ranks have GPUs and an MPI that moves their memory
// (cuda_aware/cuda_aware_owner.h), or NCCL adds them (nccl/nccl_transport.h). Ranks of one host can share it
// (common/transport/memory/host_memory.h), or that of their GPUs (gpu/gpu_memory.h). memory() says where it is.
//
// Updates. The owner of a slice updates it as soon as its sum is there, and the machine brings the parameters to all
// ranks. If the job clips (OptimizerConfig::clip_norm), the machine brings sums, and every rank updates all parameters
// in the first Await of a round (clipping_owner.h).
//
// After an error, buffers given to Start and Submit belong to the transport until this object is destroyed.
#ifndef STARRING_WORKER_EXCHANGE_PEER_PEER_EXCHANGE_H_
#define STARRING_WORKER_EXCHANGE_PEER_PEER_EXCHANGE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/mutex.h"
#include "common/job/owned_slices.h"
#include "common/metrics/trace.h"
#include "common/reduce/owner_map.h"
#include "common/transport/memory/host_arrays.h"
#include "common/transport/memory/host_memory.h"
#include "common/transport/memory/host_transport.h"
#include "common/transport/message_pump.h"
#include "common/transport/mpi/mpi_transport.h"
#include "common/transport/transport.h"
#include "common/watch/stall_report.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/clipping_owner.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/peer/gpu/gpu_flags.h"
#include "worker/exchange/peer/gpu/gpu_memory.h"
#include "worker/exchange/peer/gpu/gpu_slice_owner.h"
#include "worker/exchange/peer/gpu/ring_hops.h"
#include "worker/exchange/peer/machine_trial.h"
#include "worker/exchange/peer/nccl/nccl_transport.h"
#include "worker/exchange/slice_owner.h"
#include "worker/exchange/stream_exchange.h"

namespace starring {

class PeerExchange final : public GradientExchange, private StreamExchange {
 public:
  // kDirect is the co-located star, kDedicated the one with servers. kRing and kDirect over messages have the same
  // owners, but for a short last block (common/reduce/owner_map.h). The job's order of sums is a chain, or with a star
  // a tree; kAllreduce leaves it to the library. kFastest: whichever of kRing and kDirect takes least time at the start
  // of those that add in the job's order; facts() says which.
  enum class Algorithm { kRing, kDirect, kDedicated, kAllreduce, kFastest };
  // kRequired: a ring or star goes through memory that all processes map (ring_memory.h, memory_machine.h), or Start
  // fails with InvalidArgument. kIfPossible: it does so where all can share memory, and kFastest may choose it.
  enum class HostSharing { kNever, kIfPossible, kRequired };

  struct Options {
    Algorithm algorithm = Algorithm::kRing;
    HostSharing sharing = HostSharing::kNever;  // kAllreduce ignores it
    // kDirect, kRing: gradients go through GPU memory that all ranks map (gpu/gpu_memory.h), or Start fails with
    // InvalidArgument. If there is too little of it, they go as with kIfPossible. The same on all ranks, those without
    // a GPU too.
    bool shares_gpu_memory = false;
    // kDirect, with shares_gpu_memory: the GPUs wait for each other in the order of their streams (stream_exchange.h),
    // or Start fails with InvalidArgument. The same on all ranks.
    bool gpus_wait = false;
    CudaDevice* gpu = nullptr;  // whose memory that is; outlives the exchange. Null: this rank has none
    int update_threads = 1;     // with shared memory: of this rank's part of a sum; does not change the bits
    int server_count = 0;       // kDedicated: the last ranks of the world, at least 1; 0 otherwise
    // The network if it is MPI's: for the control, and for messages in GPU memory. Null: another network.
    MpiTransport* mpi = nullptr;
    // kAllreduce on GPUs: the transport itself. Null: MPI adds, in host memory.
    NcclTransport* nccl = nullptr;
    Trace* trace = nullptr;  // outlives the exchange; null: there is none
    // kRing, kDirect: the GPU whose memory messages leave and enter, if the transport can (cuda_aware/
    // cuda_aware_owner.h). It outlives the exchange, and its thread calls Start. Null: messages are in host memory,
    // where those of shared memory always are.
    CudaDevice* device = nullptr;
    bool tries_device_memory = false;  // the transport is tested though it does not say that it can
    StallOptions stall;                // how this rank reports that it is stuck, and what it tells others about itself
  };
  // REQUIRES: options.mpi or options.nccl is not null if the algorithm is kAllreduce; options.gpu is not null if
  // options.nccl is not. This rank is a worker.
  PeerExchange(std::unique_ptr<Transport> transport, Options options);
  ~PeerExchange() override;

  absl::Status Start(const JobSpec& job, std::span<float> parameters) override;
  const ExchangeMemory& memory() const override { return trainers_memory_; }
  void Submit(const Submission& submission) override;
  absl::Status Await(int64_t round, int bucket) override;
  // Unimplemented if parameters are in GPU memory, which the training step refers to, or at servers, which cut them
  // when the workers join.
  absl::Status UseBuckets(const BucketMap& buckets, int64_t round) override;
  absl::Status Sum(SumPurpose purpose, std::span<double> values) override;
  absl::Status GatherOptimizerState(std::span<const std::span<float>> state) override;
  void Abort(const absl::Status& why) override;
  [[nodiscard]] bool Release() override;
  absl::Status Finish() override;
  ExchangeCounters counters() const override;
  ExchangeFacts facts() const override {
    const MutexLock lock(mutex_);
    // Each rank updates all of a clipped gradient.
    return {.owners = clipping_ == nullptr ? OwnersOf(way_) : OwnerMap(),
            .choice = choice_,
            .same_host_reason = SameHostReason()};
  }
  StreamExchange* streams() override { return gpu_flags_ == nullptr ? nullptr : this; }
  // The GPU memory that `shares_gpu_memory` takes of a rank, besides that of the training step.
  static int64_t SharedGpuBytes(const OptimizerConfig& optimizer, int64_t element_count, int world_size);
  // That of a rank with `nccl`: the library's part is an estimate.
  static int64_t NcclBytes(const OptimizerConfig& optimizer, int64_t element_count);
  // That of a rank whose ring or co-located star sends GPU memory, but for the self-test's, which is freed. kFastest:
  // the larger of the two.
  static int64_t CudaAwareBytes(Algorithm algorithm, const OptimizerConfig& optimizer, const BucketMap& buckets,
                                int rank);

 private:
  CudaOptimizerScalars ScalarsOf(int64_t round) const override;
  absl::Status EnqueueBucket(CudaStream* stream, int slot, int bucket, const CudaStepValues* values) override;
  absl::Status EnqueueEnd(CudaStream* stream, int slot) override;
  absl::Status AwaitRound(int64_t round, CudaEvent* done) override;
  std::optional<NonFinite> FindNonFinite(int64_t round) const override;

  // Locks the mutex for the trainer's thread and keeps the background thread from asking for it.
  class TrainerDrives;
  // How gradients travel: by messages, or through memory_.
  struct Way {
    Algorithm algorithm = Algorithm::kRing;
    bool shares_memory = false;
    bool is_on_gpus = false;  // memory_ has the board alone, and gpu_memory_ the arrays
  };

  PeerExchange(std::unique_ptr<HostTransport> transport, Options options);

  absl::Status Agree() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ShareMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ShareGpuMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CreateGpuOwner(HostBoard* board, const CollectiveOptions& join, absl::Status* error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RefuseSharing(const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string NotTriedOnGpus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CreateGpuFlags(HostMemory* host, const CollectiveOptions& join) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WaitForRound(int64_t round, absl::FunctionRef<bool()> done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct RoundBytes {
    int64_t sent = 0;
    int64_t received = 0;
  };
  RoundBytes BytesOfRound() const;
  void CountRound(int64_t round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string LatePeers() const;
  std::string RanksOfLag(const GpuFlags::Lag& lag) const;
  int64_t RoundOfLag(const GpuFlags::Lag& lag) const;
  void NoteStream(CudaStream* stream);
  bool DrainGpu() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string SameHostReason() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ChooseFastest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::string> TimeWays(const std::vector<std::pair<std::string, Way>>& ways)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<double> TimeWay(const Way& way) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ExchangeMemory TrainersMemory() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OwnedSlices::Options OwnerOptions() const;
  absl::Status CreateHostOwner() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CreateNcclOwner() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CreateOwner() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where the machine brings results, unless that is in shared memory: parameters, or sums.
  std::span<float> Results() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<BucketMachine> CreateMachine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<BucketMachine> CreateMachine(const Way& way, const BucketMap& buckets, SliceOwner* owner,
                                               std::span<float> parameters) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ShareStart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OwnerMap OwnersOf(const Way& way) const;
  // The ranges of each bucket that `rank` owns.
  std::vector<std::vector<ElementRange>> SlicesOf(const Way& way, const BucketMap& buckets, int rank) const;
  absl::Status ShareMovingState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ExchangeCounters CountersOfAllMachines() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Drain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WaitUntil(absl::FunctionRef<bool()> done, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status GatherStateVector(int vector, std::span<float> whole) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndCall(int call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SeeOff() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DriveInBackground();
  void LetTheTrainerDrive() const;
  void StopBackground();

  const int server_count_;
  const int update_threads_;
  Way way_;  // constant after Start; before it, the algorithm may be kFastest
  const HostSharing sharing_;
  const bool shares_gpu_memory_;
  const bool gpus_wait_;
  const std::chrono::milliseconds stall_report_;
  const std::function<void(const std::string&)> say_;
  std::string not_shared_;                // why the ranks cannot share memory; empty: they can, or need not
  std::string not_on_gpus_;               // why they do not share that of the GPUs, though they were to
  std::optional<ExchangeChoice> choice_;  // constant after Start
  HostTransport& unlocked_transport_;     // *transport_, for waits and Wake, which need no lock
  MpiTransport* const mpi_ ABSL_PT_GUARDED_BY(mutex_);
  NcclTransport* const nccl_ ABSL_PT_GUARDED_BY(mutex_);
  TraceTrack* const track_ ABSL_PT_GUARDED_BY(mutex_);
  CudaDevice* const device_;
  const bool tries_device_memory_;
  CudaDevice* const gpu_;
  JobSpec job_;
  std::span<float> parameters_;      // the caller's
  std::span<float> own_parameters_;  // the owner's, in GPU memory; empty: the caller's are used. Constant after Start
  ExchangeMemory trainers_memory_;   // constant after Start

  mutable Mutex mutex_;
  // The transport, which is last, is destroyed first: until then it may write into the buffers of the others.
  std::unique_ptr<HostMemory> memory_;     // null: the ranks share none. Constant after Start, but for its bytes
  std::unique_ptr<GpuMemory> gpu_memory_;  // null: the ranks share none. Constant after Start, but for its floats
  HostArrays arrays_;                      // in memory_, or gpu_memory_
  // In memory_; null: no GPU waits for another one. Constant after Start.
  std::unique_ptr<GpuFlags> gpu_flags_;
  RoundBytes round_bytes_;                           // with them
  const GpuSliceOwner* gpu_owner_ = nullptr;         // the owner, with the memory of GPUs. Constant after Start
  std::vector<CudaStream*> waiting_streams_;         // the caller's that were given work; of the trainer's thread
  std::atomic<int64_t> oldest_round_ = 0;            // that AwaitRound has not ended
  int64_t last_round_ ABSL_GUARDED_BY(mutex_) = -1;  // that was counted
  std::unique_ptr<MachineTrial> trial_ ABSL_GUARDED_BY(mutex_);  // during Start, and after an error in it
  std::unique_ptr<SliceOwner> owner_ ABSL_GUARDED_BY(mutex_);
  ClippingOwner* clipping_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the owner, if the job clips
  RingHops* ring_hops_ ABSL_GUARDED_BY(mutex_) = nullptr;      // the owner, with the memory of GPUs
  std::unique_ptr<BucketMachine> machine_ ABSL_GUARDED_BY(mutex_);
  ExchangeCounters earlier_ ABSL_GUARDED_BY(mutex_);    // of the machines before machine_, and of clipping_
  std::vector<float> scratch_ ABSL_GUARDED_BY(mutex_);  // optimizer state on its way, at start and at checkpoints
  std::vector<std::vector<float>> moving_state_ ABSL_GUARDED_BY(mutex_);  // all of it, while the buckets change
  MessagePump pump_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool background_sleeps_ ABSL_GUARDED_BY(mutex_) = false;  // until submitted_ is notified
  // By call of the trainer, 2 * bucket for a Submit and one more for an Await: its next call followed at once, the last
  // time. Then the background thread need not wake up between the two.
  std::vector<bool> next_is_prompt_ ABSL_GUARDED_BY(mutex_);
  int last_call_ ABSL_GUARDED_BY(mutex_) = -1;
  bool has_enough_cores_ ABSL_GUARDED_BY(mutex_) = false;
  int unawaited_count_ ABSL_GUARDED_BY(mutex_) = 0;  // buckets that are submitted and not awaited
  std::chrono::steady_clock::time_point last_call_end_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<HostTransport> transport_ ABSL_PT_GUARDED_BY(mutex_);

  ConditionVariable submitted_;
  std::atomic<bool> trainer_drives_ = false;
  std::thread background_;
};

class ABSL_SCOPED_LOCKABLE PeerExchange::TrainerDrives {
 public:
  explicit TrainerDrives(PeerExchange& exchange) ABSL_EXCLUSIVE_LOCK_FUNCTION(exchange.mutex_) : exchange_(exchange) {
    // The flag is set before the lock is asked for: a background thread whose pause ends now sleeps on, and does not
    // take the mutex first. The flag only saves time, so relaxed order is enough; the mutex alone keeps one thread
    // inside MPI.
    exchange_.trainer_drives_.store(true, std::memory_order_relaxed);
    exchange_.mutex_.Lock();
    exchange_.BeginCall();
  }
  ~TrainerDrives() ABSL_UNLOCK_FUNCTION() {
    // The background thread handles the operations that this thread has completed and not handled.
    exchange_.transport_->PassOn();
    exchange_.mutex_.Unlock();
    exchange_.trainer_drives_.store(false, std::memory_order_relaxed);
  }

 private:
  PeerExchange& exchange_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_PEER_EXCHANGE_H_
