// The state of a parameter server, which its handle ParameterServer hides: gRPC's objects, the rendezvous, the job.
//
// Thread safety: Start, Wait, Interrupt and the destructor are the owner's. Everything else runs on one thread, which
// polls the completion queue; the members of that thread need no lock.
#ifndef STARRING_SERVER_SERVER_CORE_H_
#define STARRING_SERVER_SERVER_CORE_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/running_clock.h"
#include "server/door/admission.h"
#include "server/door/check_service.h"
#include "server/door/connection_acceptor.h"
#include "server/door/rendezvous.h"
#include "server/door/unary_call.h"
#include "server/elastic/coordinator_service.h"
#include "server/elastic/shard_member.h"
#include "server/parameter_server.h"
#include "server/shard/exchange_lane.h"
#include "server/shard/lane_tracks.h"
#include "server/shard/shard_job.h"

namespace starring {

class ParameterServer::Core {
 public:
  explicit Core(Options options);
  ~Core();

  absl::Status Start();
  const std::string& address() const { return acceptor_->address(); }
  absl::Status Wait();
  void Interrupt() { interrupted_ = true; }

 private:
  using Clock = std::chrono::steady_clock;
  using JoinCall = UnaryCall<v1::JoinRequest, v1::JoinReply>;
  using StatusCall = UnaryCall<v1::GetStatusRequest, v1::GetStatusReply>;
  using CheckCall = UnaryCall<v1::CheckRequest, v1::CheckReply>;
  using ChallengeCall = UnaryCall<v1::ChallengeRequest, v1::ChallengeReply>;

  absl::Status CheckOptions() const;
  // Whether others than this machine's processes reach the address.
  bool is_exposed() const;
  // Asks gRPC for one more call of each kind.
  void ListenForJoin();
  void ListenForStatus();
  void ListenForCheck();
  void ListenForChallenge();
  void ListenForLane();

  void Run();
  void Tick(Clock::time_point now);
  // The job's time.
  Clock::time_point JobNow() { return running_clock_.Read(Clock::now()); }
  // Ends streams on which no HELLO arrived in time.
  void CloseSilentLanes(Clock::time_point now);
  // Requests and connections that were refused, for people who wait for a worker; empty: there were none.
  std::string DescribeStrangers() const;
  std::string DescribeUnheard() const;
  void End(absl::Status result);

  void OnJoin(JoinCall* call);
  void OnJoinGone(JoinCall* call);
  void DropOlderJoin(const v1::JoinRequest& request);
  // ResourceExhausted if there is not enough memory or too few descriptors for a job. Allocates nothing.
  absl::Status CheckAffordable(const Agreement& agreement, int lanes);
  // The part about memory, by the limit that was counted last.
  absl::Status CheckMemory(const Agreement& agreement) const;
  // Returns the memory that this server may use now, and tells gRPC the same.
  int64_t UpdateMemoryLimit();
  // The memory that this server may use now, with what an elastic run's snapshots have.
  int64_t CountMemory() const;
  void BeginJob();
  absl::StatusOr<std::unique_ptr<ShardJob>> CreateJob();
  void OnStatus(StatusCall* call);
  void OnCheck(CheckCall* call);
  void OnChallenge(ChallengeCall* call);
  // Whether one of its calls has a tag in the queue.
  bool has_calls() const;
  void OnLaneMessage(ExchangeLane* lane, const ReceivedMessage& message);
  void OnHello(ExchangeLane* lane, const v1::ExchangeMessage& hello);
  // Cuts a stranger that opens more streams than the server has told it to.
  void OnLaneAccepted(ExchangeLane* lane);
  void ForgetSilentLane(ExchangeLane* lane);
  // Seats are taken for longer while the job has all its connections: no worker is among those that wait then.
  void UpdateSeatTime();
  void OnLaneGone(ExchangeLane* lane, ExchangeLane::End end);
  // In an elastic run: obeys the coordinator's orders, and reports.
  void TickElastic(Clock::time_point now);
  // Reports how many workers this shard can take.
  void MeasureRoom(Clock::time_point now);
  absl::Duration loss_deadline() const;
  void MakeCoordinator();
  void MakeMember();
  void Obey(const v1::MemberOrder& order);
  // Cuts what belongs to a generation below `number`.
  void LeaveGeneration(int64_t number);
  void ServeGeneration(const v1::MemberOrder& order);
  // Whether a Join is for the generation that is served. Unavailable: not yet; FailedPrecondition: it is over.
  absl::Status CheckGeneration(const v1::JoinRequest& request) const;
  bool is_elastic() const { return !options_.elastic.coordinator.empty(); }
  // Once the job is over: ends when every worker has taken its last answers, or after the time to linger.
  void EndIfTold(Clock::time_point now);
  void Log(const std::string& line) const;

  const Options options_;
  const Clock::time_point started_ = Clock::now();
  int64_t descriptors_max_ = 0;
  int64_t memory_bytes_max_ = 0;  // as CheckAffordable counted it last
  grpc::ResourceQuota quota_;
  RawParameterServerService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to_grpc_;  // takes the acceptor's sockets
  std::unique_ptr<ConnectionAcceptor> acceptor_;
  std::thread thread_;
  std::atomic<bool> interrupted_ = false;
  std::atomic<bool> server_is_down_ = false;

  // ---- Members of the polling thread.
  RunningClock running_clock_{Clock::now()};
  struct PendingJoin {
    Clock::time_point expires;
    std::chrono::milliseconds deadline;
  };
  const JoinCall::Events join_events_;
  const StatusCall::Events status_events_;
  const CheckCall::Events check_events_;
  const ChallengeCall::Events challenge_events_;
  const ExchangeLane::Events lane_events_;
  std::map<JoinCall*, std::unique_ptr<JoinCall>> join_calls_;
  std::map<StatusCall*, std::unique_ptr<StatusCall>> status_calls_;
  std::map<CheckCall*, std::unique_ptr<CheckCall>> check_calls_;
  std::map<ChallengeCall*, std::unique_ptr<ChallengeCall>> challenge_calls_;
  CheckService check_service_;
  std::map<ExchangeLane*, std::unique_ptr<ExchangeLane>> lanes_;
  std::map<JoinCall*, PendingJoin> pending_joins_;
  std::map<LaneId, ExchangeLane*> lanes_by_id_;
  std::map<std::string, std::set<ExchangeLane*>> silent_lanes_;  // by peer: those without a HELLO
  TraceTrack* const track_;                                      // null: there is no trace
  LaneTracks lane_tracks_;
  Admission admission_;
  std::optional<Rendezvous> rendezvous_;  // always there; of the generation, in an elastic run
  uint64_t job_id_;                       // likewise
  absl::Status begin_failure_;            // why the job did not begin though all workers had joined
  int64_t unheard_logged_ = 0;
  Clock::time_point unheard_said_;
  RefusalLog refusals_;
  std::unique_ptr<ShardJob> job_;
  std::unique_ptr<CoordinatorService> coordinator_;  // shard 0 of an elastic run
  std::unique_ptr<ShardMember> member_;              // an elastic run
  int64_t prepared_ = 0;                             // lanes of generations below this one are cut
  int64_t serving_ = 0;                              // the generation that workers may join; 0: none
  v1::MemberOrder generation_;                       // its SERVE
  std::shared_ptr<const Snapshot> start_;            // with which it begins; null when it has begun
  int worker_lanes_ = 1;                             // the most that any generation had
  Clock::time_point room_measured_;                  // how many workers this shard can take
  std::optional<absl::Status> end_;                  // of the run; not everybody knows of it yet
  bool trace_written_ = false;
  std::set<int> acknowledged_ranks_;  // have taken their last answers
  std::optional<Clock::time_point> job_over_since_;

  Mutex mutex_;
  ConditionVariable ended_;
  std::optional<absl::Status> result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starring

#endif  // STARRING_SERVER_SERVER_CORE_H_
