#include "worker/check/meeting.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace starring {
namespace {

// Of those that wait for a turn; grows with their number, since all ask one board.
constexpr absl::Duration kTurnPauseMin = absl::Milliseconds(2);
constexpr absl::Duration kTurnPauseMax = absl::Milliseconds(50);
constexpr absl::Duration kVerdictPauseMin = absl::Milliseconds(10);
constexpr absl::Duration kVerdictPauseMax = absl::Milliseconds(200);
constexpr int kRanksPerPause = 16;
// For others to read the verdict before the board is gone.
constexpr absl::Duration kNoticeDeadline = absl::Seconds(3);

absl::Duration PauseOf(int world_size, absl::Duration least, absl::Duration most) {
  return std::min(most, least * std::max(1, world_size / kRanksPerPause));
}

}  // namespace

Meeting::Meeting(Options options) : options_(std::move(options)) {}

absl::Time Meeting::gather_end() const { return options_.begin + options_.gather_deadline; }
absl::Time Meeting::tests_end() const { return gather_end() + kTestsDeadline; }

absl::Status Meeting::Put(CheckStage stage, const v1::ProcessReport& report) {
  return options_.board->Put(stage, absl::Base64Escape(report.SerializeAsString()));
}

std::optional<std::string> Meeting::AwaitText(int rank, CheckStage stage, absl::Time end, absl::Duration pause) {
  while (true) {
    const absl::StatusOr<std::optional<std::string>> text = options_.board->Get(rank, stage);
    if (!text.ok()) return std::nullopt;
    if (text->has_value() || absl::Now() >= end) return *text;
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
    std::optional<v1::ProcessReport> report = Await(rank, CheckStage::kReport, tests_end());
    everything.reports.push_back(report.has_value() ? *std::move(report) : *std::move(card));
  }
  return everything;
}

void Meeting::GatherMpiReports(Everything& everything) {
  for (v1::ProcessReport& report : everything.reports) {
    if (report.facts().number() == options_.rank) continue;
    const std::optional<v1::ProcessReport> more = Await(report.facts().number(), CheckStage::kMpiReport, tests_end());
    if (!more.has_value()) continue;
    for (const v1::LinkReport& link : more->links()) *report.add_links() = link;
    report.set_mpi_hangs(more->mpi_hangs());
  }
}

absl::Status Meeting::Decide(bool tries_mpi) { return options_.board->Put(CheckStage::kGo, tries_mpi ? "1" : "0"); }

bool Meeting::AwaitDecision() {
  return AwaitText(0, CheckStage::kGo, tests_end(), PauseOf(options_.world_size, kVerdictPauseMin, kVerdictPauseMax)) ==
         "1";
}

void Meeting::Announce(int exit_code) {
  if (!options_.board->Put(CheckStage::kVerdict, absl::StrCat(exit_code)).ok()) return;
  const absl::Time end = absl::Now() + kNoticeDeadline;
  const absl::Duration pause = PauseOf(options_.world_size, kTurnPauseMin, kTurnPauseMax);
  for (int rank = 1; rank < options_.world_size; ++rank) {
    // A worker that never came takes no notice, and one that has gone took its notes along.
    while (true) {
      const auto card = options_.board->Get(rank, CheckStage::kCard);
      const auto notice = options_.board->Get(rank, CheckStage::kVerdict);
      if (!card.ok() || !card->has_value() || !notice.ok() || notice->has_value() || absl::Now() >= end) break;
      options_.rest(pause);
    }
  }
}

std::optional<int> Meeting::AwaitVerdict() {
  const std::optional<std::string> text = AwaitText(0, CheckStage::kVerdict, tests_end() + kNoticeDeadline,
                                                    PauseOf(options_.world_size, kVerdictPauseMin, kVerdictPauseMax));
  int exit_code = 0;
  if (!text.has_value() || !absl::SimpleAtoi(*text, &exit_code)) return std::nullopt;
  options_.board->Put(CheckStage::kVerdict, *text).IgnoreError();  // that it has taken notice
  return exit_code;
}

}  // namespace starring
