// A worker's connection to all shards of a star. Its thread, the *exchange thread*, owns the lanes, sends the trainer's
// requests, copies the answers to their places, watches deadlines and tells the trainer when requests are over.
//
// A request is over when it is answered and gRPC has let go of its payload: only then may the trainer write to that
// memory again. After a failure all requests are given up, and the failure is published when gRPC holds no payload.
//
// Thread safety: one thread, the trainer's, makes all calls.
#ifndef STARRING_WORKER_EXCHANGE_STAR_STAR_CLIENT_H_
#define STARRING_WORKER_EXCHANGE_STAR_STAR_CLIENT_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job_spec.h"
#include "common/mutex.h"
#include "common/progress_state.h"
#include "common/security/transport_security.h"
#include "common/stall_report.h"
#include "common/trace.h"
#include "worker/exchange/star/lane.h"
#include "worker/exchange/star/server_watch.h"

namespace starring {

class StarClient {
 public:
  struct Shard {
    std::string address;
    std::vector<std::shared_ptr<grpc::Channel>> lanes;  // a connection for each; shared, because gRPC wants it so
    uint64_t job_id = 0;                                // the job's number there; Join finds it out
  };
  struct Options {
    std::vector<Shard> shards;
    std::string run_id;          // equal on all workers of a run; may be empty
    TransportSecurity security;  // as the servers have it
    Trace* trace = nullptr;      // outlives the client; null: there is none
    StallOptions stall;          // its lines come from the thread that joins, later from the exchange thread
  };
  // Joins the job at one shard after the other, then starts the exchange thread. Shard 0 comes first, so that workers
  // which disagree are all refused there. A server that is not up yet, or that knows another process as this rank
  // (which may have died with its machine), is tried again until the join deadline, which counts for all shards
  // together; after a second the latter is said once. A long wait is reported as `stall` says.
  //
  // Unavailable, naming the address, if a server cannot be reached; InvalidArgument, at once, if it is protected in
  // another way than `security`; DeadlineExceeded, naming the ranks, if workers are missing; otherwise the reason for
  // which a server refuses this worker.
  static absl::StatusOr<std::unique_ptr<StarClient>> Join(const JobSpec& job, Options options);
  // Gives up the requests in flight. When it returns, gRPC refers to no memory of the caller.
  ~StarClient();

  // Hands over requests and returns at once.
  void Post(std::vector<std::unique_ptr<StarRequest>> requests);
  // Returns when every request of the group (see StarRequest) is over, or when the exchange has failed: then the
  // reason.
  absl::Status Wait(int group);

  // Tells every shard that this worker gives up. Returns when the messages have left, or after a second.
  void Abort(const absl::Status& why);
  // Ends all lanes in good order. REQUIRES: all requests are over.
  void Close();

  int64_t payload_bytes_sent() const { return payload_bytes_sent_; }
  int64_t payload_bytes_received() const { return payload_bytes_received_; }

 private:
  using Clock = std::chrono::steady_clock;

  StarClient(const JobSpec& job, Options options);

  // ---- The exchange thread.
  void Run();
  void TakeInbox();
  void Tick(Clock::time_point now);
  void CheckDeadlines(Clock::time_point now);
  void TellProgress(Clock::time_point now);
  void WatchServers(Clock::time_point now);
  std::string DescribeSilence(int shard, const StarRequest& request, Clock::time_point now) const;
  WorkState MyWork(Clock::time_point now) const;
  void OnAnswer(std::unique_ptr<StarRequest> request);
  enum class Tell { kShards, kNobody };
  void Fail(const absl::Status& why, Tell tell);
  void CloseLanes(Lane::Urgency urgency);
  void CutConnections();
  bool AllLanesClosed() const;
  // Ends requests whose payload gRPC has let go of. Publishes a failure when gRPC holds no payload.
  void EndDrained();
  void UpdateCounters();

  // Wakes the exchange thread.
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int& Pending(int group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return pending_[group + 1]; }

  const Options options_;
  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds exchange_deadline_;
  grpc::CompletionQueue queue_;
  std::thread thread_;
  std::atomic<int64_t> payload_bytes_sent_ = 0;
  std::atomic<int64_t> payload_bytes_received_ = 0;
  std::atomic<int64_t> waiting_since_ns_ = 0;  // the trainer's thread is in Wait since then; 0: it is not

  // ---- Used by the exchange thread only.
  std::vector<std::vector<std::unique_ptr<Lane>>> lanes_;  // by shard
  std::vector<std::unique_ptr<StarRequest>> draining_;     // answered or given up; gRPC may still hold the payload
  std::vector<ServerWatch> watches_;                       // by shard
  StallReport report_;  // source s: a stall that shard s reports; source s + shard count: shard s is silent
  Clock::time_point next_tell_;
  std::pair<WorkPhase, int64_t> last_told_ = {WorkPhase::kUnknown, -1};
  std::optional<absl::Status> failure_;
  Clock::time_point failed_at_;
  bool closing_ = false;

  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<std::unique_ptr<StarRequest>> inbox_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> abort_asked_ ABSL_GUARDED_BY(mutex_);
  bool close_asked_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_asked_ ABSL_GUARDED_BY(mutex_) = false;
  bool wake_set_ ABSL_GUARDED_BY(mutex_) = false;
  bool lanes_closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int> pending_ ABSL_GUARDED_BY(mutex_);    // requests that are not over, by group + 1
  std::optional<int> awaited_ ABSL_GUARDED_BY(mutex_);  // the group that the trainer's thread waits for
  absl::Status status_ ABSL_GUARDED_BY(mutex_);         // the published failure
  grpc::Alarm alarm_ ABSL_GUARDED_BY(mutex_);
  CompletionTag wake_tag_{[this](bool) { TakeInbox(); }};
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_STAR_CLIENT_H_
