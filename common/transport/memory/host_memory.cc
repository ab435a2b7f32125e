#include "common/transport/memory/host_memory.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/watch/roll_call.h"

namespace starring {
namespace {

// Raise the version with every change after which two builds would misunderstand each other's boards.
constexpr int kBoardVersion = 3;

HostBoard::Options BoardOptions(int rank, int world_size, const HostMemory::Options& options) {
  return {.rank = rank, .world_size = world_size, .bucket_count = options.bucket_count};
}

// Whole pages, so that what follows the board begins on one.
int64_t BoardBytes(int world_size, const HostMemory::Options& options) {
  return (HostBoard::Bytes(BoardOptions(0, world_size, options)) + 4095) / 4096 * 4096;
}

int64_t PieceBytes(int rank, int world_size, const HostMemory::Options& options) {
  return options.bytes(rank) + (rank == 0 ? BoardBytes(world_size, options) : 0);
}

// The text that a process sends before anything is allocated.
std::string PlaceText(const HostMemory::Options& options) {
  const absl::StatusOr<int64_t> available = options.available_memory();
  const int64_t bytes = available.ok() ? *available : std::numeric_limits<int64_t>::max();
  return absl::StrJoin(
      {options.boot_id, absl::StrCat(kBoardVersion, "/", options.layout), absl::StrCat(bytes), HostName()}, "\t");
}

// Why the processes with these places cannot share memory, or nothing.
std::string RefusalOf(const std::vector<std::string>& places, int worker_count, const HostMemory::Options& options) {
  const int world_size = static_cast<int>(places.size());
  int64_t needed = 0;
  for (int rank = 0; rank < world_size; ++rank) needed += PieceBytes(rank, world_size, options);
  // The page tables of the processes, each of which maps all pieces: 8 bytes for a page of 4 KiB.
  needed += needed / 512 * world_size;
  const std::vector<std::string> root = absl::StrSplit(places[0], absl::MaxSplits('\t', 3));
  for (int rank = 0; rank < world_size; ++rank) {
    const std::string name = ProcessName(rank, worker_count);
    const std::vector<std::string> place = absl::StrSplit(places[rank], absl::MaxSplits('\t', 3));
    int64_t available = 0;
    if (place.size() != 4 || !absl::SimpleAtoi(place[2], &available)) {
      return absl::StrCat(name, " describes no host, but \"", places[rank], "\"");
    }
    if (place[0].empty()) return absl::StrCat(name, " does not know its host: /proc gives it no boot id");
    if (place[0] != root[0]) return absl::StrCat("rank 0 is on ", root[3], ", ", name, " on ", place[3]);
    if (place[1] != root[1]) return absl::StrCat("rank 0 and ", name, " run different builds");
    // A page counts for the control group of the process that touches it first, which may be any of them.
    if (available < needed) {
      return absl::StrCat("all processes together need ", needed, " bytes, and ", name, " can get ", available);
    }
  }
  return "";
}

// A piece as the processes describe it to each other: where its memory is, or why it has no memory.
struct Piece {
  SealedMemory::Place where;
  std::string error;
};

std::string ToText(const Piece& piece) {
  return absl::StrCat(piece.where.pid, "\t", piece.where.fd, "\t", piece.where.nonce, "\t", piece.error);
}

absl::StatusOr<Piece> FromText(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits('\t', 3));
  Piece piece;
  if (words.size() != 4 || !absl::SimpleAtoi(words[0], &piece.where.pid) ||
      !absl::SimpleAtoi(words[1], &piece.where.fd) || !absl::SimpleAtoi(words[2], &piece.where.nonce)) {
    return absl::InternalError(absl::StrCat("\"", text, "\" describes no memory"));
  }
  piece.error = words[3];
  return piece;
}

}  // namespace

absl::StatusOr<HostMemory::Outcome> HostMemory::Meet(MessagePump& pump, const Options& options,
                                                     const CollectiveOptions& join) {
  CHECK_GE(pump.world_size(), 2);
  Outcome outcome;
  ASSIGN_OR_RETURN(std::vector<std::string> all, GatherTextToRoot(pump, PlaceText(options), join));
  if (pump.rank() == 0) outcome.refusal = RefusalOf(all, pump.worker_count(), options);
  RETURN_IF_ERROR(SendTextFromRoot(pump, outcome.refusal, join));
  if (!outcome.refusal.empty()) return outcome;
  std::unique_ptr<HostMemory> memory(new HostMemory);
  const int world_size = pump.world_size();
  memory->board_bytes_ = BoardBytes(world_size, options);
  memory->pieces_.resize(world_size);
  Piece mine;
  auto created = SealedMemory::Create(PieceBytes(pump.rank(), world_size, options));
  if (created.ok()) {
    mine.where = (*created)->place();
    memory->pieces_[pump.rank()] = *std::move(created);
  } else {
    mine.error = std::string(created.status().message());
  }
  // A process without memory reports that and goes on, as do processes that see its error: all must take part in all
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
    memory->board_ = std::make_unique<HostBoard>(memory->pieces_[0]->writable_bytes().first(memory->board_bytes_),
                                                 BoardOptions(pump.rank(), world_size, options));
    outcome.memory = std::move(memory);
  }
  return outcome;
}

// An error names the two ranks.
absl::Status HostMemory::Open(const std::vector<std::string>& pieces, int rank, const Options& options) {
  const int world_size = static_cast<int>(pieces_.size());
  // A line feed in the text of one process would give the pieces after it to other ranks.
  if (std::ssize(pieces) != world_size) {
    return absl::InternalError(absl::StrCat(pieces.size(), " places of memory for ", world_size, " processes"));
  }
  for (int other = 0; other < world_size; ++other) {
    ASSIGN_OR_RETURN(const Piece piece, FromText(pieces[other]));
    if (!piece.error.empty()) return absl::UnavailableError(absl::StrCat("rank ", other, ": ", piece.error));
    const int64_t bytes = PieceBytes(other, world_size, options);
    if (other == rank || bytes == 0) continue;
    // Rank 0's piece begins with the board, on which all processes write.
    auto opened =
        SealedMemory::Open(piece.where, bytes, other == 0 ? SealedMemory::Access::kReadWrite : options.access);
    if (!opened.ok()) {
      return absl::UnavailableError(absl::StrCat("rank ", rank, " cannot map the memory of rank ", other, ": ",
                                                 std::string(opened.status().message())));
    }
    pieces_[other] = *std::move(opened);
  }
  return absl::OkStatus();
}

std::span<const std::byte> HostMemory::piece(int rank) const {
  if (pieces_[rank] == nullptr) return {};
  return pieces_[rank]->bytes().subspan(rank == 0 ? board_bytes_ : 0);
}

std::span<std::byte> HostMemory::writable_piece(int rank) {
  if (pieces_[rank] == nullptr) return {};
  return pieces_[rank]->writable_bytes().subspan(rank == 0 ? board_bytes_ : 0);
}

}  // namespace starring
