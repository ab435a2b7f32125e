#include "worker/data/prefetcher.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace starring {

Prefetcher::Prefetcher(Options options)
    : options_(std::move(options)),
      taken_end_(options_.first_step),
      filled_end_(options_.first_step),
      released_end_(options_.first_step) {}

absl::StatusOr<std::unique_ptr<Prefetcher>> Prefetcher::Create(Options options) {
  CHECK_GE(options.depth, 0);
  CHECK(options.fill != nullptr);
  std::unique_ptr<Prefetcher> prefetcher(new Prefetcher(std::move(options)));
  if (prefetcher->options_.depth == 0) return prefetcher;
  try {
    prefetcher->producer_ = std::thread(&Prefetcher::Produce, prefetcher.get());
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("no thread for the loader: ", error.what()));
  }
  return prefetcher;
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  released_.notify_one();
  if (producer_.joinable()) producer_.join();
}

int Prefetcher::SlotOf(int64_t step) const {
  return static_cast<int>((step - options_.first_step) % SlotCount(options_.depth));
}

absl::StatusOr<int> Prefetcher::Next() {
  if (taken_end_ >= options_.end_step) {
    return absl::OutOfRangeError(absl::StrCat("there is no batch behind step ", options_.end_step - 1));
  }
  if (options_.depth == 0) return FillAndTake();
  const int64_t step = taken_end_;
  std::unique_lock lock(mutex_);
  if (released_end_ != step) {
    released_end_ = step;
    released_.notify_one();
  }
  if (!ready_.wait_for(lock, absl::ToChronoNanoseconds(options_.deadline),
                       [&] { return filled_end_ > step || !error_.ok(); })) {
    return absl::DeadlineExceededError(absl::StrCat("the loader did not fill the batch of step ", step, " within ",
                                                    absl::FormatDuration(options_.deadline),
                                                    ": give it more --loader_threads, or a free core"));
  }
  if (filled_end_ <= step) return error_;
  ++taken_end_;
  return SlotOf(step);
}

absl::StatusOr<int> Prefetcher::FillAndTake() {
  if (error_.ok()) error_ = options_.fill(0, taken_end_);
  RETURN_IF_ERROR(error_);
  ++taken_end_;
  return 0;
}

// Waits without a deadline for the consumer: how long a step may take is the trainer's affair, and the destructor ends
// the wait.
void Prefetcher::Produce() {
  const int slots = SlotCount(options_.depth);
  for (int64_t step = options_.first_step; step < options_.end_step; ++step) {
    {
      std::unique_lock lock(mutex_);
      released_.wait(lock, [&] { return stop_ || step - released_end_ < slots; });
      if (stop_) return;
    }
    absl::Status status = options_.fill(SlotOf(step), step);
    {
      const std::lock_guard lock(mutex_);
      if (status.ok()) {
        filled_end_ = step + 1;
      } else {
        error_ = std::move(status);
      }
    }
    ready_.notify_one();
    // Only this thread writes error_.
    if (filled_end_ != step + 1) return;
  }
}

}  // namespace starring
