// Lends a loader's batches: a batch stays as it is until its borrower gives it back, however many others are lent
// meanwhile. worker/data/loader.h alone keeps a batch only until the next one is asked for.
//
// The loader fills blocks of memory of this object. With each batch its block goes to the borrower, and the loader gets
// a block that was given back, or a new one while too many are lent. So no image and no target is copied, and in a loop
// that lets each batch go after its step the loader's prefetch_depth + 1 blocks and two more take turns.
//
// Thread safety: one thread at a time calls Next. Any thread may give back, at the same time.
#ifndef STARRING_WORKER_PYTHON_BATCH_LENDER_H_
#define STARRING_WORKER_PYTHON_BATCH_LENDER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/memory.h"
#include "common/base/mutex.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"

namespace starring {

struct LentBatch {
  int64_t step = 0;
  int64_t epoch = 0;
  int64_t global_count = 0;     // samples of all ranks in this step
  int64_t count = 0;            // samples of this rank; may be 0
  std::span<float> images;      // (count, height, width, channels), normalised, 64-byte aligned
  std::span<int64_t> labels;    // TargetType::kClass: (count), 64 bits, as PyTorch's losses want them
  std::span<float> targets;     // the others: (count, Dataset::target_values), where the loader has written them
  std::byte* memory = nullptr;  // for GiveBack; null: there is no batch left
};

class BatchLender final : private BatchMemory {
 public:
  struct Options {
    std::shared_ptr<const TrainAndTest> sets;  // shared by lenders and their user, who may end in any order
    Loader::Options loader;                    // of a set of `sets`; Format::kNormalized; `memory` is set here
  };
  // InvalidArgument and ResourceExhausted as Loader::Create.
  static absl::StatusOr<std::unique_ptr<BatchLender>> Create(const Options& options);

  // REQUIRES: closed, with no batch lent.
  ~BatchLender() override = default;

  // The batch of the next step. DeadlineExceeded as Loader::Next, after which it may be called again. ResourceExhausted
  // if limits.h kBatchesLentMax batches are lent, or there is no memory. FailedPrecondition in a fork of the process
  // that made this object: its threads are not there.
  absl::StatusOr<LentBatch> Next();

  enum class State { kInUse, kUnused };
  // Gives back what LentBatch::memory was. kUnused: the lender is closed, and this was the last batch; exactly one call
  // of GiveBack or Close returns that. InvalidArgument if `memory` is not lent. Has no effect in a fork.
  absl::StatusOr<State> GiveBack(std::byte* memory);

  // Ends the threads. Batches that are lent stay as they are. In a fork it only returns kInUse.
  // REQUIRES: called once; Next is not called again.
  State Close();

 private:
  enum class Holder { kLender, kLoader, kBorrower };
  struct Block {
    AlignedMemory memory;
    Holder holder = Holder::kLender;
  };

  explicit BatchLender(const Options& options);
  // Called by the loader, for a block for one of its slots.
  absl::StatusOr<std::byte*> Allocate(int64_t size_bytes) override;
  // A free block, or a new one; the loader holds it from then on.
  absl::StatusOr<std::byte*> TakeBlock();
  bool IsFork() const;

  const std::shared_ptr<const TrainAndTest> sets_;
  const pid_t process_;
  const int64_t samples_max_;  // in a batch
  const int64_t label_bytes_;  // of a sample in labels of 64 bits; 0 without classes
  int64_t labels_offset_ = 0;  // of these labels in a block, after the batch as the loader lays it out

  Mutex mutex_;
  std::map<std::byte*, Block> blocks_ ABSL_GUARDED_BY(mutex_);  // by where they begin
  std::vector<std::byte*> free_ ABSL_GUARDED_BY(mutex_);        // those that the lender holds
  int64_t lent_count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;

  std::unique_ptr<Loader> loader_;  // last, so that its threads end before the memory that they fill
};

}  // namespace starring

#endif  // STARRING_WORKER_PYTHON_BATCH_LENDER_H_
