#include "worker/train/straggler_watch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"

namespace starring {
namespace {

constexpr double kSlowerBy = 1.2;
constexpr std::array<const char*, StragglerWatch::kShared> kPhases = {"reading data", "forward", "backward"};

// The middle value, or the upper of two middle values. Costs O(n) and takes a copy, which nth_element reorders.
template <typename T>
double Median(std::vector<T> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return static_cast<double>(*middle);
}

}  // namespace

void StragglerWatch::AddStep(const std::array<double, kStepPartCount>& part_seconds) {
  const auto part = [&](StepPart p) { return part_seconds[static_cast<int>(p)]; };
  // The exchange is left out: there the fast ranks wait for the slow one, so that whole steps take equally long
  // everywhere.
  const std::array<double, kShared> seconds = {part(StepPart::kDataWait) + part(StepPart::kHostToDevice),
                                               part(StepPart::kForward), part(StepPart::kBackward)};
  // Thousands of steps may pass between two votes. Once the window is full, a step replaces the oldest, so that the
  // list does not grow.
  const bool is_full = seconds_[0].size() == kWindowSteps;
  for (int i = 0; i < kShared; ++i) {
    const auto value = static_cast<float>(seconds[i]);
    if (is_full) {
      seconds_[i][next_] = value;
    } else {
      seconds_[i].push_back(value);
    }
  }
  if (is_full) next_ = (next_ + 1) % kWindowSteps;
}

void StragglerWatch::Share(std::span<double> out) {
  CHECK_EQ(out.size(), kShared);
  for (int i = 0; i < kShared; ++i) {
    out[i] = Median(seconds_[i]);
    // The next vote shares the medians of the steps from here on. The capacity stays.
    seconds_[i].clear();
  }
  next_ = 0;
}

void StragglerWatch::Take(int64_t steps, std::span<const double> all) {
  CHECK_EQ(all.size(), world_size_ * kShared);
  intervals_.push_back({.steps = steps, .slowest = SlowestOf(all)});
  steps_ += steps;
  // Intervals differ in length. The oldest is dropped when the others still cover the window.
  while (steps_ - intervals_.front().steps >= kWindowSteps) {
    steps_ -= intervals_.front().steps;
    intervals_.pop_front();
  }
}

std::optional<Straggler> StragglerWatch::SlowestOf(std::span<const double> all) const {
  if (world_size_ < 2) return std::nullopt;
  const auto of = [&](int rank) { return all.subspan(rank * kShared, kShared); };
  std::vector<double> totals;
  for (int rank = 0; rank < world_size_; ++rank) totals.push_back(of(rank)[0] + of(rank)[1] + of(rank)[2]);
  const int slowest = static_cast<int>(std::max_element(totals.begin(), totals.end()) - totals.begin());
  const double longest = totals[slowest];
  // The rank is compared with the others only: with two ranks, the median of both would be the slowest itself.
  totals.erase(totals.begin() + slowest);
  const double usual = Median(totals);
  // A rank that has taken no step since the last vote shares zeros.
  if (!(usual > 0) || longest <= kSlowerBy * usual) return std::nullopt;
  Straggler straggler{.rank = slowest, .phase = "", .percent = 100 * (longest / usual - 1)};
  double most = -1;
  for (int i = 0; i < kShared; ++i) {
    // The phase that is named loses the most seconds and not by the largest ratio: a phase that takes three times as
    // long may still be a small part of the step.
    std::vector<double> others;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank != slowest) others.push_back(of(rank)[i]);
    }
    const double lost = of(slowest)[i] - Median(others);
    if (lost <= most) continue;
    most = lost;
    straggler.phase = kPhases[i];
  }
  return straggler;
}

std::optional<Straggler> StragglerWatch::Find() const {
  if (steps_ < kWindowSteps) return std::nullopt;
  std::map<int, int64_t> steps_of;  // by rank: where it was the slowest
  for (const Interval& interval : intervals_) {
    if (interval.slowest.has_value()) steps_of[interval.slowest->rank] += interval.steps;
  }
  for (const auto& [rank, steps] : steps_of) {
    // A straggler has more than half of the steps, so at most one rank passes, in any order of this loop.
    if (2 * steps <= steps_) continue;
    // Phase and slowness as they were found last.
    for (auto interval = intervals_.rbegin(); interval != intervals_.rend(); ++interval) {
      if (interval->slowest.has_value() && interval->slowest->rank == rank) return interval->slowest;
    }
  }
  return std::nullopt;
}

void RecordStraggler(const Straggler& straggler, int64_t step, std::vector<StragglerRecord>* records) {
  const bool is_known = !records->empty() && records->back().straggler.rank == straggler.rank;
  // When the list is full, the last entry may still be extended.
  if (!is_known && std::ssize(*records) >= kStragglersRecordedMax) return;
  if (!is_known) records->push_back({.straggler = {}, .first_step = step, .last_step = step});
  records->back().straggler = straggler;
  records->back().last_step = step;
}

std::string DescribeStraggler(const Straggler& straggler) {
  return absl::StrCat("rank ", straggler.rank, " is slow: its steps take ",
                      static_cast<int64_t>(std::round(straggler.percent)), " % longer than the others', most of it in ",
                      straggler.phase);
}

}  // namespace starring
