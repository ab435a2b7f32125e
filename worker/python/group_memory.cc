#include "worker/python/group_memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace starring {
namespace {

// The text that a process sends about itself: its host and, if it is an owner, where its memory is. A process without
// memory, or a rank that owns nothing, sends the process id 0.
std::string PlaceText(const std::string& host_id, const SealedMemory::Place& place) {
  return absl::StrCat(host_id, "\t", place.pid, "\t", place.fd, "\t", place.nonce);
}

absl::StatusOr<SealedMemory::Place> PlaceOf(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, '\t');
  SealedMemory::Place place;
  if (words.size() != 4 || !absl::SimpleAtoi(words[1], &place.pid) || !absl::SimpleAtoi(words[2], &place.fd) ||
      !absl::SimpleAtoi(words[3], &place.nonce)) {
    return absl::InternalError(absl::StrCat("\"", text, "\" describes no memory"));
  }
  return place;
}

// An empty id is that of a host that does not know it.
bool AreOnOneHost(const std::vector<std::string>& places) {
  const std::string host = places[0].substr(0, places[0].find('\t'));
  return !host.empty() && std::ranges::all_of(places, [&](const std::string& place) {
    return place.substr(0, place.find('\t')) == host;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<GroupMemory>> GroupMemory::Meet(MessagePump& pump, const Options& options,
                                                               const CollectiveOptions& join) {
  CHECK_GE(pump.world_size(), 2);
  std::unique_ptr<GroupMemory> memory(new GroupMemory);
  if (pump.rank() >= options.first_owner) memory->Create(options.bytes);
  const SealedMemory::Place mine = memory->made_ == nullptr ? SealedMemory::Place() : memory->made_->place();
  ASSIGN_OR_RETURN(std::vector<std::string> all, GatherTextToRoot(pump, PlaceText(options.host_id, mine), join));
  // An empty list: they are on several hosts.
  std::string list = pump.rank() == 0 && AreOnOneHost(all) ? absl::StrJoin(all, "\n") : "";
  RETURN_IF_ERROR(SendTextFromRoot(pump, list, join));
  if (list.empty()) return memory;
  // A process that cannot map the memory reports that and goes on: all processes must take part in all messages.
  std::string refusal;
  if (pump.rank() < pump.worker_count()) {
    const std::vector<std::string> places = absl::StrSplit(list, '\n');
    // A line feed in the text of a process would give the places after it to other ranks.
    refusal = std::ssize(places) == pump.world_size()
                  ? memory->OpenAll(places, options)
                  : absl::StrCat(places.size(), " places of memory for ", pump.world_size(), " processes");
  }
  ASSIGN_OR_RETURN(all, GatherTextToRoot(pump, refusal, join));
  for (const std::string& other : all) {
    if (refusal.empty()) refusal = other;
  }
  RETURN_IF_ERROR(SendTextFromRoot(pump, refusal, join));
  memory->is_shared_ = refusal.empty();
  if (!memory->is_shared_) {
    memory->of_owners_.clear();
    memory->opened_.clear();
  }
  return memory;
}

// An owner needs memory in any case.
void GroupMemory::Create(int64_t bytes) {
  if (absl::StatusOr<std::unique_ptr<SealedMemory>> made = SealedMemory::Create(bytes); made.ok()) {
    made_ = *std::move(made);
    own_ = made_->writable_bytes();
  } else {
    private_ = AlignedFloats((bytes + sizeof(float) - 1) / sizeof(float));
    own_ = std::as_writable_bytes(private_.span()).first(bytes);
  }
}

// Why the memory of an owner cannot be mapped, or nothing.
std::string GroupMemory::OpenAll(const std::vector<std::string>& places, const Options& options) {
  for (size_t rank = options.first_owner; rank < places.size(); ++rank) {
    const absl::StatusOr<SealedMemory::Place> place = PlaceOf(places[rank]);
    if (!place.ok()) return std::string(place.status().message());
    if (made_ != nullptr && place->nonce == made_->place().nonce) {
      of_owners_.push_back(own_);
      continue;
    }
    absl::StatusOr<std::unique_ptr<SealedMemory>> opened =
        SealedMemory::Open(*place, options.bytes, SealedMemory::Access::kReadWrite);
    if (!opened.ok()) return absl::StrCat("the memory of process ", rank, ": ", std::string(opened.status().message()));
    of_owners_.push_back((*opened)->writable_bytes());
    opened_.push_back(*std::move(opened));
  }
  return "";
}

}  // namespace starring
