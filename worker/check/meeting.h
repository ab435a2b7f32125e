// How the workers of a check meet: who dials whom, how long each part may take, how they take turns, and how rank 0
// learns what all of them have found.
//
// The workers have no connections to each other yet: each worker puts its *notes* on a *board*, one for each *stage*,
// and reads the others' notes there. Every worker puts its card, tests when its turn has come, and puts its report.
// Rank 0 reads all reports and announces the verdict, with which all workers end. No wait is longer than the deadlines
// below.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECK_MEETING_H_
#define STARRING_WORKER_CHECK_MEETING_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/starring/v1/check.pb.h"

namespace starring {

// For all workers to put their cards; less with a shorter --join_deadline_s.
inline constexpr absl::Duration kGatherDeadline = absl::Seconds(20);
// For all tests of all workers, after that.
inline constexpr absl::Duration kTestsDeadline = absl::Seconds(30);
// For one connection, and for one answer.
inline constexpr absl::Duration kDialDeadline = absl::Seconds(3);
inline constexpr absl::Duration kAnswerDeadline = absl::Seconds(5);

// The ranks that `rank` dials in a ring, ascending. With up to 16 ranks these are all others. Beyond, they are its
// neighbours, rank 0, and the ranks at a distance of a power of two, which MPI's own collectives talk to.
std::vector<int> RingTargets(int rank, int world_size);

// One process at a time tests bandwidth, rank after rank.
struct BandwidthPlan {
  double seconds = 0.1;  // of one test
  int rank_stride = 1;   // ranks 0, rank_stride, 2 * rank_stride, ... test
};
// All tests together take at most 20 s of kTestsDeadline. REQUIRES: both numbers >= 1.
BandwidthPlan PlanBandwidth(int tests_per_rank, int world_size);

// The kinds of notes. The numbers are sent to other processes.
enum class CheckStage {
  kCard = 1,       // who and where the worker is
  kReport = 2,     // what it has found; its tests are over
  kGo = 3,         // rank 0's, in a ring: 1 if MPI is tried next, otherwise 0
  kMpiReport = 4,  // in a ring: what the worker has found by MPI
  kVerdict = 5,    // rank 0's: the exit code of all; the others': that they have read it
};

class NoteBoard {
 public:
  virtual ~NoteBoard() = default;
  // Called once for each stage. Fails if the board cannot be reached.
  virtual absl::Status Put(CheckStage stage, const std::string& text) = 0;
  // Empty if that worker has not put such a note yet.
  virtual absl::StatusOr<std::optional<std::string>> Get(int rank, CheckStage stage) = 0;
};

class Meeting {
 public:
  struct Options {
    NoteBoard* board = nullptr;  // outlives the meeting
    int rank = 0;
    int world_size = 1;
    absl::Time begin;  // of the check
    absl::Duration gather_deadline = kGatherDeadline;
    std::function<void(absl::Duration)> rest;  // sleeps between two looks at the board
  };
  explicit Meeting(Options options);

  absl::Status Put(CheckStage stage, const v1::ProcessReport& report);
  // Waits for a note. Empty if the note is not there at `end`, or the board fails.
  std::optional<v1::ProcessReport> Await(int rank, CheckStage stage, absl::Time end);
  // Returns when the worker before this one has put its report of `stage`, with that report, or when there is no such
  // worker.
  std::optional<v1::ProcessReport> AwaitTurn(int rank_stride, CheckStage stage);

  struct Everything {
    std::vector<v1::ProcessReport> reports;  // ascending by rank
    std::vector<int> missing;                // ranks
  };
  // For rank 0. A worker that put its card but no report is represented by the card.
  Everything GatherReports(const v1::ProcessReport& own);
  // For rank 0, after GatherReports: adds the other workers' links by MPI to `everything`.
  void GatherMpiReports(Everything& everything);
  // For rank 0: tells the others whether MPI is tried next.
  absl::Status Decide(bool tries_mpi);
  // For the others: the decision of rank 0; false if it does not arrive in time.
  [[nodiscard]] bool AwaitDecision();
  // For rank 0: tells the others the verdict, and waits a moment until they have read it.
  void Announce(int exit_code);
  // For the others. Empty if no verdict arrives in time.
  std::optional<int> AwaitVerdict();

  absl::Time gather_end() const;
  absl::Time tests_end() const;

 private:
  std::optional<std::string> AwaitText(int rank, CheckStage stage, absl::Time end, absl::Duration pause);

  const Options options_;
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_MEETING_H_
