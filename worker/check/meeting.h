// How the processes of a check meet: who dials whom, how long each part may take, and how rank 0 learns what all of
// them have found and tells them its verdict.
//
// Where the transport of the job connects the processes, they meet over it. Otherwise each worker puts its *notes* on a
// *board*, one for each *stage*, and reads the others' notes there. Its first note is its card: who and where it is. No
// wait is longer than the deadlines below.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECK_MEETING_H_
#define STARRING_WORKER_CHECK_MEETING_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/check_conversation.h"
#include "common/transport/message_pump.h"
#include "proto/starring/v1/check.pb.h"

namespace starring {

// For all workers to put their cards; less with a shorter --join_deadline_s. kTestsDeadline follows, for all tests.
inline constexpr absl::Duration kGatherDeadline = absl::Seconds(20);
// For one connection, and for one answer.
inline constexpr absl::Duration kDialDeadline = absl::Seconds(3);
inline constexpr absl::Duration kAnswerDeadline = absl::Seconds(5);

// The ranks that `rank` dials before MPI is tried, ascending. With up to 16 ranks these are all others. Beyond, they
// are its neighbours, rank 0, and the ranks at a distance of a power of two, which MPI's own collectives talk to.
std::vector<int> RingTargets(int rank, int world_size);

// One process at a time tests bandwidth, rank after rank.
struct BandwidthPlan {
  double seconds = 0.1;  // of one test
  int rank_stride = 1;   // ranks 0, rank_stride, 2 * rank_stride, ... test

  // The length of a test by `rank`; 0: it tests none.
  double SecondsOf(int rank) const { return rank % rank_stride == 0 ? seconds : 0; }
};
// All tests together take at most 20 s of kTestsDeadline. REQUIRES: both numbers >= 1.
BandwidthPlan PlanBandwidth(int tests_per_rank, int world_size);

using Reports = std::vector<v1::ProcessReport>;

class Meeting {
 public:
  virtual ~Meeting() = default;

  // All workers call both, in the same order. An error is a sentence about the process that this one did not reach.
  //
  // Brings rank 0 the reports of all workers that came, ascending by rank; the others get nothing.
  virtual absl::StatusOr<Reports> Gather(const v1::ProcessReport& own) = 0;
  // Replaces `exit_code` by that of rank 0.
  virtual absl::Status Tell(int& exit_code) = 0;
};

// Over the transport of a job. No worker is missing, since all are connected. Servers among the ranks take part.
class PumpMeeting final : public Meeting {
 public:
  // `pump` outlives the meeting.
  explicit PumpMeeting(MessagePump* pump) : pump_(*pump) {}

  // Servers have no report of their own among the result's: rank 0's has their facts.
  absl::StatusOr<Reports> Gather(const v1::ProcessReport& own) override;
  absl::Status Tell(int& exit_code) override { return TellVerdict(pump_, exit_code); }

 private:
  MessagePump& pump_;
};

// Why a worker that meets the others at a board has only its own findings, and the way out.
absl::Status AloneError(int rank);

// The numbers of stages are sent to other processes. Gather and Tell take the next one each. Notes are bytes.
class NoteBoard {
 public:
  static constexpr int kCard = 1;
  // A board may be several servers'. With four, the table is complete even if some workers reach only some of them.
  static constexpr int kBoardsMax = 4;

  virtual ~NoteBoard() = default;
  // Called once for each stage. Fails if the board cannot be reached.
  virtual absl::Status Put(int stage, const std::string& text) = 0;
  // Empty if that worker has not put such a note yet. A call asks one of several servers, and the next call the next.
  virtual absl::StatusOr<std::optional<std::string>> Get(int rank, int stage) = 0;
};

class BoardMeeting final : public Meeting {
 public:
  struct Options {
    NoteBoard* board = nullptr;  // outlives the meeting
    int rank = 0;
    int world_size = 1;
    absl::Time gather_end;  // by which all workers put their cards
  };
  explicit BoardMeeting(const Options& options) : options_(options) {}

  // Called first.
  absl::Status PutCard(const v1::ProcessReport& report) { return Put(stage_, report.SerializeAsString()); }
  // Another worker's card. Empty if it does not come in time, or the board fails.
  std::optional<v1::ProcessReport> AwaitCard(int rank) { return Await(rank, NoteBoard::kCard, options_.gather_end); }
  // Returns when the worker before this one has put its next report, or when there is no such worker.
  void AwaitTurn(int rank_stride);

  // A worker that put its card but no report is represented by the card.
  absl::StatusOr<Reports> Gather(const v1::ProcessReport& own) override;
  absl::Status Tell(int& exit_code) override;

 private:
  absl::Status Put(int stage, const std::string& text);
  std::optional<std::string> AwaitText(int rank, int stage, absl::Time end);
  std::optional<v1::ProcessReport> Await(int rank, int stage, absl::Time end);
  absl::Time tests_end() const { return options_.gather_end + kTestsDeadline; }

  const Options options_;
  int stage_ = NoteBoard::kCard;              // the last one
  std::map<int, v1::ProcessReport> reports_;  // rank 0: by rank, the newest ones
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_MEETING_H_
