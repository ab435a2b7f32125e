// Answers workers that check a star before training (worker --check), and keeps a board of the notes that they leave
// for each other: one for each rank and stage.
//
// limits.h bounds workers, stages and bytes. A worker leaves when it needs the board no more. Its notes stay until all
// workers have left: the others may still have to read them. A worker that comes after that reads none of them. A
// worker that has sent nothing for some seconds is forgotten. So a check that has ended or was broken off is not mixed
// with the next one.
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

class CheckService {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kNoteLife{5};

  struct Options {
    int shard = 0;
    std::string grpc_version;  // for the facts
    // Exempts the connection of `peer` from what strangers may send: a worker of a check sends more, to time it. Called
    // once a check for each peer, at most kCheckConnectionsMax times.
    std::function<void(const std::string& peer)> keep;
  };
  explicit CheckService(Options options) : options_(std::move(options)) {}

  // REQUIRES: `request` is admitted; it came from `peer`. FailedPrecondition once the job has begun, InvalidArgument or
  // ResourceExhausted beyond the limits; then `peer` is not kept, and no note is put.
  absl::StatusOr<v1::CheckReply> Answer(const v1::CheckRequest& request, const std::string& peer,
                                        Clock::time_point now);

  // Drops the notes of workers that have sent nothing for kNoteLife.
  void Forget(Clock::time_point now);

  // The job has begun, with `world_size` workers. A check would slow it down: every later request is refused.
  void Close(int world_size);

 private:
  struct Worker {
    uint64_t id = 0;
    Clock::time_point first_heard, last_heard;
    std::map<int, std::string> notes;  // by stage
    std::optional<Clock::time_point> left;
  };
  absl::Status UseBoard(const v1::CheckRequest& request, Clock::time_point now, v1::CheckReply& reply);
  absl::Status Put(Worker& worker, int stage, const std::string& text);
  void Keep(const std::string& peer);

  const Options options_;
  std::map<int, Worker> workers_;  // by rank
  std::set<std::string> peers_;    // of this check: kept
  int kept_count_ = 0;             // of all checks
  std::optional<int> world_size_;  // of the job, once it has begun
};

}  // namespace starring

#endif  // STARRING_SERVER_DOOR_CHECK_SERVICE_H_
