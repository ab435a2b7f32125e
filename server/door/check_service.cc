#include "server/door/check_service.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/host/process_facts.h"
#include "common/wire/exchange_message.h"

namespace starring {
namespace {

std::string ServerFacts(int shard, const std::string& grpc_version) {
  v1::ProcessFacts facts = ReadProcessFacts(v1::ProcessFacts::SERVER, shard);
  facts.set_wire_version(kWireVersion);
  v1::ProcessFacts::Library* const library = facts.add_libraries();
  library->set_name("gRPC");
  library->set_version(grpc_version);
  return facts.SerializeAsString();
}

}  // namespace

absl::Status CheckBoard::Greet(int rank, uint64_t worker_id, Clock::time_point now) {
  if (rank < 0 || rank >= kWorldSizeMax) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is not between 0 and ", kWorldSizeMax - 1));
  }
  const auto found = workers_.find(rank);
  // Notes of a process that has gone would answer a check that this process has only begun.
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
  // A note replaces an older one, whose bytes are free then.
  const int64_t bytes = bytes_ + size - (old == notes.end() ? 0 : static_cast<int64_t>(old->second.size()));
  if (bytes > kCheckBoardBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the notes of all workers would have ", bytes, " bytes, the limit is ", kCheckBoardBytesMax));
  }
  // Nothing was changed before this line: a note that is refused leaves the one before in place.
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
    // Erase invalidates `current`, so the iterator moves on first.
    const auto current = worker++;
    // A worker that checks asks several times a second while it waits, and about once a second while it does something
    // else (ServerBoard::Keep).
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

absl::StatusOr<v1::CheckReply> CheckService::Answer(const v1::CheckRequest& request, const std::string& peer,
                                                    Clock::time_point now) {
  ASSIGN_OR_RETURN(v1::CheckReply reply, Reply(request, now));
  // The peer is kept only after a good reply: a refused one stays a stranger.
  if (request.worker_id() != 0) Keep(peer);
  return reply;
}

absl::StatusOr<v1::CheckReply> CheckService::Reply(const v1::CheckRequest& request, Clock::time_point now) {
  // A check times connections with payloads, which would slow a job down.
  if (world_size_.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("shard ", options_.shard, " already trains with ", *world_size_,
                                                      " workers: check before the job starts, or after it has ended"));
  }
  if (const auto bytes = static_cast<int64_t>(request.payload().size()); bytes > kCheckPayloadBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a payload of ", bytes, " bytes is longer than ", kCheckPayloadBytesMax));
  }
  v1::CheckReply reply;
  // The facts are read anew for each answer: free memory changes.
  if (request.facts()) reply.set_facts(ServerFacts(options_.shard, options_.grpc_version));
  if (request.worker_id() != 0) RETURN_IF_ERROR(UseBoard(request, now, &reply));
  // The clock is read last, as near to the answer's departure as possible.
  reply.set_clock_us(WallClockMicroseconds());
  return reply;
}

absl::Status CheckService::UseBoard(const v1::CheckRequest& request, Clock::time_point now, v1::CheckReply* reply) {
  RETURN_IF_ERROR(board_.Greet(request.rank(), request.worker_id(), now));
  if (request.put_stage() != 0) RETURN_IF_ERROR(board_.Put(request.rank(), request.put_stage(), request.put_text()));
  const std::string* const note =
      request.get_stage() == 0 ? nullptr : board_.Get(request.get_rank(), request.get_stage());
  reply->set_found(note != nullptr);
  if (note != nullptr) reply->set_text(*note);
  // A worker leaves after its other wishes were served. The count is of those that are left.
  if (request.leave()) board_.Leave(request.rank());
  reply->set_note_count(board_.worker_count());
  return absl::OkStatus();
}

void CheckService::Keep(const std::string& peer) {
  // A kept connection stays kept after its check, so the bound is on all checks together.
  if (kept_count_ >= kCheckConnectionsMax || !peers_.insert(peer).second) return;
  ++kept_count_;
  options_.keep(peer);
}

void CheckService::Forget(Clock::time_point now) {
  board_.Forget(now);
  // A later check may use other connections that have the same address and port.
  if (board_.worker_count() == 0) peers_.clear();
}

void CheckService::Close(int world_size) {
  world_size_ = world_size;
  // No later check reads the notes, which may take 32 MiB.
  board_.Clear();
}

}  // namespace starring
