#include "worker/checkpoint_writer.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/mutex.h"
#include "common/steady_time.h"

namespace starring {

// One write. The trainer's thread and the writing thread share it, and the one that ends last frees it.
struct CheckpointWriter::Write {
  int64_t step = 0;
  const absl::Time begin = SteadyNow();

  // True if it has ended.
  bool WaitFor(absl::Duration patience) {
    const MutexLock lock(mutex_);
    return ended_.WaitFor(mutex_, absl::ToChronoNanoseconds(patience),
                          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return status_.has_value(); });
  }
  absl::Status status() {
    const MutexLock lock(mutex_);
    return *status_;
  }
  void End(const absl::Status& status) {
    {
      const MutexLock lock(mutex_);
      status_ = status;
    }
    // The lock has been released, so that the waiter does not wake up only to wait for it. The writing thread owns a
    // share of this object, so it still exists here.
    ended_.NotifyAll();
  }

 private:
  Mutex mutex_;
  ConditionVariable ended_;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

CheckpointWriter::CheckpointWriter(absl::Duration deadline, WriteFunction write)
    : deadline_(deadline), write_function_(std::move(write)) {}

CheckpointWriter::~CheckpointWriter() {
  if (write_ != nullptr) WaitFor(std::max(absl::ZeroDuration(), deadline_ - age()));
}

void CheckpointWriter::Begin(const std::string& dir, const Layout& layout, Checkpoint checkpoint) {
  CHECK(write_ == nullptr);
  write_ = std::make_shared<Write>();
  write_->step = checkpoint.step;
  // The thread is detached and has copies of all that it needs, so that a hung disk does not keep the process from
  // ending.
  std::thread([write = write_, save = write_function_, dir, layout, checkpoint = std::move(checkpoint)]() mutable {
    const absl::Status status = save(dir, layout, checkpoint);
    checkpoint = {};  // frees its memory before the next snapshot may begin
    write->End(status);
  }).detach();
}

bool CheckpointWriter::WaitFor(absl::Duration patience) { return write_ == nullptr || write_->WaitFor(patience); }

std::optional<absl::Status> CheckpointWriter::TakeResult() {
  if (write_ == nullptr || !write_->WaitFor(absl::ZeroDuration())) return std::nullopt;
  return std::exchange(write_, nullptr)->status();
}

int64_t CheckpointWriter::step() const { return write_->step; }

absl::Duration CheckpointWriter::age() const {
  return absl::Trunc(SteadyNow() - write_->begin, absl::Milliseconds(100));
}

}  // namespace starring
