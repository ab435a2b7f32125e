// What a person watches while a run goes on: one live line on a terminal, plain lines in a file.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_REPORT_PROGRESS_H_
#define STARRING_WORKER_REPORT_PROGRESS_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace starring {

struct EpochSummary {
  int64_t epoch = 0;  // counted from 0
  double train_loss = 0;
  double test_loss = 0;
  double test_accuracy = 0;  // in [0, 1]
  double seconds = 0;
  double samples_per_second = 0;
};

class Progress {
 public:
  enum class Style { kLive, kPlain, kNone };
  struct Options {
    Style style = Style::kPlain;
    std::FILE* out = nullptr;  // not owned
    int64_t epochs = 0;
    int64_t steps_per_epoch = 0;
    int64_t end_step = 0;
  };
  explicit Progress(const Options& options);

  // After a step; prints at most ten times a second (live) or once in ten seconds (plain).
  struct StepState {
    int64_t step = 0;
    int64_t global_count = 0;  // samples in the global batch
    double loss = 0;           // mean of this rank's samples
    double accuracy = 0;       // likewise
  };
  void Step(const StepState& state, absl::Time now);
  // True if Step would print at `now`: the numbers for it may cost something to get.
  bool WantsStep(absl::Time now) const { return options_.style != Style::kNone && now >= next_print_; }
  void EpochDone(const EpochSummary& summary);
  // Something that lasts, for instance that a rank is slow; empty: it is over. At the end of the live line from now on,
  // or a plain line.
  void Note(absl::string_view text);
  // A line of its own, whatever the style; kNone prints it too: warnings are not progress.
  void Message(absl::string_view text);

 private:
  void ClearLine();

  Options options_;
  absl::Time next_print_ = absl::InfinitePast();
  absl::Time rate_time_ = absl::InfinitePast();
  int64_t rate_step_ = 0;
  double steps_per_second_ = 0;
  bool line_open_ = false;
  std::string note_;  // live
};

}  // namespace starring

#endif  // STARRING_WORKER_REPORT_PROGRESS_H_
