#include "server/check_board.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/limits.h"

namespace starring {

absl::Status CheckBoard::Greet(int rank, uint64_t worker_id, Clock::time_point now) {
  if (rank < 0 || rank >= kWorldSizeMax) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not between 0 and ", kWorldSizeMax - 1));
  }
  const auto found = workers_.find(rank);
  if (found != workers_.end() && found->second.id != worker_id) Erase(found);
  Worker& worker = workers_[rank];
  worker.id = worker_id;
  worker.last_heard = now;
  return absl::OkStatus();
}

absl::Status CheckBoard::Put(int rank, int stage, const std::string& text) {
  const auto found = workers_.find(rank);
  CHECK(found != workers_.end());
  if (stage < 1 || stage > kCheckStagesMax) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", stage, " is not between 1 and ", kCheckStagesMax));
  }
  const int64_t size = static_cast<int64_t>(text.size());
  if (size > kCheckNoteBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a note of ", size, " bytes is longer than ", kCheckNoteBytesMax));
  }
  std::map<int, std::string>& notes = found->second.notes;
  const auto old = notes.find(stage);
  const int64_t bytes = bytes_ + size - (old == notes.end() ? 0 : static_cast<int64_t>(old->second.size()));
  if (bytes > kCheckBoardBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the notes of all workers would have ", bytes, " bytes, the limit is ", kCheckBoardBytesMax));
  }
  bytes_ = bytes;
  notes[stage] = text;
  return absl::OkStatus();
}

const std::string* CheckBoard::Get(int rank, int stage) const {
  const auto worker = workers_.find(rank);
  if (worker == workers_.end()) return nullptr;
  const auto note = worker->second.notes.find(stage);
  return note == worker->second.notes.end() ? nullptr : &note->second;
}

void CheckBoard::Leave(int rank) {
  const auto found = workers_.find(rank);
  if (found != workers_.end()) Erase(found);
}

void CheckBoard::Forget(Clock::time_point now) {
  for (auto worker = workers_.begin(); worker != workers_.end();) {
    const auto current = worker++;
    if (now - current->second.last_heard > kNoteLife) Erase(current);
  }
}

void CheckBoard::Clear() {
  workers_.clear();
  bytes_ = 0;
}

void CheckBoard::Erase(std::map<int, Worker>::iterator worker) {
  for (const auto& [stage, text] : worker->second.notes) bytes_ -= static_cast<int64_t>(text.size());
  workers_.erase(worker);
}

}  // namespace starring
