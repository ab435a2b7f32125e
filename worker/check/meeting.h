// How the workers of a check take turns, and how rank 0 comes to know what all have found.
//
// Every worker puts its card, tests when its turn has come, and puts its report. Rank 0 reads all reports and announces
// the verdict, with which all workers end. No wait is longer than the deadlines of check_plan.h.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECK_MEETING_H_
#define STARRING_WORKER_CHECK_MEETING_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/starring/v1/check.pb.h"
#include "worker/check/check_plan.h"
#include "worker/check/note_board.h"

namespace starring {

class Meeting {
 public:
  struct Options {
    NoteBoard* board = nullptr;  // outlives the meeting
    int rank = 0;
    int world_size = 1;
    absl::Time begin;  // of the check
    absl::Duration gather_deadline = kGatherDeadline;
    std::function<void(absl::Duration)> rest;  // between two looks at the board
  };
  explicit Meeting(Options options);

  absl::Status Put(CheckStage stage, const v1::ProcessReport& report);
  // Empty if there is no such note at `end`, or the board fails.
  std::optional<v1::ProcessReport> Await(int rank, CheckStage stage, absl::Time end);
  // When the one before this rank has put its report of `stage`, or is not there. Returns that report, if there is one.
  std::optional<v1::ProcessReport> AwaitTurn(int rank_stride, CheckStage stage);

  struct Everything {
    std::vector<v1::ProcessReport> reports;  // ascending
    std::vector<int> missing;
  };
  // For rank 0. A worker that is there and does not end is represented by its card.
  Everything GatherReports(const v1::ProcessReport& own);
  // For rank 0, after GatherReports: the others' links by MPI join `everything`.
  void GatherMpiReports(Everything& everything);
  // For rank 0: whether MPI is tried next. For the others: false if rank 0 does not say so in time.
  absl::Status Decide(bool tries_mpi);
  bool AwaitDecision();
  // For rank 0: tells the others, and waits a moment for them to take notice.
  void Announce(int exit_code);
  // For the others. Empty if rank 0 says nothing in time.
  std::optional<int> AwaitVerdict();

  absl::Time gather_end() const;
  absl::Time tests_end() const;

 private:
  std::optional<std::string> AwaitText(int rank, CheckStage stage, absl::Time end, absl::Duration pause);

  const Options options_;
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_MEETING_H_
