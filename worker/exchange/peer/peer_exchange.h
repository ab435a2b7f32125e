// The exchange among ranks of one world: ring, co-located star and mpi among equals, and the dedicated star over TCP,
// whose last ranks are servers. A BucketMachine decides what happens to a bucket; this
// class starts and ends the job with the peers, waits, and decides which thread drives the transport.
//
// Threads. At any time at most one thread posts and polls, and with it is inside MPI: the thread that holds the mutex.
// In every call, above all in Await, that is the trainer's own thread: it has nothing else to do then, and no result
// waits for another thread to wake up. Between those calls, while the trainer computes, a background thread drives the
// messages in flight, because neither Open MPI nor TCP moves them on by itself. It does so in short visits, and waits
// in between without the mutex (Transport::Wait). With nothing in flight it sleeps until the next Submit and looks for
// notices twenty times a second.
//
// Memory. Gradients and parameters are in host memory, unless all ranks have GPUs and an MPI that moves their memory
// (cuda_aware/cuda_aware_owner.h): memory_place says where.
//
// After an error, buffers given to Start and Submit belong to the transport until this object is destroyed.
#ifndef STARRING_WORKER_EXCHANGE_PEER_PEER_EXCHANGE_H_
#define STARRING_WORKER_EXCHANGE_PEER_PEER_EXCHANGE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/mutex.h"
#include "common/stall_report.h"
#include "common/trace.h"
#include "common/transport/message_pump.h"
#include "common/transport/transport.h"
#include "kernels/cuda/cuda_device.h"
#include "worker/exchange/gradient_exchange.h"
#include "worker/exchange/peer/bucket_machine.h"
#include "worker/exchange/peer/mpi_transport.h"
#include "worker/exchange/peer/slice_owner.h"

namespace starring {

class PeerExchange final : public GradientExchange {
 public:
  // kDirect is the co-located star, kDedicated the one with servers. kRing and kDirect have the same owners. The job's
  // order of sums is a chain, or with a star a tree; kAllreduce leaves it to the library.
  enum class Algorithm { kRing, kDirect, kDedicated, kAllreduce };

  struct Options {
    Algorithm algorithm = Algorithm::kRing;
    int server_count = 0;  // kDedicated: the last ranks of the world, at least 1; 0 otherwise
    // The transport itself if it is MPI's: for the control, and for messages in GPU memory. Null: another transport.
    MpiTransport* mpi = nullptr;
    Trace* trace = nullptr;  // outlives the exchange; null: there is none
    // kRing, kDirect: the GPU whose memory messages leave and enter, if the transport can (cuda_aware/
    // cuda_aware_owner.h). It outlives the exchange, and its thread calls Start. Null: messages are in host memory.
    CudaDevice* device = nullptr;
    StallOptions stall;  // how this rank reports that it is stuck, and what it tells others about itself
  };
  // REQUIRES: options.mpi is not null if the algorithm is kAllreduce. This rank is a worker.
  PeerExchange(std::unique_ptr<Transport> transport, Options options);
  ~PeerExchange() override;

  absl::Status Start(const JobSpec& job, std::span<float> parameters) override;
  std::span<const float> parameter_memory() const override { return own_parameters_; }
  MemoryPlace memory_place() const override;
  void Submit(int64_t step, int bucket, std::span<const float> gradient) override;
  absl::Status Await(int64_t step, int bucket) override;
  absl::Status Sum(SumPurpose purpose, std::span<double> values) override;
  absl::Status GatherOptimizerState(std::span<const std::span<float>> state) override;
  void Abort(const absl::Status& why) override;
  [[nodiscard]] bool Release() override;
  absl::Status Finish() override;
  ExchangeCounters counters() const override;

 private:
  // Locks the mutex for the trainer's thread and keeps the background thread from asking for it.
  class TrainerDrives;

  absl::Status Agree() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CreateOwner() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CreateMachine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ShareStart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::vector<ElementRange>> MySlices() const;
  std::vector<ElementRange> OwnedRanges(int bucket, int rank) const;
  absl::Status Drain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WaitUntil(absl::FunctionRef<bool()> done, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status GatherStateVector(int vector, std::span<float> whole) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DriveInBackground();
  void LetTheTrainerDrive() const;
  void StopBackground();

  const Algorithm algorithm_;
  const std::chrono::milliseconds stall_report_;
  Transport& unlocked_transport_;  // *transport_, for Wait and Wake, which need no lock
  MpiTransport* const mpi_ ABSL_PT_GUARDED_BY(mutex_);
  TraceTrack* const track_ ABSL_PT_GUARDED_BY(mutex_);
  CudaDevice* const device_;
  JobSpec job_;
  std::span<float> parameters_;      // the caller's
  std::span<float> own_parameters_;  // the owner's, in GPU memory; empty: the caller's are used. Constant after Start

  mutable Mutex mutex_;
  // The transport, which is last, is destroyed first: until then it may write into the buffers of the others.
  std::unique_ptr<SliceOwner> owner_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<BucketMachine> machine_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> scratch_ ABSL_GUARDED_BY(mutex_);  // optimizer state on its way, at start and at checkpoints
  MessagePump pump_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool background_sleeps_ ABSL_GUARDED_BY(mutex_) = false;  // until submitted_ is notified
  const std::unique_ptr<Transport> transport_ ABSL_PT_GUARDED_BY(mutex_);

  ConditionVariable submitted_;
  std::atomic<bool> trainer_drives_ = false;
  std::thread background_;
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_PEER_PEER_EXCHANGE_H_
