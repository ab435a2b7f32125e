// Where the workers of a check meet: each puts a note for a stage, and reads the others'.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_CHECK_NOTE_BOARD_H_
#define STARRING_WORKER_CHECK_NOTE_BOARD_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace starring {

// What a note says; the numbers travel.
enum class CheckStage {
  kCard = 1,       // who and where the worker is
  kReport = 2,     // what it found; it is done with testing
  kGo = 3,         // of rank 0, ring: 1: MPI is tried next, 0: it is not
  kMpiReport = 4,  // ring: what it found by MPI
  kVerdict = 5,    // of rank 0: the exit code of all; of others: that they have read it
};

class NoteBoard {
 public:
  virtual ~NoteBoard() = default;
  // Each stage once. Fails if the board cannot be reached.
  virtual absl::Status Put(CheckStage stage, const std::string& text) = 0;
  // Empty if that worker has not put such a note, or not yet.
  virtual absl::StatusOr<std::optional<std::string>> Get(int rank, CheckStage stage) = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_NOTE_BOARD_H_
