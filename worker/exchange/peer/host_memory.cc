#include "worker/exchange/peer/host_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/host/host_identity.h"
#include "common/job/bucket_map.h"
#include "common/job/leaf_shares.h"
#include "common/reduce/owner_map.h"

namespace starring {
namespace {

// Each array begins on a page, in units of the memory.
constexpr int64_t kPageElements = 4096 / sizeof(float);

int64_t WholePages(int64_t element_count) {
  return (element_count + kPageElements - 1) / kPageElements * kPageElements;
}

int64_t BoardElements(int world_size, const HostMemory::Options& options) {
  const int64_t bytes = HostBoard::Bytes({.rank = 0, .world_size = world_size, .bucket_count = options.bucket_count});
  return WholePages((bytes + sizeof(float) - 1) / sizeof(float));
}

// Every piece begins with its rank's gradients, an array for each node of its share.
int64_t GradientElements(int rank, int world_size, const HostMemory::Options& options) {
  return WholePages(options.element_count) *
         std::ssize(ShareOf(rank, DealLeavesEvenly(options.micro_batches, world_size)));
}
int64_t PieceElements(int rank, int world_size, const HostMemory::Options& options) {
  const int64_t gradients = GradientElements(rank, world_size, options);
  if (rank != 0) return gradients;
  return gradients + WholePages(options.element_count) + BoardElements(world_size, options);
}

// Raise the version with every change after which two builds would misunderstand each other's memory.
constexpr int kLayoutVersion = 2;

// The text that a rank sends before anything is allocated.
std::string PlaceText(const HostMemory::Options& options) {
  const absl::StatusOr<int64_t> available = options.available_memory();
  const int64_t bytes = available.ok() ? *available : std::numeric_limits<int64_t>::max();
  return absl::StrJoin(
      {options.boot_id, absl::StrCat(kLayoutVersion, "/", OwnerMap::kSliceBytesMin), absl::StrCat(bytes), HostName()},
      "\t");
}

// Why the ranks with these places cannot share memory, or nothing.
absl::StatusOr<std::string> RefusalOf(const std::vector<std::string>& places, const HostMemory::Options& options) {
  const int world_size = static_cast<int>(places.size());
  int64_t needed = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    needed += PieceElements(rank, world_size, options) * static_cast<int64_t>(sizeof(float));
  }
  const std::vector<std::string> root = absl::StrSplit(places[0], absl::MaxSplits('\t', 3));
  for (int rank = 0; rank < world_size; ++rank) {
    const std::vector<std::string> place = absl::StrSplit(places[rank], absl::MaxSplits('\t', 3));
    int64_t available = 0;
    if (place.size() != 4 || !absl::SimpleAtoi(place[2], &available)) {
      return absl::InternalError(absl::StrCat("\"", places[rank], "\" describes no host"));
    }
    if (place[0] != root[0]) return absl::StrCat("rank 0 is on ", root[3], ", rank ", rank, " on ", place[3]);
    if (place[1] != root[1]) return absl::StrCat("rank 0 and rank ", rank, " run different builds");
    if (available < needed) {
      return absl::StrCat("all ranks together need ", needed, " bytes, and rank ", rank, " can get ", available);
    }
  }
  return std::string();
}

// A piece as the ranks describe it to each other: where its memory is, or why it has no memory.
struct Piece {
  v1::SharedMemory where;
  std::string error;
};

std::string ToText(const Piece& piece) {
  return absl::StrJoin({absl::StrCat(piece.where.pid()), absl::StrCat(piece.where.fd()),
                        absl::StrCat(piece.where.bytes()), absl::StrCat(piece.where.nonce()), piece.error},
                       "\t");
}

absl::StatusOr<Piece> FromText(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits('\t', 4));
  int64_t pid = 0, fd = 0, bytes = 0;
  uint64_t nonce = 0;
  if (words.size() != 5 || !absl::SimpleAtoi(words[0], &pid) || !absl::SimpleAtoi(words[1], &fd) ||
      !absl::SimpleAtoi(words[2], &bytes) || !absl::SimpleAtoi(words[3], &nonce)) {
    return absl::InternalError(absl::StrCat("\"", text, "\" describes no memory"));
  }
  Piece piece{.where = {}, .error = words[4]};
  piece.where.set_pid(pid);
  piece.where.set_fd(fd);
  piece.where.set_bytes(bytes);
  piece.where.set_nonce(nonce);
  return piece;
}

}  // namespace

absl::StatusOr<HostMemory::Outcome> HostMemory::Meet(MessagePump& pump, const Options& options,
                                                     const CollectiveOptions& join) {
  CHECK_GE(pump.world_size(), 2);
  Outcome outcome;
  ASSIGN_OR_RETURN(std::vector<std::string> all, GatherTextToRoot(pump, PlaceText(options), join));
  if (pump.rank() == 0) {
    ASSIGN_OR_RETURN(outcome.refusal, RefusalOf(all, options));
  }
  RETURN_IF_ERROR(SendTextFromRoot(pump, outcome.refusal, join));
  if (!outcome.refusal.empty()) return outcome;
  std::unique_ptr<HostMemory> memory(new HostMemory);
  memory->pieces_.resize(pump.world_size());
  Piece mine;
  auto created = SharedMemory::Create(PieceElements(pump.rank(), pump.world_size(), options));
  if (created.ok()) {
    mine.where = (*created)->where();
    memory->pieces_[pump.rank()] = *std::move(created);
  } else {
    mine.error = std::string(created.status().message());
  }
  // A rank without memory reports that and goes on, as do ranks that see its error: all ranks must take part in all
  // messages.
  ASSIGN_OR_RETURN(all, GatherTextToRoot(pump, ToText(mine), join));
  std::string list = absl::StrJoin(all, "\n");
  RETURN_IF_ERROR(SendTextFromRoot(pump, list, join));
  const absl::Status opened = memory->Open(absl::StrSplit(list, '\n'), pump.rank(), options);
  ASSIGN_OR_RETURN(all, GatherTextToRoot(pump, std::string(opened.message()), join));
  for (const std::string& error : all) {
    if (outcome.refusal.empty()) outcome.refusal = error;
  }
  RETURN_IF_ERROR(SendTextFromRoot(pump, outcome.refusal, join));
  if (outcome.refusal.empty()) {
    memory->Divide(pump.rank(), options);
    outcome.memory = std::move(memory);
  }
  return outcome;
}

// An error names the two ranks.
absl::Status HostMemory::Open(const std::vector<std::string>& pieces, int rank, const Options& options) {
  const int world_size = static_cast<int>(pieces_.size());
  if (std::ssize(pieces) != world_size) return absl::InternalError("the list of memories has another length");
  for (int other = 0; other < world_size; ++other) {
    ASSIGN_OR_RETURN(const Piece piece, FromText(pieces[other]));
    if (!piece.error.empty()) return absl::UnavailableError(absl::StrCat("rank ", other, ": ", piece.error));
    if (other == rank) continue;
    auto opened = SharedMemory::Open(piece.where, PieceElements(other, world_size, options),
                                     other == 0 ? SharedMemory::Access::kReadWrite : SharedMemory::Access::kRead);
    if (!opened.ok()) {
      return absl::UnavailableError(absl::StrCat("rank ", rank, " cannot map the memory of rank ", other, ": ",
                                                 std::string(opened.status().message())));
    }
    pieces_[other] = *std::move(opened);
  }
  return absl::OkStatus();
}

void HostMemory::Divide(int rank, const Options& options) {
  const int world_size = static_cast<int>(pieces_.size());
  const int64_t array = WholePages(options.element_count);
  for (const Contributor& one : ContributorsOf(DealLeavesEvenly(options.micro_batches, world_size))) {
    const std::span<const float> values = std::as_const(*pieces_[one.rank]).values();
    arrays_.gradients.push_back(values.subspan(one.node * array, options.element_count));
  }
  const auto node_count = std::ssize(ShareOf(rank, DealLeavesEvenly(options.micro_batches, world_size)));
  for (int64_t node = 0; node < node_count; ++node) {
    arrays_.own_gradients.push_back(pieces_[rank]->writable_values().subspan(node * array, options.element_count));
  }
  const std::span<float> rest = pieces_[0]->writable_values().subspan(GradientElements(0, world_size, options));
  arrays_.parameters = rest.first(options.element_count);
  board_ = std::make_unique<HostBoard>(
      std::as_writable_bytes(rest.subspan(array)),
      HostBoard::Options{.rank = rank, .world_size = world_size, .bucket_count = options.bucket_count});
}

}  // namespace starring
