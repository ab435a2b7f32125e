#include "worker/exchange/peer/host_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/host/host_identity.h"
#include "common/status.h"

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

// Every piece begins with its rank's gradients.
int64_t PieceElements(int rank, int world_size, const HostMemory::Options& options) {
  const int64_t array = WholePages(options.element_count);
  return rank == 0 ? 2 * array + BoardElements(world_size, options) : array;
}

// A piece as the ranks tell each other: the host's boot and name, and where the memory is; or why there is none.
struct Piece {
  std::string boot;
  std::string host;
  v1::SharedMemory where;
  std::string error;
};

std::string ToText(const Piece& piece) {
  return absl::StrJoin({piece.boot, piece.host, absl::StrCat(piece.where.pid()), absl::StrCat(piece.where.fd()),
                        absl::StrCat(piece.where.bytes()), absl::StrCat(piece.where.nonce()), piece.error},
                       "\t");
}

absl::StatusOr<Piece> FromText(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits('\t', 6));
  int64_t pid = 0, fd = 0, bytes = 0;
  uint64_t nonce = 0;
  if (words.size() != 7 || !absl::SimpleAtoi(words[2], &pid) || !absl::SimpleAtoi(words[3], &fd) ||
      !absl::SimpleAtoi(words[4], &bytes) || !absl::SimpleAtoi(words[5], &nonce)) {
    return absl::InternalError(absl::StrCat("\"", text, "\" describes no memory"));
  }
  Piece piece{.boot = words[0], .host = words[1], .where = {}, .error = words[6]};
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
  std::unique_ptr<HostMemory> memory(new HostMemory);
  memory->pieces_.resize(pump.world_size());
  Piece mine{.boot = options.boot_id, .host = HostName(), .where = {}, .error = ""};
  auto created = SharedMemory::Create(PieceElements(pump.rank(), pump.world_size(), options));
  if (created.ok()) {
    mine.where = (*created)->where();
    memory->pieces_[pump.rank()] = *std::move(created);
  } else {
    mine.error = std::string(created.status().message());
  }
  // A rank without memory tells so and goes on, as do ranks that see its error: all must take part in all messages.
  ASSIGN_OR_RETURN(std::vector<std::string> all, GatherTextToRoot(pump, ToText(mine), join));
  std::string list = absl::StrJoin(all, "\n");
  RETURN_IF_ERROR(SendTextFromRoot(pump, list, join));
  const absl::Status opened = memory->Open(absl::StrSplit(list, '\n'), pump.rank(), options);
  ASSIGN_OR_RETURN(all, GatherTextToRoot(pump, std::string(opened.message()), join));
  std::string refusal;
  for (const std::string& error : all) {
    if (refusal.empty()) refusal = error;
  }
  RETURN_IF_ERROR(SendTextFromRoot(pump, refusal, join));
  Outcome outcome;
  outcome.refusal = std::move(refusal);
  if (outcome.refusal.empty()) {
    memory->Divide(pump.rank(), options);
    outcome.memory = std::move(memory);
  }
  return outcome;
}

// An error names the two ranks and, if they differ, their hosts.
absl::Status HostMemory::Open(const std::vector<std::string>& pieces, int rank, const Options& options) {
  const int world_size = static_cast<int>(pieces_.size());
  if (std::ssize(pieces) != world_size) return absl::InternalError("the list of memories has another length");
  ASSIGN_OR_RETURN(const Piece mine, FromText(pieces[rank]));
  for (int other = 0; other < world_size; ++other) {
    ASSIGN_OR_RETURN(const Piece piece, FromText(pieces[other]));
    if (!piece.error.empty()) return absl::UnavailableError(absl::StrCat("rank ", other, ": ", piece.error));
    if (other == rank) continue;
    // On another host /proc may by chance have such a process with such a file.
    if (piece.boot != mine.boot) {
      return absl::UnavailableError(
          absl::StrCat("rank ", rank, " is on ", mine.host, ", rank ", other, " on ", piece.host));
    }
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
  for (const std::unique_ptr<SharedMemory>& piece : pieces_) {
    arrays_.gradients.push_back(std::as_const(*piece).values().first(options.element_count));
  }
  arrays_.own_gradient = pieces_[rank]->writable_values().first(options.element_count);
  const std::span<float> rest = pieces_[0]->writable_values().subspan(array);
  arrays_.parameters = rest.first(options.element_count);
  board_ = std::make_unique<HostBoard>(
      std::as_writable_bytes(rest.subspan(array)),
      HostBoard::Options{.rank = rank, .world_size = world_size, .bucket_count = options.bucket_count});
}

}  // namespace starring
