// A worker's part in an elastic run: attends at the coordinator, reports what the training thread does, and brings that
// thread its generations.
//
// Thread safety: the training thread makes all calls, unless said otherwise.
#ifndef STARRING_WORKER_ELASTIC_WORKER_MEMBER_H_
#define STARRING_WORKER_ELASTIC_WORKER_MEMBER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/job/generation.h"
#include "common/security/transport_security.h"
#include "common/watch/progress_state.h"
#include "common/wire/member_link.h"

namespace starring {

// The order to train a generation.
struct GenerationOrder {
  Generation generation;
  int rank = 0;
  bool from_snapshot = false;
  bool ends_run = false;             // it has no step, and saves
  std::vector<std::string> servers;  // by shard
  std::string run_id;                // with which they are joined
  std::string cause;                 // why the generation before has ended
};

class WorkerMember {
 public:
  struct Options {
    std::string coordinator;  // host:port
    TransportSecurity security;
    std::string run_id;
    // The terms of the run (RunTerms).
    std::string agreement;
    int64_t steps_per_epoch = 1;
    int64_t first_step = 0;  // of the run, if this worker is the first one
    int64_t end_step = 0;
    double trial_leaf_seconds = 0;         // one leaf, computed once
    absl::Duration join_deadline;          // for the coordinator to be reached
    absl::Duration stall_report;           // after which a line says why this worker waits
    const ProgressState* state = nullptr;  // outlives the member
    std::function<bool()> asked_to_leave;  // any thread
    // Whether all shards answer. Called by Next.
    std::function<absl::Status(const std::vector<std::string>& shards)> reach;
    std::function<void(const std::string&)> say;  // lines for people
    // How long AwaitEnd waits for a coordinator that cannot be reached. A coordinator that was killed and started again
    // is back sooner, and waits for its workers if it has not logged the end. A coordinator that has ended the run does
    // not come back.
    std::chrono::milliseconds end_patience{20'000};
  };
  explicit WorkerMember(Options options);
  ~WorkerMember();

  // Reports that this worker is ready for the next generation, because of `trouble`, or because it stopped as ordered
  // (OK). Waits for that generation. Meanwhile, when ordered to, checks whether the shards answer. nullopt: the run has
  // ended well. Fails with the run's error, or with that for which this worker has to leave the run; Cancelled if this
  // worker was asked to leave; Unavailable if the coordinator cannot be reached within the join deadline.
  absl::StatusOr<std::optional<GenerationOrder>> Next(const absl::Status& trouble);

  // The generation has finished the run, as its shards have told this worker; now they tell the coordinator. True when
  // the run has ended, or the coordinator cannot be reached for end_patience. False if another generation comes first,
  // because a shard died before it could. The run's error.
  absl::StatusOr<bool> AwaitEnd();

  // Any thread. The generation is to end at the next snapshot.
  bool told_to_stop() const { return stop_; }
  // Any thread. The generation is over: nothing of it will be answered.
  bool superseded() const { return cut_below_ > training_ || refused_; }

  // A step has taken `step_seconds`. In `compute_seconds` of them this worker has computed its `leaves`.
  void OnStep(int64_t next_step, double step_seconds, double compute_seconds, int leaves);
  // A micro-batch, or a batch of an evaluation, is done; or this worker goes on waiting for its disk.
  void OnLeaf() { ++leaf_count_; }
  // This worker leaves the run, with its own error. Returns when that was reported, or after a second.
  void Fail(const absl::Status& why);

 private:
  class Link;

  // Checks whether the shards answer, if the coordinator has ordered it.
  void ReachIfTold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For a person, if the coordinator cannot be reached: has this worker trained, it is down, or the run has ended.
  const char* WhatToDo() const;
  // Since when this worker waits, and for what, in a line.
  std::string WaitSentence(std::chrono::steady_clock::time_point since) const;

  const Options options_;
  const uint64_t id_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> run_ends_ = false;  // a worker that wants to leave stays, and saves
  std::atomic<bool> refused_ = false;
  std::atomic<int64_t> cut_below_ = 0;
  std::atomic<int64_t> training_ = 0;
  std::atomic<int64_t> step_ = 0;
  std::atomic<int64_t> leaf_count_ = 0;
  std::atomic<double> seconds_per_leaf_ = 0;
  std::atomic<double> step_seconds_ = 0;
  std::deque<double> leaf_seconds_, all_seconds_;  // of the last steps
  Mutex mutex_;
  ConditionVariable changed_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_spare_ ABSL_GUARDED_BY(mutex_) = false;  // and was told why
  absl::Status trouble_ ABSL_GUARDED_BY(mutex_);
  struct ReachOrder {
    int64_t number = 0;
    std::vector<std::string> shards;  // addresses, by number
  };
  std::optional<ReachOrder> reach_ ABSL_GUARDED_BY(mutex_);      // not obeyed yet
  int64_t reach_number_ ABSL_GUARDED_BY(mutex_) = 0;             // of the last one that was obeyed
  std::optional<absl::Status> reached_ ABSL_GUARDED_BY(mutex_);  // its outcome
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool failure_reported_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<GenerationOrder> order_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<MemberLink> link_;  // last: its thread uses the members above

  friend class Link;
};

}  // namespace starring

#endif  // STARRING_WORKER_ELASTIC_WORKER_MEMBER_H_
