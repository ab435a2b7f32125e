#include "worker/train/ranks_agree.h"

#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace starring {
namespace {

constexpr size_t kDigitsPerPart = 8;  // 32 bits
constexpr size_t kParts = 8;          // of SHA-256

// The digest as numbers that a double holds exactly: sums over the ranks add doubles.
std::array<double, kParts> PartsOf(const std::string& sha256) {
  CHECK_EQ(sha256.size(), kParts * kDigitsPerPart);
  std::array<double, kParts> parts;
  for (size_t i = 0; i < kParts; ++i) {
    parts[i] = static_cast<double>(std::stoul(sha256.substr(i * kDigitsPerPart, kDigitsPerPart), nullptr, 16));
  }
  return parts;
}

}  // namespace

absl::Status CheckRanksAgree(const std::string& sha256, int rank, int world_size, GradientExchange* exchange) {
  static_assert(kWorldSizeMax <= kSumValuesMax);
  if (world_size == 1) return absl::OkStatus();
  // In each place of these sums at most one rank adds something other than zero, so the sum is exact for any number of
  // ranks. Adding the digests of all ranks would round above 2^53, and two differences could cancel.
  const std::array<double, kParts> mine = PartsOf(sha256);
  std::array<double, kParts> of_rank_0 = {};
  if (rank == 0) of_rank_0 = mine;
  // The other ranks add zeros, so this sum is a broadcast from rank 0.
  RETURN_IF_ERROR(exchange->Sum(SumPurpose::kDigest, of_rank_0));
  // A second sum is needed, because a rank can compare only when it has rank 0's digest. All ranks then name the same
  // ones.
  std::vector<double> differs(world_size);
  differs[rank] = mine == of_rank_0 ? 0 : 1;
  RETURN_IF_ERROR(exchange->Sum(SumPurpose::kDigestVerdict, differs));
  std::vector<int> ranks;
  for (int r = 0; r < world_size; ++r) {
    if (differs[r] != 0) ranks.push_back(r);
  }
  if (ranks.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "), ranks.size() == 1 ? " ends" : " end",
      " with other parameters than rank 0; rank ", rank, " has SHA-256 ", sha256,
      ": this is a defect of the exchange or of the machine; --resume goes on from the last checkpoint"));
}

}  // namespace starring
