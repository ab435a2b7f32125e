#include "worker/check/meeting.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"

namespace starring {
namespace {

constexpr int kAllPairsMax = 16;
constexpr double kTestSeconds = 0.1;
// A shorter test would measure only the slow start of a connection.
constexpr double kTestSecondsMin = 0.02;
// The rest of kTestsDeadline is for dialling, for passing the turn on, and for the reports.
constexpr double kAllTestsSeconds = 20;

// How much longer the others wait for rank 0, which may itself wait for the last report.
constexpr absl::Duration kVerdictGrace = absl::Seconds(3);

}  // namespace

std::vector<int> RingTargets(int rank, int world_size) {
  // Rank 0, and the neighbour before this rank. The one after it is at distance 1.
  std::set<int> targets = {0, (rank + world_size - 1) % world_size};
  for (int distance = 1; distance < world_size; distance += world_size <= kAllPairsMax ? 1 : distance) {
    targets.insert((rank + distance) % world_size);
  }
  targets.erase(rank);
  return {targets.begin(), targets.end()};
}

BandwidthPlan PlanBandwidth(int tests_per_rank, int world_size) {
  // The tests run one after the other, so their number times their length must fit into kAllTestsSeconds. First the
  // tests get shorter. When they would be shorter than kTestSecondsMin, only every `stride`th rank tests, and those
  // share the time.
  const double tests = static_cast<double>(tests_per_rank) * world_size;
  const int stride = std::max(1, static_cast<int>(std::ceil(tests * kTestSecondsMin / kAllTestsSeconds)));
  const int testers = (world_size + stride - 1) / stride;
  return {.seconds = std::clamp(kAllTestsSeconds / (static_cast<double>(tests_per_rank) * testers), kTestSecondsMin,
                                kTestSeconds),
          .rank_stride = stride};
}

absl::StatusOr<Reports> PumpMeeting::Gather(const v1::ProcessReport& own) {
  ASSIGN_OR_RETURN(Reports reports, GatherReports(pump_, own));
  for (int rank = pump_.worker_count(); rank < std::ssize(reports); ++rank) {
    *reports[0].add_servers() = reports[rank].facts();
  }
  if (pump_.rank() == 0) reports.resize(pump_.worker_count());
  return reports;
}

absl::Status AloneError(int rank) {
  // Rank 0 decides and waits for no decision: it is alone only if its own notes do not reach the board.
  return absl::UnavailableError(
      rank == 0
          ? "w0 cannot leave notes for the other workers, and these are its own findings: see whether the servers, "
            "or mpirun on all hosts, still run, and check again"
          : absl::StrCat("rank 0 did not answer to w", rank,
                         ", whose own findings these are: see what rank 0 "
                         "says, and whether both reach a common server"));
}

absl::Status BoardMeeting::Put(int stage, const std::string& text) {
  return options_.board->Put(stage, text).ok() ? absl::OkStatus() : AloneError(options_.rank);
}

std::optional<std::string> BoardMeeting::AwaitText(int rank, int stage, absl::Time end) {
  // It grows with the number of workers, so that a large job does not ask the board more often than a small one.
  const absl::Duration pause = absl::Milliseconds(std::clamp(options_.world_size / 8, 2, 50));
  // Each server of the board is asked once more after `end`: a note that is there is found.
  for (int last_looks = NoteBoard::kBoardsMax;;) {
    const absl::StatusOr<std::optional<std::string>> text = options_.board->Get(rank, stage);
    if (!text.ok()) return std::nullopt;
    if (text->has_value()) return *text;
    if (SteadyNow() < end) {
      absl::SleepFor(pause);
    } else if (--last_looks == 0) {
      return std::nullopt;
    }
  }
}

std::optional<v1::ProcessReport> BoardMeeting::Await(int rank, int stage, absl::Time end) {
  const std::optional<std::string> text = AwaitText(rank, stage, end);
  v1::ProcessReport report;
  if (!text.has_value() || !report.ParseFromString(*text)) return std::nullopt;
  return report;
}

void BoardMeeting::AwaitTurn(int rank_stride) {
  // The worker before this one is not waited for if it never came: its card says whether it did.
  const int before = options_.rank - rank_stride;
  if (before >= 0 && AwaitCard(before).has_value()) (void)Await(before, stage_ + 1, tests_end());
}

// The ends of all waits are fixed when the check begins. So those for several silent workers end together and do not
// add up.
absl::StatusOr<Reports> BoardMeeting::Gather(const v1::ProcessReport& own) {
  RETURN_IF_ERROR(Put(++stage_, own.SerializeAsString()));
  if (options_.rank != 0) return Reports();
  reports_[0] = own;
  for (int rank = 1; rank < options_.world_size; ++rank) {
    std::optional<v1::ProcessReport> card = AwaitCard(rank);
    if (!card.has_value()) continue;
    // A worker that has ended after its card is still shown with its host, and in a star with its links.
    std::optional<v1::ProcessReport> report = Await(rank, stage_, tests_end());
    if (report.has_value()) {
      reports_[rank] = *std::move(report);
    } else {
      reports_.try_emplace(rank, *std::move(card));
    }
  }
  Reports reports;
  for (const auto& [rank, report] : reports_) reports.push_back(report);
  return reports;
}

absl::Status BoardMeeting::Tell(int& exit_code) {
  ++stage_;
  if (options_.rank == 0) return Put(stage_, absl::StrCat(exit_code));
  const std::optional<std::string> text = AwaitText(0, stage_, tests_end() + kVerdictGrace);
  if (text.has_value() && absl::SimpleAtoi(*text, &exit_code)) return absl::OkStatus();
  return AloneError(options_.rank);
}

}  // namespace starring
