#include "worker/data/prefetcher.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace starring {

Prefetcher::Prefetcher(Options options)
    : options_(std::move(options)),
      taken_end_(options_.first_step),
      begun_end_(options_.first_step),
      released_end_(options_.first_step),
      begin_limit_(options_.end_step),
      slot_step_(static_cast<size_t>(SlotCount(options_.depth)), -1),
      failed_step_(options_.end_step) {}

absl::StatusOr<std::unique_ptr<Prefetcher>> Prefetcher::Create(Options options) {
  CHECK_GE(options.depth, 0);
  CHECK_GE(options.filler_count, 1);
  CHECK_GE(options.first_step, 0);
  CHECK(options.plan != nullptr && options.fill != nullptr);
  std::unique_ptr<Prefetcher> prefetcher(new Prefetcher(std::move(options)));
  if (prefetcher->options_.depth == 0) return prefetcher;
  try {
    prefetcher->first_filler_ = std::thread(&Prefetcher::RunFillers, prefetcher.get());
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("no thread for the loader: ", error.what()));
  }
  return prefetcher;
}

Prefetcher::~Prefetcher() {
  {
    const MutexLock lock(mutex_);
    begin_limit_ = 0;
  }
  released_.NotifyAll();
  if (first_filler_.joinable()) first_filler_.join();
  // Behind the last unlock of every filler: the join says so of the first alone, libgomp's barrier of the others, but
  // not where ThreadSanitizer could see it.
  const MutexLock lock(mutex_);
}

int Prefetcher::SlotOf(int64_t step) const {
  return static_cast<int>((step - options_.first_step) % SlotCount(options_.depth));
}

bool Prefetcher::IsFilled(int64_t step) const { return slot_step_[static_cast<size_t>(SlotOf(step))] == step; }

absl::StatusOr<int> Prefetcher::Next() {
  const int64_t step = taken_end_;
  if (step >= options_.end_step) {
    return absl::OutOfRangeError(absl::StrCat("there is no batch behind step ", options_.end_step - 1));
  }
  if (options_.depth == 0) return FillAndTake();
  const MutexLock lock(mutex_);
  if (released_end_ != step) {
    released_end_ = step;
    released_.NotifyOne();
  }
  if (!filled_.WaitFor(mutex_, absl::ToChronoNanoseconds(options_.deadline),
                       [&]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return IsFilled(step) || failed_step_ <= step; })) {
    return absl::DeadlineExceededError(absl::StrCat("the loader did not fill the batch of step ", step, " within ",
                                                    absl::FormatDuration(options_.deadline),
                                                    ": its threads get no core, or the machine was suspended"));
  }
  if (failed_step_ <= step) return error_;
  ++taken_end_;
  return SlotOf(step);
}

absl::StatusOr<int> Prefetcher::FillAndTake() {
  const MutexLock lock(mutex_);  // never contended: with depth 0 there is no other thread
  RETURN_IF_ERROR(error_);
  options_.plan(0, taken_end_);
  error_ = options_.fill(0, taken_end_);
  RETURN_IF_ERROR(error_);
  ++taken_end_;
  return 0;
}

// Nothing depends on libgomp's own synchronisation, which ThreadSanitizer cannot see: the team is forked once, by
// threads that it sees being created, and all else goes through mutex_. A team may turn out smaller than asked for
// (OMP_THREAD_LIMIT): each member works until there is nothing left.
void Prefetcher::RunFillers() {
  const int fillers = std::min(options_.filler_count, options_.depth);
  if (fillers == 1) return RunFiller();
#pragma omp parallel num_threads(fillers)
  RunFiller();
}

// Waits without a deadline for a slot: how long a step may take is the trainer's affair, and the destructor ends the
// wait.
void Prefetcher::RunFiller() {
  const int slots = SlotCount(options_.depth);
  const MutexLock lock(mutex_);
  while (true) {
    released_.Wait(mutex_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return begun_end_ >= begin_limit_ || begun_end_ - released_end_ < slots;
    });
    if (begun_end_ >= begin_limit_) return;
    const int64_t step = begun_end_++;
    const int slot = SlotOf(step);
    options_.plan(slot, step);
    mutex_.Unlock();
    absl::Status status = options_.fill(slot, step);
    mutex_.Lock();
    if (status.ok()) {
      slot_step_[static_cast<size_t>(slot)] = step;
    } else if (step < failed_step_) {
      failed_step_ = step;
      error_ = std::move(status);
      begin_limit_ = 0;
      released_.NotifyAll();
    }
    filled_.NotifyOne();
  }
}

}  // namespace starring
