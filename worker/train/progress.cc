#include "worker/train/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace starring {
namespace {

constexpr absl::Duration kLiveInterval = absl::Milliseconds(100);
constexpr absl::Duration kPlainInterval = absl::Seconds(10);
constexpr int kBarCells = 20;
constexpr double kRateSmoothing = 0.3;  // weight of the newest interval

std::string Bar(double fraction) {
  const int full = std::clamp(static_cast<int>(fraction * kBarCells), 0, kBarCells);
  std::string bar(full, '=');
  if (full < kBarCells) bar += '>';
  bar.resize(kBarCells, ' ');
  return bar;
}

std::string Remaining(double seconds) {
  // At most 99:59:59, the widest text that the line has room for.
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 359999.0));
  if (whole >= 3600) return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

// The width keeps the live line from jumping.
std::string Score(LossKind loss, double accuracy, double mean_loss, int width = 5) {
  if (loss == LossKind::kMse) return absl::StrFormat("RMSE %.4g", std::sqrt(mean_loss));
  return absl::StrFormat("accuracy %*.2f%%", width, 100 * accuracy);
}

}  // namespace

Progress::Progress(const Options& options) : options_(options) {}

void Progress::Step(const FinishedStep& step, absl::Time now) {
  // Called after every step, so the usual case must cost nothing: no text is made for a line that is not printed.
  if (options_.style == Style::kNone || now < next_print_) return;
  const bool live = options_.style == Style::kLive;
  next_print_ = now + (live ? kLiveInterval : kPlainInterval);
  // The first call only starts the clock, because its step includes the warm-up.
  if (rate_time_ == absl::InfinitePast()) {
    rate_time_ = now;
    rate_step_ = step.step;
    return;
  }
  // The rate is smoothed, because single steps vary and an ETA that jumps cannot be read.
  const double seconds = absl::ToDoubleSeconds(now - rate_time_);
  if (seconds > 0) {
    const double rate = static_cast<double>(step.step - rate_step_) / seconds;
    steps_per_second_ =
        steps_per_second_ == 0 ? rate : (1 - kRateSmoothing) * steps_per_second_ + kRateSmoothing * rate;
  }
  rate_time_ = now;
  rate_step_ = step.step;
  // The bar counts from the start of the epoch and not of the process: after a resume it may begin half full.
  const double in_epoch = static_cast<double>(step.step % options_.steps_per_epoch + 1);
  const double fraction = in_epoch / static_cast<double>(options_.steps_per_epoch);
  const double left =
      steps_per_second_ > 0 ? static_cast<double>(options_.end_step - step.step - 1) / steps_per_second_ : 0;
  const std::string line =
      absl::StrFormat("epoch %d/%d [%s] %3.0f%%  loss %.4f  %s  %.0f samples/s  ETA %s",
                      step.step / options_.steps_per_epoch + 1, options_.epochs, Bar(fraction), 100 * fraction,
                      step.mean_loss(), Score(options_.loss, step.accuracy(), step.mean_loss()),
                      steps_per_second_ * static_cast<double>(step.global_count), Remaining(left));
  if (live) {
    // The last code erases the rest of the terminal's line, where the end of a longer line would stay.
    absl::FPrintF(options_.out, "\r%s%s%s\x1b[K", line, note_.empty() ? "" : "  ", note_);
    line_open_ = true;
  } else {
    absl::FPrintF(options_.out, "%s\n", line);
  }
  std::fflush(options_.out);
}

void Progress::EpochDone(const EpochSummary& summary) {
  rate_time_ = absl::InfinitePast();  // the time of the evaluation must not lower the rate
  if (options_.style == Style::kNone) return;
  EndLine();
  absl::FPrintF(options_.out, "epoch %d/%d  loss %.4f  test %s  %.2f s  %.0f samples/s\n", summary.epoch + 1,
                options_.epochs, summary.train_loss,
                Score(options_.loss, summary.test_accuracy, summary.test_loss, /*width=*/0), summary.seconds,
                summary.samples_per_second);
  std::fflush(options_.out);
}

void Progress::QualityDone(const Quality& quality) {
  if (options_.style == Style::kNone) return;
  EndLine();
  absl::FPrintF(options_.out, "test set: %s\n", ToString(quality));
  std::fflush(options_.out);
}

// The live line has room for the note and shows it from now on. In a file, each note is a line.
void Progress::Note(absl::string_view text) {
  if (options_.style == Style::kLive) note_ = std::string(text);
  if (options_.style == Style::kPlain && !text.empty()) Message(text);
}

void Progress::Message(absl::string_view text) {
  EndLine();
  absl::FPrintF(options_.out, "%s\n", text);
  std::fflush(options_.out);
}

// A message must not begin in the middle of the live line, which is open until it is written again.
void Progress::EndLine() {
  if (!line_open_) return;
  absl::FPrintF(options_.out, "\r\x1b[K");
  std::fflush(options_.out);
  line_open_ = false;
}

}  // namespace starring
