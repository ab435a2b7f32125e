// The coordinator's gRPC side: members attend (attend_stream.h), are admitted, and receive the Coordinator's orders.
// The first worker's terms are the run's; with them the log is opened and the coordinator begins. Shards may come
// earlier.
//
// Thread safety: one thread, the one that polls the completion queue.
#ifndef STARRING_SERVER_ELASTIC_COORDINATOR_SERVICE_H_
#define STARRING_SERVER_ELASTIC_COORDINATOR_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/checkpoint/checkpoint.h"
#include "server/door/admission.h"
#include "server/door/unary_call.h"
#include "server/elastic/attend_stream.h"
#include "server/elastic/coordinator.h"
#include "server/elastic/generation_log.h"

namespace starring {

class CoordinatorService {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Times `gone`: how long a process takes at most to open a stream again.
  static constexpr int kAbsence = 2;
  struct Options {
    std::string state_dir;
    std::string run_id;
    int shard_count = 1;
    int first_workers = 1;
    int min_workers = 1;
    MemberTimes times;
    absl::Duration start_deadline;                      // from Listen to the run's first generation
    absl::Duration loss_deadline;                       // for shards and workers that a run has lost
    absl::Duration hello_deadline;                      // for the first report on a stream
    Admission* admission = nullptr;                     // this and the next outlive the service
    std::function<void(const std::string& peer)> keep;  // the peer is a member, and no stranger any more
    std::function<void(const std::string& peer)> cut;   // it has more streams than it may; a member is left alone
    std::function<void(const std::string&)> log;
  };
  explicit CoordinatorService(Options options);

  // To be registered before the server is built.
  grpc::Service* service() { return &service_; }
  // Asks gRPC for members. `queue` outlives the streams.
  void Listen(grpc::ServerCompletionQueue* queue);
  void Tick(Time now);
  // Ends the run (Coordinator::EndRun). False: no run has begun.
  bool EndRun(Time now);
  // No call or stream has a tag in the queue. After the server was shut down.
  bool is_idle() const { return streams_.empty() && run_calls_.empty(); }

  // How the run has ended; members are being told.
  const std::optional<absl::Status>& ended() const { return ended_; }
  // All members have been told. A stream that has just been opened may be a member's, too. A member that has lost its
  // stream has kAbsence times `gone` to come back.
  bool has_told_all() const;

 private:
  using RunCall = UnaryCall<v1::GetRunRequest, v1::GetRunReply>;

  void ListenForMember();
  void ListenForRun();
  void OnAccepted(const AttendStream& stream);
  void OnReport(AttendStream* stream, const v1::MemberReport& report);
  absl::Status Admit(AttendStream* stream, const v1::MemberReport& report);
  // Unavailable while another process has the log.
  absl::Status CheckLock();
  // How far a coordinator before this one has come.
  void LookAtLog();
  // No run will begin here.
  void EndBeforeBegin(const absl::Status& status);
  absl::Status AdmitShard(const v1::MemberReport::Hello& hello, const v1::MemberReport::Shard& proto);
  absl::Status AdmitWorker(const v1::MemberReport::Hello& hello, const v1::MemberReport::Worker& proto);
  absl::Status Take(const AttendStream& stream, const v1::MemberReport& report);
  absl::Status Begin(const v1::RunTerms& terms);
  // Called before Begin. Not OK: no run will begin here, or go on.
  absl::Status AwaitRun(Time now);
  // The stream is no member's any more. It may still have tags in the queue.
  void Detach(AttendStream* stream);
  void OnGone(AttendStream* stream, AttendStream::End end);
  void OnRun(RunCall* call);
  void Send(uint64_t member, const Order& order);
  void LookForEnd();

  const Options options_;
  AsyncCoordinatorService service_;
  grpc::ServerCompletionQueue* queue_ = nullptr;
  const AttendStream::Events events_;
  const RunCall::Events run_events_;
  std::map<AttendStream*, std::unique_ptr<AttendStream>> streams_;
  std::map<RunCall*, std::unique_ptr<RunCall>> run_calls_;
  std::map<uint64_t, AttendStream*> members_;
  RefusalLog refusals_;
  struct EarlyShard {
    std::string name;
    ShardReport report;
  };
  std::map<uint64_t, EarlyShard> early_shards_;  // came before the first worker
  v1::RunTerms terms_;
  int worker_count_ = 0;                                               // that have attended
  std::set<int> shards_told_;                                          // that the run has ended
  std::map<uint64_t, Time> absent_;                                    // members without a stream, and since when
  GenerationLog::Progress progress_ = GenerationLog::Progress::kNone;  // of a coordinator before this one
  Time since_;
  std::optional<FolderLock> lock_;  // of the folder of the log
  std::unique_ptr<GenerationLog> log_;
  std::unique_ptr<Coordinator> coordinator_;
  std::optional<absl::Status> ended_;
};

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_COORDINATOR_SERVICE_H_
