#include "server/elastic/member_report.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/error_origin.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace starring {
namespace {

// Less was not measured.
constexpr double kSecondsMin = 1e-9;

absl::Status CheckNumber(const char* name, int64_t value, int64_t max) {
  if (value >= 0 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a report's ", name, " is ", value, ", not between 0 and ", max));
}

// No step takes longer than the longest deadline of an exchange.
absl::Status CheckSeconds(const char* name, double value) {
  // A NaN fails both comparisons, and so is refused.
  if (value >= 0 && value <= kDeadlineSecondsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a report's ", name, " is ", value, ", not between 0 and ", kDeadlineSecondsMax));
}

double Measured(double seconds) { return seconds < kSecondsMin ? 0 : seconds; }

// Cuts between characters: a message with half a one could not be read.
std::string Cut(const std::string& text) {
  auto size = std::min(text.size(), static_cast<size_t>(kStatusTextBytesMax));
  // In UTF-8 a byte 10xxxxxx continues a character.
  while (size > 0 && size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return text.substr(0, size);
}

template <typename Steps>
absl::StatusOr<std::vector<int64_t>> ReadSteps(const char* name, const Steps& proto) {
  std::vector<int64_t> steps(proto.begin(), proto.end());
  for (const int64_t step : steps) RETURN_IF_ERROR(CheckNumber(name, step, kStepMax));
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  // The oldest snapshot stays: it may be the only one that all shards have.
  const auto surplus = std::ssize(steps) - kSnapshotsReportedMax;
  if (surplus > 0) steps.erase(steps.begin() + 1, steps.begin() + 1 + surplus);
  return steps;
}

template <typename Ranks>
absl::StatusOr<std::vector<int>> ReadRanks(const char* name, const Ranks& proto) {
  for (const int rank : proto) RETURN_IF_ERROR(CheckNumber(name, rank, kWorldSizeMax - 1));
  RETURN_IF_ERROR(CheckNumber(name, proto.size(), kWorldSizeMax));
  return std::vector<int>(proto.begin(), proto.end());
}

}  // namespace

absl::StatusOr<ShardReport> ReadShardReport(const v1::MemberReport::Shard& proto, int shard_count) {
  RETURN_IF_ERROR(CheckNumber("shard", proto.shard(), shard_count - 1));
  RETURN_IF_ERROR(CheckNumber("prepared", proto.prepared(), kStepMax));
  RETURN_IF_ERROR(CheckNumber("generation", proto.generation(), kStepMax));
  if (proto.address().size() > kMemberNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a report's address has ", proto.address().size(), " bytes, at most ", kMemberNameBytesMax));
  }
  ShardReport report{.shard = proto.shard(),
                     .address = proto.address(),
                     .prepared = proto.prepared(),
                     .generation = proto.generation(),
                     .trouble = Cut(proto.trouble()),
                     .finished = proto.finished()};
  // The numbers need no upper limit: the coordinator only compares them.
  RETURN_IF_ERROR(CheckNumber("contributions_max", proto.contributions_max(), std::numeric_limits<int64_t>::max()));
  RETURN_IF_ERROR(CheckNumber("workers_max", proto.workers_max(), std::numeric_limits<int64_t>::max()));
  report.contributions_max = proto.contributions_max();
  report.workers_max = proto.workers_max();
  ASSIGN_OR_RETURN(report.unjoined, ReadRanks("unjoined", proto.unjoined()));
  ASSIGN_OR_RETURN(report.late, ReadRanks("late", proto.late()));
  ASSIGN_OR_RETURN(report.held, ReadSteps("held", proto.held()));
  ASSIGN_OR_RETURN(report.durable, ReadSteps("durable", proto.durable()));
  if (proto.counted_size() != 0 && proto.counted_size() != proto.held_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a report counts for ", proto.counted_size(), " of ", proto.held_size(), " snapshots"));
  }
  for (int i = 0; i < proto.counted_size(); ++i) {
    // Counts are in the message's order of steps. That of `report.held` is another one.
    if (proto.counted(i) >= 0) report.counted[proto.held(i)] = proto.counted(i);
  }
  return report;
}

absl::StatusOr<WorkerReport> ReadWorkerReport(const v1::MemberReport::Worker& proto) {
  RETURN_IF_ERROR(CheckNumber("generation", proto.generation(), kStepMax));
  RETURN_IF_ERROR(CheckNumber("step", proto.step(), kStepMax));
  RETURN_IF_ERROR(CheckNumber("leaf_count", proto.leaf_count(), std::numeric_limits<int64_t>::max()));
  RETURN_IF_ERROR(CheckSeconds("seconds_per_leaf", proto.seconds_per_leaf()));
  RETURN_IF_ERROR(CheckSeconds("step_seconds", proto.step_seconds()));
  RETURN_IF_ERROR(CheckSeconds("trial_leaf_seconds", proto.trial_leaf_seconds()));
  RETURN_IF_ERROR(CheckNumber("origin", proto.origin(), ErrorOrigin::kKindCount - 1));
  RETURN_IF_ERROR(CheckNumber("origin_number", proto.origin_number(), kStepMax));
  RETURN_IF_ERROR(CheckNumber("reached", proto.reached(), std::numeric_limits<int64_t>::max()));
  RETURN_IF_ERROR(CheckNumber("unreached", proto.unreached(), std::numeric_limits<int64_t>::max()));
  // kUnauthenticated is the last of absl's codes.
  const auto last_code = static_cast<int64_t>(absl::StatusCode::kUnauthenticated);
  RETURN_IF_ERROR(CheckNumber("failure_code", proto.failure_code(), last_code));
  WorkerReport report{
      .generation = proto.generation(),
      .ready = proto.ready(),
      .trouble = Cut(proto.trouble()),
      .leaves = proto.leaves(),
      .step = proto.step(),
      .leaf_count = proto.leaf_count(),
      .computes = proto.computes(),
      .seconds_per_leaf = Measured(proto.seconds_per_leaf()),
      .step_seconds = Measured(proto.step_seconds()),
      .trial_leaf_seconds = Measured(proto.trial_leaf_seconds()),
      .origin = {.kind = static_cast<ErrorOrigin::Kind>(proto.origin()), .number = proto.origin_number()},
      .reached = proto.reached(),
      .unreached = proto.unreached(),
      .unreached_text = Cut(proto.unreached_text())};
  if (proto.failure_code() != 0) {
    report.failure = absl::Status(static_cast<absl::StatusCode>(proto.failure_code()), Cut(proto.failure_text()));
  }
  return report;
}

}  // namespace starring
