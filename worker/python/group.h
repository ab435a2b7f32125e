// One process's part in a group that sums arrays (starring.h): its transport, the machine that carries out the
// reductions, or a server's sums, and the thread that drives both.
//
// Threads. After Create, transport, pump and machine belong to the group's own thread. Callers leave orders for it
// under the mutex, and sleep until it has ended their ticket. That thread runs no signal handlers. It has the default
// floating-point environment, whatever the process has set.
//
// Faults. A *broken* group has a reason, with which all its tickets end. The group has sent the reason to all peers, or
// has received it from one. A ticket that makes no progress within the exchange deadline breaks the group with the
// sentence that names the rank which keeps the others waiting (common/transport/peer_watch.h).
//
// GPU memory. Ranks of one host can ask to add arrays where they are, in GPU memory (gpu/reduce_gpu.h). All ranks do,
// or none does and all know why; then they add arrays in host memory, as without the wish.
#ifndef STARRING_WORKER_PYTHON_GROUP_H_
#define STARRING_WORKER_PYTHON_GROUP_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/memory.h"
#include "common/base/mutex.h"
#include "common/host/host_identity.h"
#include "common/reduce/arrays/reduce_machine.h"
#include "common/reduce/arrays/reduce_ring.h"
#include "common/reduce/arrays/reduce_star.h"
#include "common/reduce/arrays/reduction.h"
#include "common/reduce/arrays/sum_server.h"
#include "common/transport/memory/host_memory.h"
#include "common/transport/memory/host_transport.h"
#include "common/transport/message_pump.h"
#include "common/transport/transport.h"
#include "common/watch/progress_state.h"
#include "worker/python/gpu/gpu_context.h"
#include "worker/python/gpu/gpu_image.h"
#include "worker/python/gpu/reduce_gpu.h"
#include "worker/python/gpu/shared_gpu_memory.h"

namespace starring {

enum class Topology : int32_t { kStar = 0, kRing = 1 };

// The bytes that a correct rank of a group can send before their receive is posted, for TcpRendezvousOptions.
int64_t GroupUnexpectedBytesMax(int worker_count);

class Group {
 public:
  struct Gpu {
    int ordinal = -1;   // among the GPUs that this process sees; -1: this rank's arrays are on none
    int64_t bytes = 0;  // of its memory, for all sums that are under way
    std::span<const unsigned char> image = GpuImage();
  };
  struct Options {
    Topology topology = Topology::kStar;
    int server_count = 0;  // the last ranks of the world, with a star only
    absl::Duration join_deadline = absl::Seconds(60);
    absl::Duration exchange_deadline = absl::Seconds(60);
    std::chrono::milliseconds stall_report{4000};  // 0: none
    std::string host_id = BootId();                // processes of one host share memory, if they can
    std::function<void(const std::string&)> say;   // gets lines for people; any thread may call it; null: not wanted
    std::optional<Gpu> gpu;                        // the wish to add in GPU memory, equal on all ranks
  };

  // The only ticket of a server; those of ranks are above.
  static constexpr int64_t kServerTicket = 0;

  // Collective over all processes of the transport's world. InvalidArgument, naming both values, if their options
  // differ.
  static absl::StatusOr<std::unique_ptr<Group>> Create(std::unique_ptr<Transport> transport, Options options);

  // Leaves the group. With a ticket that has not ended, or at a server that is still needed, breaks it for the others.
  ~Group();

  // Begins the next reduction of this rank and returns its ticket; `data` is as Reduction::data. InvalidArgument for a
  // head that is wrong, and at a server; ResourceExhausted if kReductionsMax tickets have not ended; the reason if the
  // group is broken.
  absl::StatusOr<int64_t> Begin(const ReductionHead& head, std::byte* data) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for an array in GPU memory, in a group that adds there, and only in such a one: `stream` is the CUDA
  // stream whose work until now makes the contribution.
  absl::StatusOr<int64_t> BeginOnGpu(const ReductionHead& head, std::byte* data, CudaDriver::Stream stream)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether the group adds in GPU memory, and why not.
  bool adds_on_gpu() const { return gpu_machine_ != nullptr; }
  const std::string& gpu_refusal() const { return gpu_refusal_; }
  // Copies on the GPU that were begun: two for each array.
  int64_t device_copy_count() const { return gpu_machine_ == nullptr ? 0 : gpu_machine_->copy_count(); }

  // Sleeps until `ticket` has ended, for `patience` at most; empty: it has not. Otherwise how it has ended, after which
  // it is unknown: InvalidArgument.
  std::optional<absl::Status> Wait(int64_t ticket, std::chrono::milliseconds patience) ABSL_LOCKS_EXCLUDED(mutex_);

  // Breaks the group for the reason `why`, unless it is broken. Returns when the peers have been told, or could not be
  // told within some seconds. REQUIRES: !why.ok().
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The orders of the callers to the group's thread.
  struct Orders {
    std::vector<Reduction> begun;
    absl::Status abort;
    bool stop = false;
  };
  struct Ticket {
    bool has_ended = false;
    absl::Status status;
  };

  Group(std::unique_ptr<HostTransport> transport, Options options);

  absl::Status Agree();
  absl::Status ShareMemory();
  std::string WhyNoGpu();
  absl::Status ShareGpuMemory();
  absl::Status CreateMachine();
  absl::StatusOr<int64_t> Enqueue(Reduction reduction) ABSL_LOCKS_EXCLUDED(mutex_);
  ReduceRing::Options RingOptions();
  ReduceStarOptions StarOptions();
  void CreateServer();
  absl::Status StartThread();
  bool is_server() const { return pump_.rank() >= pump_.worker_count(); }
  // The first rank of the world that adds and needs memory for it; all after it do so as well.
  int first_owner() const { return options_.server_count > 0 ? pump_.worker_count() : 0; }

  // The group's thread. An error ends it, and breaks the group.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Drive() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Leave();
  absl::Status AwaitNews();
  bool WaitsForOthers() const;
  void EnterPhase();
  void CountCalls();
  absl::Status AwaitUntil(absl::FunctionRef<bool()> done);
  absl::Status DescribeDeadline();
  void BeginAll(const std::vector<Reduction>& begun);
  void EndTickets(const std::vector<int64_t>& numbers) ABSL_LOCKS_EXCLUDED(mutex_);
  Orders TakeOrders() ABSL_LOCKS_EXCLUDED(mutex_);
  void Order() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  // ---- Used by Create, and then by the group's thread.
  ProgressState progress_;
  std::unique_ptr<HostMemory> memory_;  // null: the processes share none
  AlignedFloats private_;               // then
  std::span<std::byte> own_;            // of an owner, in one of them
  std::string host_refusal_;            // why there is no memory_
  std::unique_ptr<GpuContext> gpu_;     // null: the group adds in host memory
  std::unique_ptr<SharedGpuMemory> gpu_memory_;
  std::string gpu_refusal_;
  bool gpu_memory_is_free_ = false;         // no other rank maps it
  std::unique_ptr<ReduceMachine> machine_;  // of a rank
  ReduceGpu* gpu_machine_ = nullptr;        // the same, if it adds in GPU memory
  std::unique_ptr<SumServer> server_;       // of a server
  int64_t next_number_ = 0;
  int64_t counted_count_ = 0;  // reductions that the roll call counts
  MessagePump pump_;
  // Is destroyed first: until then it may write into the memory of the others.
  std::unique_ptr<HostTransport> transport_;

  // ---- Used by all threads.
  std::atomic<bool> has_orders_ = false;
  Mutex mutex_;
  ConditionVariable changed_;
  Orders orders_ ABSL_GUARDED_BY(mutex_);
  int64_t begun_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Ticket> tickets_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);   // why; OK: it is not
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // the thread has ended, or will at once

  std::thread thread_;
};

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_GROUP_H_
