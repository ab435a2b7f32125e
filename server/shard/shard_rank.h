// A server as a rank of the workers' world (--transport=tcp): takes the workers' messages from a Transport and feeds
// them to the same ShardJob as the server over gRPC, so sums, order and bits are the same. In a world of W workers and
// S servers rank W + s is the server of shard s. common/transport/shard_wire.h has the messages,
// worker/exchange/peer/server_ranks.h the other end.
//
// Life. In a check before training (worker --check) the server takes part, and no job follows in this world. Else the
// workers' agreements are compared as a Join is (rendezvous.h), and the memory is checked, before anything is
// allocated. Rank 0 collects the verdicts of all servers and tells them to all processes. Then rank 0 sends the start
// of the run. Contributions and requests come in any order. The job ends when every worker has finished.
//
// Contributions and answers are the messages of a star (common/reduce/star.h), in which this server is an owner and a
// slice is one piece. A long slice is summed in parts, between which messages move, so that this server answers roll
// calls. All workers submit their buckets in ascending order in each step, and so does this server: it
// submits a bucket again when the bucket's parameters are made, before they leave. So the receive of a contribution is
// posted before a worker can send it. A message that no correct worker sends is an error of the transport, or fails the
// job.
//
// Shared memory. If the workers ask for it and all processes are on one host, there is no star. The server waits until
// the host board shows that all workers have submitted a bucket, reads their gradients where the workers have written
// them, and writes the parameters where all read them (worker/exchange/peer/memory_machine.h has the protocol).
//
// Memory: ShardMemoryNeeded counts it; the star's slots are within the contributions that it counts.
//
// In shared memory the board has no names: workers find out who is late, and metrics and trace do not say.
//
// Faults. A process that is gone ends the job with an error that names it. A job that fails tells all processes why. A
// stall is reported as over gRPC (stall_watch.h): the workers' answers to a roll call are this server's reports of
// progress.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_SHARD_SHARD_RANK_H_
#define STARRING_SERVER_SHARD_SHARD_RANK_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/memory.h"
#include "common/base/running_clock.h"
#include "common/host/host_identity.h"
#include "common/host/machine_limits.h"
#include "common/job/leaf_shares.h"
#include "common/metrics/trace.h"
#include "common/reduce/owner_map.h"
#include "common/reduce/star.h"
#include "common/reduce/star_sink.h"
#include "common/transport/memory/host_arrays.h"
#include "common/transport/memory/host_memory.h"
#include "common/transport/memory/host_transport.h"
#include "common/transport/message_pump.h"
#include "common/transport/shard_wire.h"
#include "common/transport/transport.h"
#include "common/watch/progress_state.h"
#include "server/door/rendezvous.h"
#include "server/shard/server_metrics.h"
#include "server/shard/shard_job.h"

namespace starring {

class ShardRank final : private Transport::Poster, private StarSink {
 public:
  struct Options {
    int shard = 0;
    int shard_count = 1;
    // As ParameterServer::Options.
    int64_t memory_bytes_max = 0;
    std::function<absl::StatusOr<int64_t>()> available_memory = [] { return AvailableMemoryBytes(); };
    std::function<int()> servers_here = CountProcessesOfThisProgram;
    std::string boot_id = BootId();                           // of this server's host
    absl::Duration join_deadline = absl::InfiniteDuration();  // for the workers, once they are connected
    std::function<void(const std::string&)> log;              // gets lines for people; null: no log
    std::function<void()> on_begin;                           // all processes have agreed; null: not wanted
    // Gets the job's state ten times a second, and when the job is over; null: not wanted.
    std::function<void(const v1::GetStatusReply&)> on_status;
    ServerMetrics* metrics = nullptr;  // outlives this; null: there are none
    Trace* trace = nullptr;            // outlives this; null: none; the caller writes it
  };
  // REQUIRES: the transport's rank is that of the shard, and there is at least one worker.
  ShardRank(std::unique_ptr<Transport> transport, Options options);

  // Serves the job; called once. OK: all workers have finished. InvalidArgument if the processes do not agree or this
  // server has too little memory; else the error with which the job failed; the others have been told.
  // If the workers check the world (worker --check), takes part in that; OK: a verdict was found.
  absl::Status Run();

  // After Run: it was a check, so the job is still to come, over another transport.
  bool was_check() const { return was_check_; }

 private:
  using Clock = std::chrono::steady_clock;

  // The parameters of a slice that leave.
  struct Sealed {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> keeper;
  };
  // Optimizer state that rank 0 has asked for.
  struct Fetch {
    std::function<void(int64_t begin, std::span<float> out)> make;
    int64_t count = 0;
  };

  ShardRank(std::unique_ptr<HostTransport> transport, Options options);

  absl::Status Agree();
  absl::Status TakeJoins();
  // The workers have the same one of both in mind, a job or a check.
  absl::Status TellCheck(const std::vector<ShardJoin>& heads);
  absl::Status CheckAffordable(const Agreement& agreement) const;
  absl::Status ShareMemory();
  absl::Status Begin();
  absl::Status TakeStart();
  absl::Status TakeInitial(v1::ExchangeMessage fields, int64_t count);
  absl::Status Serve();
  absl::Status SumParts(Clock::time_point until);
  absl::Status SendState(const Fetch& fetch);
  absl::Status EndJob();

  void OnCompletion(uint64_t operation) override;
  void OnRequest(int rank);

  std::span<std::byte> Allocate(int64_t bytes) override;
  void OnContribution(const StarSum& sum, int contributor, std::span<const std::byte> contribution) override;
  std::span<std::byte> Result(const StarSum& sum, ElementRange range) override;
  Finished FinishAll(const StarSum& sum, const Output& output, std::span<std::byte* const> contributions) override;
  void OnReady(const StarSum& sum) override;
  void OnDone(const StarSum& sum) override;
  void ServeBuckets();
  void CreateStar();
  void SubmitBuckets();
  void AwaitArrivals(int bucket);
  void SumInMemory(int bucket);
  void TellUpdate(int bucket);
  void Answered(Answer answer);
  void Feed(int rank, v1::ExchangeMessage fields, std::span<const std::byte> payload);
  void PostRequest(int rank);
  void TellStatus() const;
  void Log(const std::string& line) const;

  int worker_count() const { return pump_.worker_count(); }
  const BucketMap& buckets() const { return rendezvous_.agreement().buckets; }
  OwnerMap owners() const { return OwnerMap::ShardRanges(options_.shard_count); }
  ElementRange SliceOf(int bucket) const { return owners().RangeOf(buckets().sum(bucket), options_.shard); }
  StarSum SumOf(int64_t step, int bucket) const;

  const Options options_;
  bool was_check_ = false;
  RunningClock clock_{Clock::now()};  // the job's time
  ProgressState progress_;            // a server always waits for workers; peers only ask whether it responds
  Rendezvous rendezvous_;
  std::vector<ShardRequest> requests_;  // by rank: the one that is arriving
  std::vector<Contributor> contributors_;
  bool shares_memory_ = false;          // the workers have asked for it
  std::unique_ptr<HostMemory> memory_;  // null: the processes share none
  HostArrays arrays_;
  std::vector<AlignedFloats> allocated_;
  std::map<std::pair<int, int64_t>, Sealed> sealed_;  // by bucket and step
  std::map<int, int> summing_;                        // by bucket that is summed in parts: the star's piece
  std::vector<int64_t> next_steps_;                   // by bucket: the first that is not summed yet
  // The next sum that is submitted.
  int64_t submit_step_ = 0;
  int submit_bucket_ = 0;
  std::vector<float> scratch_;  // a piece of the start's arrays or of the state
  std::optional<Fetch> fetch_;
  std::vector<MessagePump::Token> finished_;  // the last answers
  std::unique_ptr<ShardJob> job_;
  std::unique_ptr<Star> star_;
  MessagePump pump_;
  // Is destroyed first: until then it may write into the buffers above.
  const std::unique_ptr<HostTransport> transport_;
};

}  // namespace starring

#endif  // STARRING_SERVER_SHARD_SHARD_RANK_H_
