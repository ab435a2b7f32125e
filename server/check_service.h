// Answers the requests of workers that check a star before training (worker --check), and keeps the board on which they
// meet.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_CHECK_SERVICE_H_
#define STARRING_SERVER_CHECK_SERVICE_H_

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/starring/v1/parameter_server.pb.h"
#include "server/check_board.h"

namespace starring {

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

  // `request` has the job's token and came from `peer`. FailedPrecondition once the job has begun, InvalidArgument or
  // ResourceExhausted beyond the limits; then `peer` is not kept.
  absl::StatusOr<v1::CheckReply> Answer(const v1::CheckRequest& request, const std::string& peer,
                                        Clock::time_point now);

  // Drops the notes of workers that have not been heard for long.
  void Forget(Clock::time_point now);

  // The job has begun, with `world_size` workers, and must not feel a check: every later request is refused.
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

#endif  // STARRING_SERVER_CHECK_SERVICE_H_
