// Which workers have joined the job of this server. The first worker's agreement defines the job, and the agreements of
// the others must be equal to it. The job begins when all ranks have joined. Knows nothing of gRPC.
//
// A worker that leaves before the job begins is forgotten, so that it can come back with other flags. Afterwards the
// membership is fixed.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_DOOR_RENDEZVOUS_H_
#define STARRING_SERVER_DOOR_RENDEZVOUS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/job/job_spec.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {

class Rendezvous {
 public:
  // Whether this server can serve the job, with so many lanes a worker. Asked before a first worker is taken in, and
  // again when a worker wants more lanes than those before.
  using Affordable = std::function<absl::Status(const Agreement&, int lanes)>;
  // With a `run_id`, only workers of that run are taken in; without, workers of the first worker's run.
  // REQUIRES: 0 <= shard < shard_count.
  Rendezvous(int shard, int shard_count, std::string run_id, Affordable affordable = nullptr)
      : shard_(shard),
        shard_count_(shard_count),
        expected_run_id_(std::move(run_id)),
        affordable_(std::move(affordable)),
        run_id_(expected_run_id_) {}

  // Takes the worker in, again if it has joined before, or refuses it: InvalidArgument (wrong shard, bad rank,
  // agreements that differ), AlreadyExists (another process has this rank; names its address), FailedPrecondition
  // (another run, or the job has begun with another process as this rank). `peer` is where the request came from.
  absl::Status Join(const v1::JoinRequest& request, std::string peer = "");

  // The worker gave up before the job began. No effect afterwards.
  void Leave(int rank, uint64_t worker_id);

  bool has_workers() const { return joined_count_ > 0; }
  bool complete() const { return complete_; }
  bool Joined(int rank) const { return rank >= 0 && rank < static_cast<int>(members_.size()) && members_[rank].joined; }

  // The ranks that no worker has joined as, though others have joined; empty: there are none, or nobody has joined. A
  // worker that has joined and left is not among them.
  std::vector<int> NeverJoined() const;

  // "rank 1 of 4 has not joined", with the reason if its last attempt was refused. A rank that has joined and left is
  // named only if no other is missing. REQUIRES: !complete().
  std::string DescribeMissing() const;

  // The job's; meaningful while has_workers().
  const Agreement& agreement() const { return agreement_; }
  const std::string& run_id() const { return run_id_; }
  // The longest deadline that any worker asked for.
  int64_t join_deadline_ms() const { return join_deadline_ms_; }
  int64_t exchange_deadline_ms() const { return exchange_deadline_ms_; }
  // The largest number of lanes that any worker will open.
  int lanes() const { return lanes_; }
  // 0 if any worker wants no report.
  int64_t stall_report_ms() const { return stall_report_ms_; }

 private:
  struct Member {
    bool joined = false;
    bool has_joined = false;  // also if it has left
    uint64_t worker_id = 0;
    std::string peer;     // where its last Join came from
    std::string refusal;  // why the last attempt to join as this rank failed, if it did
  };

  absl::Status CompareRuns(const v1::JoinRequest& request) const;
  absl::Status Compare(const v1::JoinRequest& request) const;
  // Takes the job from its first worker.
  absl::Status AdoptJob(const v1::JoinRequest& request);

  const int shard_;
  const int shard_count_;
  const std::string expected_run_id_;
  const Affordable affordable_;
  std::vector<Member> members_;
  int joined_count_ = 0;
  bool complete_ = false;
  int first_rank_ = 0;  // the one that defined the job
  std::string agreement_bytes_;
  Agreement agreement_;
  std::string run_id_;
  int64_t join_deadline_ms_ = 0;
  int64_t exchange_deadline_ms_ = 0;
  int lanes_ = 1;
  int64_t stall_report_ms_ = 0;
};

// The bytes that a shard of this job holds at most: parameters, the optimizer's state, the contributions of all workers
// to all buckets, and `snapshots_max` snapshots, which have the parameters and the state. Allocates nothing.
int64_t ShardMemoryNeeded(const Agreement& agreement, int shard, int shard_count, int snapshots_max = 0);

// For how many contributions to a bucket that shard has enough memory; 0: for none. `agreement`: whatever its workers
// and their leaves are.
int64_t ShardContributionsMax(const Agreement& agreement, int shard, int shard_count, int64_t memory_bytes_max,
                              int snapshots_max = 0);

// ResourceExhausted, with both numbers and the way out, if the shard needs more than `memory_bytes_max`.
absl::Status CheckShardMemory(const Agreement& agreement, int shard, int shard_count, int64_t memory_bytes_max,
                              int snapshots_max = 0);

}  // namespace starring

#endif  // STARRING_SERVER_DOOR_RENDEZVOUS_H_
