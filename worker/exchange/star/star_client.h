// A worker's connection to all shards of a star: sends the trainer's requests, copies the answers to their places,
// watches deadlines and knows when requests are over.
//
// The thread that holds the mutex *drives*: it polls gRPC and handles what comes. While the trainer waits it drives
// itself, so that no answer waits until another thread has woken up. Otherwise the *exchange thread* drives, in short
// visits: often while answers come, rarely while none does, and 20 times a second while nothing is in flight.
//
// A request is over when it is answered and gRPC has let go of its payload: only then may the trainer write to that
// memory again. After a failure all requests are given up, and the failure is published when gRPC holds no payload.
//
// Thread safety: one thread, the trainer's, makes all calls.
#ifndef STARRING_WORKER_EXCHANGE_STAR_STAR_CLIENT_H_
#define STARRING_WORKER_EXCHANGE_STAR_STAR_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/running_clock.h"
#include "common/job/job_spec.h"
#include "common/metrics/trace.h"
#include "common/security/transport_security.h"
#include "common/watch/progress_state.h"
#include "common/watch/stall_report.h"
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
    std::string run_id;                // equal on all workers of a run; may be empty
    TransportSecurity security;        // as the servers have it
    std::set<std::string> others;      // this process's connections that are not the client's (OwnConnections)
    Trace* trace = nullptr;            // outlives the client; null: there is none
    StallOptions stall;                // its lines come from the thread that joins, later from the one that drives
    std::function<bool()> superseded;  // as StarOptions'
  };
  // Joins the job at one shard after the other, then opens the lanes. Shard 0 comes first, so that workers
  // which disagree are all refused there. A server that is not up yet, or that knows another process as this rank
  // (which may have died with its machine), is tried again until the join deadline, which counts for all shards
  // together; after a second the latter is said once. A long wait is reported as `stall` says.
  //
  // Unavailable, naming the address, if a server cannot be reached; InvalidArgument, at once, if it is protected in
  // another way than `security`; Unauthenticated, at the deadline, if it does not prove that it has the job's secret;
  // DeadlineExceeded, naming the ranks, if workers are missing; otherwise the reason for
  // which a server refuses this worker. The shards that were joined before are told, within a second.
  static absl::StatusOr<std::unique_ptr<StarClient>> Join(const JobSpec& job, Options options);
  // Gives up the requests in flight. When it returns, gRPC refers to no memory of the caller.
  ~StarClient();

  // Hands over requests. The exchange thread sends large ones; small ones are sent here, after what has come meanwhile
  // has been handled. Waits for no answer.
  void Post(std::vector<std::unique_ptr<StarRequest>> requests);
  // Returns when every request of the group (see StarRequest) is over, or when the exchange has failed: then the
  // reason.
  absl::Status Wait(int group);
  // Whether that would return at once.
  bool IsOver(int group) { return Pending(group).load(std::memory_order_acquire) == 0 || has_failed_; }

  // Tells every shard that this worker gives up. Returns when the messages have left, or after a second.
  void Abort(const absl::Status& why);
  // Ends all lanes in good order. REQUIRES: all requests are over.
  void Close();

  int64_t payload_bytes_sent() const { return payload_bytes_sent_; }
  int64_t payload_bytes_received() const { return payload_bytes_received_; }

 private:
  using Clock = std::chrono::steady_clock;

  StarClient(const JobSpec& job, Options options);

  struct FailedJoin {
    absl::Status why;
    size_t joined_count = 0;  // of the shards, the first ones
  };
  // Returns `why`.
  static absl::Status GiveUp(const JobSpec& job, Options options, const FailedJoin& failed);

  // Locks the mutex for the trainer's thread and keeps the exchange thread from asking for it.
  class TrainerDrives;

  void DriveInBackground();
  // The exchange thread's next visit is to begin at once.
  void WakeThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(inbox_mutex_);
  // Handles the event that comes next, or none at `until`. `until` in the past: does not let go of the mutex.
  // Returns whether there was an event.
  bool Drive(Clock::time_point until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DriveUntil(absl::FunctionRef<bool()> done, Clock::time_point end = Clock::time_point::max())
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeInbox() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tick(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckDeadlines(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellProgress(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchServers(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeSilence(int shard, const StarRequest& request, Clock::time_point now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  WorkState MyWork(Clock::time_point now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAnswer(std::unique_ptr<StarRequest> request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnNote(int shard, const v1::ExchangeMessage& note) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  enum class Tell { kShards, kNobody };
  void Fail(const absl::Status& why, Tell tell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLanes(Lane::Urgency urgency) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutConnections() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllLanesClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether nothing is in flight and no lane is being closed.
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends requests whose payload gRPC has let go of. Publishes a failure when gRPC holds no payload.
  void EndDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateCounters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::atomic<int>& Pending(int group) { return pending_[group - StarRequest::kSnapshot]; }

  const Options options_;
  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds exchange_deadline_;
  grpc::CompletionQueue queue_;
  std::thread thread_;
  std::atomic<int64_t> payload_bytes_sent_ = 0;
  std::atomic<int64_t> payload_bytes_received_ = 0;
  std::atomic<int64_t> waiting_since_ns_ = 0;  // the trainer's thread is in Wait since then; 0: it is not
  std::atomic<bool> trainer_drives_ = false;
  std::atomic<bool> thread_rests_ = false;  // the exchange thread sleeps, longer than between visits
  // Requests that are not over, by group, the lowest first. Counted up by the trainer, down by the thread that drives.
  std::vector<std::atomic<int>> pending_;

  Mutex mutex_;
  std::vector<std::vector<std::unique_ptr<Lane>>> lanes_ ABSL_GUARDED_BY(mutex_);  // by shard
  // Answered or given up; gRPC may still hold the payload.
  std::vector<std::unique_ptr<StarRequest>> draining_ ABSL_GUARDED_BY(mutex_);
  std::vector<ServerWatch> watches_ ABSL_GUARDED_BY(mutex_);  // by shard
  // Source s: a stall that shard s reports; source s + shard count: shard s is silent.
  StallReport report_ ABSL_GUARDED_BY(mutex_);
  RunningClock running_clock_ ABSL_GUARDED_BY(mutex_){Clock::now()};
  Clock::time_point next_tick_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point next_tell_ ABSL_GUARDED_BY(mutex_);
  std::pair<WorkPhase, int64_t> last_told_ ABSL_GUARDED_BY(mutex_) = {WorkPhase::kUnknown, -1};
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // requests that the lanes have, or draining_
  std::optional<absl::Status> failure_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point failed_at_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the published failure
  std::atomic<bool> has_failed_ = false;         // status_ is set

  // Locked after mutex_, and only to move requests: the trainer must not wait for gRPC when it posts the next bucket.
  Mutex inbox_mutex_;
  ConditionVariable posted_;
  std::vector<std::unique_ptr<StarRequest>> inbox_ ABSL_GUARDED_BY(inbox_mutex_);
  bool stopping_ ABSL_GUARDED_BY(inbox_mutex_) = false;
  bool is_wanted_ ABSL_GUARDED_BY(inbox_mutex_) = false;      // there is something that the trainer does not send
  bool thread_sleeps_ ABSL_GUARDED_BY(inbox_mutex_) = false;  // until posted_ is notified
};

}  // namespace starring

#endif  // STARRING_WORKER_EXCHANGE_STAR_STAR_CLIENT_H_
