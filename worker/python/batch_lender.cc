#include "worker/python/batch_lender.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/data/sampler.h"

namespace starring {
namespace {

// Blocks that the lender keeps for later. One that is given back while so many wait is freed: a borrower has held many
// batches, and lets them go.
constexpr size_t kFreeBlocksMax = 4;

}  // namespace

BatchLender::BatchLender(const Options& options)
    : sets_(options.sets),
      process_(getpid()),
      samples_max_(Sampler(options.loader.sampler).local_batch_max()),
      label_bytes_(options.loader.dataset->target == TargetType::kClass ? static_cast<int64_t>(sizeof(int64_t)) : 0) {}

absl::StatusOr<std::unique_ptr<BatchLender>> BatchLender::Create(const Options& options) {
  CHECK(options.loader.format == Loader::Format::kNormalized);
  std::unique_ptr<BatchLender> lender(new BatchLender(options));
  Loader::Options loader = options.loader;
  loader.memory = lender.get();
  ASSIGN_OR_RETURN(lender->loader_, Loader::Create(loader));
  return lender;
}

bool BatchLender::IsFork() const { return getpid() != process_; }

absl::StatusOr<std::byte*> BatchLender::Allocate(int64_t size_bytes) {
  // All blocks of a loader have one size.
  // The labels of 64 bits share the block, so one pointer gives the whole batch back.
  labels_offset_ = RoundUp(size_bytes, kCacheLineBytes);
  return TakeBlock();
}

absl::StatusOr<std::byte*> BatchLender::TakeBlock() {
  const MutexLock lock(mutex_);
  if (!free_.empty()) {
    std::byte* const data = free_.back();
    free_.pop_back();
    blocks_.at(data).holder = Holder::kLoader;
    return data;
  }
  if (lent_count_ >= kBatchesLentMax) {
    return absl::ResourceExhaustedError(absl::StrCat(lent_count_, " batches are lent, at most ", kBatchesLentMax,
                                                     " can be: copy what is to be kept, and let the batch go"));
  }
  const int64_t bytes = labels_offset_ + samples_max_ * label_bytes_;
  AlignedMemory memory(bytes, AlignedMemory::Content::kUndefined);
  std::byte* const data = memory.data();
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a batch of ", bytes, " bytes while ", lent_count_,
                                                     " batches are lent: copy what is to be kept, or take smaller "
                                                     "batches"));
  }
  blocks_[data] = {.memory = std::move(memory), .holder = Holder::kLoader};
  return data;
}

absl::StatusOr<LentBatch> BatchLender::Next() {
  if (IsFork()) {
    return absl::FailedPreconditionError(absl::StrCat("the loader is of process ", process_, ", this is process ",
                                                      getpid(), ", a fork of it: open a loader in each process"));
  }
  // The block comes first: a batch that the loader has handed out could not be given back for want of one.
  ASSIGN_OR_RETURN(std::byte* const fresh, TakeBlock());
  const absl::StatusOr<const Batch*> next = loader_->Next();
  // The lock is taken after the wait for the loader: other threads give batches back meanwhile.
  const MutexLock lock(mutex_);
  if (!next.ok()) {
    blocks_.at(fresh).holder = Holder::kLender;
    free_.push_back(fresh);
    if (absl::IsOutOfRange(next.status())) return LentBatch{};
    return next.status();
  }
  const Batch& batch = **next;
  std::byte* const memory = const_cast<std::byte*>(batch.memory);  // of blocks_
  blocks_.at(memory).holder = Holder::kBorrower;
  ++lent_count_;
  LentBatch lent{.step = batch.plan.step,
                 .epoch = batch.plan.epoch,
                 .global_count = batch.plan.global_count,
                 .count = std::ssize(batch.plan.samples),
                 .images = {const_cast<float*>(batch.images.data()), batch.images.size()},
                 .labels = {},
                 .targets = {const_cast<float*>(batch.targets.data()), batch.targets.size()},
                 .memory = memory};
  if (label_bytes_ > 0) {
    lent.labels = {reinterpret_cast<int64_t*>(memory + labels_offset_), batch.labels.size()};
    std::copy(batch.labels.begin(), batch.labels.end(), lent.labels.begin());
  }
  // From here on the loader fills `fresh` and leaves the lent block alone.
  loader_->ReplaceMemory(fresh);
  return lent;
}

absl::StatusOr<BatchLender::State> BatchLender::GiveBack(std::byte* memory) {
  // The mutex of a fork may have been locked by a thread that is not there.
  if (IsFork()) return State::kInUse;
  const MutexLock lock(mutex_);
  const auto block = blocks_.find(memory);
  if (block == blocks_.end() || block->second.holder != Holder::kBorrower) {
    return absl::InvalidArgumentError("the memory is not that of a batch that is lent: give each batch back once");
  }
  --lent_count_;
  if (is_closed_ || free_.size() >= kFreeBlocksMax) {
    blocks_.erase(block);
  } else {
    block->second.holder = Holder::kLender;
    free_.push_back(memory);
  }
  return is_closed_ && lent_count_ == 0 ? State::kUnused : State::kInUse;
}

BatchLender::State BatchLender::Close() {
  if (IsFork()) return State::kInUse;
  // The loader's threads end before the blocks that they fill are erased below.
  loader_.reset();
  const MutexLock lock(mutex_);
  is_closed_ = true;
  // Only the blocks that are lent are still needed.
  std::erase_if(blocks_, [](const auto& block) { return block.second.holder != Holder::kBorrower; });
  free_.clear();
  return lent_count_ == 0 ? State::kUnused : State::kInUse;
}

}  // namespace starring
