// A server's job once all workers have joined: takes their messages, sums their contributions and answers. Knows
// nothing of gRPC: messages and answers are plain structs, and the time is passed in.
//
// A request is answered on the lane that it came by last. Requests whose answer needs all workers (gradients, sums, the
// end) wait here. When the exchange deadline, counted from the first arrival, has passed, the job fails and the status
// names the workers that are late.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_SHARD_SHARD_JOB_H_
#define STARRING_SERVER_SHARD_SHARD_JOB_H_

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/job_spec.h"
#include "common/metrics/trace.h"
#include "common/watch/roll_call.h"
#include "common/wire/exchange_message.h"
#include "server/elastic/snapshot_store.h"
#include "server/shard/collective_wait.h"
#include "server/shard/contribution_sum.h"
#include "server/shard/server_metrics.h"
#include "server/shard/shared_arrays.h"
#include "server/shard/stall_watch.h"

namespace starring {

// A message to a worker. Its payload may be longer than one message carries; the lane that writes it cuts it into parts
// (exchange_message.h).
struct Answer {
  LaneId to;
  v1::ExchangeMessage fields;  // without payload
  std::span<const std::byte> payload;
  std::shared_ptr<const void> keeper;  // of the payload; shared with ContributionSum and other workers' answers

  // Not null: there is no payload yet. `make` copies elements of an array of made_count floats, from `begin` on, to
  // `out`. The lane calls it for each part when that part is to be written, so that a lane holds one part and not the
  // whole array. Called on ShardJob's thread, while the ShardJob lives.
  std::function<void(int64_t begin, std::span<float> out)> make;
  int64_t made_count = 0;
};

class ShardJob {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    Agreement agreement;
    int shard = 0;
    int shard_count = 1;
    std::chrono::milliseconds exchange_deadline{60'000};
    // A worker opens its lanes when it has joined at every shard. That may take as long as this.
    std::chrono::milliseconds join_deadline{60'000};
    // Sends an answer, or drops it if its lane is gone. Called by the methods below, in the order of the answers.
    std::function<void(Answer)> send;
    Time now;
    StallTimes stall_times;
    std::function<void(const std::string&)> log;  // gets lines for people; null: no log
    TraceTrack* track = nullptr;                  // of the calling thread; null: there is no trace
    ServerMetrics* metrics = nullptr;             // null: there are none

    // Where all workers read parameters, at their places in the whole vector: every update overwrites the one before
    // (ContributionSum::UpdateInPlace). Outlives the job. Empty: they are sent.
    std::span<float> parameters;

    // Long slices are summed by SumPart, between whose calls the caller does other work.
    bool sums_in_parts = false;

    // For an elastic run; without a store there are no snapshots.
    SnapshotStore* snapshots = nullptr;  // outlives the job
    int64_t snapshot_every = 1;          // steps, and
    int64_t steps_per_epoch = 1;         // where epochs end (IsSnapshotStep)
    // The snapshot of agreement.first_step; null: rank 0 brings the parameters. Copied, and not held.
    std::shared_ptr<const Snapshot> start;
  };
  // Allocates what CheckShardMemory counts (rendezvous.h). InvalidArgument as ContributionSum::Create.
  static absl::StatusOr<std::unique_ptr<ShardJob>> Create(Options options);

  // REQUIRES: 0 <= lane.rank < world size.
  void OnLaneOpen(LaneId lane);
  void OnLaneClosed(LaneId lane, Time now);

  // A message, other than HELLO, of an open lane. A message that no correct worker sends fails the job.
  void OnMessage(LaneId from, const ReceivedMessage& message, Time now);

  void CheckDeadlines(Time now);

  // With sums_in_parts: a bucket is complete, and the job goes on. SumPart sums its next part. The last part's call
  // answers the workers and returns the bucket.
  bool is_summing() const { return state_ == State::kRunning && sums_.is_summing(); }
  std::optional<int> SumPart();

  // Ends the job and tells every worker why. Only the first call has an effect. `blamed`: the ranks that the error is
  // about.
  void Fail(const absl::Status& why, std::vector<int> blamed = {});

  // kFailed: status() says why. kFinished: every worker has sent FINISH and has been answered.
  enum class State { kRunning, kFinished, kFailed };
  State state() const { return state_; }
  const absl::Status& status() const { return status_; }
  // The ranks whose contribution or connection was waited for in vain, or that sent a message that no correct worker
  // sends.
  const std::vector<int>& blamed() const { return blamed_; }

  // By the step of a snapshot that has been taken: how many leaves were in the sums of each bucket before it, since the
  // job began; 0 if the buckets differ. Only the last kSnapshotsReportedMax steps are kept.
  const std::map<int64_t, int64_t>& counted() const { return counted_; }

  int world_size() const { return options_.agreement.world_size; }
  void Describe(v1::GetStatusReply* reply) const;

 private:
  struct Worker {
    std::set<int> lanes_open;
    Time alone_since;            // when its last lane closed; meaningful while none is open
    bool has_connected = false;  // a lane has been open
    int64_t contributions = 0;
    std::map<int, PartAssembler> parts;  // by lane: of a slice that has not arrived completely
  };

  ShardJob(Options options, ContributionSum sums);

  // Joins the parts of a slice, then calls Handle.
  absl::Status TakePart(LaneId from, const ReceivedMessage& message, Time now);
  absl::Status Handle(LaneId from, const ReceivedMessage& message, Time now);
  absl::Status TakeInitialParameters(LaneId from, const ReceivedMessage& message);
  absl::Status TakeInitialState(LaneId from, const ReceivedMessage& message);
  absl::Status FetchParameters(LaneId from, const ReceivedMessage& message, Time now);
  absl::Status TakeGradient(LaneId from, const ReceivedMessage& message, Time now);
  // A sum for trace and metrics: its last contribution, and when that came.
  struct LastContribution {
    int rank = 0;
    TraceLabels labels;
    int64_t first_arrival_ns = 0;  // of the sum's contributions
    int64_t arrival_ns = 0;
  };
  bool is_watched() const { return options_.track != nullptr || options_.metrics != nullptr; }
  void NoteContribution(int rank, const v1::ExchangeMessage& fields, const ContributeResult& result,
                        int64_t arrival_ns);
  // Elements were summed and applied from begin_ns until now. Returns the nanoseconds.
  int64_t DrawSum(const TraceLabels& labels, int64_t begin_ns);
  void NoteSum(const LastContribution& last, int64_t sum_ns);
  void AnswerAll(const SealedUpdate& update);
  absl::Status FetchState(LaneId from, const ReceivedMessage& message);
  absl::Status TakeSum(LaneId from, const ReceivedMessage& message, Time now);
  void TakeShare(LaneId from, const ReceivedMessage& message);
  absl::Status TakeSideValues(LaneId from, const ReceivedMessage& message);
  absl::Status FetchSideValues(LaneId from, const ReceivedMessage& message);
  absl::Status PinSnapshot(int64_t step);
  // The slices and the state with which the job begins.
  absl::Status SetStart(const Snapshot& start);
  void TakeSnapshot(int64_t step, int bucket);
  absl::Status TakeFinish(LaneId from, const ReceivedMessage& message, Time now);

  absl::Status CheckBucket(const v1::ExchangeMessage& fields) const;
  absl::Status CheckVector(const v1::ExchangeMessage& fields) const;
  static absl::Status CheckIsRank0(LaneId from);

  // The length of the payload if it is a slice, else -1.
  int64_t SliceBytes(const v1::ExchangeMessage& fields) const;

  void SendParameters(LaneId to, int bucket, std::shared_ptr<const SealedSlice> sealed);
  void Send(LaneId to, v1::ExchangeMessage fields, std::span<const std::byte> payload = {},
            std::shared_ptr<const void> keeper = nullptr);
  void SendError(LaneId to);
  // Fails the job if `wait` is older than the deadline: "rank 1 has `not_done` within 60 s".
  void FailIfLate(const CollectiveWait& wait, Time now, absl::FunctionRef<std::string()> not_done);
  // Describes the wait of the worker that has waited longest: "rank 1 has not joined in sum 3"; empty: no worker waits.
  std::string DescribeOldestWait() const;
  void AskProgress(int rank);
  void TellStall(int rank, const std::string& text);
  std::string Deadline() const;

  const Options options_;
  const std::vector<ElementRange> slices_;  // the elements that the shard owns, by bucket
  ContributionSum sums_;
  std::vector<CollectiveWait> fetches_;  // by bucket: workers that wait for the initial parameters
  SharedArrays shared_;
  std::vector<Worker> workers_;
  std::deque<LastContribution> summing_;  // of complete buckets, in the order in which they became so
  int64_t sum_ns_ = 0;                    // that the first of them has taken, without what happens between its parts
  CollectiveSum sum_;
  CollectiveWait finish_wait_;
  StallWatch stall_;
  std::vector<double> start_side_values_;  // of the snapshot with which the job began
  std::map<int64_t, int64_t> counted_;
  std::shared_ptr<const Snapshot> read_snapshot_;  // by the worker that saves a checkpoint; null: none was

  State state_ = State::kRunning;
  absl::Status status_;
  std::vector<int> blamed_;
  int64_t bytes_received_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace starring

#endif  // STARRING_SERVER_SHARD_SHARD_JOB_H_
