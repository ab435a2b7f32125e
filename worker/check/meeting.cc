#include "worker/check/meeting.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/steady_time.h"

namespace starring {
namespace {

constexpr int kAllPairsMax = 16;
constexpr double kTestSeconds = 0.1;
// A shorter test would measure only the slow start of a connection.
constexpr double kTestSecondsMin = 0.02;
// The rest of kTestsDeadline is for dialling, for passing the turn on, and for the reports.
constexpr double kAllTestsSeconds = 20;

// The pause of a worker that waits for its turn. It grows with the number of workers, because all ask the same board.
constexpr absl::Duration kTurnPauseMin = absl::Milliseconds(2);
constexpr absl::Duration kTurnPauseMax = absl::Milliseconds(50);
constexpr absl::Duration kVerdictPauseMin = absl::Milliseconds(10);
constexpr absl::Duration kVerdictPauseMax = absl::Milliseconds(200);
constexpr int kRanksPerPause = 16;
// Rank 0 stays this long, so that the others can read the verdict before it ends, and the board with it.
constexpr absl::Duration kNoticeDeadline = absl::Seconds(3);

// The pause is proportional to the number of workers, up to `most`, so that a large job asks the board about as often
// as kRanksPerPause workers do.
absl::Duration PauseOf(int world_size, absl::Duration least, absl::Duration most) {
  return std::min(most, least * std::max(1, world_size / kRanksPerPause));
}

}  // namespace

std::vector<int> RingTargets(int rank, int world_size) {
  std::set<int> targets;
  if (world_size <= kAllPairsMax) {
    for (int other = 0; other < world_size; ++other) targets.insert(other);
  } else {
    targets.insert(0);
    // The neighbour before this rank. The one after it is at distance 1, the first power of two.
    targets.insert((rank + world_size - 1) % world_size);
    for (int distance = 1; distance < world_size; distance *= 2) targets.insert((rank + distance) % world_size);
  }
  targets.erase(rank);
  return {targets.begin(), targets.end()};
}

BandwidthPlan PlanBandwidth(int tests_per_rank, int world_size) {
  // The tests run one after the other, so their number times their length must fit into kAllTestsSeconds. First the
  // tests get shorter. When they would be shorter than kTestSecondsMin, only every `stride`th rank tests, and those
  // share the time.
  const double tests = static_cast<double>(tests_per_rank) * world_size;
  if (tests * kTestSeconds <= kAllTestsSeconds) return {.seconds = kTestSeconds, .rank_stride = 1};
  const int stride = std::max(1, static_cast<int>(std::ceil(tests * kTestSecondsMin / kAllTestsSeconds)));
  const int testers = (world_size + stride - 1) / stride;
  return {.seconds = std::clamp(kAllTestsSeconds / (static_cast<double>(tests_per_rank) * testers), kTestSecondsMin,
                                kTestSeconds),
          .rank_stride = stride};
}

Meeting::Meeting(Options options) : options_(std::move(options)) {}

// Both ends are fixed when the check begins. Waits for several silent workers therefore end together and do not add up.
absl::Time Meeting::gather_end() const { return options_.begin + options_.gather_deadline; }
absl::Time Meeting::tests_end() const { return gather_end() + kTestsDeadline; }

absl::Status Meeting::Put(CheckStage stage, const v1::ProcessReport& report) {
  // The text is in Base64, because mpirun's names must not have zero bytes.
  return options_.board->Put(stage, absl::Base64Escape(report.SerializeAsString()));
}

std::optional<std::string> Meeting::AwaitText(int rank, CheckStage stage, absl::Time end, absl::Duration pause) {
  // The board is asked at least once: a note that is there is found even after `end`.
  while (true) {
    const absl::StatusOr<std::optional<std::string>> text = options_.board->Get(rank, stage);
    if (!text.ok()) return std::nullopt;
    if (text->has_value() || SteadyNow() >= end) return *text;
    options_.rest(pause);
  }
}

std::optional<v1::ProcessReport> Meeting::Await(int rank, CheckStage stage, absl::Time end) {
  const std::optional<std::string> text =
      AwaitText(rank, stage, end, PauseOf(options_.world_size, kTurnPauseMin, kTurnPauseMax));
  std::string bytes;
  v1::ProcessReport report;
  if (!text.has_value() || !absl::Base64Unescape(*text, &bytes) || !report.ParseFromString(bytes)) return std::nullopt;
  return report;
}

std::optional<v1::ProcessReport> Meeting::AwaitTurn(int rank_stride, CheckStage stage) {
  // The worker before this one is not waited for if it never came: its card says whether it did.
  const int before = options_.rank - rank_stride;
  if (before < 0 || !Await(before, CheckStage::kCard, gather_end()).has_value()) return std::nullopt;
  return Await(before, stage, tests_end());
}

Meeting::Everything Meeting::GatherReports(const v1::ProcessReport& own) {
  Everything everything;
  everything.reports.push_back(own);
  for (int rank = 1; rank < options_.world_size; ++rank) {
    std::optional<v1::ProcessReport> card = Await(rank, CheckStage::kCard, gather_end());
    if (!card.has_value()) {
      everything.missing.push_back(rank);
      continue;
    }
    // A worker that has ended after its card is still shown with its host, and in a star with its links.
    std::optional<v1::ProcessReport> report = Await(rank, CheckStage::kReport, tests_end());
    everything.reports.push_back(report.has_value() ? *std::move(report) : *std::move(card));
  }
  return everything;
}

void Meeting::GatherMpiReports(Everything& everything) {
  for (v1::ProcessReport& report : everything.reports) {
    // Rank 0 has added its own links to its report.
    if (report.facts().number() == options_.rank) continue;
    const std::optional<v1::ProcessReport> more = Await(report.facts().number(), CheckStage::kMpiReport, tests_end());
    if (!more.has_value()) continue;
    for (const v1::LinkReport& link : more->links()) *report.add_links() = link;
    report.set_mpi_hangs(more->mpi_hangs());
  }
}

// A board has texts and no reports for the stages whose message is one number.
absl::Status Meeting::Decide(bool tries_mpi) { return options_.board->Put(CheckStage::kGo, tries_mpi ? "1" : "0"); }

bool Meeting::AwaitDecision() {
  // If rank 0 is silent the answer is no: a rank that called MPI alone would wait there for the others.
  return AwaitText(0, CheckStage::kGo, tests_end(), PauseOf(options_.world_size, kVerdictPauseMin, kVerdictPauseMax)) ==
         "1";
}

void Meeting::Announce(int exit_code) {
  if (!options_.board->Put(CheckStage::kVerdict, absl::StrCat(exit_code)).ok()) return;
  const absl::Time end = SteadyNow() + kNoticeDeadline;
  const absl::Duration pause = PauseOf(options_.world_size, kTurnPauseMin, kTurnPauseMax);
  for (int rank = 1; rank < options_.world_size; ++rank) {
    // A worker that never came will not read the verdict, and one that has left has taken its notes with it: neither is
    // waited for.
    while (true) {
      const auto card = options_.board->Get(rank, CheckStage::kCard);
      const auto notice = options_.board->Get(rank, CheckStage::kVerdict);
      if (!card.ok() || !card->has_value() || !notice.ok() || notice->has_value() || SteadyNow() >= end) break;
      options_.rest(pause);
    }
  }
}

std::optional<int> Meeting::AwaitVerdict() {
  // This wait is longer than tests_end(), up to which rank 0 itself may be waiting for the last report.
  const std::optional<std::string> text = AwaitText(0, CheckStage::kVerdict, tests_end() + kNoticeDeadline,
                                                    PauseOf(options_.world_size, kVerdictPauseMin, kVerdictPauseMax));
  int exit_code = 0;
  if (!text.has_value() || !absl::SimpleAtoi(*text, &exit_code)) return std::nullopt;
  options_.board->Put(CheckStage::kVerdict, *text).IgnoreError();  // tells rank 0 that it has been read
  return exit_code;
}

}  // namespace starring
