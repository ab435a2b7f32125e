// Decides an elastic run's generations (generation.h): their members, where each begins, and when it is over. Runs on
// shard 0. Knows nothing of gRPC: reports and orders are plain structs, and the time is passed in.
//
// Members are the shards, one process for each number, and workers. Each member sends a status report four times a
// second and on every change, and receives orders. The life of a generation g:
//
//   1. A cause: a member is gone, a worker's exchange has failed, workers have joined or want to leave, or other shares
//      would be faster. For the last three the workers are told to stop first, and do so at the next snapshot, so that
//      nothing is computed twice.
//   2. `prepare g` is logged. Every shard gets kPrepare: it cuts its lanes, serves nothing below g any more, and
//      reports its snapshots. A worker whose exchange is over, or which stopped, is `ready`.
//   3. When all shards have prepared and all workers that were not given up are ready, `commit g` is logged: the newest
//      snapshot that all shards have, the members, their shares. Shards get kServe, workers kTrain.
//
// An order is lost if its member has no connection just then. An order that is not carried out within a second is sent
// again; a member recognizes by its number an order that it has obeyed.
//
// Nothing counts twice, and no two generations run at a time. A step needs every shard and every leaf, so no part of a
// generation can go on alone. A new generation needs the log, which has one writer.
//
// The coordinator gives a member up in five cases:
//   - its connection is down for `gone`;
//   - it is silent for `silent`;
//   - a worker computes and finishes no leaf for its patience: `stuck`, or kStuckLeaves times the usual time of a leaf
//     if that is longer;
//   - it does not end its part of a generation within its patience after that was cut;
//   - a worker that is alone in its generation comes no further for kAlonePatience join deadlines, whatever it does.
// A false alarm costs a return to a snapshot, and changes no bit. A coordinator that was itself paused restarts the
// times of all members.
//
// A shard whose disk fails has its snapshots in memory alone, and the run goes on with them. When the shard dies, these
// snapshots are lost. The run returns to the last snapshot that was on all disks, and logs how far that is. It does so
// at most kStrikesMax times without a new snapshot on all disks; otherwise it would run in circles.
//
// One worker's trouble stays its own, while enough others remain (trouble_ledger.h). A worker that fails leaves with
// its error. A worker that has kept a generation from going on is left out for a while, as a spare. A worker joins when
// it has reached all shards at their present addresses, and if they have room for one more.
//
// The run ends before its last step in seven cases:
//   - EndRun;
//   - an error that the job has on a second worker, too;
//   - kStrikesMax generations without a new snapshot for which no worker can be left out;
//   - a shard that does not come back;
//   - too few workers for too long (the workers that are there save a checkpoint first);
//   - snapshots that are lost on some shard so that no common one is left;
//   - a log that cannot be written.
// A member that comes after that is told the end.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_ELASTIC_COORDINATOR_H_
#define STARRING_SERVER_ELASTIC_COORDINATOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/error_origin.h"
#include "common/job/generation.h"
#include "server/elastic/generation_log.h"
#include "server/elastic/trouble_ledger.h"

namespace starring {

// Times after which a member is given up.
struct MemberTimes {
  std::chrono::milliseconds gone{1'000};
  std::chrono::milliseconds silent{5'000};
  std::chrono::milliseconds stuck{10'000};
};

struct ShardReport {
  int shard = 0;
  std::string address;
  int64_t prepared = 0;          // the generation below which it serves nothing
  std::vector<int64_t> held;     // steps of its snapshots, ascending
  std::vector<int64_t> durable;  // steps of snapshots that survive its process, ascending
  // By a step of `held`: how many leaves `generation` had in each sum before it; 0: the sums differ. Snapshots from
  // before that generation have no entry.
  std::map<int64_t, int64_t> counted;
  int64_t generation = 0;  // that it serves, or has served last
  std::string trouble;     // why that generation's exchange has failed there
  bool finished = false;   // all workers of that generation have finished the run
  // For how many contributions to a bucket it has memory, and for how many workers descriptors; 0: not known.
  int64_t contributions_max = 0;
  int64_t workers_max = 0;
  std::vector<int> unjoined;  // ranks of that generation that have never joined there, while others have
  std::vector<int> late;      // ranks that the shard has waited for in vain
};

struct WorkerReport {
  int64_t generation = 0;         // that it trains, or has trained last; 0: none
  bool ready = false;             // for the next generation: its exchange is over
  std::string trouble;            // why its exchange is over, if the worker was not told to stop
  bool leaves = false;            // wants to leave
  int64_t step = 0;               // the next
  int64_t leaf_count = 0;         // leaves that it has computed; batches of an evaluation count, and waits for a disk
  bool computes = false;          // and does not wait for others
  double seconds_per_leaf = 0;    // the usual time; 0: not known yet
  double step_seconds = 0;        // the usual time of a whole step; 0: not known yet
  double trial_leaf_seconds = 0;  // one leaf, computed once before the worker attended
  int64_t first_step = 0;         // where it begins without a snapshot; of the report of AddWorker alone
  absl::Status failure;           // not OK: it leaves with this error, its own
  ErrorOrigin origin;             // of `trouble`
  int64_t reached = 0;            // the number of its last kReach after which all shards answered
  int64_t unreached = 0;          // the number of its last kReach after which a shard did not
  std::string unreached_text;     // why
};

struct Order {
  enum class Kind {
    kPrepare,  // to shards: generation.number
    kServe,    // to shards: `generation`
    kTrain,    // to workers: `generation`
    kStop,     // to workers: at the next snapshot
    kCut,      // to workers: generations below generation.number are over
    kReach,    // to a ready worker: to find out whether all `shards` answer; generation.number is the order's
    kWait,     // to a ready worker that is not in the generation: why
    kKeep,     // to shards: all have the snapshot of generation.first_step durably
    kGivenUp,  // to a member that was given up, if it can be reached: it may attend again; why
    kEnd,      // to all, or to a worker that is refused or leaves: `end`
  };
  Kind kind = Kind::kWait;
  Generation generation;
  bool from_snapshot = false;       // otherwise rank 0 brings the parameters
  bool ends_run = false;            // kTrain: the generation has no step, and saves a checkpoint. kStop: it is next
  std::vector<std::string> shards;  // kTrain, kReach: addresses, by number
  std::string text;                 // kWait, kGivenUp
  std::string cause;                // kTrain: why the generation before has ended
  absl::Status end;                 // kEnd: OK if all steps are done
};

class Coordinator {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr int kStuckLeaves = 20;
  static constexpr int kStrikesMax = 3;
  // Other shares must save this part of a step's time. They are dealt at most once in kDealPause.
  static constexpr double kGainMin = 0.1;
  static constexpr std::chrono::seconds kDealPause{20};
  // An order that was not obeyed is repeated after this time.
  static constexpr std::chrono::seconds kRepeatPause{1};
  // A run that has lost all its snapshots begins anew, if the workers can repeat the lost steps in this time.
  static constexpr double kYoungSeconds = 60;
  static constexpr int kAlonePatience = 10;  // join deadlines in which a worker that is alone comes no further
  // A worker that has not answered kReach after this time has not reached the shards. It needs half of the time at
  // most.
  static constexpr std::chrono::seconds kReachPatience{10};
  // A log whose disk is full is tried again after this time.
  static constexpr std::chrono::seconds kFullPause{1};
  // After this time a line says that no new snapshot is on all disks.
  static constexpr std::chrono::seconds kSayUnkept{60};

  struct Options {
    int shard_count = 1;
    int leaves = 0;
    int64_t first_step = 0;  // of the run: 0, or a checkpoint's
    int64_t end_step = 0;
    int first_workers = 1;  // the first generation begins with them
    int min_workers = 1;
    MemberTimes times;
    // Time for all shards and first workers of a run to come; `waited` of it is over.
    std::chrono::milliseconds start_deadline{60'000};
    std::chrono::steady_clock::duration waited{0};
    // Time for a shard to come back, and for enough workers to come.
    std::chrono::milliseconds join_deadline{60'000};
    GenerationLog* log = nullptr;  // outlives the coordinator
    std::function<void(uint64_t member, const Order&)> send;
    std::function<void(const std::string&)> say;  // lines for people
    Time now;
  };
  explicit Coordinator(Options options);

  // A process attends. It is known by a number that it has drawn; `name` is for people. AlreadyExists if another
  // process is that shard, or has the worker's number; InvalidArgument if the process was another member before. While
  // the run has no snapshot, a worker that would begin at another step gets kEnd, and is no member any more.
  absl::Status AddShard(uint64_t member, const std::string& name, const ShardReport& report, Time now);
  absl::Status AddWorker(uint64_t member, const std::string& name, const WorkerReport& report, Time now);
  // Reports were checked (member_report.h). No effect if no such member attends, or if it attends as another one.
  void OnShard(uint64_t member, const ShardReport& report, Time now);
  void OnWorker(uint64_t member, const WorkerReport& report, Time now);
  // The member's connection is down. It may come back by AddShard or AddWorker with the same number.
  void OnDisconnect(uint64_t member, Time now);

  // Call ten times a second.
  void Tick(Time now);

  // Ends the run early: after its next snapshot comes a generation without steps, which saves a checkpoint. Workers
  // that want to leave stay for it.
  void EndRun(Time now);

  // After kEnd was sent.
  const std::optional<absl::Status>& ended() const { return ended_; }

  struct MemberStatus {
    std::string name;
    std::string what;  // "rank 2, leaves 4-6", "spare", "shard 1 of 2"
  };
  struct Status {
    int64_t generation = 0;
    int64_t first_step = 0;
    int64_t step = 0;  // the newest that a worker is at
    bool changing = false;
    std::string cause;  // of the last change
    std::vector<MemberStatus> members;
    std::vector<int> missing_shards;  // or not connected
    std::vector<int64_t> snapshots;   // that all shards have
  };
  Status Describe() const;

 private:
  struct Member {
    std::string name;
    bool is_shard = false;
    bool connected = true;
    Time heard;       // the last report
    Time down_since;  // while not connected
    // Workers.
    int64_t order_of_joining = 0;
    Time last_progress;
    int64_t first_step = 0;
    std::string told;     // why it waits
    std::string claimed;  // its last claim (TroubleLedger), in words
    // The last kReach: its number, where the shards were (places_), since when it is unanswered.
    int64_t reach_asked = 0;
    int64_t reach_places = 0;
    Time reach_since;
    bool is_unreached = false;  // a shard did not answer, and that was said
    WorkerReport worker;
    ShardReport shard;
  };

  // kUnprepared: a change has begun, and its `prepare` is not in the log yet. kPrepared: members end their parts of the
  // generation before. kTraining: a generation runs. kStopping: it runs, and its workers were told to stop. kEnded:
  // `ended_` says how.
  //
  //   kUnprepared ─ Prepare ─▶ kPrepared ─ Begin ─▶ kTraining ─ StopGeneration ─▶ kStopping
  //        ▲                                            │                             │
  //        └───────────────── BeginChange ──────────────┴─────────────────────────────┘      End: from each to kEnded
  enum class Phase { kUnprepared, kPrepared, kTraining, kStopping, kEnded };
  bool IsRunning() const { return phase_ == Phase::kTraining || phase_ == Phase::kStopping; }
  // Whether the run ends before its last step, by a generation without steps that saves what there is. It is kAsked
  // from EndRun or EndForShortage on, and kSaving from the next Begin on: later generations are such ones, too.
  enum class EarlyEnd { kNo, kAsked, kSaving };
  // True if it was asked for before.
  bool AskForEarlyEnd();

  Member* Find(uint64_t member);
  void SetGeneration(const Generation& generation);
  void Heard(Member& member, Time now);
  void GiveUpLost(Time now);
  // Why the member is given up now; empty: it is not.
  std::string LossOf(uint64_t id, const Member& member, Time now) const;
  void GiveUp(uint64_t id, const std::string& why, Time now);
  bool IsInGeneration(uint64_t id) const;
  // Whether a worker has ended its part of the last generation, or never began it.
  bool IsReady(uint64_t id) const;
  // Why a worker has ended its part of the generation.
  void OnTrouble(uint64_t id, const WorkerReport& report, Time now);
  void OnClaim(uint64_t id, const WorkerReport& report, Time now);
  // The worker leaves, with its own error.
  void FailWorker(uint64_t id, const absl::Status& why, Time now);
  void FailRefuted(Time now);
  void LeaveOut(uint64_t id, const std::string& why, Time now);
  // Leaves out the workers that have kept the last generation from going on, if enough others remain.
  void JudgeOnce(Time now);
  // Whether the worker has reached all shards at their present addresses. Sends kReach if it is time to.
  enum class Reach { kYes, kNo, kAsked };
  Reach LookAtReach(uint64_t id, Time now);
  bool HasReached(const Member& member) const;
  Order ReachOrder(const Member& member) const;
  std::vector<std::string> ShardAddresses() const;
  // Why the shards cannot take so many workers; empty: they can.
  std::string LacksRoom(const std::vector<uint64_t>& workers) const;
  // Planned changes: a worker joins or leaves; other shares are faster.
  void ConsiderWorker(uint64_t id, Member& member, Time now);
  void ConsiderShares(Time now);
  // Tells the workers to stop. When all have stopped, the change begins.
  void StopGeneration(const std::string& cause, Time now);
  void ChangeIfStopped(Time now);
  // kWorker: one worker's trouble. It is no strike, because the worker leaves, is left out or is checked.
  enum class Kind { kPlanned, kWorker, kOther };
  void BeginChange(const std::string& cause, Kind kind, Time now);
  // Logs that the change has begun, and tells all members.
  void Prepare(Time now);
  // Whether the log was written. If its disk is full, says so, and the caller tries again later. Any other error ends
  // the run.
  bool IsLogged(const absl::Status& status, Time now);
  // Whether the log's disk was full a moment ago.
  bool IsFull(Time now) const { return full_since_.has_value() && now - full_tried_ < kFullPause; }
  void EndForShortage(const std::string& missing, Time now);
  // How long the run may wait for the next generation.
  std::chrono::milliseconds ChangeDeadline() const;
  void CommitIfReady(Time now);
  void Begin(const Generation& next, bool from_snapshot, Time now);
  Order ServeOrder() const;
  Order StopOrder() const { return {.kind = Order::Kind::kStop, .ends_run = early_end_ != EarlyEnd::kNo}; }
  void RepeatOrders(Time now);
  // Which shard the next generation waits for; empty: none.
  std::string MissingShard() const;
  // Which worker has not ended its part of the last generation; empty: none.
  std::string MissingWorker() const;
  std::string MissingForCommit(Time now) const;
  int WorkersNeeded() const;
  void RefuseOtherBegins();
  std::vector<uint64_t> ReadyWorkers() const;
  // The workers that the next generation may have.
  std::vector<uint64_t> EligibleWorkers(Time now) const;
  // The generation of as many of these workers as the shards have room for, with their shares.
  Generation Deal(std::vector<uint64_t> workers) const;
  std::vector<int64_t> CommonSnapshots() const;  // the run's, that all shards have, ascending
  // The leaves of the generation that the shards have counted.
  GenerationLog::Counts Counts() const;
  // How far the run has come, as far as it is known. `snapshots`: CommonSnapshots.
  int64_t ReachedStep(const std::vector<int64_t>& snapshots) const;
  // Not OK: the run cannot go on, because it has lost too much.
  absl::Status CheckLoss(const std::vector<int64_t>& snapshots) const;
  // Not OK: it comes no further than `first_step`, where the next generation begins.
  absl::Status CheckProgress(int64_t first_step, const std::vector<int64_t>& snapshots);
  // The step at which the next generation begins.
  absl::StatusOr<int64_t> FirstStep(const std::vector<int64_t>& snapshots) const;
  void Say(const std::string& line) const;
  // Whether all shards serve the generation. Before that, a shard may report snapshots that it is about to drop.
  bool AllServe() const;
  void KeepDurable(Time now);
  void SayUnkept(Time now);
  int64_t SnapshotEvery(const std::vector<uint64_t>& workers) const;
  void End(const absl::Status& status);
  void SendToAll(bool to_shards, const Order& order);
  double SecondsPerLeaf(uint64_t id) const;
  std::vector<double> SecondsOf(const std::vector<uint64_t>& workers) const;

  const Options options_;
  std::map<uint64_t, Member> members_;
  std::map<int, uint64_t> shards_;  // by number
  int64_t joined_count_ = 0;
  std::optional<Generation> generation_;  // the one that runs, or ran last
  std::map<uint64_t, int> ranks_;         // of its workers
  Order train_;                           // its workers' order to begin
  Phase phase_ = Phase::kUnprepared;
  EarlyEnd early_end_ = EarlyEnd::kNo;
  bool has_committed_ = false;  // this process, and not one before it
  absl::Status shortage_;       // not OK: why there is an early end, because too few workers have come
  int64_t changing_to_ = 0;     // the number that was prepared last
  const bool continues_;        // a coordinator before this one has begun the run
  Kind kind_ = Kind::kOther;    // of the last change
  bool has_judged_ = false;     // in this change
  TroubleLedger ledger_;
  int64_t places_ = 1;  // counts changes of the shards' addresses, and doubts whether workers reach them
  std::string cause_;
  Time change_since_;
  Time last_tick_;
  Time last_deal_;
  Time said_missing_;
  int64_t checked_ = 0;               // the generation whose progress was checked last
  std::optional<Time> full_since_;    // since when the log's disk is full
  Time full_tried_;                   // when that was seen last
  Time last_order_;                   // that members have to obey
  int64_t kept_ = -1;                 // the newest snapshot that all shards had durably; -1: none
  Time kept_since_;                   // since when it is the newest, or that was said (SayUnkept)
  int64_t reach_number_;              // of the last kReach
  int64_t newest_step_ = 0;           // that a worker of the generation was at
  double step_seconds_ = 0;           // the usual time, as a worker of a generation has reported it; 0: not known yet
  std::vector<std::string> strikes_;  // why generations have not brought the run further
  std::vector<std::string> losses_;   // why snapshots were lost since one was last on all disks: these strikes stay
  std::optional<absl::Status> ended_;
};

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_COORDINATOR_H_
