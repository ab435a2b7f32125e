// Answers workers that check a star before training (worker --check), and keeps the notes that they leave for each
// other.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_DOOR_CHECK_SERVICE_H_
#define STARRING_SERVER_DOOR_CHECK_SERVICE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/starring/v1/parameter_server.pb.h"

namespace starring {

// Where workers that check meet: each puts notes here, the others read them.
//
// limits.h bounds workers, stages and bytes. A worker's notes are gone when it leaves, or some seconds after its last
// request: a check that was broken off must be forgotten before the next one.
class CheckBoard {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kNoteLife{5};

  // Process `worker_id` of worker `rank` is present. Notes of another process of that rank are dropped.
  // InvalidArgument for a rank that no job can have.
  absl::Status Greet(int rank, uint64_t worker_id, Clock::time_point now);
  // Keeps `text` in place of an earlier one. REQUIRES: Greet(rank, ...) was OK, with no Forget since. InvalidArgument
  // or ResourceExhausted beyond the limits.
  absl::Status Put(int rank, int stage, const std::string& text);
  // Null if there is no such note.
  const std::string* Get(int rank, int stage) const;
  void Leave(int rank);
  // Drops the notes of workers that have sent nothing for kNoteLife.
  void Forget(Clock::time_point now);
  void Clear();

  int worker_count() const { return static_cast<int>(workers_.size()); }

 private:
  struct Worker {
    uint64_t id = 0;
    Clock::time_point last_heard;
    std::map<int, std::string> notes;  // by stage
  };
  void Erase(std::map<int, Worker>::iterator worker);

  std::map<int, Worker> workers_;  // by rank
  int64_t bytes_ = 0;              // of all notes
};

class CheckService {
 public:
  using Clock = CheckBoard::Clock;
  struct Options {
    int shard = 0;
    std::string grpc_version;  // for the facts
    // Exempts the connection of `peer` from what strangers may send: a worker of a check sends more, to time it. Called
    // once a check for each peer, at most kCheckConnectionsMax times.
    std::function<void(const std::string& peer)> keep;
  };
  explicit CheckService(Options options) : options_(std::move(options)) {}

  // REQUIRES: `request` is admitted; it came from `peer`. FailedPrecondition once the job has begun,
  // InvalidArgument or ResourceExhausted beyond the limits; then `peer` is not kept.
  absl::StatusOr<v1::CheckReply> Answer(const v1::CheckRequest& request, const std::string& peer,
                                        Clock::time_point now);

  // Drops the notes of workers that have sent nothing for long.
  void Forget(Clock::time_point now);

  // The job has begun, with `world_size` workers. A check would slow it down: every later request is refused.
  void Close(int world_size);

 private:
  absl::StatusOr<v1::CheckReply> Reply(const v1::CheckRequest& request, Clock::time_point now);
  absl::Status UseBoard(const v1::CheckRequest& request, Clock::time_point now, v1::CheckReply* reply);
  void Keep(const std::string& peer);

  const Options options_;
  CheckBoard board_;
  std::set<std::string> peers_;    // of this check: kept
  int kept_count_ = 0;             // of all checks
  std::optional<int> world_size_;  // of the job, once it has begun
};

}  // namespace starring

#endif  // STARRING_SERVER_DOOR_CHECK_SERVICE_H_
