#include "worker/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/steady_time.h"

namespace starring {
namespace {

constexpr absl::Duration kPause = absl::Seconds(1);

absl::Status Explain(const absl::Status& status, const std::string& dir, int64_t step) {
  std::string there = absl::StrCat("there is no complete one in ", dir);
  for (const CheckpointFolder& folder : ListCheckpointFolders(dir)) {
    // Later ones are damaged, and were passed over when this run resumed.
    if (folder.step > step) continue;
    there = absl::StrCat("the last complete one is ", folder.path);
    break;
  }
  return absl::Status(status.code(), absl::StrCat("the checkpoint of step ", step,
                                                  " was not written: ", std::string(status.message()), "; ", there));
}

}  // namespace

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

void CheckpointWriter::Begin(const std::string& dir, const Layout& layout, Checkpoint checkpoint,
                             AfterFailure after_failure) {
  CHECK(write_ == nullptr);
  write_ = std::make_shared<Write>();
  write_->step = checkpoint.step;
  // The thread is detached and has copies of all that it needs, so that a hung disk does not keep the process from
  // ending.
  auto run = [write = write_, save = write_function_, dir, layout, after_failure,
              checkpoint = std::move(checkpoint)]() mutable {
    absl::Status status = save(dir, layout, checkpoint);
    if (!status.ok() && after_failure == AfterFailure::kTryAgain) {
      absl::SleepFor(kPause);
      status = save(dir, layout, checkpoint);
    }
    if (!status.ok()) status = Explain(status, dir, checkpoint.step);
    checkpoint = {};  // frees its memory before the next snapshot may begin
    write->End(status);
  };
  // Where the machine grants no further thread, the checkpoint is lost, and the training goes on.
  try {
    std::thread(std::move(run)).detach();
  } catch (const std::system_error& error) {
    const auto why = absl::ResourceExhaustedError(absl::StrCat("no thread to write it: ", error.code().message()));
    write_->End(Explain(why, dir, write_->step));
  }
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
