// Which of its snapshots a shard writes to its disk, which may be slower than they come.
//
// A run can go back only to what all shards have written, and their disks are not equally fast. If each wrote the
// newest snapshot whenever its disk is idle, they would rarely meet. So a step's number decides: its *level* is how
// often 2 divides it, and a shard writes the steps of its own level and above. A shard whose disk is busy at such a
// step goes one level up, where there are half as many. The steps of a level are among those of all levels below it,
// so all shards write what the slowest one writes.
//
// Thread safety: one thread.
#ifndef STARRING_SERVER_ELASTIC_WRITE_CHOICE_H_
#define STARRING_SERVER_ELASTIC_WRITE_CHOICE_H_

#include <bit>
#include <cstdint>
#include <utility>

namespace starring {

class WriteChoice {
 public:
  enum class Disk { kIdle, kBusy };

  // REQUIRES: step > 0.
  static int LevelOf(int64_t step) { return std::countr_zero(static_cast<uint64_t>(step)); }

  // Whether to write the snapshot of `step` now. Call it for every snapshot.
  bool Wants(int64_t step, Disk disk) {
    const int level = LevelOf(step);
    if (disk == Disk::kBusy) {
      // Once per write: a disk that hung once is not treated as slow for minutes.
      if (level >= level_ && std::exchange(keeps_up_, false)) ++level_;
      return false;
    }
    // The last write took less than half of the time until the next one.
    if (level == level_ - 1 && keeps_up_) --level_;
    if (level < level_) return false;
    keeps_up_ = true;
    return true;
  }

 private:
  int level_ = 0;
  bool keeps_up_ = true;  // no step of level_ or above has come while the last write was under way
};

}  // namespace starring

#endif  // STARRING_SERVER_ELASTIC_WRITE_CHOICE_H_
