// Where workers that check a star before training meet: each puts notes here, the others read them.
//
// Bounded by limits.h: so many workers, stages and bytes. A worker's notes are gone when it leaves, or some seconds
// after its last request, so that a check that was broken off is forgotten before the next one.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_CHECK_BOARD_H_
#define STARRING_SERVER_CHECK_BOARD_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace starring {

class CheckBoard {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kNoteLife{5};

  // Worker `rank`, process `worker_id`, is there. Another process of the same rank loses its notes.
  // InvalidArgument for a rank that no job can have.
  absl::Status Greet(int rank, uint64_t worker_id, Clock::time_point now);
  // Keeps `text`; replaces an earlier one. REQUIRES: Greet(rank, ...) was OK, with no Forget since. InvalidArgument or
  // ResourceExhausted beyond the limits.
  absl::Status Put(int rank, int stage, const std::string& text);
  // Null if there is no such note.
  const std::string* Get(int rank, int stage) const;
  void Leave(int rank);
  // Drops the notes of workers that have not been heard for kNoteLife.
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

}  // namespace starring

#endif  // STARRING_SERVER_CHECK_BOARD_H_
