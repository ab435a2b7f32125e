#include "worker/data/prefetcher.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace starring {

Prefetcher::Prefetcher(Options options)
    : options_(std::move(options)),
      taken_end_(options_.first_step),
      begun_end_(options_.first_step),
      released_end_(options_.first_step),
      end_(options_.end_step),
      slot_step_(static_cast<size_t>(SlotCount(options_.depth)), -1) {}

absl::StatusOr<std::unique_ptr<Prefetcher>> Prefetcher::Create(Options options) {
  CHECK_GE(options.depth, 0);
  CHECK_GE(options.filler_count, 1);
  CHECK_GE(options.first_step, 0);
  CHECK(options.plan != nullptr && options.fill != nullptr);
  std::unique_ptr<Prefetcher> prefetcher(new Prefetcher(std::move(options)));
  const int fillers = std::min(prefetcher->options_.filler_count, prefetcher->options_.depth);
  try {
    for (int i = 0; i < fillers; ++i) {
      prefetcher->fillers_.emplace_back(&Prefetcher::RunFiller, prefetcher.get());
    }
  } catch (const std::system_error& error) {
    // The destructor ends the threads that have begun.
    return absl::ResourceExhaustedError(absl::StrCat("no thread for the loader: ", error.what()));
  }
  return prefetcher;
}

Prefetcher::~Prefetcher() {
  {
    const MutexLock lock(mutex_);
    // A filler that waits finds nothing left to begin; one that fills completes its batch first.
    end_ = 0;
  }
  released_.NotifyAll();
  for (std::thread& filler : fillers_) filler.join();
}

int Prefetcher::SlotOf(int64_t step) const {
  return static_cast<int>((step - options_.first_step) % SlotCount(options_.depth));
}

bool Prefetcher::IsFilled(int64_t step) const { return slot_step_[static_cast<size_t>(SlotOf(step))] == step; }

absl::StatusOr<int> Prefetcher::Next() {
  const int64_t step = taken_end_;
  if (step >= options_.end_step) {
    return absl::OutOfRangeError(absl::StrCat("there is no batch after step ", options_.end_step / options_.parts - 1));
  }
  if (options_.depth == 0) {
    options_.plan(0, step);
    options_.fill(0, step);
    ++taken_end_;
    return 0;
  }
  const MutexLock lock(mutex_);
  // A call that follows a missed deadline has given the slot back already.
  if (released_end_ != step) {
    released_end_ = step;
    // One slot has become free, so one filler has work.
    released_.NotifyOne();
  }
  if (!filled_.WaitFor(mutex_, absl::ToChronoNanoseconds(options_.deadline),
                       [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return IsFilled(step); })) {
    return absl::DeadlineExceededError(absl::StrCat("the loader did not fill the batch of step ", step / options_.parts,
                                                    " within ", absl::FormatDuration(options_.deadline),
                                                    ": its threads get no core, or the machine was suspended"));
  }
  ++taken_end_;
  return SlotOf(step);
}

// Waits for a slot without a deadline: how long a step takes is up to the trainer, and the destructor ends the wait.
void Prefetcher::RunFiller() {
  const int slots = SlotCount(options_.depth);
  const MutexLock lock(mutex_);
  while (true) {
    released_.Wait(mutex_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return begun_end_ >= end_ || begun_end_ - released_end_ < slots;
    });
    if (begun_end_ >= end_) return;
    const int64_t step = begun_end_++;
    const int slot = SlotOf(step);
    // `plan` is called under the lock, which gives its calls their order.
    options_.plan(slot, step);
    // Filling takes most of the time, and fillers do it at the same time. No other filler has this step or slot.
    mutex_.Unlock();
    options_.fill(slot, step);
    mutex_.Lock();
    // A flag would not do: until it is filled again, a slot has the batch of an earlier step.
    slot_step_[static_cast<size_t>(slot)] = step;
    filled_.NotifyOne();
  }
}

}  // namespace starring
