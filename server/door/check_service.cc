#include "server/door/check_service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
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

absl::StatusOr<v1::CheckReply> CheckService::Answer(const v1::CheckRequest& request, const std::string& peer,
                                                    Clock::time_point now) {
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
  if (request.worker_id() != 0) {
    RETURN_IF_ERROR(UseBoard(request, now, reply));
    Keep(peer);
  }
  // The clock is read last, as near to the answer's departure as possible.
  reply.set_clock_us(WallClockMicroseconds());
  return reply;
}

absl::Status CheckService::UseBoard(const v1::CheckRequest& request, Clock::time_point now, v1::CheckReply& reply) {
  if (request.rank() < 0 || request.rank() >= kWorldSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", request.rank(), " is not between 0 and ", kWorldSizeMax - 1));
  }
  Worker& worker = workers_[request.rank()];
  // Notes of a process that has gone would answer a check that this process has only begun.
  if (worker.id != request.worker_id()) worker = {.id = request.worker_id(), .first_heard = now};
  worker.last_heard = now;
  if (request.put_stage() != 0) RETURN_IF_ERROR(Put(worker, request.put_stage(), request.put_text()));
  if (const auto writer = workers_.find(request.get_rank()); writer != workers_.end()) {
    const auto note = writer->second.notes.find(request.get_stage());
    // The verdict of a check that has ended would answer one that this worker has only begun.
    const bool is_older = writer->second.left.has_value() && *writer->second.left < worker.first_heard;
    reply.set_found(note != writer->second.notes.end() && !is_older);
    if (reply.found()) reply.set_text(note->second);
  }
  // A request that was on its way when this worker left does not bring it back.
  if (request.leave() && !worker.left.has_value()) worker.left = now;
  if (std::ranges::all_of(workers_, [](const auto& one) { return one.second.left.has_value(); })) workers_.clear();
  return absl::OkStatus();
}

absl::Status CheckService::Put(Worker& worker, int stage, const std::string& text) {
  if (stage < 1 || stage > kCheckStagesMax) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", stage, " is not between 1 and ", kCheckStagesMax));
  }
  const auto size = static_cast<int64_t>(text.size());
  if (size > kCheckNoteBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a note of ", size, " bytes is longer than ", kCheckNoteBytesMax));
  }
  // Without the note that this one replaces.
  int64_t bytes = size;
  for (const auto& [rank, one] : workers_) {
    for (const auto& [other_stage, note] : one.notes) {
      if (&one != &worker || other_stage != stage) bytes += static_cast<int64_t>(note.size());
    }
  }
  if (bytes > kCheckBoardBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the notes of all workers would have ", bytes, " bytes, the limit is ", kCheckBoardBytesMax));
  }
  worker.notes[stage] = text;
  return absl::OkStatus();
}

void CheckService::Keep(const std::string& peer) {
  // A kept connection stays kept after its check, so the bound is on all checks together.
  if (kept_count_ >= kCheckConnectionsMax || !peers_.insert(peer).second) return;
  ++kept_count_;
  options_.keep(peer);
}

void CheckService::Forget(Clock::time_point now) {
  // A worker that checks asks several times a second: while it waits, and after each test of bandwidth.
  std::erase_if(workers_, [&](const auto& one) { return now - one.second.last_heard > kNoteLife; });
  // A later check may use other connections that have the same address and port.
  if (workers_.empty()) peers_.clear();
}

void CheckService::Close(int world_size) {
  world_size_ = world_size;
  // No later check reads the notes, which may take 32 MiB.
  workers_.clear();
}

}  // namespace starring
